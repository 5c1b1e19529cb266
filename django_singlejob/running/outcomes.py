"""The outcome of a run, as a caller, a command or a worker gets it, and how its error is logged."""

import logging
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Literal

from django.core.management.base import CommandError

from django_singlejob.exceptions import DatabaseUnreachable, DatabaseUnusable, JobInterrupted, JobTimeout
from django_singlejob.locking.endings import status_of, summary
from django_singlejob.locking.lease import Lease
from django_singlejob.locking.request import Reason
from django_singlejob.process import messages
from django_singlejob.process.logs import about
from django_singlejob.running.body_end import NOTE
from django_singlejob.running.current_run import row_of

if TYPE_CHECKING:
    # Otherwise `str | Skipped` would be `str`, and nothing would say that a job that returns text may be skipped.
    from enum import Enum as StrEnum

    from django_singlejob.models import JobRun
else:
    from enum import StrEnum

logger = logging.getLogger("django_singlejob")

_NO_HANDLER = logging.NullHandler()


class Skipped(StrEnum):
    """The type of ``SKIPPED``. It is text, so that what takes a job's value can store it as JSON. For type checkers it
    is not text."""

    SKIPPED = "skipped"

    def __bool__(self) -> Literal[False]:
        return False

    def __repr__(self) -> str:
        return "SKIPPED"

    __str__ = __repr__


#: The value of a call that did not run: for example, another holder has the lock, or the job is paused or already ran.
SKIPPED: Final = Skipped.SKIPPED


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The outcome of a call.

    Attributes:
        status: ``"successful"`` or ``"skipped"``, also if it ran and skipped itself.
        value: what the job returned, or ``SKIPPED``.
        reason: why it was skipped; ``None`` if it was successful.
        run_id: the primary key of its row in the history, see ``run``; ``None`` if it did not run or the history could
            not be written.
        duration: how long the job itself took; ``None`` if it did not run.
        holder: the holder that was in the way, for people; empty if there was none.
        detail: what was tried, if it could not be decided whether the lock is free; until when the job is paused, and
            why; how the last run ended, if the job already ran but was not successful; the reason that it gave, if it
            skipped itself; otherwise empty.
        slot: the slot of its schedule that it ran (aware, UTC); ``None`` if it was not the run of a slot.
        next_slot: when its schedule is next due, if it was not due now (aware, UTC).

    A caller of the job gets its exception instead of an outcome. Commands and workers get an outcome then too, whose
    ``status`` is ``"failed"`` or ``"interrupted"``, and which has more:

    Attributes:
        name: the name of the job or task.
        error: what was raised; ``None`` if nothing was.
        lease: the lease under which that was raised, if there was one.
        is_task: whether it is of a task that is not a job, so it ran without a lock of its own.
        is_logged: whether Django has logged the error, as it does when a task has failed.
        retry_in: how long after that a task is retried; ``None`` if it is not.
    """

    status: str
    value: Any
    reason: Reason | None = None
    run_id: int | None = None
    duration: timedelta | None = None
    holder: str = ""
    detail: str = ""
    slot: datetime | None = None
    next_slot: datetime | None = None
    name: str = field(default="", compare=False)
    error: BaseException | None = field(default=None, compare=False)
    lease: Lease | None = field(default=None, repr=False, compare=False)
    is_task: bool = field(default=False, repr=False, compare=False)
    is_logged: bool = field(default=False, repr=False, compare=False)
    retry_in: timedelta | None = field(default=None, compare=False)

    @cached_property
    def run(self) -> "JobRun | None":
        """Its row in the history, read on first access. ``None`` if it did not run, if the history could not be
        written, or if the row has been pruned."""
        return row_of(self.run_id)

    @property
    def refusal(self) -> Reason | None:
        """Why the job did not run. ``None`` if it ran, even if it then skipped itself or failed."""
        return None if self.reason == Reason.ITSELF else self.reason

    @property
    def unusable(self) -> DatabaseUnusable | None:
        """Why the database kept the job from running; ``None`` if it did not. An error of another call that the job
        made does not count."""
        error = self.error
        return error if isinstance(error, DatabaseUnusable) and error.job_name == self.name else None

    @property
    def is_logged_by_child(self) -> bool:
        """Whether the child that has raised the error has logged it."""
        return any(note.startswith(NOTE) for note in getattr(self.error, "__notes__", ()))

    @property
    def is_slot_lost(self) -> bool:
        """Whether a signal ended the run of a slot that is not run again."""
        if self.lease is None or self.lease.stopped_by:
            return False
        return isinstance(self.error, JobInterrupted) and self.lease.grant.is_last_of_slot

    @property
    def is_hopeless(self) -> bool:
        """Whether nothing else can be run either, until the database is changed."""
        return self.unusable is not None and self.unusable.is_lasting

    def about(self, error: BaseException | None) -> dict[str, Any]:
        """The ``extra`` of a log record about the run and this error."""
        if self.lease is None:
            return about(job=self.name, reason=error)
        return self.lease.grant.facts(job=self.name, reason=error)


def skipped(reason: Reason, detail: str = "", **facts: Any) -> Outcome:
    """The outcome of a call that did not run."""
    return Outcome(status="skipped", value=SKIPPED, reason=reason, detail=detail, **facts)


def raised(name: str, error: BaseException, **facts: Any) -> Outcome:
    """The outcome of a run, or of the attempt to begin one, that raised the error."""
    lease = facts.get("lease")
    run_id = lease.grant.run_id if lease else None
    return Outcome(status=status_of(error), value=None, name=name, error=error, run_id=run_id, **facts)


def logged(outcome: Outcome, *, is_printed: bool = False) -> Outcome:
    """Log the outcome's error, if there is one, and return the outcome. A child that has raised the error has logged
    it. ``is_printed``: whether handlers leave it out that would write it where the command prints it.

    A command prints the error too. If the project has no handler for the record, Python would print it once more, with
    its traceback: it does not."""
    if not outcome.is_logged_by_child:
        logger.addHandler(_NO_HANDLER)
        before = messages.is_printed.set(is_printed)
        try:
            _log(outcome)
        finally:
            messages.is_printed.reset(before)
            logger.removeHandler(_NO_HANDLER)
    return outcome


def _log(outcome: Outcome) -> None:
    status, extra, kind = status_of(outcome.error), outcome.about(outcome.error), "task" if outcome.is_task else "job"
    if outcome.retry_in is not None:
        message, seconds = "The %s %r failed and will be retried in %.0f s: %s", outcome.retry_in.total_seconds()
        logger.warning(message, kind, outcome.name, seconds, summary(outcome.error), extra=extra)
    elif isinstance(outcome.error, DatabaseUnreachable) or outcome.unusable:
        logger.error("%s", outcome.error, extra=extra)
    elif status == "interrupted":
        level = logging.ERROR if isinstance(outcome.error, JobTimeout) or outcome.is_slot_lost else logging.WARNING
        logger.log(level, "The %s %r was interrupted: %s", kind, outcome.name, summary(outcome.error), extra=extra)
    elif status != "successful" and outcome.is_logged:
        logger.warning("The %s %r failed: %s", kind, outcome.name, summary(outcome.error), extra=extra)
    elif isinstance(outcome.error, CommandError):  # it is for people, who need no traceback
        logger.error("The %s %r failed: %s", kind, outcome.name, summary(outcome.error), extra=extra)
    elif status != "successful":
        logger.error("The %s %r failed.", kind, outcome.name, exc_info=outcome.error, extra=extra)
