"""One pass over what is due. Any number of servers may do this at the same time, as often as they like."""

import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set as AbstractSet
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from django.db import Error
from django.db.models import IntegerField, Value

from django_singlejob import database, registry, runner
from django_singlejob.clearing import Watchman, clear
from django_singlejob.clock import backoff, in_words, local_now, since
from django_singlejob.conf import ZERO, options
from django_singlejob.endings import status_of, summary
from django_singlejob.exceptions import DatabaseUnreachable, JobInterrupted, UnsafeTransaction
from django_singlejob.interrupt import is_told_to_end
from django_singlejob.memory import follow, is_ahead, is_followed, leave
from django_singlejob.querysets import gates, locks
from django_singlejob.queue import one_offs
from django_singlejob.registry import Job
from django_singlejob.signals import lock_taken_over

if TYPE_CHECKING:
    from django_singlejob.models import JobStatus, OneOffJob

logger = logging.getLogger("django_singlejob")

# Somebody may be inside a long fenced transaction: that its holder lives is all that can be seen. Seconds.
LONGEST_TICK = 300.0
# Many one-offs do not keep a slot waiting for longer than one of them and so many seconds.
DUE_JOBS_EVERY = timedelta(seconds=1)
# After these nothing more is to be expected of the pass.
_FINAL = (JobInterrupted, DatabaseUnreachable, UnsafeTransaction)


class Report(NamedTuple):
    """What became of a job that was due: its outcome, or else what was raised."""

    job: Job
    outcome: runner.Outcome | None = None
    error: BaseException | None = None


def tick(queues: Sequence[str] = ()) -> Iterator[Report]:
    """One pass: keep up with the code, run what is due, and stay until it is known of each stale lock whether its
    holder is dead. Raises database errors."""
    keep_up()
    watchman, give_up_at = Watchman(), local_now() + LONGEST_TICK
    for pause in backoff():
        time.sleep(pause)
        if clear_dead(watchman) or not pause:
            yield from run_what_is_due(watchman.watched, queues)
        if not watchman.watched or is_told_to_end() or local_now() >= give_up_at:
            return


def clear_dead(watchman: Watchman) -> bool:
    """Clear the locks whose holders died, as far as that is known by now. ``False``: there were none."""
    cleared = [lock for lock in watchman.dead() if clear(lock, error="The holder died; a tick cleared the lock.")]
    for lock in cleared:
        logger.warning("The lock %r was cleared: its holder (%s) is dead.", lock.name, lock.holder)
        lock_taken_over.send_robust(sender=lock.name, lease=None, lock=lock)
    return bool(cleared)


def run_what_is_due(busy: AbstractSet[str] = frozenset(), queues: Sequence[str] = ()) -> Iterator[Report]:
    """Run each job that has a slot which is due, or is to be run again since its holder died; then the one-offs that
    are due, of these queues (none named: of all). Not those of these names or locks.

    A job that fails stops no other. What others were faster with is reported as skipped; jobs that this release of the
    code does not know are not run. Raises database errors.
    """
    for report in _run_all(due_jobs(busy)):
        yield report
        if isinstance(report.error, DatabaseUnreachable):
            return  # each job would wait for it
    yield from _run_one_offs(queues, busy)


def is_anything_due(queues: Sequence[str] = ()) -> bool:
    """Whether it is worth while to look closer. Takes one query, whatever there is."""
    here = Value(1, output_field=IntegerField())
    one, *others = (
        rows.order_by().values_list(here)
        for rows in (gates().due(), locks().stale(), one_offs().in_queues(queues).due())
    )
    return bool(one.union(*others, all=True)[:1])


def _run_one_offs(queues: Sequence[str], busy: AbstractSet[str]) -> Iterator[Report]:
    passed: set[str] = set()
    until, looked_at = None, local_now()
    while row := one_offs().in_queues(queues).next_due(until, passed):
        # Those that come later are left to the next tick, or one that enqueues itself would never end it.
        until = until or row.now
        if is_told_to_end():
            return
        job = registry.get(row.job_name) if registry.is_known(row.job_name) else None
        if job is None or not busy.isdisjoint({job.name, job.lock}):
            passed.add(row.job_name)
            continue
        report = _run_one_off(job, row)
        yield report
        if isinstance(report.error, _FINAL):
            return
        if report.outcome and report.outcome.reason:
            # It waits its turn, and so do the others of its job.
            passed.add(row.job_name)
        if since(looked_at) >= DUE_JOBS_EVERY:
            yield from _run_all(due_jobs(busy))
            looked_at = local_now()


