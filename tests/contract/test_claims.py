"""Claiming a slot: each slot runs once, on one server, however many ask and whatever dies in between."""

from __future__ import annotations

import signal
from asyncio import CancelledError
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from django_singlejob import current_run, job_lock, singleton_job
from django_singlejob.exceptions import JobInterrupted, JobStopped
from django_singlejob.locking.clear import clear
from django_singlejob.locking.lease import Lease
from django_singlejob.locking.request import Reason, Refusal
from django_singlejob.models import OneOffJob
from django_singlejob.models.jobs import gates
from django_singlejob.models.locks import JobLockQuerySet, locks
from django_singlejob.models.runs import JobRunQuerySet, runs
from django_singlejob.process.clock import DBNow
from django_singlejob.running import runner
from django_singlejob.running.runner import run_due
from django_singlejob.signals import slot_misfired
from django_singlejob.worker.due import follow_code
from tests.contract.acts import (
    HOUR,
    MINUTE,
    about_hourly,
    all_at_once,
    ask_for_slot,
    coming_slot,
    die_running,
    everything,
    expire,
    fall_behind,
    gate,
    is_free,
    last_run,
    let_pass,
    lock,
    newest_slot,
    run_slot,
    scheduled,
    slots_run,
    start_run,
    take,
    ticked,
)
from tests.databases import APPS
from tests.waiting import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.contract.conftest import Ahead

pytestmark = pytest.mark.django_db(transaction=True, available_apps=APPS)

# The job's own lock, and one that other jobs may share. With a shared lock, two gates are passed.
on_either_lock = pytest.mark.parametrize("name", ["nightly", "shop"])

TOLERANCE = timedelta(seconds=30)
EARLY = timedelta(seconds=20)


# --- once


@on_either_lock
def test_a_slot_that_is_due_is_run_once(name: str) -> None:
    job = scheduled(lock=name)
    fall_behind(job)
    outcome = run_slot(job)
    assert (outcome.status, outcome.slot) == ("successful", newest_slot(job))
    again = run_slot(job)
    assert (again.status, again.reason, again.next_slot) == ("skipped", Reason.NOT_DUE, coming_slot(job))
    assert slots_run() == [(newest_slot(job), 1, "successful")]
    assert is_free(name)


def test_a_run_knows_its_slot() -> None:
    job = scheduled()
    fall_behind(job)
    outcome = run_slot(job)
    inside = outcome.value
    assert (inside.slot, inside.attempt) == (newest_slot(job), 1)
    assert inside.slot.tzinfo is UTC
    assert outcome.run
    assert (outcome.run.slot, outcome.run.trigger) == (inside.slot, "schedule")
    assert (gate().last_slot, gate().last_attempt) == (inside.slot, 1)


def test_its_lock_knows_it_too() -> None:
    job = scheduled()
    fall_behind(job)
    ask_for_slot(job)
    assert (lock().slot, lock().attempt) == (newest_slot(job), 1)


@on_either_lock
def test_a_slot_stays_due_while_the_lock_is_held(name: str) -> None:
    job = scheduled(lock=name)
    fall_behind(job)
    start_run("another", name=name)
    before = everything()
    assert run_slot(job).reason == Reason.HELD
    assert everything() == before


def test_a_job_that_is_async_runs_its_slots_too() -> None:
    @singleton_job(schedule=scheduled("like-this").schedule, catch_up="all")
    async def nightly() -> Any:
        return current_run()

    fall_behind(nightly, 2)
    assert [report.value.slot for report in run_due(nightly)] == [
        newest_slot(nightly, back=1),
        newest_slot(nightly),
    ]
    assert [slot for slot, *_ in slots_run()] == [newest_slot(nightly, back=1), newest_slot(nightly)]


# --- slots that a long run outlasts


@on_either_lock
def test_slots_that_are_skipped_in_time_are_counted(name: str) -> None:
    job = scheduled(lock=name, misfire_grace=5 * HOUR)
    fall_behind(job, 3)
    assert run_slot(job).status == "successful"
    assert (gate().coalesced_count, gate().misfire_count) == (2, 0)
    assert run_slot(job).reason == Reason.NOT_DUE
    assert gate().coalesced_count == 2


# --- one transaction


def fail(*_: object, **__: object) -> Any:
    raise ZeroDivisionError


