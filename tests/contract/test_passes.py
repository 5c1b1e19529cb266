"""A tick: one pass over what is due, on any number of servers and at any rate."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from datetime import timedelta
from threading import Event
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_singlejob import Lease, Reason, SkipRun, current_run, singleton_job
from django_singlejob.jobs import registry
from django_singlejob.locking.clear import Watchman, clear
from django_singlejob.locking.liveness import WATCHED_INTERVALS
from django_singlejob.models import JobStatus
from django_singlejob.models.jobs import gates
from django_singlejob.models.locks import locks
from django_singlejob.models.runs import runs
from django_singlejob.monitoring.health import Health, State, survey
from django_singlejob.process import clock
from django_singlejob.process.clock import DBNow
from django_singlejob.process.received_signals import deferred_signals
from django_singlejob.running.runner import run_due
from django_singlejob.signals import slot_misfired
from django_singlejob.worker.due import due_jobs
from tests.contract.acts import (
    BEAT,
    HOUR,
    MINUTE,
    SECOND,
    about_hourly,
    all_at_once,
    ask,
    coming_slot,
    die_running,
    everything,
    expire,
    fall_behind,
    gate,
    hourly,
    last_run,
    let_pass,
    lock,
    newest_slot,
    patient,
    run_slot,
    scheduled,
    slots_run,
    start_run,
    stop_the_clock,
    take,
    tick,
    ticked,
)
from tests.databases import APPS
from tests.waiting import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.contract.conftest import Elsewhere

pytestmark = pytest.mark.django_db(transaction=True, available_apps=APPS)


def names() -> list[str]:
    """The jobs that a tick tried to run, in order."""
    return [report.name for report in ticked()]


# --- what is due


def test_nothing_is_due_where_there_is_nothing() -> None:
    assert ticked() == []
    assert everything() == []


@pytest.mark.slow
def test_each_job_that_is_due_is_run_the_oldest_slot_first() -> None:
    for name, ago in {"young": 10, "old": 50, "middle": 30}.items():
        fall_behind(scheduled(name, schedule=hourly(ago=ago * MINUTE)))
    fall_behind(scheduled("later"), 0)
    singleton_job("plain")(lambda: None)
    assert names() == ["old", "middle", "young"]
    assert set(runs().values_list("job_name", "status")) == {
        (name, "successful") for name in ("old", "middle", "young")
    }
    assert ticked() == []


def test_what_comes_due_while_a_pass_is_under_way_is_left_to_the_next() -> None:
    """By then, there may be a new release of the code."""
    mail = singleton_job("mail")(lambda: None)
    sibling = scheduled("sibling", lock="shared")

    @singleton_job("long", schedule=hourly(ago=30 * MINUTE), lock="shared")
    def long() -> None:
        mail.enqueue()
        fall_behind(sibling)
        gates().filter(name="sibling").update(next_slot=DBNow())

    fall_behind(long)
    assert names() == ["long"]
    assert sorted(names()) == ["mail", "sibling"]


def test_a_job_that_others_are_running_is_skipped_and_stays_due() -> None:
    fall_behind(scheduled(lock="shop"))
    fall_behind(scheduled("another"))
    take("shop")
    reasons = {report.name: report.reason for report in tick()}
    assert reasons == {"nightly": Reason.HELD, "another": None}
    assert locks().filter(name="shop")._raw_delete("default") == 1
    assert names() == ["nightly"]


@pytest.mark.slow
def test_many_servers_tick_at_once_and_each_slot_is_run_once() -> None:
    jobs = [scheduled(f"job-{number}", catch_up="all", lock=f"lock-{number % 2}") for number in range(6)]
    for job in jobs:
        fall_behind(job, 3)
    all_at_once([tick_until_none_is_due] * 4)
    for job in jobs:
        assert slots_run(job.name) == [(newest_slot(job, back=back), 1, "successful") for back in (2, 1, 0)]
        assert gate(job.name).next_slot == coming_slot(job)
        assert gate(job.name).run_count == 3


def tick_until_none_is_due() -> None:
    while ticked():
        pass


# --- the dead


def test_the_slot_of_a_dead_run_is_run_again_though_none_is_due() -> None:
    job = scheduled()
    fall_behind(job)
    slot = die_running(job)
    assert not gates().due().exists()
    (report,) = tick()
    assert (report.slot, last_run().attempt) == (slot, 2)
    assert ticked() == []


@pytest.mark.parametrize("slots", [0, 2], ids=["only dead", "due as well"])
def test_who_is_dead_is_looked_at_last_for_that_takes_a_while(slots: int, monkeypatch: pytest.MonkeyPatch) -> None:
    stop_the_clock(monkeypatch)
    fall_behind(job := scheduled("dead"))
    die_running(job)
    let_pass(job, slots)
    fall_behind(scheduled("due", schedule=hourly(ago=MINUTE)))
    locks().update(heartbeat_interval=BEAT)
    assert names() == ["due", "dead"]


def test_a_job_whose_lock_a_dead_one_has_of_another_release_is_run_all_the_same() -> None:
    fall_behind(scheduled(lock="shop"))
    start_run("of-the-next-release", name="shop")
    expire("shop")
    assert names() == ["nightly"]
    assert last_run("of-the-next-release").status == "abandoned"


def test_who_is_dead_and_due_is_asked_once() -> None:
    fall_behind(job := scheduled())
    die_running(job)
    let_pass(job, 2)
    assert names() == ["nightly"]


@pytest.mark.slow
def test_a_holder_that_sends_heartbeats_is_left_alone_though_its_row_has_expired(elsewhere: Elsewhere) -> None:
    may_end, begun = Event(), Event()

    @singleton_job(schedule=hourly(ago=30 * MINUTE), lease=6 * SECOND)
    def nightly() -> None:
        begun.set()
        assert may_end.wait(PATIENCE)

    fall_behind(nightly)
    running = elsewhere(run_slot, nightly)
    assert begun.wait(PATIENCE)
    expire()
    assert ticked() == []
    may_end.set()
    assert running.result(PATIENCE).status == "successful"
    assert [status for *_, status in slots_run()] == ["successful"]


def test_once_its_lock_is_cleared_its_slot_is_due_no_more() -> None:
    """Monitoring would otherwise call the job overdue until the next slot."""
    job = scheduled(max_attempts=1)
    fall_behind(job)
    die_running(job)
    clear(lock())
    assert ticked() == []
    assert gate().next_slot == coming_slot(job)
    assert due_jobs() == []


def test_the_lock_of_a_dead_call_or_block_is_cleared() -> None:
    """Nothing may ask for the lock for a long time, and the history would show the run as running for ever."""
    fall_behind(scheduled(), 0)
    start_run("nightly")
    expire()
    take("block")
    expire("block")
    assert ticked() == []
    assert not locks().exists()
    assert last_run().status == "abandoned"
    assert not gate().abandoned


def test_a_job_that_this_release_does_not_know_is_not_run() -> None:
    fall_behind(scheduled("due"))
    fall_behind(job := scheduled("dead"))
    slot = die_running(job)
    known = dict(registry._jobs)
    registry._jobs.clear()
    assert ticked() == []
    registry._jobs.update(known)
    assert set(names()) == {"due", "dead"}
    assert slots_run("dead") == [(slot, 1, "abandoned"), (slot, 2, "successful")]


# --- poison


def raising(error: BaseException) -> Callable[[], None]:
    def job() -> None:
        raise error

    return job


async def be_cancelled() -> None:
    raise asyncio.CancelledError


def needs_arguments(amount: int) -> None:
    """A tick passes no argument."""


def lose_the_lock() -> None:
    locks().filter(name="poisoned")._raw_delete("default")


class Timeout(BaseException):
    """Like gevent's ``Timeout``."""


