"""The result of a due job, as a worker or a command reports it, and the loop that runs the due slots of one job."""

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import cache, partial
from typing import Any, NamedTuple

from django.core.management.base import CommandError

from django_singlejob.conf import ZERO
from django_singlejob.exceptions import (
    DatabaseUnreachable,
    DatabaseUnusable,
    JobInterrupted,
    JobTimeout,
    UnsafeTransaction,
)
from django_singlejob.jobs import registry, slots
from django_singlejob.jobs.registry import Job
from django_singlejob.locking.endings import status_of, summary
from django_singlejob.locking.lease import Lease
from django_singlejob.locking.request import Reason
from django_singlejob.process.logs import about
from django_singlejob.process.received_signals import is_ctrl_c, is_shutdown_requested
from django_singlejob.running import runner
from django_singlejob.running.in_child import NOTE, OUTPUT_NOTE
from django_singlejob.running.order import Order, Work
from django_singlejob.running.shared import SharedMemory
from django_singlejob.running.supervisor import Steps, Supervisor

logger = logging.getLogger("django_singlejob")

# After one of these, the caller cannot run another slot of the job.
FINAL = (JobInterrupted, DatabaseUnreachable, DatabaseUnusable, UnsafeTransaction)

_NO_HANDLER = logging.NullHandler()


class Report(NamedTuple):
    """What happened to a due job or task: its outcome, or the exception that was raised.

    Attributes:
        lease: the lease under which it ran, if that is known.
        is_task: whether it is a task that is not a job, so it ran without a lock of its own.
        is_logged: whether Django has logged the error, as it does when a task has failed.
    """

    name: str
    outcome: runner.Outcome | None = None
    error: BaseException | None = None
    lease: Lease | None = None
    is_task: bool = False
    is_logged: bool = False

    @property
    def reason(self) -> Reason | None:
        """Why the job did not run. ``None`` if it ran, even if it then skipped itself or failed."""
        reason = self.outcome.reason if self.outcome else None
        return None if reason == Reason.ITSELF else reason

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


def report_of(
    job: Job, run: Callable[..., runner.Outcome], *, on_grant: Callable[[Lease], object] | None = None
) -> Report:
    """Call ``run``, which is ``runner.run`` with arguments, and report its outcome or its exception. ``on_grant`` is
    called with the lease if the lock is granted."""
    pid = os.getpid()
    leases: list[Lease] = []

    def note(lease: Lease) -> None:
        leases.append(lease)
        if on_grant:
            on_grant(lease)

    try:
        return Report(job.name, run(on_grant=note), lease=next(iter(leases), None))
    except BaseException as error:
        if os.getpid() != pid:
            raise  # a forked child is exiting, and what follows belongs to its parent
        return Report(job.name, error=error, lease=next(iter(leases), None))


def report_steps(asked: runner.RunRequest, supervisor: Supervisor | None) -> Steps[Report]:
    """The same for a request that an executor carries out. Without a supervisor, this process does."""
    if supervisor is None:
        return report_of(asked.job, lambda on_grant: runner.run_here(asked._replace(on_grant=on_grant)))
    leases: list[Lease] = []
    steps = runner.run_steps(asked._replace(on_grant=leases.append), supervisor)
    try:
        outcome = yield from steps
    except BaseException as error:
        return Report(asked.job.name, error=error, lease=next(iter(leases), None))
    return Report(asked.job.name, outcome, lease=next(iter(leases), None))


def work_of_job(order: Order, lease: Lease, memory: SharedMemory) -> Work:
    """What an executor does for a run of a job that is registered. Raises ``UnknownJob``."""
    return work_of(registered(order), order, lease)


def registered(order: Order) -> Job:
    """The job that the order names. Raises ``UnknownJob``."""
    _discover_once()
    return registry.get(order.facts["job"])


@cache
def _discover_once() -> None:
    registry.autodiscover()


def work_of(job: Job, order: Order, lease: Lease) -> Work:
    """The same for a job that its order does not name."""
    return runner.work_of(job, order, lease, lambda error: logged(Report(job.name, error=error, lease=lease)))


def run_due(
    job: Job,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    early: timedelta = ZERO,
    supervisor: Supervisor | None = None,
    on_grant: Callable[[Lease], object] | None = None,
) -> Iterator[Report]:
    """Run the job's due slot and, with ``catch_up="all"``, the slots after it, up to the maximum for catching up.

    ``early``: how long before its slot a run may begin. ``supervisor``, ``on_grant``: see ``runner.run``. Yields at
    least one report, which may say that the job was skipped. Raises nothing but a Ctrl-C.
    """
    for count in range(most_slots(job)):
        run = partial(runner.run, job, args, kwargs, trigger="schedule", early=early, supervisor=supervisor)
        report = report_of(job, run, on_grant=on_grant)
        if report.error and is_ctrl_c(report.error):
            raise report.error
        if not (report.reason and count):
            yield report
        if report.reason or is_shutdown_requested() or isinstance(report.error, FINAL):
            return


def most_slots(job: Job) -> int:
    """How many slots of the job may run in a row."""
    return slots.MAX_CATCH_UP if job.catch_up == "all" else 1


def waitless(job: Job) -> Job:
    """The job without waiting for its lock, for a caller that would keep other jobs waiting."""
    return replace(job, on_held="skip", wait=None)


def logged(report: Report) -> Report:
    """Log the report's error, if there is one, and return the report. A child that has raised the error has logged it.

    A command prints the error too. If the project has no handler for the record, Python would print it once more, with
    its traceback: it does not."""
    if not report.is_logged_by_child:
        logger.addHandler(_NO_HANDLER)
        try:
            _log(report)
        finally:
            logger.removeHandler(_NO_HANDLER)
    return report


def _log(report: Report) -> None:
    status, extra, kind = status_of(report.error), report.about(report.error), "task" if report.is_task else "job"
    if isinstance(report.error, DatabaseUnreachable) or report.unusable:
        logger.error("%s", report.error, extra=extra)
    elif status == "interrupted":
        level = logging.ERROR if isinstance(report.error, JobTimeout) or report.is_slot_lost else logging.WARNING
        logger.log(level, "The %s %r was interrupted: %s", kind, report.name, summary(report.error), extra=extra)
    elif status != "successful" and report.is_logged:
        logger.warning("The %s %r failed: %s", kind, report.name, summary(report.error), extra=extra)
    elif isinstance(report.error, CommandError):  # it is for people, who need no traceback
        message = "The %s %r failed: %s"
        logger.error(
            message, kind, report.name, summary(report.error), exc_info=_with_output(report.error), extra=extra
        )
    elif status != "successful":
        logger.error("The %s %r failed.", kind, report.name, exc_info=report.error, extra=extra)


def _with_output(error: BaseException) -> Any:
    """The error for a record, without its traceback but with the last lines of output; ``None`` if it has none."""
    has_output = any(note.startswith(OUTPUT_NOTE) for note in getattr(error, "__notes__", ()))
    return (type(error), error, None) if has_output else None
