"""What a command says of a job that it ran, and its exit status: both for a ``Report``."""

from collections.abc import Iterator
from contextlib import contextmanager

from django.core.management.base import CommandError
from django.db import Error

from django_singlejob.clock import instant_in_words
from django_singlejob.database import is_connection_lost, is_transient
from django_singlejob.exceptions import DatabaseUnreachable, JobInterrupted, LeaseLost, UnsafeTransaction
from django_singlejob.interrupt import status_if_given_up
from django_singlejob.locking.acquire import Reason
from django_singlejob.management.child import ChildFailed
from django_singlejob.reports import Report
from django_singlejob.results import summary
from django_singlejob.runner import Outcome

# From sysexits.h, as cron and systemd know them.
EX_FAILED, EX_USAGE, EX_UNAVAILABLE, EX_TEMPFAIL = 1, 2, 69, 75
_STATUSES = {LeaseLost: EX_TEMPFAIL, DatabaseUnreachable: EX_UNAVAILABLE, UnsafeTransaction: EX_USAGE}


def exit_status_of(
    report: Report, *, signum: int | None = None, child_status: int | None = None, skipped_status: int = 0
) -> int:
    """The exit status. ``signum``: the signal that was received, if one was; ``child_status``: the exit status of the
    job's shell command."""
    match report.error:
        case None:
            return _status_without_error(report.reason, skipped_status, signum)
        case JobInterrupted(signum=by):
            return child_status or 128 + by
        case ChildFailed(status=status):
            return status
        case SystemExit(code=code) if not code:
            return 0
        case error if signum and _is_cut_off(error):
            # One may come while the other is on its way. The sender of the signal wants to know that the command ended.
            return 128 + signum
        case error:
            return next((status for kind, status in _STATUSES.items() if isinstance(error, kind)), EX_FAILED)


def _is_cut_off(error: BaseException) -> bool:
    is_lost = isinstance(error, Error) and is_connection_lost(error)
    return is_lost or isinstance(error, (LeaseLost, DatabaseUnreachable))


def _status_without_error(reason: Reason | None, skipped_status: int, signum: int | None) -> int:
    match reason:
        case None:
            return 0
        case Reason.INTERRUPTED:
            return 128 + (signum or 0)
        case Reason.UNDECIDED:
            return EX_UNAVAILABLE
    return skipped_status


def is_error(report: Report) -> bool:
    """Whether people are told on standard error: not of a run, nor of a job that was skipped."""
    return exit_status_of(report) != 0


def message_of(report: Report, *, signum: int | None = None) -> str:
    """What people are told, in a line."""
    return f"{report.name}: {_of_outcome(report.outcome) if report.outcome else _of_error(report.error, signum)}"


def _of_outcome(outcome: Outcome) -> str:
    label = outcome.reason.label if outcome.reason else ""
    match outcome.reason:
        case None:
            slot = f" its slot {instant_in_words(outcome.slot)}" if outcome.slot else ""
            seconds = outcome.duration.total_seconds() if outcome.duration else 0.0
            return f"ran{slot} in {seconds:.1f} s."
        case Reason.INTERRUPTED:
            return f"{label}{f', {outcome.detail}' if outcome.detail else ''}."
        case Reason.UNDECIDED:
            return f"{label}, {outcome.detail}"
    by = f" ({outcome.holder})" if outcome.holder else ""
    due = f" (next: {instant_in_words(outcome.next_slot)})" if outcome.next_slot else ""
    return f"skipped, {label}{by}{due}."


def _of_error(error: BaseException | None, signum: int | None) -> str:
    match error:
        case JobInterrupted(signum=by):
            return f"interrupted by signal {by}." if by else "interrupted."
        case ChildFailed() | LeaseLost() | DatabaseUnreachable() | UnsafeTransaction():
            return str(error)
        case Error() if signum and is_connection_lost(error):
            return f"interrupted by signal {signum}, {summary(error)}"
        case SystemExit(code=code) if not code:
            return "ran."
    return f"failed, {summary(error)} (--traceback and the history tell more)"


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
