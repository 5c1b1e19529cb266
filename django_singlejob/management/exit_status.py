"""What a command says of a job that it ran, and its exit status: both for a ``Report``."""

from collections.abc import Iterator
from contextlib import contextmanager

from django.core.management.base import CommandError
from django.db import Error

from django_singlejob.clock import instant_in_words
from django_singlejob.conf import ZERO
from django_singlejob.database import is_connection_lost, is_transient
from django_singlejob.exceptions import DatabaseUnreachable, JobInterrupted, LeaseLost, UnsafeTransaction
from django_singlejob.locking.request import Reason
from django_singlejob.management.child import ChildFailed
from django_singlejob.received_signals import status_if_given_up
from django_singlejob.reports import Report
from django_singlejob.results import summary
from django_singlejob.runner import Outcome

# From sysexits.h, as cron and systemd know them.
EX_FAILED, EX_USAGE, EX_UNAVAILABLE, EX_TEMPFAIL = 1, 2, 69, 75


def verdict(
    report: Report, *, signum: int | None = None, child_status: int | None = None, skipped_status: int = 0
) -> tuple[int, str]:
    """The exit status, and what people are told in a line. ``signum``: the signal that was received, if one was;
    ``child_status``: the exit status of the job's shell command."""
    if report.outcome:
        status, words = _of_outcome(report.outcome, skipped_status, signum)
    else:
        status, words = _of_error(report.error, child_status, signum)
    return status, f"{report.name}: {words}"


def is_error(report: Report) -> bool:
    """Whether people are told on standard error: not of a run, nor of a job that was skipped."""
    return verdict(report)[0] != 0


def _of_outcome(outcome: Outcome, skipped_status: int, signum: int | None) -> tuple[int, str]:
    label = outcome.reason.label if outcome.reason else ""
    match outcome.reason:
        case None:
            slot = f" its slot {instant_in_words(outcome.slot)}" if outcome.slot else ""
            return 0, f"ran{slot} in {(outcome.duration or ZERO).total_seconds():.1f} s."
        case Reason.INTERRUPTED:
            return 128 + (signum or 0), f"{label}{f', {outcome.detail}' if outcome.detail else ''}."
        case Reason.UNDECIDED:
            return EX_UNAVAILABLE, f"{label}, {outcome.detail}"
    by = f" ({outcome.holder})" if outcome.holder else ""
    due = f" (next: {instant_in_words(outcome.next_slot)})" if outcome.next_slot else ""
    return skipped_status, f"skipped, {label}{by}{due}."


def _of_error(error: BaseException | None, child_status: int | None, signum: int | None) -> tuple[int, str]:
    match error:
        case JobInterrupted():
            by = f" by signal {error.signum}" if error.signum else ""
            return child_status or 128 + error.signum, f"interrupted{by}."
        case ChildFailed():
            return error.status, str(error)
        # One may come while the other is on its way. The sender of the signal wants to know that the command ended.
        case LeaseLost():
            return 128 + signum if signum else EX_TEMPFAIL, str(error)
        case DatabaseUnreachable():
            return 128 + signum if signum else EX_UNAVAILABLE, str(error)
        case UnsafeTransaction():
            return EX_USAGE, str(error)
        case Error() if signum and is_connection_lost(error):
            return 128 + signum, f"interrupted by signal {signum}, {summary(error)}"
        case SystemExit() if not error.code:
            return 0, "ran."
    return EX_FAILED, f"failed, {summary(error)} (--traceback and the history tell more)"


@contextmanager
def asking_the_database() -> Iterator[None]:
    """Has a command that cannot go on without the database say so, in one line and with an exit status of its own; or
    with that of the signals at which the database was given up."""
    try:
        yield
    except Error as error:
        if not (is_connection_lost(error) or is_transient(error)):
            raise
        status = status_if_given_up() or EX_UNAVAILABLE
        raise CommandError(f"The database does not answer: {error}", returncode=status) from error