@pytest.mark.parametrize(
    ("poison", "error"),
    [
        (raising(ZeroDivisionError()), "ZeroDivisionError"),
        (sys.exit, "SystemExit"),
        (raising(SystemExit(3)), "SystemExit"),
        (raising(SystemExit("good bye")), "SystemExit"),
        (needs_arguments, "TypeError"),
        (lose_the_lock, "LeaseLost"),
        (be_cancelled, "CancelledError"),
        (raising(asyncio.CancelledError()), "CancelledError"),
        (raising(Timeout()), "Timeout"),
    ],
    ids=[
        "raises",
        "leaves",
        "leaves with a status",
        "leaves with a message",
        "cannot be called",
        "loses its lock",
        "is cancelled",
        "raises a cancellation",
        "raises what is not an Exception",
    ],
)
def test_a_poisoned_job_stops_no_other(poison: Callable[[], object], error: str) -> None:
    poisoned: Any = singleton_job("poisoned", schedule=hourly(ago=30 * MINUTE))(poison)
    fall_behind(poisoned)
    fall_behind(scheduled(schedule=hourly(ago=10 * MINUTE)))
    first, second = tick()
    assert (first.name, type(first.error).__name__) == ("poisoned", error)
    assert (second.name, second.error) == ("nightly", None)
    assert last_run("poisoned").status != "running"
    assert ticked() == []


