"""The loop of a worker, pass by pass; `processes/test_worker.py` has real ones."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from django.db import OperationalError, connection
from django.test.utils import CaptureQueriesContext

from django_singlejob import Lease, singleton_job
from django_singlejob.exceptions import DatabaseUnreachable, DatabaseUnusable
from django_singlejob.jobs.names import WORKER_LOCK
from django_singlejob.locking import clear, liveness
from django_singlejob.models.jobs import gates
from django_singlejob.models.locks import locks
from django_singlejob.models.one_offs import one_offs
from django_singlejob.models.passes import passes as marked
from django_singlejob.models.runs import JobRunQuerySet, runs
from django_singlejob.process.clock import DBNow
from django_singlejob.process.received_signals import deferred_signals
from django_singlejob.running import runner
from django_singlejob.running.enqueue import Order
from django_singlejob.worker import due, due_run, lock as worker_lock, loop, pruning, tick
from django_singlejob.worker.due import anything_due
from django_singlejob.worker.loop import Worker
from django_singlejob.worker.tick import Plan
from tests.contract.acts import (
    HOUR,
    MINUTE,
    SECOND,
    everything,
    expire,
    fall_behind,
    hourly,
    is_free,
    last_run,
    lock,
    scheduled,
    take,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_django import Settings

pytest_plugins = "tests.fixtures"
pytestmark = [pytest.mark.usefixtures("fresh_process"), pytest.mark.django_db]

DAY = timedelta(days=1)
PLAN = Plan(interval=timedelta(seconds=0.01))


class Days:
    """A clock that ticks only when nothing is left to do. Then the next act happens. After the last one, the worker
    exits."""

    def __init__(self) -> None:
        self.acts: list[Callable[[], Any]] = []
        self.now = 0.0
        self.is_over = False

    def pool(self) -> due_run.Inline:
        self.is_over = False
        return due_run.Inline()

    def pass_by(self, seconds: float) -> None:
        self.now += seconds
        if self.acts:
            self.acts.pop(0)()
        else:
            self.is_over = True


@pytest.fixture
def days(monkeypatch: pytest.MonkeyPatch) -> Days:
    days = Days()
    monkeypatch.setattr(due_run, "sleep", days.pass_by)
    monkeypatch.setattr(loop, "Inline", days.pool)
    monkeypatch.setattr(loop, "local_now", lambda: days.now)
    monkeypatch.setattr(loop, "is_shutdown_requested", lambda: days.is_over)
    return days


@pytest.fixture
def passes(days: Days) -> list[Callable[[], Any]]:
    """What happens while there is nothing to do, one act after the other. After the last one, the worker exits."""
    return days.acts


def ran() -> list[str]:
    """Work until nothing happens any more. Returns the names of the jobs that ran."""
    return [report.name for report in Worker(PLAN).work() if not (report.reason or report.error)]


def test_it_runs_what_becomes_due_until_a_signal(passes: list[Any]) -> None:
    job: Any = singleton_job("mail")(lambda: None)
    night = scheduled()
    passes += [job.enqueue, lambda: fall_behind(night), job.enqueue, job.enqueue]
    assert ran() == ["mail", "nightly", "mail", "mail"]


@pytest.mark.parametrize("plan", [Plan(once=True), Plan(drain=True), PLAN], ids=["once", "drain", "endless"])
def test_where_nothing_is_enabled_it_only_says_so(days: Days, settings: Settings, plan: Plan) -> None:
    settings.SINGLEJOB = {"ENABLED": False}
    fall_behind(scheduled())
    singleton_job("mail")(lambda: None).enqueue()
    days.acts = [lambda: None] * 3
    before = everything()
    assert list(Worker(plan).work()) == []
    assert everything() == before
    assert marked().get().trouble
    assert days.is_over is plan.is_endless


def test_idle_it_asks_one_question_at_a_time(passes: list[Any]) -> None:
    counts: list[int] = []

    def count() -> None:
        counts.append(len(queries))

    for _ in range(50):
        scheduled(f"job-{_}")
    passes += [count] * 5
    with CaptureQueriesContext(connection) as queries:
        ran()
    assert [after - before for before, after in pairwise(counts)] == [1] * 4


def test_it_holds_a_lock_while_it_has_nothing_to_do(passes: list[Any]) -> None:
    seen: list[list[str]] = []
    passes += [lambda: seen.append(lock("django_singlejob.worker.1").queues)] * 3
    list(Worker(replace(PLAN, queues=["mail"])).work())
    assert seen == [["mail"]] * 3
    assert not locks().exists()


def test_nor_is_it_released_if_a_task_could_not_be_recorded(days: Days, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a second signal, that is tried once."""

    def be_away(*_: Any) -> Any:
        raise OperationalError

    def be_told_twice() -> None:
        signals.is_repeated = True
        monkeypatch.setattr("django_singlejob.tasks.batches.TaskQuerySet.finish_all", be_away)

    monkeypatch.setattr("tests.app.django_tasks.body", be_told_twice)
    Order(task_path="tests.app.django_tasks.plain", max_attempts=3, backend="default").enqueue()
    with deferred_signals() as signals:
        list(Worker(PLAN).work())
    assert one_offs().get().status == "in_progress"
    assert not is_free("django_singlejob.worker.1")


