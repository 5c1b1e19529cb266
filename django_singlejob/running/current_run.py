"""The run, or the task, that the caller is part of."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING

from django.db import Error, connections

from django_singlejob.database import errors, transactions
from django_singlejob.exceptions import JobStopped
from django_singlejob.jobs.registry import Job
from django_singlejob.locking.lease import Lease
from django_singlejob.models.one_offs import one_offs
from django_singlejob.models.progress import Progress
from django_singlejob.models.runs import runs
from django_singlejob.process.clock import local_now
from django_singlejob.process.logs import about

if TYPE_CHECKING:
    from django_singlejob.models import JobRun, OneOffJob

logger = logging.getLogger("django_singlejob")

# How often a task asks the database whether it was stopped, at most. Seconds.
_INTERVAL = 1.0


@dataclass(frozen=True, kw_only=True)
class CurrentRun:
    """The run that the caller is part of.

    Attributes:
        job: the job.
        lease: the right to run it. Call ``lease.check()`` in long loops, and write inside ``lease.atomic()``.
        slot: the instant at which its schedule was due (aware, UTC); ``None`` if no schedule started it.
        attempt: 1, or more if it repeats a run that was cut off.
    """

    job: Job
    lease: Lease
    slot: datetime | None
    attempt: int
    # Not empty: it was logged that something is not a number.
    _reported: list[bool] = field(default_factory=list, init=False, repr=False, compare=False)

    @cached_property
    def run(self) -> "JobRun | None":
        """Its row in the history, read on first access. ``None`` if the history could not be written, or if the row has
        been pruned."""
        return row_of(self.lease.grant.run_id)

    def progress(self, done: float, total: float | None = None, text: str = "") -> None:
        """Say how far the run is, in any unit: ``progress(120, 500, "importing")``. ``total`` is ``None`` if that is
        not known. Does not query the database: the next heartbeat records the last call. What is not a number is
        reported in the log, and ends no run."""
        try:
            self.lease.take_progress(Progress(float(done), None if total is None else float(total), str(text)))
        except (TypeError, ValueError, OverflowError) as error:  # and nothing that a signal raises
            self._report(error)

    def _report(self, error: Exception) -> None:
        """Log that the progress was not taken, once in a run."""
        if not self._reported:
            self._reported.append(True)
            message = "The progress of %r was not recorded, because it is not a number: %s"
            logger.warning(message, self.job.name, error, extra=self.lease.grant.facts(reason=error))


def row_of(run_id: int | None) -> "JobRun | None":
    """The run's row in the history; ``None`` if there is none."""
    return None if run_id is None else runs().filter(pk=run_id).first()


#: The run of this context; ``None`` outside a job.
CURRENT: ContextVar[CurrentRun | None] = ContextVar("django_singlejob_current_run", default=None)


def current_run() -> CurrentRun | None:
    """The run that the caller is part of. ``None`` outside a job, so check before you use the lease."""
    return CURRENT.get()


class _Attempt:
    """An attempt at a task, which finds out by its row whether a user has stopped it."""

    def __init__(self, row: "OneOffJob") -> None:
        self._row = row
        self._stopped_by = ""
        self._look_at = 0.0

    def raise_if_stopped(self) -> None:
        if not self._stopped_by and local_now() >= self._look_at:
            self._stopped_by = self._look()
            self._look_at = local_now() + _INTERVAL
        if self._stopped_by:
            raise JobStopped(self._stopped_by)

    def _look(self) -> str:
        try:
            with transactions.closed_if_lost(connections[transactions.alias()]):
                return one_offs().stopped_by(self._row)
        except Error as error:  # the task goes on meanwhile
            message = "Whether a user has stopped the task %r is not known: %s"
            logger.warning(
                message, self._row.name, errors.words_of(error), extra=about(job=self._row.name, reason=error)
            )
            return ""


_ATTEMPT: ContextVar[_Attempt | None] = ContextVar("django_singlejob_attempt", default=None)


@contextmanager
def attempt_at(row: "OneOffJob") -> Iterator[None]:
    """Inside, ``raise_if_stopped()`` is about this task."""
    before = _ATTEMPT.set(_Attempt(row))
    try:
        yield
    finally:
        _ATTEMPT.reset(before)


def raise_if_stopped() -> None:
    """Raise ``JobStopped`` if a user has stopped the job or the task that the caller is part of. Does nothing outside
    of both. Call it as often as you like: a task queries the database once a second at most, and a job does not.

    In a job, this is ``current_run().lease.check()``, so it raises ``LeaseLost`` and ``JobTimeout`` too."""
    if run := current_run():
        run.lease.check()
    if attempt := _ATTEMPT.get():
        attempt.raise_if_stopped()
