"""One-off jobs: each runs once, on any server, under its job's lock."""

from __future__ import annotations

import os
import signal
from collections import UserDict
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from threading import Event
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from django.db import connection, transaction

from django_singlejob import Reason, SkipRun, current_run, singleton_job
from django_singlejob.exceptions import LeaseLost
from django_singlejob.jobs import registry
from django_singlejob.locking.at_exit import release_granted
from django_singlejob.locking.clear import clear
from django_singlejob.models.jobs import gates
from django_singlejob.models.locks import locks
from django_singlejob.models.one_offs import ERRORS_LENGTH, errors_in, one_offs
from django_singlejob.models.runs import runs
from django_singlejob.process.clock import DBNow
from django_singlejob.process.received_signals import deferred_signals
from django_singlejob.running import runner
from django_singlejob.running.enqueue import place
from django_singlejob.worker.due import follow_code
from tests.contract.acts import (
    HOUR,
    MINUTE,
    SECOND,
    all_at_once,
    check_for_ever,
    expire,
    fall_behind,
    hourly,
    is_free,
    last_run,
    lock,
    start_run,
    take,
    tick,
    ticked,
)
from tests.contract.broken_history import TROUBLES, History
from tests.databases import APPS
from tests.waiting import PATIENCE, eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from django_singlejob import Lease
    from django_singlejob.models import OneOffJob
    from tests.contract.conftest import Elsewhere

pytest_plugins = "tests.fixtures"
pytestmark = pytest.mark.django_db(transaction=True, available_apps=APPS)

TOKEN = UUID(int=4711)
on_either_lock = pytest.mark.parametrize("name", ["mail", "shop"])


def mailing(body: Callable[..., Any] | None = None, **settings: Any) -> Any:
    """A job that returns its arguments."""
    return singleton_job("mail", **settings)(body or (lambda *args, **kwargs: [args, kwargs]))


def the_one_off() -> OneOffJob:
    return one_offs().get()


def begin(job: Any, row: OneOffJob, **terms: Any) -> Lease:
    """Another process starts it, and is still running it."""
    return start_run(job.name, name=job.lock, one_off=row, max_attempts=job.max_attempts, **terms)


def statuses() -> list[tuple[str, int]]:
    return list(one_offs().order_by("pk").values_list("status", "attempt"))


# --- enqueueing


def test_it_waits_until_a_tick_runs_it_once() -> None:
    before = datetime.now(UTC)
    row = mailing().enqueue("hello", [1, None], copies=2)
    assert (row.status, row.attempt, row.priority, row.queue_name) == ("waiting", 0, 0, "default")
    assert before - SECOND < row.run_after < datetime.now(UTC) + SECOND
    (report,) = tick()
    assert report.status == "successful"
    row = the_one_off()
    assert (row.status, row.attempt, row.result, row.error) == ("done", 1, [["hello", [1, None]], {"copies": 2}], "")
    assert row.started_at
    assert row.finished_at
    assert (last_run("mail").trigger, last_run("mail").attempt, last_run("mail").status) == ("one_off", 1, "successful")
    assert is_free("mail")
    assert ticked() == []


def test_one_that_skips_itself_is_done_and_only_its_run_has_the_reason() -> None:
    def skip() -> None:
        raise SkipRun("holiday")

    mailing(skip, retries=3).enqueue()
    (report,) = tick()
    assert (report.reason, report.detail, report.refusal) == (Reason.ITSELF, "holiday", None)
    row = the_one_off()
    assert (row.status, row.attempt, row.result, row.error, row.errors) == ("done", 1, None, "", "")
    assert (last_run("mail").status, last_run("mail").error) == ("skipped", "holiday")
    assert ticked() == []


@pytest.mark.parametrize("is_committed", [True, False])
def test_inside_a_transaction_it_is_seen_when_that_is_committed(is_committed: bool) -> None:
    job = mailing()
    with transaction.atomic():
        job.enqueue()
        transaction.set_rollback(not is_committed)
    assert len(ticked()) == is_committed


def test_the_highest_priority_goes_first_then_the_one_that_waits_the_longest() -> None:
    ran: list[str] = []
    job = mailing(ran.append)
    for name, priority, ago in [("third", 0, 2), ("fourth", 0, 1), ("last", -5, 9), ("first", 7, 1), ("second", 7, 0)]:
        job.using(priority=priority, run_after=datetime.now(UTC) - ago * HOUR).enqueue(name)
    ticked()
    assert ran == ["first", "second", "third", "fourth", "last"]