def test_it_goes_on_if_it_cannot_tell_whether_it_has_the_lock(
    passes: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def be_unreachable(*_: Any) -> None:
        raise DatabaseUnreachable

    job: Any = singleton_job("mail")(lambda: None)
    with monkeypatch.context() as patch:
        patch.setattr(worker_lock, "acquire", be_unreachable)
        passes += [lambda: None, patch.undo, job.enqueue]
        assert ran() == ["mail"]


@pytest.mark.parametrize(
    "what", ["nothing", "a slot", "a one-off", "one of another queue", "a stale lock", "a live lock"]
)
def test_what_is_worth_a_closer_look(what: str) -> None:
    if what == "a slot":
        fall_behind(scheduled())
    elif "one" in what:
        queue = "another" if "another" in what else "default"
        singleton_job("mail")(lambda: None).using(queue_name=queue).enqueue()
    elif "lock" in what:
        take()
        if what == "a stale lock":
            expire()
    assert bool(anything_due(["default"])) == (what in ("a slot", "a one-off", "a stale lock"))


@pytest.mark.slow
def test_a_stale_lock_is_watched_though_it_looks_seldom(days: Days, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[float] = []

    def look(*_: Any) -> object:
        looks.append(days.now)
        return anything_due()

    monkeypatch.setattr(tick, "anything_due", look)
    take(heartbeat_interval=timedelta(seconds=10))
    days.acts += [expire] + [lambda: None] * 1000
    list(Worker(replace(PLAN, interval=timedelta(seconds=60))).work())
    first, second, third, *_ = looks
    assert second - first > 40
    assert third - second < 2


@pytest.mark.parametrize("plan", [Plan(once=True), Plan(drain=True)], ids=["once", "drain"])
def test_a_worker_that_is_to_end_does_not_wait_for_the_next_look(
    days: Days, monkeypatch: pytest.MonkeyPatch, plan: Plan
) -> None:
    days.acts += [lambda: None] * 1000
    fall_behind(scheduled())
    assert len(list(Worker(plan).work())) == 1
    assert days.now == 0


def test_a_pass_runs_first_what_it_has_seen_however_long_that_takes(
    days: Days, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work() -> None:
        days.now += 10
        fall_behind(late, 3)

    late = scheduled("late")
    fall_behind(singleton_job("first", schedule=hourly(ago=40 * MINUTE))(work))
    fall_behind(scheduled("second", schedule=hourly(ago=20 * MINUTE)))
    assert [report.name for report in Worker(Plan(once=True)).work()] == ["first", "second", "late"]


def test_a_pass_with_more_slots_to_run_waits_for_the_run_that_is_under_way(
    days: Days, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []

    class Busy(due_run.Inline):
        """As if each run took a minute, in another process."""

        def come_back(self) -> Any:
            return super().come_back() if days.now >= 60 else []

        def wait(self, seconds: float) -> bool:
            waits.append(seconds)
            days.now += max(0.0, min(seconds, 60.0))
            assert len(waits) < 10
            return False

    monkeypatch.setattr(loop, "Inline", Busy)
    for name in "first", "second":
        fall_behind(scheduled(name))
    assert len(list(Worker(Plan(once=True)).work())) == 2


def test_a_drain_that_took_long_awaits_what_has_become_stale_meanwhile(
    days: Days, monkeypatch: pytest.MonkeyPatch, settings: Settings
) -> None:
    settings.SINGLEJOB = {"LEASE": HOUR}  # in a test nobody sends heartbeats for the worker's own lock

    def work() -> None:
        take("other", heartbeat_interval=SECOND)
        expire("other")
        days.now += loop.LONGEST_TICK + 1

    for module in clear, liveness:
        monkeypatch.setattr(module, "local_now", lambda: days.now)
    days.acts += [lambda: None] * 1000
    singleton_job("slow")(work).enqueue()
    list(Worker(Plan(drain=True)).work())
    assert not locks().exists()
    assert 2 <= days.now - loop.LONGEST_TICK - 1 < 4


@pytest.mark.parametrize(
    "error", [OperationalError(), DatabaseUnreachable(), OperationalError(1213, "Deadlock found")], ids=str
)
def test_it_goes_on_when_the_database_comes_back(
    passes: list[Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    def be_away(*_: Any) -> bool:
        raise error

    job: Any = singleton_job("mail")(lambda: None)
    usual = anything_due
    monkeypatch.setattr(tick, "anything_due", be_away)
    passes += [lambda: None, lambda: monkeypatch.setattr(tick, "anything_due", usual), job.enqueue]
    assert ran() == ["mail"]
    assert caplog.text.count("The database does not answer. The worker retries until it does") == 2


@pytest.mark.parametrize("plan", [Plan(once=True), Plan(drain=True)], ids=["once", "drain"])
def test_one_that_ends_by_itself_does_not_wait_for_that(
    days: Days, monkeypatch: pytest.MonkeyPatch, plan: Plan
) -> None:
    def be_away(*_: Any) -> bool:
        raise OperationalError

    monkeypatch.setattr(tick, "anything_due", be_away)
    with pytest.raises(OperationalError):
        list(Worker(plan).work())


def test_one_that_ends_while_the_database_is_away_does_not_try_for_long_to_release_its_lock(
    passes: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it tries while the lease lasts."""
    limits: list[timedelta | None] = []
    finish = Lease.finish

    def note(lease: Lease, *arguments: Any, patience: timedelta | None = None, **others: Any) -> Any:
        if lease.name.startswith(WORKER_LOCK):
            limits.append(patience)
        return finish(lease, *arguments, patience=patience, **others)

    def be_away(*_: Any) -> bool:
        raise OperationalError

    monkeypatch.setattr(Lease, "finish", note)
    ran()
    passes += [lambda: monkeypatch.setattr(tick, "anything_due", be_away), lambda: None]
    ran()
    assert limits[0] is None
    assert limits[1]


@pytest.mark.parametrize("is_lasting", [True, False])
def test_of_pruning_it_reports_only_what_went_wrong(
    passes: list[Any], monkeypatch: pytest.MonkeyPatch, is_lasting: bool
) -> None:
    def refuse(request: Any) -> Any:
        raise DatabaseUnusable("It is not permitted.", job_name=request.name, is_lasting=is_lasting)

    scheduled()()
    age_all(2 * DAY)
    monkeypatch.setattr(runner, "acquire", refuse)
    assert [report.name for report in Worker(PLAN).work()] == ["django_singlejob.prune"]


def test_another_error_ends_it(passes: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> bool:
        raise ZeroDivisionError

    monkeypatch.setattr(tick, "anything_due", fail)
    with pytest.raises(ZeroDivisionError):
        ran()


def test_one_worker_prunes_once_a_day(passes: list[Any], settings: Settings) -> None:
    settings.SINGLEJOB = {"HISTORY_DAYS": 1}
    job: Any = singleton_job("mail")(lambda: None)
    for _ in range(2):
        job()
        job.enqueue()
    one_offs().update(status="done", finished_at=DBNow())
    runs().filter(pk=last_run("mail").pk).update(started_at=DBNow() - 25 * HOUR)
    one_offs().filter(pk=one_offs().latest("pk").pk).update(finished_at=DBNow() - 25 * HOUR)
    ran()
    assert (runs().filter(job_name="mail").count(), one_offs().count()) == (1, 1)
    assert last_run("django_singlejob.prune").status == "successful"
    age_all(25 * HOUR)
    ran()
    assert prunings() == ["successful"]
    gates().update(last_started_at=DBNow() - 25 * HOUR)
    for _ in range(2):
        ran()
    assert prunings() == ["successful", "successful"]
    assert not locks().exists()


def prunings() -> list[str]:
    return list(runs().filter(job_name="django_singlejob.prune").order_by("pk").values_list("status", flat=True))


def age_all(by: timedelta) -> None:
    runs().exclude(job_name="django_singlejob.prune").update(started_at=DBNow() - by)


@pytest.mark.parametrize("plan", [Plan(once=True), Plan(drain=True)], ids=["once", "drain"])
def test_a_pass_prunes_after_all_that_is_due(days: Days, plan: Plan) -> None:
    job: Any = singleton_job("mail")(lambda: None)
    job()
    age_all(31 * DAY)
    fall_behind(scheduled())
    job.enqueue()
    assert [report.name for report in Worker(plan).work()] == ["nightly", "mail"]
    assert [*runs().order_by("pk").values_list("job_name", flat=True)] == ["nightly", "mail", "django_singlejob.prune"]
    assert prunings() == ["successful"]


def test_a_young_history_is_not_pruned(days: Days) -> None:
    scheduled()()
    list(Worker(Plan(once=True)).work())
    assert prunings() == []


def test_what_takes_too_long_is_left_to_the_next_pass(days: Days, monkeypatch: pytest.MonkeyPatch) -> None:
    job: Any = singleton_job("mail")(lambda: None)
    for _ in range(3):
        job()
    age_all(31 * DAY)
    monkeypatch.setattr(pruning, "LONGEST", 0)
    monkeypatch.setattr(JobRunQuerySet.batches, "__defaults__", (1,))
    left = []
    for _ in range(5):
        list(Worker(Plan(once=True)).work())
        left.append(runs().filter(job_name="mail").count())
    assert left == [2, 1, 0, 0, 0]
    assert prunings() == ["skipped"] * 3  # then nothing is old


# --- which is next


def in_order(**others: Any) -> list[str]:
    """Work until nothing happens any more. Returns the names of the jobs that ran, in their order."""
    plan = replace(PLAN, **others)
    return [report.name for report in Worker(plan).work() if not (report.reason or report.error)]


def test_a_flood_of_one_offs_keeps_no_slot_waiting(days: Days) -> None:
    night = scheduled()
    flood: Any = singleton_job("flood")(lambda: None)
    for _ in range(5):
        flood.enqueue()
    fall_behind(night)
    assert in_order().index("nightly") <= 1


def test_nor_does_a_job_that_is_always_due_keep_one_offs_waiting(days: Days) -> None:
    always: Any = singleton_job("always", schedule=timedelta(hours=1))(lambda: fall_behind(always))
    mail: Any = singleton_job("mail")(lambda: None)
    fall_behind(always)
    for _ in range(3):
        mail.enqueue()
    assert in_order(max_jobs=8).count("mail") == 3


def test_those_that_share_a_lock_take_turns(days: Days) -> None:
    first: Any = singleton_job("first", lock="shared")(lambda: None)
    second: Any = singleton_job("second", lock="shared")(lambda: None)
    for _ in range(3):
        first.enqueue()
        second.enqueue()
    assert ran() == ["first", "second"] * 3


def test_the_next_run_begins_at_once(days: Days, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[float] = []

    def look(*_: Any) -> object:
        looks.append(days.now)
        return anything_due()

    monkeypatch.setattr(tick, "anything_due", look)
    mail: Any = singleton_job("mail")(lambda: None)
    for _ in range(10):
        mail.enqueue()
    assert ran() == ["mail"] * 10
    assert len(looks) == 1  # before them all


def test_a_job_that_enqueues_itself_goes_on(days: Days) -> None:
    def run() -> None:
        again.enqueue()

    again: Any = singleton_job("again")(run)
    again.enqueue()
    assert in_order(max_jobs=5) == ["again"] * 5
    assert one_offs().waiting().count() == 1


@pytest.mark.parametrize("columns", [{"args": "ab"}, {"args": 5}, {"args": {"a": 1}}, {"kwargs": ["a"]}, {"kwargs": 1}])
def test_what_are_no_arguments_is_a_failure_that_is_not_retried(days: Days, columns: dict[str, Any]) -> None:
    mail: Any = singleton_job("mail", retries=3)(lambda *args: None)
    mail.enqueue()
    one_offs().update(**columns)
    ran()
    row = one_offs().get()
    assert (row.status, row.attempt) == ("failed", 1)
    assert "not a list and an object in JSON" in row.error


def test_many_unknown_jobs_take_no_query_each(days: Days, caplog: pytest.LogCaptureFixture) -> None:
    mail: Any = singleton_job("mail")(lambda: None)
    queries = []
    for count in (0, 1, 50):
        mail.enqueue()
        for number in range(count):
            Order(job_name=f"unknown-{count}-{number}", priority=100).enqueue()
        with CaptureQueriesContext(connection) as captured:
            ran()
        queries.append(len(captured))
    assert queries[1] == queries[2]
    assert caplog.text.count("has no job 'unknown-50-7'") == 1


def test_so_many_unknown_jobs_are_logged_and_no_more(days: Days, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(due, "_MOST_REPORTED", 2)
    for name in ("a", "b", "c"):
        Order(job_name=name).enqueue()
    reported = due.unknown_jobs([], {"a"})
    assert len(reported) == 1
    assert due.unknown_jobs([], {"a"} | reported) == set()


@pytest.mark.on_database("mysql")
def test_a_name_that_differs_by_its_case_holds_up_nothing(days: Days, caplog: pytest.LogCaptureFixture) -> None:
    singleton_job("mail")(lambda: None).enqueue()
    for _ in range(2):
        Order(job_name="Mail", priority=100).enqueue()
    assert ran() == ["mail"]
    assert "has no job 'Mail'" in caplog.text


def test_it_ends_after_max_jobs_runs_of_any_kind(days: Days) -> None:
    mail: Any = singleton_job("mail")(lambda: None)
    for _ in range(5):
        mail.enqueue()
    fall_behind(scheduled())
    assert len(in_order(max_jobs=4)) == 4


def test_one_that_is_skipped_does_not_count(days: Days) -> None:
    for name in "held", "free":
        singleton_job(name)(lambda: None).enqueue()
    take("held")
    assert in_order(max_jobs=1) == ["free"]


def test_a_job_is_not_under_way_for_ever_whatever_goes_wrong(
    days: Days, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    mail: Any = singleton_job("mail")(lambda: None)
    mail.enqueue()
    troubles = [SystemExit, ZeroDivisionError]

    def begin(job: Any) -> Any:
        if troubles:
            raise troubles.pop()
        return job

    monkeypatch.setattr(due_run, "waitless", begin)
    assert ran() == ["mail"]
    assert "ZeroDivisionError" in caplog.text


def test_with_debug_the_log_of_queries_does_not_grow(passes: list[Any], settings: Settings) -> None:
    """Django empties it at each request, and a worker has none."""
    settings.DEBUG = True
    lengths: list[int] = []
    job: Any = singleton_job("mail")(lambda: lengths.append(len(connection.queries_log)))
    for _ in range(30):
        job.enqueue()
    passes += [job.enqueue] * 5
    assert len(ran()) == 35
    assert max(lengths[10:]) <= 2 * max(lengths[:10])
