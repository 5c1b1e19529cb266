"""The run that a request would start. There is no database: the rows are made up."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

from django_singlejob.jobs.slots import Claim
from django_singlejob.locking.grant import PlannedRun, Snapshot, plan
from django_singlejob.locking.request import LockRequest, Reason, Refusal
from django_singlejob.models import JobLock, JobStatus, OneOffJob
from django_singlejob.process.holder import this_process

#: The greatest number in an IntegerField.
HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)
NOW = datetime(2026, 7, 27, 10, 30, tzinfo=UTC)


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


# --- min_interval, and the exceptions to it


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