class Unreadable(UserDict[str, int]):
    def values(self) -> Any:
        raise ZeroDivisionError


def test_a_result_that_cannot_be_read_is_not_kept_and_that_is_no_failure() -> None:
    mailing(lambda: Unreadable(a=1)).enqueue()
    ticked()
    assert (the_one_off().status, the_one_off().result) == ("done", None)


# --- one copy


@on_either_lock
def test_one_that_finds_the_lock_held_waits_and_burns_no_attempt(name: str) -> None:
    job = mailing(lock=name)
    for _ in range(3):
        job.enqueue()
    lease = take(name)
    (report,) = tick()
    assert report.reason == Reason.HELD
    assert statuses() == [("waiting", 0)] * 3
    assert lease.release()
    assert len(ticked()) == 3
    assert statuses() == [("done", 1)] * 3


def test_it_does_not_hold_up_those_of_other_jobs() -> None:
    mailing().using(priority=10).enqueue()
    singleton_job("other")(lambda: None).enqueue()
    take("mail")
    ticked()
    assert dict(one_offs().values_list("job_name", "status")) == {"mail": "waiting", "other": "done"}


@pytest.mark.slow
@on_either_lock
def test_of_many_servers_each_is_run_by_one(name: str) -> None:
    running: list[int] = []
    ran: list[int] = []

    def send(number: int) -> None:
        running.append(number)
        assert running == [number]
        ran.append(number)
        running.remove(number)

    job = mailing(send, lock=name)
    for number in range(20):
        job.enqueue(number)
    all_at_once([tick_until_none_waits] * 4)
    assert sorted(ran) == list(range(20))
    assert statuses() == [("done", 1)] * 20


def tick_until_none_waits() -> None:
    while one_offs().filter(status__in=["waiting", "in_progress"]).exists():
        list(tick())


@pytest.mark.slow
@on_either_lock
def test_two_who_saw_the_same_one_run_it_once(name: str) -> None:
    job = mailing(lock=name)
    for _ in range(5):
        row = job.enqueue()
        outcomes = all_at_once([partial(runner.run, job, trigger="one_off", one_off=row)] * 4)
        assert sorted(outcome.status for outcome in outcomes) == ["skipped"] * 3 + ["successful"]
    assert statuses() == [("done", 1)] * 5


def test_one_that_was_done_or_cancelled_since_it_was_seen_is_not_run() -> None:
    job = mailing()
    row = job.enqueue()
    ticked()
    assert runner.run(job, trigger="one_off", one_off=row).reason == Reason.ALREADY_RAN
    row = job.enqueue()
    assert one_offs().cancel() == 1
    assert runner.run(job, trigger="one_off", one_off=row).reason == Reason.ALREADY_RAN
    assert statuses() == [("done", 1), ("cancelled", 0)]
    assert is_free("mail")


def test_nor_one_that_waits_again_since_for_what_was_seen_of_it_is_the_past() -> None:
    job = mailing()
    seen = job.enqueue()
    assert one_offs().cancel() == one_offs().retry() == 1
    assert runner.run(job, trigger="one_off", one_off=seen).reason == Reason.ALREADY_RAN
    assert statuses() == [("waiting", 0)]
    assert is_free("mail")
    ticked()
    assert statuses() == [("done", 1)]


@pytest.mark.parametrize("end", [{"paused": False}, {"paused_until": DBNow()}], ids=["by hand", "by itself"])
def test_a_paused_job_keeps_its_one_offs(end: dict[str, Any]) -> None:
    job = mailing()
    job()
    job.enqueue()

    gates().update(paused=True, paused_until=DBNow() + HOUR)
    ticked()
    assert statuses() == [("waiting", 0)]
    gates().update(**end)
    ticked()
    assert statuses() == [("done", 1)]


def test_a_job_that_this_release_does_not_know_is_left_alone() -> None:
    mailing().using(priority=5).enqueue()
    registry._jobs.clear()
    singleton_job("other")(lambda: None).enqueue()
    ticked()
    assert statuses() == [("waiting", 0), ("done", 1)]


def test_one_that_enqueues_itself_does_not_keep_a_tick_from_ending() -> None:
    def again(number: int) -> None:
        job.enqueue(number + 1)

    job = mailing(again)
    job.enqueue(0)
    assert len(ticked()) <= 2
    assert one_offs().waiting().count() == 1


