"""What a command says of a run, and its exit status; no job is run here."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone

import pytest
from django.db import InterfaceError

from django_singlejob import (
    SKIPPED,
    DatabaseUnreachable,
    JobInterrupted,
    JobTimeout,
    LeaseLost,
    Outcome,
    Reason,
    UnsafeTransaction,
)
from django_singlejob.locking.acquire import IN_DOUBT
from django_singlejob.management.child import ChildFailed
from django_singlejob.management.exit_status import Result, of_error, of_outcome

SECOND = timedelta(seconds=1)
SLOT = datetime(2026, 11, 21, 10, 5, tzinfo=UTC)
ROME = timezone(timedelta(hours=1))


def ran(slot: datetime | None = None) -> Outcome:
    return Outcome(status="successful", value=None, duration=1.26 * SECOND, slot=slot)


def skipped(reason: Reason, *, holder: str = "", next_slot: datetime | None = None) -> Outcome:
    return Outcome(status="skipped", value=SKIPPED, reason=reason, holder=holder, next_slot=next_slot)


@pytest.mark.parametrize(
    ("outcome", "message"),
    [
        (ran(), "nightly: ran in 1.3 s."),
        (ran(SLOT), "nightly: ran its slot 2026-11-21 10:05:00 UTC in 1.3 s."),
        (ran(SLOT.astimezone(ROME)), "nightly: ran its slot 2026-11-21 10:05:00 UTC in 1.3 s."),
        (skipped(Reason.PAUSED), "nightly: skipped, paused."),
        (skipped(Reason.HELD, holder="web-1, pid 7"), "nightly: skipped, held by somebody else (web-1, pid 7)."),
        (skipped(Reason.HELD), "nightly: skipped, held by somebody else."),
        (
            skipped(Reason.NOT_DUE, next_slot=SLOT.astimezone(ROME)),
            "nightly: skipped, not due (next: 2026-11-21 10:05:00 UTC).",
        ),
        (
            skipped(Reason.ALREADY_RAN, next_slot=SLOT),
            "nightly: skipped, already ran (next: 2026-11-21 10:05:00 UTC).",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_ran_or_was_skipped_is_no_error(outcome: Outcome, message: str) -> None:
    assert of_outcome("nightly", outcome) == Result(0, message, is_error=False)


def test_a_skip_may_have_a_status_of_its_own() -> None:
    assert of_outcome("nightly", skipped(Reason.HELD), skipped_status=75).status == 75
    assert of_outcome("nightly", ran(), skipped_status=75).status == 0


def test_a_signal_before_it_began_is_an_error() -> None:
    expected = Result(143, "nightly: told to end before it began.", is_error=True)
    assert of_outcome("nightly", skipped(Reason.INTERRUPTED), skipped_status=75, signum=15) == expected
    assert of_outcome("nightly", skipped(Reason.INTERRUPTED)).status == 128
    in_doubt = replace(skipped(Reason.INTERRUPTED), detail=IN_DOUBT)
    message = of_outcome("nightly", in_doubt, signum=15).message
    assert message.startswith("nightly: told to end before it began, but whether the lock was granted is not known")


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (ValueError("no\ncustomer"), 1, r"failed, ValueError: no\ncustomer (--traceback and the history tell more)"),
        (JobTimeout(), 1, "failed, JobTimeout: The job ran longer than its max_runtime and was interrupted. "),
        (SystemExit(3), 1, "failed, SystemExit: 3 (--traceback and the history tell more)"),
        (KeyboardInterrupt(), 1, "failed, KeyboardInterrupt: "),
        (JobInterrupted(15), 143, "interrupted by signal 15."),
        (ChildFailed("The command ended with status 7.", 7), 7, "The command ended with status 7."),
        (LeaseLost("It was taken over."), 75, "It was taken over."),
        (DatabaseUnreachable("The database does not answer."), 69, "The database does not answer."),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_each_error_has_a_status_and_a_line(error: BaseException, status: int, message: str) -> None:
    result = of_error("nightly", error)
    assert (result.status, result.is_error) == (status, True)
    assert result.message.startswith(f"nightly: {message}")
    assert "\n" not in result.message


def test_an_interrupted_command_has_its_own_status() -> None:
    assert of_error("backup", JobInterrupted(15), child_status=3) == Result(3, "backup: interrupted by signal 15.")


def test_a_signal_that_comes_with_the_loss_of_the_lease_tells_how_it_ended() -> None:
    assert of_error("nightly", LeaseLost("It was taken over."), signum=15) == Result(143, "nightly: It was taken over.")
    assert of_error("nightly", DatabaseUnreachable("It is away."), signum=15) == Result(143, "nightly: It is away.")
    assert of_error("nightly", InterfaceError("It is closed."), signum=15).status == 143
    assert of_error("nightly", ValueError(), signum=15).status == 1


@pytest.mark.parametrize("code", [None, 0])
def test_to_exit_well_is_no_error(code: int | None) -> None:
    assert of_error("nightly", SystemExit(code)) == Result(0, "nightly: ran.", is_error=False)


def test_a_jobs_own_mistake_ends_no_pass_over_the_others() -> None:
    mistake = UnsafeTransaction("A lock was asked for inside a transaction.")
    assert of_error("nightly", mistake) == Result(2, f"nightly: {mistake}")
