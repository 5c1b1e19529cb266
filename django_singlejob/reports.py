"""What becomes of a job that is due, as a worker or a command reports it; and how the due slots of one job are run."""

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple

from django_singlejob import runner
from django_singlejob.conf import ZERO, options
from django_singlejob.exceptions import DatabaseUnreachable, DatabaseUnusable, JobInterrupted, UnsafeTransaction
from django_singlejob.interrupt import is_ctrl_c
from django_singlejob.locking.request import Reason
from django_singlejob.received_signals import is_told_to_end
from django_singlejob.registry import Job
from django_singlejob.results import status_of, summary

logger = logging.getLogger("django_singlejob")

# After these nothing more is to be expected of the one who runs the job.
FINAL = (JobInterrupted, DatabaseUnreachable, DatabaseUnusable, UnsafeTransaction)


class Report(NamedTuple):
    """What became of the job, or task, of that name, which was due: its outcome, or else what was raised."""

    name: str
    outcome: runner.Outcome | None = None
    error: BaseException | None = None

    @property
    def reason(self) -> Reason | None:
        """Why it was skipped. ``None``: it ran, or failed."""
        return self.outcome.reason if self.outcome else None

    @property
    def unusable(self) -> DatabaseUnusable | None:
        """Why the database kept it from running; ``None``: it did not. The job's own may be of something else that it
        asked for while it ran."""
        error = self.error
        return error if isinstance(error, DatabaseUnusable) and error.job_name == self.name else None

    @property
    def is_hopeless(self) -> bool:
        """Whether nothing else can be run either, until somebody has changed the database."""
        return self.unusable is not None and self.unusable.is_lasting


def report_of(job: Job, run: Callable[[], runner.Outcome]) -> Report:
    """What becomes of it, also if it is an exception."""
    pid = os.getpid()
    try:
        return Report(job.name, run())
    except BaseException as error:
        if os.getpid() != pid:
            raise  # a forked child that leaves: what comes next is not its own
        return Report(job.name, error=error)


def run_due(
    job: Job, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None, *, early: timedelta = ZERO
) -> Iterator[Report]:
    """Run the slot of the job that is due, and with ``catch_up="all"`` those after it, as many as may be caught up.

    ``early``: how long before its slot a run may begin. Yields one report at least: it may say skipped. Raises nothing
    but a Ctrl-C.
    """
    for count in range(most_slots(job)):
        report = report_of(job, partial(runner.run, job, args, kwargs, trigger="schedule", early=early))
        if report.error and is_ctrl_c(report.error):
            raise report.error
        if not (report.reason and count):
            yield report
        if report.reason or is_told_to_end() or isinstance(report.error, FINAL):
            return


def most_slots(job: Job) -> int:
    """How many slots of the job may be run one after the other."""
    return options().max_catch_up if job.catch_up == "all" else 1


def waitless(job: Job) -> Job:
    """The job, asked for by somebody for whom others are waiting."""
    return replace(job, on_held="skip", wait=None)


def logged(report: Report) -> Report:
    """Log the error, if there is one, and return the report: nobody else may ever see what went wrong."""
    status = status_of(report.error)
    if isinstance(report.error, DatabaseUnreachable) or report.unusable:
        logger.error("%s", report.error)
    elif status == "interrupted":
        logger.warning("The job %r was interrupted: %s", report.name, summary(report.error))
    elif status != "successful":
        logger.error("The job %r failed.", report.name, exc_info=report.error)
    return report