def test_nor_does_one_that_wants_an_exception_when_its_lock_is_held(caplog: pytest.LogCaptureFixture) -> None:
    fall_behind(scheduled("eager", on_held="raise", lock="shop", catch_up="all"), 3)
    fall_behind(scheduled(schedule=hourly(ago=10 * MINUTE)))
    take("shop")
    first, second = tick()
    assert (first.reason, first.error) == (Reason.HELD, None)
    assert second.status == "successful"
    assert "failed" not in caplog.text


def test_a_failure_is_logged_with_what_went_wrong(caplog: pytest.LogCaptureFixture) -> None:
    fall_behind(singleton_job("poisoned", schedule=hourly(ago=MINUTE))(raising(ZeroDivisionError("five"))))
    ticked()
    (record,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert record.getMessage() == "The job 'poisoned' failed."
    assert "ZeroDivisionError: five" in caplog.text


def test_to_leave_with_status_0_is_no_failure(caplog: pytest.LogCaptureFixture) -> None:
    fall_behind(singleton_job("leaves", schedule=hourly(ago=MINUTE))(raising(SystemExit(0))))
    ticked()
    assert last_run("leaves").status == "successful"
    assert "failed" not in caplog.text


def test_the_slots_of_a_job_are_run_one_after_the_other_however_long_they_take() -> None:
    jobs = [scheduled(name, catch_up="all") for name in ("second", "first")]
    for job in jobs:
        fall_behind(job, 2)
    assert [report.name for report in tick(interval=SECOND / 1000)] == ["first"] * 2 + ["second"] * 2


def test_a_job_that_fails_in_one_slot_goes_on_with_the_next() -> None:
    job: Any = singleton_job("poisoned", schedule=hourly(ago=MINUTE), catch_up="all")(raising(ZeroDivisionError()))
    fall_behind(job, 3)
    assert [type(report.error) for report in tick()] == [ZeroDivisionError] * 3
    assert [status for *_, status in slots_run("poisoned")] == ["failed"] * 3
    assert gate("poisoned").consecutive_failures == 3
    assert ticked() == []


def test_a_slot_whose_run_skips_itself_has_been_run() -> None:
    def skip() -> None:
        raise SkipRun("holiday")

    job: Any = singleton_job("choosy", schedule=hourly(ago=30 * MINUTE), catch_up="all")(skip)
    fall_behind(job, 3)
    assert [outcome.refusal for outcome in tick()] == [None] * 3
    assert [status for *_, status in slots_run("choosy")] == ["skipped"] * 3
    assert gate("choosy").last_slot == newest_slot(job)
    assert not gate("choosy").abandoned
    assert survey(["choosy"]).healths[0].state == State.IDLE
    assert ticked() == []


def test_a_job_that_was_told_to_end_is_the_last() -> None:
    def interrupt() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        while True:
            pass

    job: Any = singleton_job("interrupted", schedule=hourly(ago=30 * MINUTE), catch_up="all")(interrupt)
    fall_behind(job, 3)
    fall_behind(scheduled(schedule=hourly(ago=10 * MINUTE)))
    with deferred_signals():
        (report,) = tick()
    assert type(report.error).__name__ == "JobInterrupted"
    assert [status for *_, status in slots_run("interrupted")] == ["interrupted"]
    assert gates().due().count() == 2


def test_a_transaction_of_a_running_job_does_not_hold_up_a_tick_that_moves_its_schedule(elsewhere: Elsewhere) -> None:
    """Not on SQLite, where the transaction blocks every writer."""
    if connection.vendor == "sqlite":
        pytest.skip("one writer at a time")
    begun, done = Event(), Event()

    def write_for_long() -> None:
        lease = start_run("nightly")
        with lease.atomic():
            begun.set()
            assert done.wait(PATIENCE)

    fall_behind(scheduled(), 0)
    fall_behind(scheduled("due"))
    writing = elsewhere(write_for_long)
    assert begun.wait(PATIENCE)
    scheduled(schedule="@daily")
    ticking = elsewhere(names)
    try:
        assert ticking.result(PATIENCE) == ["due"]
    finally:
        done.set()
        writing.result(PATIENCE)
        ticking.exception(PATIENCE)


# --- slots that were not run in time


@pytest.fixture
def misfires() -> Iterator[list[tuple[str, str, int, Any, Any]]]:
    """What the signals report: the job, the outcome, the count, and the first and last slot."""
    reported = []

    def listen(name: str, slot: Any, reason: str, first: Any, count: int, **_: Any) -> None:
        reported.append((name, str(reason), count, first, slot))

    slot_misfired.connect(listen)
    yield reported
    slot_misfired.disconnect(listen)


def test_slots_in_whose_place_the_newest_is_run_are_told_once(misfires: list[Any], caplog: Any) -> None:
    job = scheduled(misfire_grace=HOUR)
    fall_behind(job, 4)
    ticked()
    ticked()
    assert misfires == [("nightly", "coalesced", 3, newest_slot(job, back=3), newest_slot(job, back=1))]
    assert gate().misfire_count == 3
    assert caplog.text.count("1 job misfired: nightly (3 slots from ") == caplog.text.count("misfired") == 1


def test_one_that_is_run_too_late_is_told(misfires: list[Any], caplog: Any) -> None:
    job = scheduled(misfire_grace=20 * MINUTE)
    fall_behind(job)
    ticked()
    ticked()
    assert misfires == [("nightly", "late", 1, newest_slot(job), newest_slot(job))]
    assert gate().misfire_count == 1
    assert "1 job misfired: nightly (the slot " in caplog.text


def test_one_that_is_run_in_time_is_none(misfires: list[Any], caplog: Any) -> None:
    fall_behind(scheduled(misfire_grace=40 * MINUTE))
    ticked()
    assert misfires == []
    assert gate().misfire_count == 0
    assert "misfired" not in caplog.text


def test_those_that_are_not_run_at_all_are_told_once(misfires: list[Any], caplog: Any) -> None:
    job = scheduled(catch_up="none", misfire_grace=20 * MINUTE)
    fall_behind(job, 4)
    (report,) = tick()
    assert ticked() == []
    assert (report.reason, report.next_slot) == (Reason.NOT_DUE, coming_slot(job))
    assert misfires == [("nightly", "dropped", 4, newest_slot(job, back=3), newest_slot(job))]
    assert gate().misfire_count == 4
    assert gate().next_slot == coming_slot(job)
    assert caplog.text.count("misfired") == 1
    assert not runs().exists()


def test_those_that_are_too_many_to_be_caught_up_too(misfires: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_singlejob.jobs.slots.MAX_CATCH_UP", 2)
    job = scheduled(catch_up="all", misfire_grace=2 * HOUR)
    fall_behind(job, 5)
    ticked()
    ticked()
    assert misfires == [("nightly", "dropped", 3, newest_slot(job, back=4), newest_slot(job, back=2))]
    assert gate().misfire_count == 3
    assert [slot for slot, *_ in slots_run()] == [newest_slot(job, back=1), newest_slot(job)]


def test_each_is_told_of_that_is_caught_up_late(misfires: list[Any]) -> None:
    job = scheduled(catch_up="all", misfire_grace=2 * HOUR)
    fall_behind(job, 4)
    ticked()
    late = [newest_slot(job, back=back) for back in (3, 2)]
    assert misfires == [("nightly", "late", 1, slot, slot) for slot in late]
    assert gate().misfire_count == 2


@pytest.mark.slow
def test_two_servers_that_see_the_same_count_it_once() -> None:
    job = scheduled(catch_up="none", misfire_grace=MINUTE)
    for number in range(1, 5):
        fall_behind(job, 4)
        all_at_once([ticked] * 4)
        assert gate().misfire_count == number * 4


@pytest.mark.slow
@pytest.mark.parametrize(("schedule", "counted"), [("* * * * *", 10_000), (MINUTE, 99_940)], ids=["cron", "interval"])
def test_so_many_are_counted(misfires: list[Any], schedule: Any, counted: int) -> None:
    job = scheduled(schedule=schedule, misfire_grace=HOUR)
    oldest = newest_slot(job, back=99_999)
    fall_behind(job, 100_000)
    ticked()
    (reported,) = misfires
    assert reported[:2] == ("nightly", "coalesced")
    # The slots of the last hour were within their grace.
    assert counted - 1 <= reported[2] <= counted + 1
    assert oldest <= reported[3] <= oldest + MINUTE
    assert gate().misfire_count == reported[2]


def test_a_listener_that_fails_breaks_nothing() -> None:
    slot_misfired.connect(be_broken)
    try:
        job = scheduled()
        fall_behind(job, 3)
        ticked()
    finally:
        slot_misfired.disconnect(be_broken)
    assert [slot for slot, *_ in slots_run()] == [newest_slot(job)]


def be_broken(**_: Any) -> None:
    raise ZeroDivisionError


# --- all of them, oldest first


def test_with_all_the_slots_are_run_oldest_first_in_one_pass() -> None:
    job = scheduled(catch_up="all")
    fall_behind(job, 5)
    backs = list(reversed(range(5)))
    reports = ticked()
    assert [report.slot for report in reports] == [newest_slot(job, back=back) for back in backs]
    assert [report.value.slot for report in reports] == [slot for slot, *_ in slots_run()]
    assert ticked() == []


def test_a_lock_that_is_taken_in_between_ends_the_pass_and_the_rest_stays_due() -> None:
    @singleton_job(schedule=hourly(ago=30 * MINUTE), catch_up="all", heartbeat=False)
    def nightly() -> None:
        run = current_run()
        assert run
        run.lease.release()
        start_run("another", name="nightly")

    fall_behind(nightly, 3)
    assert len(list(run_due(nightly))) == 1
    assert gate().next_slot == newest_slot(nightly, back=1)


# --- what it costs


@pytest.mark.slow
def test_jobs_that_are_not_due_cost_nothing() -> None:
    few = queries_of_a_tick(jobs=10)
    assert queries_of_a_tick(jobs=1000) == few
    assert queries_of_a_tick(jobs=1000, due=0) <= 7  # two of them are for monitoring, which is to see the pass


def queries_of_a_tick(jobs: int, due: int = 10) -> int:
    """The queries of a tick over this many jobs, of which `due` are due. A first tick has registered all of them."""
    registry._jobs.clear()
    gates().all().delete()
    known = [scheduled(f"job-{number:04}") for number in range(jobs)]
    remember(known)
    assert ticked() == []
    for job in known[:due]:
        fall_behind(job)
    with CaptureQueriesContext(connection) as queries:
        # A pass that takes longer than the interval, as on a busy machine, looks once more.
        assert len(list(tick(interval=HOUR))) == due
    return len(queries)


def remember(jobs: list[Any]) -> None:
    slot = coming_slot(jobs[0])
    rows = [JobStatus(name=job.name, schedule=job.schedule, time_zone="UTC", next_slot=slot) for job in jobs]
    JobStatus.objects.bulk_create(rows, batch_size=50)


def test_the_dead_are_watched_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not one after the other, because after a power failure there are many."""
    stop_the_clock(monkeypatch)
    jobs = [scheduled(f"job-{number}") for number in range(4)]
    for job in jobs:
        fall_behind(job)
        die_running(job)
    locks().update(heartbeat_interval=SECOND)
    begun_at = clock.local_now()
    assert len(ticked()) == len(jobs)
    assert clock.since(begun_at) < 2 * WATCHED_INTERVALS * SECOND


# --- a clock that was set back


def test_a_job_that_waits_for_a_slot_that_is_too_far_away_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    job = scheduled()
    ticked()
    assert health_of("nightly").state == State.IDLE
    far = coming_slot(job) + timedelta(days=400)
    gates().update(next_slot=far, last_slot=far - HOUR)
    assert ticked() == []
    assert "The job 'nightly' waits for 202" in caplog.text
    assert health_of("nightly").state == State.AHEAD
    gates().update(next_slot=None, last_slot=None)
    assert ticked() == []
    assert gate().next_slot == coming_slot(job)
    assert health_of("nightly").state == State.IDLE


def test_one_that_was_run_early_is_none() -> None:
    job = scheduled(schedule=about_hourly(due_in=MINUTE))
    ticked()
    run_slot(job, early=5 * MINUTE)
    assert health_of("nightly").state == State.IDLE


def health_of(name: str) -> Health:
    return next(health for health in survey().healths if health.name == name)


# --- what an adversary found


def test_clearing_the_locks_of_a_job_that_kills_its_process_does_not_run_it_without_end() -> None:
    """After `max_attempts` deaths, its `min_interval` applies, as in a takeover."""
    attempts = []
    for _ in range(4):
        answer = ask("nightly", job_name="nightly", trigger="call", min_interval=HOUR, max_attempts=2)
        if isinstance(answer, Lease):
            expire()
        attempts.append(getattr(answer, "reason", "granted"))
        ticked()
    assert attempts == ["granted", "granted", Reason.ALREADY_RAN, Reason.ALREADY_RAN]


def test_a_slot_that_was_set_by_the_databases_clock_is_run() -> None:
    fall_behind(scheduled(), 0)
    gates().update(next_slot=DBNow())
    assert names() == ["nightly"]
    assert [status for *_, status in slots_run()] == ["successful"]


def test_a_dead_slot_goes_before_the_next_one_though_the_lock_was_renamed(monkeypatch: pytest.MonkeyPatch) -> None:
    stop_the_clock(monkeypatch)
    former = scheduled(catch_up="all", lock="former")
    fall_behind(former)
    dead = die_running(former)
    locks().update(heartbeat_interval=BEAT)
    gates().filter(name="nightly").update(next_slot=newest_slot(former))
    gates().filter(name="nightly").update(last_slot=dead - HOUR)
    locks().update(slot=dead - HOUR)
    job = scheduled(catch_up="all", lock="shop", schedule=former.schedule)
    ticked()
    assert slots_run()[1:] == [(dead - HOUR, 2, "successful"), (newest_slot(job), 1, "successful")]


def test_who_could_not_be_watched_for_a_while_is_watched_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """The database may have been away. A live holder has two beats to come back."""
    let_it_pass = stop_the_clock(monkeypatch)
    take(heartbeat_interval=SECOND)
    expire()
    watchman = Watchman()
    for _ in range(2):
        assert watchman.dead() == []
        assert watchman.watched >= {"nightly"}
        let_it_pass(3 * SECOND)
    for _ in range(2):
        assert watchman.dead() == []
        let_it_pass(SECOND)
    assert [lock.name for lock in watchman.dead()] == ["nightly"]


@pytest.mark.on_database("postgresql", "mysql")
def test_a_fenced_transaction_of_one_stale_holder_keeps_no_other_from_being_buried(elsewhere: Elsewhere) -> None:
    begun, done = Event(), Event()

    def write_for_long() -> None:
        lease = take("writing", heartbeat_interval=BEAT)
        with lease.atomic():
            begun.set()
            assert done.wait(PATIENCE)

    fall_behind(scheduled())
    die_running(scheduled())
    writing = elsewhere(write_for_long)
    assert begun.wait(PATIENCE)
    expire("writing")
    try:
        with patient():
            assert next(tick()).name == "nightly"
        assert not writing.done()
    finally:
        done.set()
        writing.result(PATIENCE)


def test_a_grace_without_end_makes_no_misfires() -> None:
    fall_behind(scheduled(misfire_grace=timedelta.max), 3)
    ticked()
    assert gate().misfire_count == 0
    assert len(slots_run()) == 1
