"""What a command says of a job that it ran, and its exit status."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from django.core.management.base import CommandError
from django.db import Error

from django_singlejob.clock import instant_in_words
from django_singlejob.database import is_connection_lost, is_transient
from django_singlejob.exceptions import DatabaseUnreachable, JobInterrupted, LeaseLost, UnsafeTransaction
from django_singlejob.locking.acquire import Reason
from django_singlejob.management.child import ChildFailed
from django_singlejob.received_signals import status_if_given_up
from django_singlejob.results import summary
from django_singlejob.runner import Outcome

# From sysexits.h, as cron and systemd know them.
EX_FAILED, EX_USAGE, EX_UNAVAILABLE, EX_TEMPFAIL = 1, 2, 69, 75


class Result(NamedTuple):
    """What the shell and people are told."""

    status: int
    message: str
    is_error: bool = True


def of_outcome(name: str, outcome: Outcome, *, skipped_status: int = 0, signum: int | None = None) -> Result:
    """Of a job that ran, or was skipped; ``signum``: the signal that was received, if one was."""
    if outcome.duration is not None:
        return Result(0, f"{name}: ran{_slot(outcome)} in {outcome.duration.total_seconds():.1f} s.", is_error=False)
    label = outcome.reason.label if outcome.reason else ""
    if outcome.reason == Reason.INTERRUPTED:
        detail = f", {outcome.detail}" if outcome.detail else ""
        return Result(128 + (signum or 0), f"{name}: {label}{detail}.")
    if outcome.reason == Reason.UNDECIDED:
        return Result(EX_UNAVAILABLE, f"{name}: {label}, {outcome.detail}")
    by = f" ({outcome.holder})" if outcome.holder else ""
    due = f" (next: {instant_in_words(outcome.next_slot)})" if outcome.next_slot else ""
    return Result(skipped_status, f"{name}: skipped, {label}{by}{due}.", is_error=False)


def _slot(outcome: Outcome) -> str:
    return f" its slot {instant_in_words(outcome.slot)}" if outcome.slot else ""


def of_error(name: str, error: BaseException, *, child_status: int | None = None, signum: int | None = None) -> Result:
    """Of a job that raised; ``child_status``: its shell command's exit status; ``signum``: the signal that was
    received, if one was."""
    match error:
        case JobInterrupted():
            by = f" by signal {error.signum}" if error.signum else ""
            return Result(child_status or 128 + error.signum, f"{name}: interrupted{by}.")
        case ChildFailed():
            return Result(error.status, f"{name}: {error}")
        case LeaseLost():
            # One may come while the other is on its way. The sender of the signal wants to know that the command ended.
            return Result(128 + signum if signum else EX_TEMPFAIL, f"{name}: {error}")
        case DatabaseUnreachable():
            return Result(128 + signum if signum else EX_UNAVAILABLE, f"{name}: {error}")
        case Error() if signum and is_connection_lost(error):
            return Result(128 + signum, f"{name}: interrupted by signal {signum}, {summary(error)}")
        case UnsafeTransaction():
            return Result(EX_USAGE, f"{name}: {error}")
        case SystemExit() if not error.code:
            return Result(0, f"{name}: ran.", is_error=False)
        case _:
            return Result(EX_FAILED, f"{name}: failed, {summary(error)} (--traceback and the history tell more)")


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
