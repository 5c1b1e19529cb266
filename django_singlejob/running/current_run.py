"""The run, or the task, that the caller is part of."""

import logging
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING

from django_singlejob.conf import quoted
from django_singlejob.exceptions import SingleJobError
from django_singlejob.jobs.registry import Job
from django_singlejob.locking.lease import Lease
from django_singlejob.models.runs import runs
from django_singlejob.process.progress import Progress

if TYPE_CHECKING:
    from django_singlejob.models import JobRun

logger = logging.getLogger("django_singlejob")


@dataclass(frozen=True, kw_only=True)
class CurrentRun:
    """The run that the caller is part of.

    Attributes:
        job: the job.
        lease: the right to run it. Call ``lease.check()`` in long loops, and write inside ``lease.atomic()``.
        slot: the instant at which its schedule was due (aware, UTC), also if somebody runs it by hand, and in a retry;
            ``None`` if it is not the run of a slot.
        attempt: 1, or more if it repeats a run that failed or was cut off.
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
        except SingleJobError:  # what a signal raises ends the run
            raise
        except Exception as error:
            self._report(error)

    def _report(self, error: Exception) -> None:
        """Log that the progress was not taken, once in a run."""
        if not self._reported:
            self._reported.append(True)
            message = "The progress of %r was not recorded, because it is not a number: %s"
            logger.warning(message, self.job.name, quoted(error), extra=self.lease.grant.facts(reason=error))


def row_of(run_id: int | None) -> "JobRun | None":
    """The run's row in the history; ``None`` if there is none."""
    return None if run_id is None else runs().filter(pk=run_id).first()


#: The run of this context; ``None`` outside a job.
CURRENT: ContextVar[CurrentRun | None] = ContextVar("django_singlejob_current_run", default=None)


def current_run() -> CurrentRun | None:
    """The run that the caller is part of. ``None`` outside a job, so check before you use the lease."""
    return CURRENT.get()


#: Raises ``JobStopped`` if a user has stopped the task of this context; ``None`` outside a task.
ASK_TASK: ContextVar[Callable[[], object] | None] = ContextVar("django_singlejob_task", default=None)


def raise_if_stopped() -> None:
    """Raise ``JobStopped`` if a user has stopped the job or the task that the caller is part of. Does nothing outside
    of both. Call it as often as you like: a task queries the database once a second at most, and a job does not.

    In a job, this is ``current_run().lease.check()``, so it raises ``LeaseLost`` and ``JobTimeout`` too."""
    if run := current_run():
        run.lease.check()
    if ask_task := ASK_TASK.get():
        ask_task()