# --- failure


def fail(*_: Any) -> None:
    raise ZeroDivisionError("five")


def test_one_that_fails_has_failed() -> None:
    mailing(fail).enqueue()
    (report,) = tick()
    assert type(report.error) is ZeroDivisionError
    row = the_one_off()
    assert (row.status, row.attempt, row.error) == ("failed", 1, "ZeroDivisionError: five")
    assert "in fail" in row.traceback
    assert row.finished_at
    assert ticked() == []


def test_with_retries_it_is_tried_again_later_and_later() -> None:
    mailing(fail, retries=2, retry_delay=10 * MINUTE).enqueue()
    for attempt, delay in [(1, 10), (2, 20)]:
        before = datetime.now(UTC)
        ticked()
        assert statuses() == [("waiting", attempt)]
        failed_at = the_one_off().run_after - delay * MINUTE
        assert before - SECOND < failed_at < datetime.now(UTC) + SECOND
        assert ticked() == []
        one_offs().update(run_after=DBNow())
    ticked()
    assert statuses() == [("failed", 3)]
    assert ticked() == []


def test_until_it_succeeds() -> None:
    runs: list[int] = []

    def fail_twice() -> str:
        run = current_run()
        assert run
        runs.append(run.attempt)
        if len(runs) < 3:
            fail()
        return "sent"

    mailing(fail_twice, retries=5, retry_delay=timedelta()).enqueue()
    for _ in range(3):
        ticked()
    row = the_one_off()
    assert (runs, row.status, row.result, row.error, row.traceback) == ([1, 2, 3], "done", "sent", "", "")


def test_each_run_that_a_user_requested_records_the_user_also_a_retry() -> None:
    job = mailing(fail, retries=1, retry_delay=timedelta())
    place(job.using(), [], {}, requested_by="ada")
    job.enqueue()
    for _ in range(4):
        ticked()
    found = runs().order_by("pk").values_list("trigger", "requested_by", "attempt")
    assert sorted(found) == [("manual", "ada", 1), ("manual", "ada", 2), ("one_off", "", 1), ("one_off", "", 2)]


def test_who_retries_it_has_requested_it() -> None:
    place(mailing().using(), [], {}, requested_by="ada")
    for user in "grace", "":
        one_offs().cancel()
        assert one_offs().retry(user) == 1
        assert the_one_off().requested_by == user


@pytest.mark.parametrize("trigger", ["call", "command", "schedule"])
def test_a_run_that_fails_is_tried_again_as_a_one_off_with_its_arguments(trigger: str) -> None:
    ran: list[Any] = []

    def fail_once(*args: Any, **kwargs: Any) -> None:
        ran.append((args, kwargs))
        if len(ran) == 1:
            fail()

    job = mailing(fail_once, retries=1, retry_delay=10 * MINUTE, schedule=timedelta(days=10_000))
    follow_code()
    if trigger == "schedule":
        gates().update(next_slot=datetime(2024, 9, 5, tzinfo=UTC))
    before = datetime.now(UTC)
    with pytest.raises(ZeroDivisionError):
        runner.run(job, [1], {"a": 2}, trigger=trigger)
    row = the_one_off()
    assert (row.status, row.attempt, row.args, row.kwargs) == ("waiting", 1, [1], {"a": 2})
    assert before - SECOND < row.run_after - 10 * MINUTE < datetime.now(UTC) + SECOND
    one_offs().update(run_after=DBNow())
    ticked()
    assert ran == [((1,), {"a": 2})] * 2
    assert (statuses(), last_run("mail").attempt) == ([("done", 2)], 2)


def test_a_retry_carries_its_slot_but_not_as_a_run_of_that_slot() -> None:
    job = mailing(fail, retries=1, retry_delay=timedelta(0), schedule=hourly(ago=30 * MINUTE), catch_up="latest")
    fall_behind(job)
    ticked()
    slot = last_run("mail").slot
    assert slot
    one_offs().update(run_after=DBNow())
    ticked()
    first, retry = runs().filter(job_name="mail").order_by("pk")
    assert (first.slot, first.retried_slot) == (slot, None)
    assert (retry.slot, retry.retried_slot) == (None, slot)
    assert one_offs().get().retried_slot == slot
    assert not runs().has_succeeded("mail", slot)
    runs().filter(pk=retry.pk).update(status="successful")
    assert runs().has_succeeded("mail", slot)