@on_either_lock
def test_the_claim_stands_and_falls_with_the_grant(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    job = scheduled(lock=name)
    fall_behind(job, 3)
    gates().remember(name)
    before = everything()
    with monkeypatch.context() as broken:
        broken.setattr(JobLockQuerySet, "insert", fail)
        with pytest.raises(ZeroDivisionError):
            run_slot(job)
    assert everything() == before
    assert run_slot(job).slot == newest_slot(job)
    assert gate().misfire_count == 3


@on_either_lock
def test_but_not_with_its_row_in_the_history(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    job = scheduled(lock=name)
    fall_behind(job, 3)
    with monkeypatch.context() as broken:
        broken.setattr(JobRunQuerySet, "start", fail)
        assert run_slot(job).slot == newest_slot(job)
    assert gate().misfire_count == 3
    assert not runs().exists()


@on_either_lock
def test_nor_does_a_takeover_fail_with_it(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    job = scheduled(lock=name)
    fall_behind(job)
    die_running(job)
    with monkeypatch.context() as broken:
        broken.setattr(JobRunQuerySet, "finish", fail)
        assert run_slot(job).status == "successful"
    assert (gate().last_attempt, gate().abandoned) == (2, False)


@on_either_lock
def test_and_with_a_takeover(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    job = scheduled(lock=name)
    fall_behind(job)
    die_running(job)
    let_pass(job, 3)
    before = everything()
    with monkeypatch.context() as broken:
        broken.setattr(JobLockQuerySet, "take_over", fail)
        with pytest.raises(ZeroDivisionError):
            run_slot(job)
    assert everything() == before
    assert run_slot(job).slot == newest_slot(job)


def test_what_was_not_granted_is_not_told(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    job = scheduled()
    fall_behind(job, 3)
    monkeypatch.setattr(JobLockQuerySet, "insert", fail)
    slot_misfired.connect(fail)
    try:
        with pytest.raises(ZeroDivisionError):
            run_slot(job)
    finally:
        slot_misfired.disconnect(fail)
    assert not caplog.records


# --- many servers at once


@pytest.mark.slow
@on_either_lock
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda job: {"next_slot": coming_slot(job)}, Reason.NOT_DUE),
        (lambda job: {"next_slot": coming_slot(job) + 24 * HOUR}, Reason.NOT_DUE),
        (lambda job: {"paused": True}, Reason.PAUSED),
    ],
    ids=["claimed", "far away", "paused"],
)
def test_what_changes_in_the_same_moment_counts(
    ahead: Ahead, name: str, change: Callable[[Any], dict[str, Any]], reason: Reason
) -> None:
    job = scheduled(lock=name)
    fall_behind(job)
    gates().remember(name)
    changes = change(job)
    writing = ahead(lambda: gates().filter(name="nightly").update(**changes))
    answer = ask_for_slot(job)
    writing.result(PATIENCE)
    assert isinstance(answer, Refusal)
    assert answer.reason == reason
    assert is_free(name)
    assert not runs().exists()


@pytest.mark.slow
@on_either_lock
@pytest.mark.parametrize("changes", [{"schedule": "@yearly"}, {"time_zone": "Europe/Rome"}], ids=["text", "zone"])
def test_what_another_release_follows_in_the_same_moment_leaves_due_what_was(
    ahead: Ahead, name: str, changes: dict[str, Any]
) -> None:
    job = scheduled(lock=name)
    fall_behind(job)
    gates().remember(name)
    writing = ahead(lambda: gates().filter(name="nightly").update(**changes))
    answer = ask_for_slot(job)
    writing.result(PATIENCE)
    assert isinstance(answer, Lease)
    assert answer.grant.slot == newest_slot(job)
    answer.release()
    seen = gate()
    assert (seen.schedule, seen.time_zone) == (job.policy.schedule.text, job.policy.schedule.time_zone)
    assert seen.next_slot == coming_slot(job)


@pytest.mark.slow
@on_either_lock
def test_of_eight_at_once_one_runs_the_slot(name: str) -> None:
    job = scheduled(lock=name)
    for number in range(4):
        fall_behind(job)
        outcomes = all_at_once([partial(run_slot, job)] * 8)
        assert sorted(outcome.status for outcome in outcomes) == ["skipped"] * 7 + ["successful"]
        assert {outcome.reason for outcome in outcomes} <= {Reason.HELD, Reason.NOT_DUE, None}
        assert runs().count() == number + 1


@pytest.mark.slow
@on_either_lock
def test_of_eight_at_once_one_runs_the_slot_of_the_dead(name: str) -> None:
    job = scheduled(lock=name, max_attempts=10)
    fall_behind(job)
    for attempt in range(2, 6):
        slot = die_running(job) if attempt == 2 else again_die_running(job)
        outcomes = all_at_once([partial(ask_for_slot, job)] * 8)
        granted = [answer for answer in outcomes if not isinstance(answer, Refusal)]
        assert [(lease.grant.slot, lease.grant.attempt) for lease in granted] == [(slot, attempt)]


def again_die_running(job: Any) -> Any:
    expire(job.lock)
    return newest_slot(job)


# --- early


def test_a_cron_daemon_may_be_early() -> None:
    job = scheduled(schedule=about_hourly(due_in=EARLY))
    ticked()
    slot = coming_slot(job)
    assert run_slot(job).reason == Reason.NOT_DUE
    assert run_slot(job, early=TOLERANCE).slot == slot
    assert gate().next_slot > slot  # type: ignore[operator]
    assert run_slot(job, early=TOLERANCE).reason == Reason.ALREADY_RAN
    assert run_slot(job).reason == Reason.NOT_DUE


@pytest.mark.parametrize(("due_in", "is_due"), [(35 * MINUTE, False), (25 * MINUTE, True)])
def test_nor_earlier_than_half_the_way_from_the_slot_before(due_in: timedelta, is_due: bool) -> None:
    job = scheduled(schedule=about_hourly(due_in=due_in))
    ticked()
    assert (run_slot(job, early=55 * MINUTE).slot == coming_slot(job)) is is_due


@on_either_lock
def test_a_run_that_was_early_and_died_is_run_again_when_it_is_due_or_early_again(name: str) -> None:
    job = scheduled(lock=name, schedule=about_hourly(due_in=EARLY))
    ticked()
    slot = run_slot(job, early=TOLERANCE).slot
    again_as_dead(job)
    assert run_slot(job).reason == Reason.NOT_DUE
    outcome = run_slot(job, early=TOLERANCE)
    assert (outcome.slot, outcome.value.attempt) == (slot, 2)


def again_as_dead(job: Any) -> None:
    """The last run did not finish: its holder died, and the lock was cleared."""
    gates().filter(name=job.name).update(last_status="abandoned", abandoned=True)


# --- the first contact


@pytest.mark.parametrize("due_in", [HOUR - EARLY, EARLY], ids=["just after its slot", "just before"])
def test_a_new_job_begins_with_the_slot_that_its_cron_daemon_meant(due_in: timedelta) -> None:
    job = scheduled(schedule=about_hourly(due_in=due_in))
    meant = coming_slot(job) if due_in == EARLY else newest_slot(job)
    assert run_slot(job, early=TOLERANCE).slot == meant
    assert run_slot(job, early=TOLERANCE).reason == Reason.ALREADY_RAN
    assert [slot for slot, *_ in slots_run()] == [meant]


def test_and_not_with_one_that_is_further_away() -> None:
    job = scheduled(schedule=about_hourly(due_in=HOUR - 2 * MINUTE))
    outcome = run_slot(job, early=TOLERANCE)
    assert (outcome.reason, outcome.next_slot) == (Reason.NOT_DUE, coming_slot(job))
    assert gate().misfire_count == 0


def test_so_does_a_job_that_is_known_already() -> None:
    singleton_job("nightly")(current_run)()
    job = scheduled(schedule=about_hourly(due_in=HOUR - EARLY))
    assert run_slot(job, early=TOLERANCE).reason == Reason.NOT_DUE
    assert gate().next_slot == coming_slot(job)


# --- not too soon


@on_either_lock
def test_a_slot_stays_due_until_the_interval_since_the_last_start_is_over(name: str) -> None:
    job = scheduled(lock=name, min_interval=HOUR)
    fall_behind(job, 2)
    gates().filter(name="nightly").update(last_started_at=DBNow() - HOUR + MINUTE)
    gates().remember(name)
    before = everything()
    assert run_slot(job).reason == Reason.ALREADY_RAN
    assert everything() == before
    gates().filter(name="nightly").update(last_started_at=DBNow() - HOUR - MINUTE)
    assert run_slot(job).slot == newest_slot(job)


@pytest.mark.slow
def test_a_start_in_the_same_moment_counts(ahead: Ahead) -> None:
    job = scheduled(min_interval=HOUR)
    fall_behind(job)
    ahead(lambda: gates().filter(name="nightly").update(last_started_at=DBNow()))
    answer = ask_for_slot(job)
    assert isinstance(answer, Refusal)
    assert answer.reason == Reason.ALREADY_RAN
    assert gate().next_slot == newest_slot(job)


# --- death: the slot is run again, the next attempt


@on_either_lock
def test_the_slot_of_a_dead_run_is_run_again(name: str) -> None:
    job = scheduled(lock=name)
    fall_behind(job)
    slot = die_running(job)
    outcome = run_slot(job)
    assert (outcome.slot, outcome.value.slot, outcome.value.attempt) == (slot, slot, 2)
    assert slots_run() == [(slot, 1, "abandoned"), (slot, 2, "successful")]
    assert gate().next_slot == coming_slot(job)
    assert run_slot(job).reason == Reason.NOT_DUE


def test_if_all_are_caught_up_it_comes_first() -> None:
    job = scheduled(catch_up="all")
    fall_behind(job)
    slot = die_running(job)
    let_pass(job, 2)
    slot -= 2 * HOUR
    assert [run_slot(job).slot for _ in range(3)] == [slot, slot + HOUR, slot + 2 * HOUR]
    assert slots_run() == [
        (slot, 1, "abandoned"),
        (slot, 2, "successful"),
        (slot + HOUR, 1, "successful"),
        (slot + 2 * HOUR, 1, "successful"),
    ]
    assert run_slot(job).reason == Reason.NOT_DUE


def test_if_only_the_latest_is_caught_up_the_newest_takes_its_place() -> None:
    job = scheduled()
    fall_behind(job)
    die_running(job)
    let_pass(job, 2)
    gates().update(misfire_count=0)
    outcome = run_slot(job)
    assert (outcome.slot, outcome.value.attempt) == (newest_slot(job), 1)
    assert [status for *_, status in slots_run()] == ["abandoned", "successful"]
    # The slot after the dead run's was missed, and the newest is half an hour late.
    assert gate().misfire_count == 2


@pytest.mark.parametrize(("grace", "back", "attempt"), [(MINUTE, 1, 2), (HOUR, 0, 1)])
def test_if_none_is_caught_up_it_is_run_again_unless_the_newest_is_in_time(
    grace: timedelta, back: int, attempt: int
) -> None:
    job = scheduled(catch_up="none", misfire_grace=HOUR)
    fall_behind(job)
    die_running(job)
    let_pass(job, 1)
    late = scheduled(catch_up="none", misfire_grace=grace, schedule=job.schedule)
    outcome = run_slot(late)
    assert (outcome.slot, outcome.value.attempt) == (newest_slot(job, back=back), attempt)
    assert gate().next_slot == coming_slot(job)
    assert gate().misfire_count == back


def test_those_that_are_too_many_to_be_caught_up_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_singlejob.jobs.slots.MAX_CATCH_UP", 2)
    job = scheduled(catch_up="all")
    fall_behind(job)
    die_running(job)
    let_pass(job, 4)
    backs = [4, 1, 0]  # the dead run's first
    assert [run_slot(job).slot for _ in backs] == [newest_slot(job, back=back) for back in backs]
    assert run_slot(job).reason == Reason.NOT_DUE


@on_either_lock
def test_it_is_not_run_again_if_that_is_not_wanted_but_the_next_slot_is(name: str) -> None:
    job = scheduled(lock=name, max_attempts=1)
    fall_behind(job)
    die_running(job)
    before = everything()
    refusal = run_slot(job)
    assert (refusal.reason, refusal.next_slot) == (Reason.NOT_DUE, coming_slot(job))
    assert everything() == before
    let_pass(job, 1)
    outcome = run_slot(job)
    assert (outcome.slot, outcome.value.attempt) == (newest_slot(job), 1)
    assert slots_run() == [(newest_slot(job, back=1), 1, "abandoned"), (newest_slot(job), 1, "successful")]


@on_either_lock
def test_attempts_are_counted_up_to_the_most(name: str) -> None:
    job = scheduled(lock=name, max_attempts=3)
    fall_behind(job)
    slots = {die_running(job) for _ in range(3)}
    assert slots == {newest_slot(job)}
    assert isinstance(ask_for_slot(job), Refusal)
    assert [attempt for _, attempt, _ in slots_run()] == [1, 2, 3]
    let_pass(job, 1)
    assert run_slot(job).value.attempt == 1


# --- a signal: the slot is run again, the next attempt


def interrupt_running(
    job: Any, by: BaseException | None = None, told_by: Callable[[], object] = lambda: None
) -> datetime | None:
    """A signal ends the run of the due slot. Returns the slot."""

    def end() -> None:
        told_by()
        raise by or JobInterrupted(signal.SIGTERM)

    with pytest.raises(type(by or JobInterrupted())):
        run_slot(replace(job, func=end))
    assert is_free(job.lock)
    return gate().last_slot


@on_either_lock
@pytest.mark.parametrize("by", [JobInterrupted(signal.SIGTERM), KeyboardInterrupt()], ids=repr)
def test_the_slot_of_a_run_that_a_signal_ends_is_run_again(name: str, by: BaseException) -> None:
    job = scheduled(lock=name, min_interval=HOUR)
    fall_behind(job)
    slot = interrupt_running(job, by)
    assert (gate().abandoned, gate().consecutive_failures) == (True, 0)
    outcome = run_slot(job)
    assert (outcome.slot, outcome.value.slot, outcome.value.attempt) == (slot, slot, 2)
    assert slots_run() == [(slot, 1, "interrupted"), (slot, 2, "successful")]
    assert run_slot(job).reason == Reason.NOT_DUE


def test_a_pass_runs_it_though_no_slot_is_due() -> None:
    job = scheduled()
    fall_behind(job)
    interrupt_running(job)
    assert [report.reason for report in ticked()] == [None]
    assert slots_run()[-1] == (newest_slot(job), 2, "successful")
    assert ticked() == []


@on_either_lock
@pytest.mark.parametrize("most", [1, 2])
def test_a_slot_that_is_not_run_again_has_failed(name: str, most: int) -> None:
    job = scheduled(lock=name, max_attempts=most)
    fall_behind(job)
    for _ in range(most):
        interrupt_running(job)
    assert run_slot(job).reason == Reason.NOT_DUE
    assert (gate().abandoned, gate().consecutive_failures) == (False, 1)
    assert not OneOffJob.objects.exists()


def test_so_it_has_if_no_signal_has_ended_it() -> None:
    job = scheduled()
    fall_behind(job)
    interrupt_running(job, CancelledError())
    assert run_slot(job).reason == Reason.NOT_DUE
    assert gate().consecutive_failures == 1


@on_either_lock
def test_the_second_interruption_in_a_row_is_a_failure(name: str) -> None:
    job = scheduled(lock=name)
    fall_behind(job)
    interrupt_running(job)
    assert gate().consecutive_failures == 0
    interrupt_running(job)
    assert gate().consecutive_failures == 1
    assert run_slot(job).value.attempt == 3
    assert gate().consecutive_failures == 0


@on_either_lock
@pytest.mark.parametrize("by", [JobInterrupted(signal.SIGTERM), CancelledError()], ids=repr)
def test_so_it_is_if_no_schedule_has_started_the_run(name: str, by: BaseException) -> None:
    def end() -> None:
        raise by

    job = singleton_job("nightly", lock=name, min_interval=timedelta())(end)
    for failures in 0, 1, 2:
        with pytest.raises(type(by)):
            job()
        assert gate("nightly").consecutive_failures == failures


def test_or_is_retried_as_a_one_off() -> None:
    job = scheduled(max_attempts=1, retries=1)
    fall_behind(job)
    interrupt_running(job)
    assert run_slot(job).reason == Reason.NOT_DUE
    assert OneOffJob.objects.get().attempt == 1


def test_a_later_slot_takes_its_place() -> None:
    job = scheduled()
    fall_behind(job)
    interrupt_running(job)
    let_pass(job, 1)
    assert interrupt_running(job) == newest_slot(job)
    assert gate().consecutive_failures == 1
    let_pass(job, 1)
    outcome = run_slot(job)
    assert (outcome.slot, outcome.value.attempt) == (newest_slot(job), 1)
    assert run_slot(job).reason == Reason.NOT_DUE
    assert gate().consecutive_failures == 0


@pytest.mark.parametrize("by", [JobStopped("ada"), JobInterrupted(signal.SIGTERM, stopped_by="ada")], ids=repr)
def test_a_run_that_a_user_stops_gives_its_slot_up(by: BaseException) -> None:
    job = scheduled()
    fall_behind(job)

    def be_stopped() -> None:
        lease = current_run().lease  # type: ignore[union-attr]
        assert locks().stop(lease.name, lease.token, by="ada")
        lease.renew()
        raise by

    with pytest.raises(type(by)):
        run_slot(replace(job, func=be_stopped))
    assert slots_run() == [(newest_slot(job), 1, "interrupted")]
    assert (gate().abandoned, gate().consecutive_failures) == (False, 0)
    assert run_slot(job).reason == Reason.NOT_DUE


def test_so_it_does_if_no_heartbeat_has_found_out() -> None:
    job = scheduled()
    fall_behind(job)
    interrupt_running(job, told_by=lambda: locks().update(stopped_by="ada"))
    assert run_slot(job).reason == Reason.NOT_DUE


def test_a_job_that_has_left_its_schedule_meanwhile_has_none() -> None:
    job = scheduled()
    fall_behind(job)
    interrupt_running(job, told_by=lambda: gates().update(schedule="", time_zone="", next_slot=None))
    assert not gate().abandoned


def test_a_run_outside_of_the_schedule_has_none() -> None:
    job = scheduled()
    fall_behind(job)
    run_slot(job)

    def end() -> None:
        raise JobInterrupted

    with pytest.raises(JobInterrupted):
        runner.run(replace(job, func=end))
    assert (gate().abandoned, gate().consecutive_failures) == (False, 0)
    assert run_slot(job).reason == Reason.NOT_DUE


# --- death, and another run in between


@on_either_lock
def test_the_slot_of_a_run_whose_lock_was_cleared_is_run_again(name: str) -> None:
    job = scheduled(lock=name)
    fall_behind(job)
    slot = die_running(job)
    assert clear(lock(name))
    runs().all().delete()
    assert (gate().last_slot, gate().abandoned) == (slot, True)
    outcome = run_slot(job)
    assert (outcome.slot, outcome.value.attempt) == (slot, 2)
    assert run_slot(job).reason == Reason.NOT_DUE


def another_job() -> None:
    singleton_job("another", lock="shop")(lambda: None)()


def a_block() -> None:
    with job_lock("shop"):
        pass


@pytest.mark.parametrize("other", [another_job, a_block])
def test_who_takes_the_lock_over_for_something_else_leaves_the_slot_due(other: Callable[[], None]) -> None:
    job = scheduled(lock="shop")
    fall_behind(job)
    slot = die_running(job)
    other()
    assert (gate().last_slot, gate().abandoned) == (slot, True)
    outcome = run_slot(job)
    assert (outcome.slot, outcome.value.attempt) == (slot, 2)
    assert slots_run() == [(slot, 1, "abandoned"), (slot, 2, "successful")]
    assert gate().next_slot == coming_slot(job)


def test_a_dead_run_without_a_slot_leaves_none_due() -> None:
    job = scheduled(lock="shop")
    fall_behind(job)
    run_slot(job)
    start_run("nightly", name="shop")
    expire("shop")
    another_job()
    assert gate().next_slot == coming_slot(job)
    assert run_slot(job).reason == Reason.NOT_DUE


# --- calls, and runs by hand


@pytest.mark.parametrize("trigger", ["call", "manual", "command"])
@on_either_lock
def test_a_call_consumes_no_slot(name: str, trigger: str) -> None:
    job = scheduled(lock=name)
    fall_behind(job)
    outcome = runner.run(job, trigger=trigger)
    assert (outcome.status, outcome.slot, outcome.value.slot) == ("successful", None, None)
    assert gate().next_slot == newest_slot(job)
    assert run_slot(job).slot == newest_slot(job)
    runner.run(job, trigger=trigger)
    assert gate().next_slot == coming_slot(job)


@pytest.mark.parametrize("trigger", ["call", "manual"])
@on_either_lock
@pytest.mark.parametrize("is_cleared", [False, True], ids=["stale", "cleared"])
def test_a_call_after_the_death_of_a_run_does_not_lose_its_slot(trigger: str, name: str, is_cleared: bool) -> None:
    job = scheduled(lock=name)
    fall_behind(job)
    slot = die_running(job)
    if is_cleared:
        clear(lock(name))
    assert runner.run(job, trigger=trigger).slot is None
    assert run_slot(job).slot == slot
    assert run_slot(job).reason == Reason.NOT_DUE
    assert [(slot, status) for slot, _, status in slots_run()] == [
        (slot, "abandoned"),
        (None, "successful"),
        (slot, "successful"),
    ]


@pytest.mark.parametrize("trigger", ["call", "manual"])
@on_either_lock
@pytest.mark.parametrize("is_cleared", [False, True], ids=["stale", "cleared"])
def test_nor_does_it_bring_back_one_that_shall_not_be_run_again(trigger: str, name: str, is_cleared: bool) -> None:
    job = scheduled(lock=name, max_attempts=1)
    fall_behind(job)
    die_running(job)
    if is_cleared:
        clear(lock(name))
    assert runner.run(job, trigger=trigger).status == "successful"
    assert gate().next_slot == coming_slot(job)
    assert run_slot(job).reason == Reason.NOT_DUE


@on_either_lock
def test_a_dead_call_consumed_no_slot_and_brings_none_back(name: str) -> None:
    job = scheduled(lock=name)
    fall_behind(job)
    start_run("nightly", name=name)
    expire(name)
    outcome = run_slot(job)
    assert (outcome.slot, outcome.value.attempt) == (newest_slot(job), 1)
    start_run("nightly", name=name)
    expire(name)
    assert run_slot(job).reason == Reason.NOT_DUE


def test_a_pause_keeps_the_slot_of_a_dead_run() -> None:
    job = scheduled()
    fall_behind(job)
    slot = die_running(job)
    gates().update(paused=True)
    assert run_slot(job).reason == Reason.PAUSED
    gates().update(paused=False)
    assert (run_slot(job).slot, last_run().attempt) == (slot, 2)


def test_a_call_in_between_changes_nothing_about_the_dead_runs_slot() -> None:
    job = scheduled(max_attempts=2)
    fall_behind(job)
    slot = die_running(job)
    assert runner.run(job).value.attempt == 1
    assert (gate().last_slot, gate().last_attempt, gate().abandoned) == (slot, 1, True)
    die_running(job)
    runner.run(job)
    assert slots_run() == [
        (slot, 1, "abandoned"),
        (None, 1, "successful"),
        (slot, 2, "abandoned"),
        (None, 1, "successful"),
    ]
    assert run_slot(job).reason == Reason.NOT_DUE


@pytest.mark.parametrize("is_cleared", [False, True], ids=["taken over", "cleared"])
def test_the_death_of_a_run_under_a_former_lock_is_no_reason_to_run_a_later_slot_again(is_cleared: bool) -> None:
    """The next release has renamed `lock=` and has already run the next slot."""
    former = scheduled(lock="former")
    fall_behind(former)
    die_running(former)
    let_pass(former, 1)
    job = scheduled(lock="shop", schedule=former.schedule)
    slot = run_slot(job).slot
    assert slot == newest_slot(job)
    if is_cleared:
        assert clear(lock("former"))
    else:
        take("former")
    assert (gate().last_slot, gate().abandoned) == (slot, False)
    assert run_slot(job).reason == Reason.NOT_DUE
    assert [status for *_, status in slots_run()] == ["abandoned", "successful"]


def test_a_death_after_an_edit_leaves_the_new_schedule_where_it_is() -> None:
    job = scheduled(lock="shop", catch_up="all")
    fall_behind(job)
    slot = die_running(job)
    changed = scheduled(lock="shop", catch_up="all", schedule=MINUTE)
    follow_code()
    take("shop").release()
    status = gate()
    assert (status.last_slot, status.abandoned) == (slot, True)
    assert status.next_slot
    assert status.next_slot > slot + 20 * MINUTE
    assert (run_slot(changed).slot, last_run().attempt) == (slot, 2)
