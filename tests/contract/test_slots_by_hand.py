"""A past slot that somebody runs by hand: under the lock, at most one success, and the schedule goes on as before."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from django_singlejob import JobInterrupted, Lease, SkipRun, current_run, singleton_job
from django_singlejob.locking.acquire import acquire
from django_singlejob.locking.at_exit import announce, release_granted
from django_singlejob.locking.clear import clear
from django_singlejob.locking.endings import NOT_BEGUN, Ending
from django_singlejob.locking.request import Reason, Refusal
from django_singlejob.models import OneOffJob
from django_singlejob.models.jobs import database_now, gates
from django_singlejob.models.locks import locks
from django_singlejob.models.runs import runs
from django_singlejob.running import runner
from tests.contract.acts import (
    HOUR,
    MINUTE,
    SECOND,
    all_at_once,
    ask_for_slot,
    coming_slot,
    die_running,
    everything,
    expire,
    fall_behind,
    gate,
    hourly,
    is_free,
    last_run,
    lock,
    newest_slot,
    run_slot,
    scheduled,
    slots_run,
    ticked,
)
from tests.databases import APPS

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from django_singlejob import Job
    from django_singlejob.running.outcomes import Outcome

pytestmark = pytest.mark.django_db(transaction=True, available_apps=APPS)

# The job's own lock, and one that other jobs may share. With a shared lock, two gates are passed.
on_either_lock = pytest.mark.parametrize("name", ["nightly", "shop"])


def by_hand(job: Job, slot: datetime) -> Outcome:
    return runner.run(job, trigger="manual", slot=slot)


def ask_by_hand(job: Job, slot: datetime) -> Lease | Refusal:
    """The same, but the run goes on in another process, which sends no heartbeats."""
    request = runner.Run(job, trigger="manual", slot=slot).of_lock()
    return acquire(request._replace(lease=MINUTE, heartbeat_interval=None))


def take_by_hand(job: Job, slot: datetime) -> Lease:
    answer = ask_by_hand(job, slot)
    assert isinstance(answer, Lease), answer
    return answer


def cursor() -> tuple[Any, ...]:
    """How far the schedule has got."""
    status = gate()
    return status.next_slot, status.last_slot, status.last_attempt, status.abandoned


def have_missed(**settings: Any) -> tuple[Job, datetime]:
    """A job that has run its newest slot and the one before it not, and that one."""
    job = scheduled(**settings)
    fall_behind(job, 2)
    run_slot(job)
    return job, newest_slot(job, back=1)


def have_failed(**settings: Any) -> tuple[Job, datetime]:
    """A job whose newest slot was run and has failed, and that slot. From now on, the job does not fail."""
    failing = [ZeroDivisionError()]

    @singleton_job(schedule=hourly(ago=30 * MINUTE), **settings)
    def nightly() -> Any:
        if failing:
            raise failing.pop()
        return current_run()

    fall_behind(nightly)
    with pytest.raises(ZeroDivisionError):
        run_slot(nightly)
    return nightly, newest_slot(nightly)


# --- the run


@on_either_lock
def test_it_is_the_run_of_that_slot_and_the_schedule_does_not_notice(name: str) -> None:
    job, slot = have_missed(lock=name)
    before = cursor()
    outcome = by_hand(job, slot)
    assert (outcome.status, outcome.slot, outcome.value.slot) == ("successful", slot, slot)
    assert outcome.run
    assert (outcome.run.slot, outcome.run.trigger, outcome.run.status) == (slot, "manual", "successful")
    assert cursor() == before
    assert is_free(name)
    assert ticked() == []


def test_what_is_logged_about_it_names_the_slot() -> None:
    job, slot = have_missed()
    assert take_by_hand(job, slot).grant.facts()["singlejob_slot"] == slot.isoformat()


def test_a_job_that_no_server_has_asked_for_may_run_a_past_slot() -> None:
    job = scheduled()
    assert by_hand(job, newest_slot(job)).slot == newest_slot(job)
    assert cursor() == (None, None, 1, False)


@on_either_lock
def test_the_last_slot_may_be_run_by_hand_if_it_has_failed(name: str) -> None:
    job, slot = have_failed(lock=name)
    before = cursor()
    assert by_hand(job, slot).slot == slot
    assert slots_run() == [(slot, 1, "failed"), (slot, 1, "successful")]
    assert cursor() == before


@pytest.mark.parametrize("status", ["failed", "abandoned", "interrupted", "skipped"])
def test_no_other_end_of_a_run_than_success_keeps_a_slot_from_being_run(status: str) -> None:
    job, slot = have_missed()
    by_hand(job, slot)
    runs().filter(slot=slot).update(status=status)
    assert by_hand(job, slot).slot == slot


# --- what is refused changes nothing


@on_either_lock
@pytest.mark.parametrize("back", [0, 1])
def test_a_slot_that_was_run_successfully_is_not_run_again(name: str, back: int) -> None:
    job, slot = have_missed(lock=name)
    by_hand(job, slot)
    before = everything()
    again = by_hand(job, newest_slot(job, back=back))
    assert (again.status, again.reason) == ("skipped", Reason.ALREADY_RAN)
    assert everything() == before


def test_nor_is_it_while_its_dead_holder_has_the_lock() -> None:
    job, slot = have_missed()
    by_hand(job, slot)
    take_by_hand(job, slot - HOUR)
    expire()
    before = everything()
    assert by_hand(job, slot).reason == Reason.ALREADY_RAN
    assert everything() == before


def test_the_success_of_another_job_does_not_count() -> None:
    job, slot = have_missed()
    by_hand(job, slot)
    runs().filter(slot=slot).update(job_name="another")
    assert by_hand(job, slot).slot == slot


@on_either_lock
def test_a_slot_that_the_schedule_has_not_given_up_is_left_to_it(name: str) -> None:
    job = scheduled(lock=name)
    fall_behind(job, 2)
    gates().remember(name)
    before = everything()
    for slot in newest_slot(job, back=1), newest_slot(job), coming_slot(job):
        refusal = by_hand(job, slot)
        assert (refusal.reason, refusal.next_slot) == (Reason.NOT_DUE, newest_slot(job, back=1))
    assert everything() == before
    assert by_hand(job, newest_slot(job, back=2)).status == "successful"


def test_a_slot_to_come_is_not_run_by_hand_wherever_the_schedule_is() -> None:
    job = scheduled()
    assert by_hand(job, coming_slot(job)).reason == Reason.NOT_DUE
    fall_behind(job)
    gates().update(next_slot=coming_slot(job) + 24 * HOUR)
    assert by_hand(job, coming_slot(job)).reason == Reason.NOT_DUE


@on_either_lock
def test_a_slot_that_is_run_again_after_a_death_is_left_to_the_schedule(name: str) -> None:
    job = scheduled(lock=name, max_attempts=2)
    fall_behind(job)
    slot = die_running(job)
    assert by_hand(job, slot).reason == Reason.NOT_DUE
    assert clear(lock(name))
    assert by_hand(job, slot).reason == Reason.NOT_DUE
    assert [outcome.slot for outcome in ticked()] == [slot]
    assert by_hand(job, slot).reason == Reason.ALREADY_RAN


@on_either_lock
def test_unless_its_attempts_are_used_up(name: str) -> None:
    job = scheduled(lock=name, max_attempts=1)
    fall_behind(job)
    slot = die_running(job)
    assert by_hand(job, slot).slot == slot
    assert ticked() == []
    assert slots_run() == [(slot, 1, "abandoned"), (slot, 1, "successful")]


def test_a_paused_job_does_not_run_it() -> None:
    job, slot = have_missed()
    gates().filter(name="nightly").update(paused=True)
    assert by_hand(job, slot).reason == Reason.PAUSED


def test_a_held_lock_is_in_its_way() -> None:
    job, slot = have_missed(lock="shop")
    take_by_hand(job, slot)
    assert by_hand(job, slot).reason == Reason.HELD


# --- many at once


@pytest.mark.slow
@on_either_lock
def test_of_eight_at_once_one_runs_it(name: str) -> None:
    job, slot = have_missed(lock=name, wait=MINUTE)
    outcomes = all_at_once([partial(by_hand, job, slot)] * 8)
    assert sorted(outcome.status for outcome in outcomes) == ["skipped"] * 7 + ["successful"]
    assert {outcome.reason for outcome in outcomes} == {Reason.ALREADY_RAN, None}
    assert len(runs().filter(slot=slot)) == 1


def waited_for(job: Job, slot: datetime, meanwhile: Callable[[], object]) -> Lease | Refusal:
    """What it gets that has found the lock held, and waits for it until this has happened."""
    request = runner.Run(job, trigger="manual", slot=slot).of_lock()
    return acquire(request, pause=lambda seconds: meanwhile())


def test_what_waited_while_it_was_run_does_not_run_it_again() -> None:
    job, slot = have_missed(wait=MINUTE)
    lease = take_by_hand(job, slot)
    answer = waited_for(job, slot, lambda: lease.finish(Ending("successful", MINUTE)))
    assert isinstance(answer, Refusal)
    assert answer.reason == Reason.ALREADY_RAN


def test_but_runs_it_if_it_has_failed() -> None:
    job, slot = have_missed(wait=MINUTE)
    lease = take_by_hand(job, slot)
    answer = waited_for(job, slot, lambda: lease.finish(Ending("failed", MINUTE)))
    assert isinstance(answer, Lease)


def test_what_waited_while_its_run_by_the_schedule_was_cut_off_leaves_it_to_the_schedule() -> None:
    job = scheduled(wait=MINUTE, max_attempts=2)
    fall_behind(job)
    ask_for_slot(job)
    answer = waited_for(job, newest_slot(job), lambda: clear(lock(), force=True))
    assert isinstance(answer, Refusal)
    assert answer.reason == Reason.NOT_DUE


# --- its end never puts the slot back, even if it is the last one of the schedule


@on_either_lock
def test_its_holders_death_is_that_of_a_run_by_hand(name: str) -> None:
    job, slot = have_failed(lock=name, max_attempts=3)
    before = cursor()
    take_by_hand(job, slot)
    assert (lock(name).slot, last_run().slot) == (None, slot)
    expire(name)
    ticked()
    assert cursor() == before
    assert is_free(name)
    assert (last_run().slot, last_run().status) == (slot, "abandoned")
    assert gate().consecutive_failures == 2
    assert by_hand(job, slot).slot == slot
    assert cursor() == before


def test_so_it_is_if_its_lock_is_cleared_or_its_process_exits() -> None:
    job, slot = have_failed(max_attempts=3)
    before = cursor()
    take_by_hand(job, slot)
    assert clear(lock(), force=True)
    assert cursor() == before
    lease = take_by_hand(job, slot)
    announce(lease.token, "nightly")  # as if it had not begun
    assert release_granted(lease.token)
    assert (last_run().slot, last_run().status) == (slot, "interrupted")
    assert cursor() == before


@pytest.mark.parametrize("end", [KeyboardInterrupt(), JobInterrupted(15), SkipRun("holiday")], ids=type)
def test_an_interruption_of_it_is_that_of_a_run_by_hand(end: BaseException) -> None:
    ends = [ZeroDivisionError(), end]

    @singleton_job(schedule=hourly(ago=30 * MINUTE), max_attempts=3)
    def nightly() -> None:
        raise ends.pop(0)

    fall_behind(nightly)
    slot = newest_slot(nightly)
    with pytest.raises(ZeroDivisionError):
        run_slot(nightly)
    before = cursor()
    with suppress(KeyboardInterrupt, JobInterrupted):
        by_hand(nightly, slot)
    assert not ends
    assert cursor() == before
    assert gate().consecutive_failures == 1
    assert last_run().slot == slot


def test_what_has_not_begun_leaves_nothing() -> None:
    job, slot = have_failed(max_attempts=3)
    before = cursor()
    lease = take_by_hand(job, slot)
    lease.finish(NOT_BEGUN)
    assert cursor() == before
    assert slots_run() == [(slot, 1, "failed")]
    assert gate().last_status == "failed"


def test_a_failure_of_it_is_retried_as_that_of_any_run() -> None:
    job = singleton_job("nightly", schedule=hourly(ago=30 * MINUTE), retries=1)(lambda: 1 / 0)
    slot = newest_slot(job)
    with pytest.raises(ZeroDivisionError):
        by_hand(job, slot)
    assert (last_run().slot, last_run().status) == (slot, "failed")
    assert OneOffJob.objects.get().attempt == 1
    assert gate().consecutive_failures == 1
    assert not locks().exists()


# --- what else may run the slot


def test_while_a_retry_of_it_waits_it_is_left_to_that() -> None:
    job, slot = have_failed(retries=1)
    answer = ask_by_hand(job, slot)
    assert isinstance(answer, Refusal)
    assert answer.reason == Reason.NOT_DUE
    OneOffJob.objects.update(status="cancelled")
    assert by_hand(job, slot).status == "successful"


def test_one_that_is_so_young_that_cron_may_still_mean_it_is_left_to_cron() -> None:
    """The row may follow an older schedule that has no such slot."""
    job = scheduled(schedule=10 * SECOND)
    gates().remember("nightly")
    gates().filter(name="nightly").update(schedule="0 0 1 1 *", time_zone="UTC", next_slot=database_now() + HOUR)
    answer = ask_by_hand(job, newest_slot(job))
    assert isinstance(answer, Refusal)
    assert answer.reason == Reason.NOT_DUE


def test_it_is_no_further_attempt_of_another_slot_whose_holder_died() -> None:
    job, slot = have_missed()
    take_by_hand(job, newest_slot(job, back=2))
    expire()
    take_by_hand(job, slot)
    assert (last_run().slot, last_run().attempt) == (slot, 1)