def test_the_retry_of_a_call_has_no_slot() -> None:
    job = mailing(fail, retries=1)
    with pytest.raises(ZeroDivisionError):
        job()
    assert one_offs().get().retried_slot is None


@pytest.mark.parametrize("argument", [object, b"1", {1: 2}], ids=repr)
def test_arguments_that_json_changes_cannot_be_tried_again_which_is_logged(
    argument: object, caplog: pytest.LogCaptureFixture
) -> None:
    job = mailing(fail, retries=1)
    with pytest.raises(ZeroDivisionError):
        job(argument)
    assert "'mail' is not retried: its arguments would not come back from JSON" in caplog.text
    assert not one_offs().exists()
    assert is_free("mail")


def be_told() -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    while True:
        pass


def test_one_that_may_begin_once_only_fails_if_it_is_told_to_end() -> None:
    mailing(be_told, max_attempts=1).enqueue()
    with deferred_signals():
        (report,) = tick()
    assert type(report.error).__name__ == "JobInterrupted"
    assert statuses() == [("failed", 1)]
    assert "JobInterrupted" in the_one_off().error
    assert ticked() == []


def test_one_whose_lease_could_not_be_proven_for_a_while_is_begun_again() -> None:
    def lose() -> None:
        raise LeaseLost

    mailing(lose, max_attempts=2).enqueue()
    ticked()
    assert [attempt for _, attempt in statuses()] == [2]
    assert the_one_off().status == "failed"


@pytest.mark.slow
def test_one_that_runs_for_too_long_has_failed() -> None:
    mailing(check_for_ever, max_runtime=timedelta(seconds=0.2)).enqueue()
    ticked()
    assert statuses() == [("failed", 1)]
    assert the_one_off().error.startswith("JobTimeout")


# --- death


@on_either_lock
@pytest.mark.parametrize("how", ["tick", "take over", "clear"])
def test_when_its_holder_dies_it_is_begun_again(name: str, how: str) -> None:
    job = mailing(lock=name)
    begin(job, job.enqueue("hello"))
    assert statuses() == [("in_progress", 1)]
    expire(name)
    if how == "take over":
        take(name).release()
    elif how == "clear":
        assert clear(lock(name))
    ticked()
    row = the_one_off()
    assert (row.status, row.attempt, row.result) == ("done", 2, [["hello"], {}])


def test_not_while_it_lives() -> None:
    job = mailing()
    lease = begin(job, job.enqueue())
    ticked()
    assert statuses() == [("in_progress", 1)]
    assert lease.release()


def test_after_so_many_attempts_it_has_failed() -> None:
    job = mailing(max_attempts=2)
    job.enqueue()
    for status in "waiting", "failed":
        begin(job, the_one_off())
        expire("mail")
        assert clear(lock("mail"))
        assert the_one_off().status == status
    assert ticked() == []
    assert the_one_off().error == "The lock was cleared."
    assert the_one_off().finished_at


def test_who_was_taken_for_dead_cannot_end_it() -> None:
    job = mailing()
    zombie = begin(job, job.enqueue())
    expire("mail")
    ticked()
    done = one_offs().values().get()
    assert not one_offs().finish(zombie.token, {"status": "failed"})
    assert not zombie.release()
    assert one_offs().values().get() == done
    assert statuses() == [("done", 2)]


def test_nor_the_attempt_that_came_after() -> None:
    job = mailing()
    zombie = begin(job, job.enqueue())
    expire("mail")
    assert clear(lock("mail"))
    begin(job, the_one_off())
    before = one_offs().values().get()
    assert not one_offs().finish(zombie.token, {"status": "failed"})
    release_granted(zombie.token)
    assert one_offs().values().get() == before
    assert statuses() == [("in_progress", 2)]


@pytest.mark.parametrize("how", ["done", "cleared", "released", "deleted"])
def test_what_becomes_of_one_is_nothing_to_the_others(how: str) -> None:
    other = singleton_job("other")(lambda: None)
    begin(other, other.enqueue())
    before = one_offs().values().get()
    job = mailing()
    row = job.enqueue()
    if how == "done":
        ticked()
    else:
        begin(job, row)
    if how == "cleared":
        expire("mail")
        assert clear(lock("mail"))
    elif how == "released":
        release_granted(lock("mail").token)
    elif how == "deleted":
        locks().filter(name="mail")._raw_delete("default")
        assert one_offs().abandon_orphans("gone") == 1
    assert one_offs().filter(job_name="other").values().get() == before
    assert one_offs().get(job_name="mail").status == ("done" if how == "done" else "waiting")


