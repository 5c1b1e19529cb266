"""One pass over what is due. Any number of servers may do this at the same time, as often as they like."""

import asyncio
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from django.db import Error

from django_singlejob import database, registry, runner
from django_singlejob.conf import ZERO, options
from django_singlejob.exceptions import JobInterrupted
from django_singlejob.interrupt import is_told_to_end
from django_singlejob.memory import follow, is_followed, leave
from django_singlejob.querysets import gates, locks
from django_singlejob.registry import Job

if TYPE_CHECKING:
    from django_singlejob.models import JobStatus

logger = logging.getLogger("django_singlejob")


class Report(NamedTuple):
    """What became of a job that was due: its outcome, or else what was raised."""

    job: Job
    outcome: runner.Outcome | None = None
    error: BaseException | None = None


def tick() -> Iterator[Report]:
    """Run each job that has a slot which is due, then those whose holders died in the midst of one.

    A job that fails stops no other. What others were faster with is reported as skipped; jobs that this release of the
    code does not know are left alone. Raises database errors.
    """
    keep_up()
    for job in due_jobs():
        for report in run_due(job):
            if report.error:
                logger.error("The job %r failed.", job.name, exc_info=report.error)
            yield report
        if is_told_to_end():
            return


def keep_up() -> None:
    """Have the database follow the schedules as they stand in the code: those that are new or changed begin at their
    next slot from now, those that are no more are forgotten. A restart alone changes nothing."""
    statuses = gates().scheduled()
    for status in statuses.values():
        if registry.is_known(status.name) and registry.get(status.name).schedule is None:
            _despite_others(status, partial(leave, status))
    schedules = {job.name: job.policy.schedule for job in registry.all_jobs() if job.policy}
    if new := schedules.keys() - statuses.keys():
        gates().remember(*sorted(new))
        statuses |= gates().seen(new, ZERO)
    for name, schedule in schedules.items():
        if not is_followed(statuses[name], schedule):
            status = statuses[name]
            _despite_others(status, partial(follow, status, schedule, status.now))


def _despite_others(status: "JobStatus", change: Callable[[], object]) -> None:
    try:
        change()
    except Error as error:
        if not database.is_transient(error):
            raise
        logger.info("The schedule of %r is left for the next tick, since others are at it: %s", status.name, error)


def due_jobs() -> list[Job]:
    """The scheduled jobs to be asked for: those with a slot that is due, the oldest first; then those with a stale
    lock, since it takes a while to see that a holder is dead."""
    names = dict.fromkeys(gates().due().values_list("name", flat=True))
    names |= dict.fromkeys(locks().stale().filter(slot__isnull=False).values_list("job_name", flat=True))
    jobs = (registry.get(name) for name in names if registry.is_known(name))
    return [job for job in jobs if job.schedule is not None]


def run_due(
    job: Job, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None, *, early: timedelta = ZERO
) -> Iterator[Report]:
    """Run the slot of the job that is due, and with ``catch_up="all"`` those after it, as many as may be caught up.

    ``early``: how long before its slot a run may begin. Yields one report at least: it may say skipped.
    """
    most = options().max_catch_up if job.catch_up == "all" else 1
    for count in range(most):
        report = _attempt(job, args, kwargs, early)
        is_over = report.error is None and report.outcome is not None and report.outcome.reason is not None
        if not (is_over and count):
            yield report
        if is_over or is_told_to_end() or not isinstance(report.error, Exception | None):
            return


def _attempt(job: Job, args: Sequence[Any], kwargs: Mapping[str, Any] | None, early: timedelta) -> Report:
    pid = os.getpid()
    try:
        return Report(job, runner.run(job, args, kwargs, trigger="schedule", early=early))
    except (Exception, SystemExit, JobInterrupted, asyncio.CancelledError) as error:
        if os.getpid() != pid:
            raise  # a forked child that leaves: the rest of the pass is not its own
        return Report(job, error=error)
