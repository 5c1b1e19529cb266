"""The run that a request would start. There is no database: the rows are made up."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

from django_singlejob.jobs.schedule import parse
from django_singlejob.jobs.slots import Claim, Policy
from django_singlejob.locking.plan import PlannedRun, Snapshot, plan
from django_singlejob.locking.request import LockRequest, Reason, Refusal
from django_singlejob.models import JobLock, JobStatus, OneOffJob
from django_singlejob.models.holder import this_process

#: The greatest number in an IntegerField.
HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)
NOW = datetime(2026, 7, 27, 10, 30, tzinfo=UTC)
SLOT = datetime(2026, 7, 27, 10, 0, tzinfo=UTC)


def request(**terms: Any) -> LockRequest:
    usual = {"name": "nightly", "job_name": "nightly", "lease": MINUTE, "heartbeat_interval": None}
    return LockRequest(holder=this_process(), **{**usual, **terms})


def seen(*, dead: dict[str, Any] | None = None, **own: Any) -> Snapshot:
    """The rows of a job that started a moment ago, with the stale lock of its holder if that is ``dead``."""
    status = JobStatus(name="nightly", **own)
    status.now = NOW
    status.started_recently = True
    lock = None if dead is None else JobLock(**{"name": "nightly", "job_name": "nightly", "token": uuid4(), **dead})
    return Snapshot(lock, status, status, at=0.0)


def planned(answer: PlannedRun | Refusal | Claim) -> PlannedRun:
    assert isinstance(answer, PlannedRun), answer
    return answer


def reason(answer: PlannedRun | Refusal | Claim) -> Reason:
    assert isinstance(answer, Refusal), answer
    return answer.reason


def test_a_lock_without_a_job_asks_for_nothing_else() -> None:
    assert plan(request(job_name="", min_interval=HOUR), seen(paused=True)) == PlannedRun()


def test_a_paused_job_is_not_run() -> None:
    assert reason(plan(request(), seen(paused=True))) == Reason.PAUSED
    until_later = plan(request(), seen(paused=True, paused_until=NOW + MINUTE, pause_reason="two\nlines"))
    assert until_later == Refusal(Reason.PAUSED, detail=r"until 2026-07-27 10:31:00 UTC (two\nlines)")
    assert plan(request(), seen(paused=True, paused_until=NOW)) == PlannedRun()


# --- min_interval, and the exceptions to it


def test_what_started_a_moment_ago_is_not_run_again() -> None:
    assert reason(plan(request(min_interval=HOUR), seen())) == Reason.ALREADY_RAN
    assert planned(plan(request(), seen())).min_interval == timedelta()


@pytest.mark.parametrize(
    ("status", "how"),
    [("failed", "failed"), ("interrupted", "was interrupted"), ("skipped", "skipped itself")],
)
def test_a_failure_before_the_last_start_says_nothing_about_how_that_ended(status: str, how: str) -> None:
    before: dict[str, Any] = {"last_status": status, "last_finished_at": NOW - HOUR, "last_started_at": NOW - MINUTE}
    answer = plan(request(min_interval=HOUR, max_attempts=1), seen(dead={"attempt": 1}, **before))
    assert reason(answer) == Reason.ALREADY_RAN
    assert isinstance(answer, Refusal)
    assert answer.detail == ""
    ended = {**before, "last_started_at": NOW - 2 * HOUR}
    answer = plan(request(min_interval=HOUR, max_attempts=1), seen(**ended))
    assert isinstance(answer, Refusal)
    assert answer.detail == f"its last run {how} 1 hour ago"


@pytest.mark.parametrize("dead", [{}, {"slot": SLOT}], ids=["called", "scheduled"])
def test_a_run_in_the_place_of_a_dead_one_need_not_wait(dead: dict[str, Any]) -> None:
    run = planned(plan(request(min_interval=HOUR, max_attempts=2), seen(dead={"attempt": 1, **dead})))
    assert run.min_interval == timedelta()
    assert run.changes["last_status"] == ""
    assert run.attempt == (1 if dead else 2), "A call does not repeat the run of a slot."


def test_how_the_last_run_ended_stays_known_while_the_next_one_runs() -> None:
    for status in "successful", "failed", "interrupted", "skipped":
        assert "last_status" not in planned(plan(request(), seen(last_status=status))).changes


def test_nor_if_its_lock_was_cleared_or_taken_over_by_another_job() -> None:
    abandoned: dict[str, Any] = {"last_status": "abandoned", "consecutive_failures": 1}
    run = planned(plan(request(min_interval=HOUR, max_attempts=2), seen(**abandoned)))
    assert run.min_interval == timedelta()
    assert run.changes["last_status"] == ""
    another = seen(dead={"job_name": "hourly", "attempt": 5}, **abandoned)
    assert planned(plan(request(min_interval=HOUR, max_attempts=2), another)).min_interval == timedelta()


@pytest.mark.parametrize(
    "rows",
    [{"dead": {"attempt": 2}}, {"last_status": "abandoned", "consecutive_failures": 2}],
    ids=["is there", "was cleared"],
)
def test_it_waits_if_too_many_have_died(rows: dict[str, Any]) -> None:
    assert reason(plan(request(min_interval=HOUR, max_attempts=2), seen(**rows))) == Reason.ALREADY_RAN


def test_the_dead_holder_counts_and_not_what_failed_before() -> None:
    rows = seen(dead={"attempt": 2}, last_status="abandoned", consecutive_failures=0)
    assert reason(plan(request(min_interval=HOUR, max_attempts=2), rows)) == Reason.ALREADY_RAN


def test_a_job_that_only_failed_waits() -> None:
    rows = seen(last_status="failed", consecutive_failures=1)
    assert reason(plan(request(min_interval=HOUR, max_attempts=3), rows)) == Reason.ALREADY_RAN


def test_a_one_off_that_is_tried_again_need_not_wait() -> None:
    run = planned(plan(request(min_interval=HOUR, one_off=OneOffJob(attempt=1)), seen()))
    assert (run.attempt, run.min_interval) == (2, timedelta())
    assert reason(plan(request(min_interval=HOUR, one_off=OneOffJob(attempt=0)), seen())) == Reason.ALREADY_RAN


# --- slots


def of_slot(**terms: Any) -> LockRequest:
    return request(is_scheduled=True, policy=Policy(schedule=parse("0 * * * *"), **terms.pop("policy", {})), **terms)


def test_a_slot_that_is_due_is_run() -> None:
    run = planned(plan(of_slot(), seen(next_slot=SLOT)))
    assert (run.slot, run.attempt) == (SLOT, 1)
    assert run.changes["next_slot"] == SLOT + HOUR


def test_the_slot_of_a_dead_holder_is_run_again() -> None:
    own: dict[str, Any] = {"next_slot": SLOT + HOUR, "last_slot": SLOT, "last_attempt": 1}
    for rows in seen(dead={"slot": SLOT, "attempt": 1}, **own), seen(abandoned=True, **own):
        run = planned(plan(of_slot(max_attempts=2), rows))
        assert (run.slot, run.attempt) == (SLOT, 2)
        assert not isinstance(plan(of_slot(max_attempts=1), rows), PlannedRun)
    of_another = seen(dead={"slot": SLOT - HOUR, "attempt": 1}, **own)
    assert not isinstance(plan(of_slot(max_attempts=2), of_another), PlannedRun)


def test_a_slot_that_somebody_ran_has_run_and_no_slot_is_not_due() -> None:
    rows = seen(last_slot=SLOT, next_slot=SLOT + HOUR)
    assert reason(plan(of_slot(early=MINUTE), rows)) == Reason.NOT_DUE
    rows.own.now = SLOT + timedelta(seconds=1)
    answer = plan(of_slot(early=MINUTE), rows)
    assert answer == Refusal(Reason.ALREADY_RAN, next_slot=SLOT + HOUR)
    rows.own.last_slot = SLOT - HOUR
    assert reason(plan(of_slot(early=MINUTE), rows)) == Reason.NOT_DUE


def test_slots_that_are_all_too_late_are_passed_by() -> None:
    policy: dict[str, Any] = {"catch_up": "none", "misfire_grace": MINUTE}
    answer = plan(of_slot(policy=policy), seen(next_slot=SLOT))
    assert isinstance(answer, Claim)
    assert (answer.slot, answer.next_slot) == (None, SLOT + HOUR)