def _run_one_off(job: Job, row: "OneOffJob") -> Report:
    asked = replace(job, on_held="skip", wait=None)
    report = attempt(asked, partial(runner.run, asked, row.args, row.kwargs, trigger="one_off", one_off=row))
    return logged(report._replace(job=job))


def _run_all(jobs: Iterable[Job]) -> Iterator[Report]:
    for job in jobs:
        if is_told_to_end():
            return
        # The others are waiting.
        for report in run_due(replace(job, on_held="skip", wait=None)):
            yield logged(report._replace(job=job))


def logged(report: Report) -> Report:
    """The same; nobody else may ever see what went wrong."""
    status = status_of(report.error)
    if status == "interrupted":
        logger.warning("The job %r was interrupted: %s", report.job.name, summary(report.error))
    elif status != "successful":
        logger.error("The job %r failed.", report.job.name, exc_info=report.error)
    return report


def keep_up() -> None:
    """Have the database follow the schedules as they stand in the code: those that are new or changed begin at their
    next slot from now, those that are no more are forgotten. A restart alone changes nothing. One-offs whose lock was
    deleted by hand are put back."""
    one_offs().abandon_orphans("Its lock was deleted by hand.")
    statuses = gates().scheduled()
    for status in statuses.values():
        if registry.is_known(status.name) and registry.get(status.name).schedule is None:
            _despite_others(status, partial(leave, status))
    schedules = {job.name: policy.schedule for job in registry.all_jobs() if (policy := job.policy)}
    if new := schedules.keys() - statuses.keys():
        gates().remember(*sorted(new))
        statuses |= gates().seen(new, ZERO)
    for name, schedule in schedules.items():
        status = statuses[name]
        if not is_followed(status, schedule):
            _despite_others(status, partial(follow, status, schedule, status.now))
        elif is_ahead(status, schedule):
            slot = in_words(status.next_slot or status.now)
            logger.warning("The job %r waits for %s: the database's clock was set back since it ran last.", name, slot)


def _despite_others(status: "JobStatus", change: Callable[[], object]) -> None:
    try:
        change()
    except Error as error:
        if not database.is_transient(error):
            raise
        logger.info("The schedule of %r is left for the next tick, since others are at it: %s", status.name, error)


def due_jobs(busy: AbstractSet[str] = frozenset()) -> list[Job]:
    """The jobs with a slot that is due, or is to be run again since its holder died; the oldest slot first. Not those
    of these names or locks: of a job whose lock was renamed, the former one may be watched."""
    statuses = {name: status for name, status in gates().due().surveyed().items() if registry.is_known(name)}
    jobs = [job for name, status in statuses.items() if _is_due(job := registry.get(name), status)]
    return [job for job in jobs if busy.isdisjoint({job.name, job.lock})]


def _is_due(job: Job, status: "JobStatus") -> bool:
    if job.schedule is None or status.next_slot is None:
        return False
    is_to_be_rerun = status.abandoned and job.rerun_abandoned and status.last_attempt < job.max_attempts
    return is_to_be_rerun or status.next_slot <= status.now


def run_due(
    job: Job, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None, *, early: timedelta = ZERO
) -> Iterator[Report]:
    """Run the slot of the job that is due, and with ``catch_up="all"`` those after it, as many as may be caught up.

    ``early``: how long before its slot a run may begin. Yields one report at least: it may say skipped.
    """
    most = options().max_catch_up if job.catch_up == "all" else 1
    for count in range(most):
        report = attempt(job, partial(runner.run, job, args, kwargs, trigger="schedule", early=early))
        is_over = report.error is None and report.outcome is not None and report.outcome.reason is not None
        if not (is_over and count):
            yield report
        if is_over or is_told_to_end() or isinstance(report.error, _FINAL):
            return


def attempt(job: Job, run: Callable[[], runner.Outcome]) -> Report:
    """What becomes of it, also if it is an exception."""
    pid = os.getpid()
    try:
        return Report(job, run())
    except BaseException as error:
        is_ours = not isinstance(error, KeyboardInterrupt | GeneratorExit) or isinstance(error, JobInterrupted)
        if not is_ours or os.getpid() != pid:
            raise  # a Ctrl-C, or a forked child that leaves: the rest of the pass is not its own
        return Report(job, error=error)
