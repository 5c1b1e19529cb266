"""The line that a command prints for an ``Outcome``, and its exit status."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError
from django.db import Error, connections
from django.utils.connection import ConnectionDoesNotExist

from django_singlejob.conf import ZERO, options
from django_singlejob.database.errors import is_connection_lost, is_transient
from django_singlejob.database.transactions import alias
from django_singlejob.database.unusable import refusal, unreachable
from django_singlejob.exceptions import (
    DatabaseUnreachable,
    DatabaseUnusable,
    JobDied,
    JobInterrupted,
    JobStopped,
    Lack,
    LeaseLost,
    SingleJobError,
    UnsafeTransaction,
)
from django_singlejob.jobs import registry
from django_singlejob.jobs.discovery import autodiscover, remedy_for, why_not_registered
from django_singlejob.locking.endings import summary
from django_singlejob.locking.request import Reason
from django_singlejob.process.clock import instant_in_words
from django_singlejob.process.escaping import shown
from django_singlejob.process.logs import about, in_english
from django_singlejob.process.received_signals import NoThread
from django_singlejob.running.command import CommandFailed
from django_singlejob.running.failed_run import own_line, where_more_is
from django_singlejob.running.outcomes import Outcome

logger = logging.getLogger("django_singlejob")

# From sysexits.h, which systemd knows too.
EX_FAILED, EX_USAGE, EX_UNAVAILABLE, EX_TEMPFAIL, EX_NOPERM, EX_CONFIG = 1, 2, 69, 75, 77, 78

NO_THREAD = (
    "The system has no thread for this process. Raise the limit on the processes of its user (ulimit -u) or of its "
    "container, or end some of them."
)

# The database's administrator fixes these, not the project's developers.
_NOT_PERMITTED = (Lack.LOGIN, Lack.RIGHTS, Lack.WRITES)


def status_and_line(
    outcome: Outcome,
    *,
    signum: int | None = None,
    child_status: int | None = None,
    traceback: str = "",
) -> tuple[int, str]:
    """The exit status and the line to print.

    ``signum`` is the signal that was received, if one was. ``child_status`` is the exit status of the job's shell
    command. ``traceback`` says where to find the traceback of a failure; empty if it was printed. The status is 0 if
    the job ran, was skipped, or will be retried as a task: the line belongs on standard error if it is not.
    """
    if outcome.unusable:
        status, words = status_of_unusable(outcome.unusable), str(outcome.unusable)
    elif outcome.retry_in is not None:
        seconds = outcome.retry_in.total_seconds()
        status, words = 0, f"failed and will be retried in {seconds:.0f} s, {summary(outcome.error)}"
    elif outcome.error is None:
        status, words = _without_error(outcome, signum)
    else:
        where = f" (traceback: {traceback})" if traceback else ""
        status, words = _of_error(outcome.error, child_status, signum, where)
    return status, f"{outcome.name}: {words}"


def lines_about(outcome: Outcome) -> list[str]:
    """What else to print of a run that failed: the line of the project's own code, and where more is. Empty if the
    database does not have it."""
    with suppress(Error):
        if run := outcome.run:
            return [*filter(None, [own_line(run)]), where_more_is(run, command=f"singleton_why {outcome.name}")]
    return []


def status_of_skip(outcome: Outcome, chosen: int) -> int:
    """The exit status that was chosen for a job that was skipped; 0 if this one was not, or was not even asked for."""
    return 0 if outcome.refusal in (None, Reason.DISABLED, Reason.NOT_HERE) else chosen


def _without_error(outcome: Outcome, signum: int | None) -> tuple[int, str]:
    zone = registry.zone_of(outcome.name)
    label = in_english(outcome.reason.label) if outcome.reason else ""
    match outcome.reason:
        case None:
            slot = f" its slot {instant_in_words(outcome.slot, zone)}" if outcome.slot else ""
            return 0, f"ran{slot} in {(outcome.duration or ZERO).total_seconds():.1f} s."
        case Reason.ITSELF:
            why = f", {outcome.detail.removesuffix('.')}" if outcome.detail else ""
            return 0, f"{label}{why}."
        case Reason.INTERRUPTED:
            return 128 + (signum or 0), f"{label}{f', {outcome.detail}' if outcome.detail else ''}."
        case Reason.UNDECIDED:
            return EX_UNAVAILABLE, f"{label}, {outcome.detail}"
        case Reason.NOT_BEGUN:
            return EX_TEMPFAIL, f"{label}. {outcome.detail}"
        case Reason.DISABLED | Reason.NOT_HERE:
            return 0, f"skipped, {label}."
        case Reason.PAUSED:
            return 0, f"skipped, {f'{label} {outcome.detail}'.strip()}."
    by = f" ({outcome.holder})" if outcome.holder else ""
    due = f" (next: {instant_in_words(outcome.next_slot, zone)})" if outcome.next_slot else ""
    but = f", but {outcome.detail}: run_singleton with --now runs it again" if outcome.detail else ""
    return 0, f"skipped, {label}{by}{due}{but}."


def where_traceback_is(outcome: Outcome) -> str:
    """Where to find the traceback of a failure. A task has no run, and what was granted no lock has none either."""
    if outcome.is_task:
        return "in the admin under One-off jobs"
    return "in the admin under Runs" if outcome.lease else "in the log"


def _of_error(error: BaseException, child_status: int | None, signum: int | None, where: str) -> tuple[int, str]:
    match error:
        case JobInterrupted():
            by = f" by signal {error.signum}" if error.signum else ""
            return child_status or 128 + error.signum, f"interrupted{by}."
        case CommandFailed():
            return error.status, str(error)
        # A signal may come at the same time. Its sender wants to know that the command has exited because of it.
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
    return _of_failure(error, where)


def _of_failure(error: BaseException, where: str) -> tuple[int, str]:
    if isinstance(error, CommandError):  # of a management command; it is for people, who need no traceback
        return error.returncode or EX_FAILED, f"failed, {summary(error)}"
    if isinstance(error, JobStopped):
        return EX_FAILED, f"interrupted, {summary(error)}"
    if isinstance(error, JobDied):  # it has none
        return EX_FAILED, f"failed, {summary(error)}"
    return EX_FAILED, f"failed, {summary(error)}{where}"


def status_of_unusable(unusable: DatabaseUnusable) -> int:
    """77 if the database does not permit a statement, 78 if it is not set up for it."""
    return EX_NOPERM if unusable.lack in _NOT_PERMITTED else EX_CONFIG


@contextmanager
def explained() -> Iterator[None]:
    """Turn an error in the block into one line and an exit status. The status is that of the signal if a second signal
    made the command give up the database."""
    try:
        yield
    except Exception as error:
        explanation = explanation_of(error)
        if explanation is None:
            raise
        raise explanation from error


def explanation_of(error: Exception) -> CommandError | None:
    """The line to print for this error, with its exit status; ``None`` if the error needs its traceback."""
    if unusable := refusal(error):
        return CommandError(shown(unusable), returncode=status_of_unusable(unusable))
    match error:
        case CommandError():
            return error
        case Error() if is_connection_lost(error) or is_transient(error):
            message = str(error) if isinstance(error, SingleJobError) else unreachable(error)
            return CommandError(shown(message), returncode=EX_UNAVAILABLE)
        case NoThread():
            return CommandError(NO_THREAD, returncode=EX_TEMPFAIL)
        case SingleJobError() | ImproperlyConfigured() | ConnectionDoesNotExist():
            return CommandError(shown(" ".join(str(error).split())), returncode=_status_of_mistake(error))
    return None


def discover_jobs() -> None:
    """Import the modules that register jobs, and log the file and the line of an error in them: the other jobs go on.
    Raises ``CommandError`` if a setting is invalid."""
    with explained():
        options()
    for error in autodiscover():
        words = why_not_registered(error), remedy_for(error)
        logger.error("%s %s The other jobs run.", *words, extra=about(reason=error))


def _status_of_mistake(error: Exception) -> int:
    return EX_USAGE if isinstance(error, SingleJobError) else EX_CONFIG


def refuse_settings() -> None:
    """Raise ``CommandError`` if the settings name a database that does not exist, or no database at all."""
    with explained():
        connection = connections[alias()]
        if connection.vendor == "unknown":
            connection.ensure_connection()  # raises ImproperlyConfigured, because ENGINE is missing