def test_one_that_was_changed_by_hand_while_it_ran_is_left_and_told_of(caplog: pytest.LogCaptureFixture) -> None:
    mailing(lambda: one_offs().update(status="cancelled")).enqueue()
    ticked()
    assert the_one_off().status == "cancelled"
    assert last_run("mail").status == "successful"
    assert "A one-off of 'mail' was changed by hand while it ran" in caplog.text


def test_a_lock_that_was_deleted_by_hand_leaves_none_in_progress_for_ever() -> None:
    job = mailing()
    begin(job, job.enqueue())
    assert one_offs().abandon_orphans("gone") == 0

    locks().all()._raw_delete("default")
    ticked()
    assert statuses() == [("done", 2)]


def test_a_process_that_ends_puts_it_back() -> None:
    job = mailing()
    lease = begin(job, job.enqueue())
    release_granted(lease.token)
    assert statuses() == [("waiting", 0)]
    assert is_free("mail")


# --- a database that refuses what only reports


ONE_OFFS = "django_singlejob_oneoffjob"


@pytest.fixture
def one_offs_table() -> Iterator[History]:
    table = History(ONE_OFFS)
    yield table
    table.close()


def has_long_text(params: Any) -> bool:
    return any(len(str(getattr(each, "obj", each))) > 100_000 for each in params or ())


def refuse_long_texts(execute: Any, sql: str, params: Any, many: Any, context: Any) -> Any:
    """As a server does that limits the length of a statement."""
    if has_long_text(params):
        return execute("SELECT nothing FROM nowhere", (), many, context)
    return execute(sql, params, many, context)


@pytest.mark.parametrize("by_worker", [True, False])
def test_a_result_that_the_database_refuses_is_left_out_and_the_run_is_not_repeated(
    by_worker: bool, caplog: pytest.LogCaptureFixture
) -> None:
    job = mailing(lambda: "x" * 300_000)
    row = job.enqueue()
    with connection.execute_wrapper(refuse_long_texts):
        if by_worker:
            ticked()
        else:
            assert runner.run(job, one_off=row).status == "successful"
    row = the_one_off()
    assert (row.status, row.attempt, row.result) == ("done", 1, None)
    assert row.error == "The database refused the result of this run."
    assert last_run("mail").status == "successful"
    assert caplog.text.count("The result of a one-off of 'mail' was refused: ") == 1
    assert is_free("mail")
    assert ticked() == []


@pytest.mark.usefixtures("breakable_connection")
def test_a_result_that_costs_the_connection_before_it_is_refused_is_left_out() -> None:
    """A server that is sent too much ends the connection; its error is seen or not, by chance."""

    def refuse(execute: Any, sql: str, params: Any, many: Any, context: Any) -> Any:
        if has_long_text(params) and not refused:
            refused.append(sql)
            connection.connection.close()
        return refuse_long_texts(execute, sql, params, many, context)

    refused: list[str] = []
    mailing(lambda: "x" * 300_000).enqueue()
    with connection.execute_wrapper(refuse):
        ticked()
    assert refused
    assert (statuses(), last_run("mail").status) == ([("done", 1)], "successful")
    assert is_free("mail")


@pytest.mark.on_database("mysql")
def test_a_result_longer_than_the_server_takes_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    mailing(lambda: "x" * 960_000).enqueue()
    with short_packets():
        ticked()
    assert statuses() == [("done", 1)]
    assert last_run("mail").status == "successful"
    assert caplog.text.count("The result of a one-off of 'mail' was refused: ") == 1
    assert is_free("mail")


@contextmanager
def short_packets() -> Iterator[None]:
    """The server takes statements of up to a megabyte. The limit counts for new connections."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT @@GLOBAL.max_allowed_packet")
        (usual,) = cursor.fetchone()
        cursor.execute("SET GLOBAL max_allowed_packet = 524288")
    connection.close()
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            cursor.execute("SET GLOBAL max_allowed_packet = %s", [usual])
        connection.close()


@pytest.mark.parametrize(
    "trouble", [pytest.param(name, marks=pytest.mark.on_database(*TROUBLES[name])) for name in ("full", "read-only")]
)
@pytest.mark.parametrize("by_worker", [True, False])
def test_a_retry_that_the_database_refuses_leaves_the_failure_what_it_was(
    one_offs_table: History, trouble: str, by_worker: bool, caplog: pytest.LogCaptureFixture
) -> None:
    job = mailing(fail, retries=2, schedule=timedelta(days=10_000))
    follow_code()
    gates().update(next_slot=datetime(2024, 9, 5, tzinfo=UTC))
    with one_offs_table.broken(trouble):
        if by_worker:
            (report,) = tick()
            assert isinstance(report.error, ZeroDivisionError)
        else:
            with pytest.raises(ZeroDivisionError):
                runner.run(job, trigger="schedule")
    assert not one_offs().exists()
    assert [run.status for run in runs()] == ["failed"]
    gate = gates().get(name="mail")
    assert (gate.last_status, gate.consecutive_failures) == ("failed", 1)
    assert is_free("mail")
    assert caplog.text.count("The one-off that retries 'mail' was refused: ") == 1
    assert ticked() == []


@pytest.mark.on_database("postgresql")
def test_a_row_that_others_hold_for_a_while_is_ended_all_the_same(
    elsewhere: Elsewhere, caplog: pytest.LogCaptureFixture
) -> None:
    """Elsewhere, a server waits for the row for longer by itself."""
    caplog.set_level("INFO", "django_singlejob")
    is_held, may_go = Event(), Event()

    def hold() -> None:
        with transaction.atomic():
            list(one_offs().select_for_update())
            is_held.set()
            assert may_go.wait(PATIENCE)

    def mail() -> str:
        holders.append(elsewhere(hold))
        assert is_held.wait(PATIENCE)
        return "sent"

    def let_go() -> None:
        eventually(lambda: caplog.text.count("Releasing the lock 'mail' failed and will be retried") >= 5)
        may_go.set()

    holders: list[Any] = []
    mailing(mail).enqueue()
    patient = elsewhere(let_go)
    ticked()
    for future in [*holders, patient]:
        future.result(PATIENCE)
    assert (statuses(), the_one_off().result) == ([("done", 1)], "sent")
    assert is_free("mail")


@pytest.mark.on_database("postgresql")
def test_a_sequence_behind_its_rows_makes_no_run_of_a_retry(caplog: pytest.LogCaptureFixture) -> None:
    job = mailing(fail, retries=2)
    with connection.cursor() as cursor:
        one_offs().model.objects.create(
            pk=1, job_name="mail", status="done", run_after=DBNow(), created_at=DBNow(), args=[], kwargs={}
        )
        cursor.execute(f"SELECT setval(pg_get_serial_sequence('{ONE_OFFS}', 'id'), 1, false)")
    with pytest.raises(ZeroDivisionError):
        job()
    assert [run.status for run in runs()] == ["failed"]
    assert caplog.text.count("The one-off that retries 'mail' was refused: ") == 1
    assert is_free("mail")


def test_one_that_releases_its_lock_itself_is_done_too() -> None:
    def release() -> str:
        run = current_run()
        assert run
        run.lease.release()
        return "released"

    mailing(release).enqueue()
    ticked()
    assert (statuses(), the_one_off().result) == ([("done", 1)], "released")


@pytest.mark.on_database("postgresql", "mysql")
@pytest.mark.usefixtures("breakable_connection")
def test_even_if_it_has_lost_its_connection_since() -> None:
    def release() -> str:
        run = current_run()
        assert run
        run.lease.release()
        return "x" * 300_000

    def lose(execute: Any, sql: str, params: Any, many: Any, context: Any) -> Any:
        if has_long_text(params) and not lost:
            lost.append(sql)
            connection.connection.close()
        return execute(sql, params, many, context)

    lost: list[str] = []
    mailing(release).enqueue()
    with connection.execute_wrapper(lose):
        ticked()
    assert lost
    assert (statuses(), the_one_off().result) == ([("done", 1)], "x" * 300_000)


# --- finished one-offs


def test_only_those_that_wait_can_be_cancelled() -> None:
    job = mailing()
    rows = [job.enqueue() for _ in range(3)]
    one_offs().filter(pk=rows[0].pk).update(status="done")
    begin(job, rows[1])
    assert one_offs().cancel() == 1
    assert [status for status, _ in statuses()] == ["done", "in_progress", "cancelled"]


def test_only_those_that_failed_or_were_cancelled_can_be_run_again() -> None:
    job = mailing()
    keys = {status: job.enqueue().pk for status in ("waiting", "in_progress", "done", "failed", "cancelled")}
    for status, key in keys.items():
        one_offs().filter(pk=key).update(status=status, attempt=2, max_attempts=3, version=7, run_after=DBNow() + HOUR)
    assert one_offs().retry() == 2
    rows = {status: one_offs().get(pk=key) for status, key in keys.items()}
    assert {status: (row.status, row.version) for status, row in rows.items()} == {
        "waiting": ("waiting", 7),
        "in_progress": ("in_progress", 7),
        "done": ("done", 7),
        "failed": ("waiting", 8),
        "cancelled": ("waiting", 8),
    }
    assert {(row.attempt, row.max_attempts) for row in rows.values()} == {(2, 3)}
    assert {row.pk for row in one_offs().due()} == {keys["failed"], keys["cancelled"]}


def test_one_that_has_used_up_its_attempts_may_be_begun_once_more() -> None:
    row = mailing(max_attempts=2).enqueue()
    one_offs().update(status="failed", attempt=2, max_attempts=2, finished_at=DBNow())
    assert one_offs().filter(pk=row.pk).retry() == 1
    assert (the_one_off().attempt, the_one_off().max_attempts, the_one_off().finished_at) == (2, 3, None)
    ticked()
    assert statuses() == [("done", 3)]
    assert the_one_off().finished_at


def test_it_fails_again_and_can_be_run_again_again() -> None:
    mailing(fail).enqueue()
    for attempt in 1, 2, 3, 4, 5:
        ticked()
        assert statuses() == [("failed", attempt)]
        assert one_offs().retry() == 1
    assert len(the_one_off().worker_ids.splitlines()) == 5


def test_only_those_that_ended_long_ago_are_pruned() -> None:
    job = mailing()
    for status in "waiting", "in_progress", "done", "failed", "cancelled":
        job.enqueue()
        one_offs().filter(pk=one_offs().latest("pk").pk).update(status=status, finished_at=DBNow() - HOUR)
    assert one_offs().surplus(2 * HOUR).prune() == 0
    assert one_offs().surplus(MINUTE).prune(batch=2) == 3
    assert [status for status, _ in statuses()] == ["waiting", "in_progress"]


# --- the errors of the attempts


def kept() -> list[str]:
    """The errors that the row keeps, the oldest first."""
    return [error["error"] for error in errors_in(the_one_off().errors)]


def test_the_error_of_each_attempt_is_kept() -> None:
    failures: list[Exception | None] = [ValueError("5 %s 'é'\n\\"), LookupError(), None]

    def body() -> None:
        if failure := failures.pop(0):
            raise failure

    mailing(body).enqueue()
    for expected in ["ValueError: 5 %s 'é'\\n\\"], ["ValueError: 5 %s 'é'\\n\\", "LookupError: "]:
        ticked()
        assert kept() == expected
        assert one_offs().retry() == 1
    ticked()
    row = the_one_off()
    assert (row.status, row.error, kept()) == ("done", "", ["ValueError: 5 %s 'é'\\n\\", "LookupError: "])
    first, second = errors_in(row.errors)
    assert (first["error_class"], second["error_class"]) == ("builtins.ValueError", "builtins.LookupError")
    assert first["traceback"].startswith("Traceback (most recent call last):\n")


def test_so_is_that_its_holder_died() -> None:
    mailing().enqueue()
    one_offs().update(status="in_progress", attempt=1, max_attempts=2, errors="x")
    assert one_offs().put_back("It died.") == 1
    assert kept() == []  # what was written by hand has no end of its line
    one_offs().update(status="in_progress", attempt=2, errors="x\n")
    assert one_offs().put_back("It died again.") == 1
    assert kept() == ["It died again."]


def test_of_many_errors_the_last_are_kept() -> None:
    mailing().enqueue()
    for number in range(12):
        one_offs().update(status="in_progress", token=TOKEN)
        error = {"error": f"{number}", "error_class": "x", "traceback": "é" * 10_000}
        assert one_offs().finish(TOKEN, {"status": "failed", **error})
        assert len(the_one_off().errors) <= ERRORS_LENGTH
    assert kept() == ["7", "8", "9", "10", "11"]
