"""One pass over what is due. Any number of servers may do this at the same time, as often as they like."""

import logging
import os
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence, Set as AbstractSet
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from asgiref.sync import sync_to_async
from django.core.exceptions import ObjectDoesNotExist
from django.db import Error
from django.db.models import IntegerField, Value

from django_singlejob import database, registry, runner
from django_singlejob.clock import backoff, instant_in_words, local_now, since, sleep
from django_singlejob.conf import ZERO, options
from django_singlejob.cursor import follow, is_ahead, is_followed, leave
from django_singlejob.exceptions import DatabaseUnreachable, JobInterrupted, LeaseLost, UnsafeTransaction
from django_singlejob.interrupt import Window, is_ctrl_c
from django_singlejob.locking.clear import Watchman, clear
from django_singlejob.locking.liveness import silence
from django_singlejob.one_offs import django_tasks
from django_singlejob.querysets.jobs import gates
from django_singlejob.querysets.locks import locks
from django_singlejob.querysets.one_offs import one_offs
from django_singlejob.received_signals import is_told_to_end
from django_singlejob.recording import HistoryFailed, catch_up
from django_singlejob.registry import Job
from django_singlejob.results import status_of, summary
from django_singlejob.worker.batches import Batches, Performance

if TYPE_CHECKING:
    from django.tasks import Task

    from django_singlejob.models import JobStatus, OneOffJob
    from django_singlejob.querysets.one_offs import OneOffJobQuerySet

logger = logging.getLogger("django_singlejob")

# Somebody may be inside a long fenced transaction: that its holder lives is all that can be seen. Seconds.
LONGEST_TICK = 300.0
# Many one-offs do not keep a slot waiting for longer than one of them and so many seconds.
DUE_JOBS_EVERY = timedelta(seconds=1)
# After these nothing more is to be expected of the pass.
_FINAL = (JobInterrupted, DatabaseUnreachable, UnsafeTransaction)


class Report(NamedTuple):
    """What became of the job, or task, of that name, which was due: its outcome, or else what was raised."""

    name: str
    outcome: runner.Outcome | None = None
    error: BaseException | None = None


def tick(queues: Sequence[str] = ()) -> Generator[Report]:
    """One pass: keep up with the code, run what is due, one after the other, and stay until it is known of each stale
    lock whether its holder is dead. Raises database errors."""
    keep_up()
    watchman, give_up_at = Watchman(), local_now() + LONGEST_TICK
    for pause in backoff():
        sleep(pause if watchman.pause is None else min(pause, watchman.pause))
        if clear_dead(watchman) or not pause:
            yield from run_what_is_due(watchman.watched, queues)
        if watchman.pause is None or is_told_to_end() or local_now() >= give_up_at:
            return


def clear_dead(watchman: Watchman) -> bool:
    """Clear the locks whose holders died, as far as that is known by now. ``False``: there were none."""
    cleared = 0
    for lock in watchman.dead():
        if clear(lock, error=f"{silence(lock)}; a worker cleared the lock."):
            cleared += 1
            logger.warning("The lock %r was cleared; its holder was %s. %s.", lock.name, lock.holder, silence(lock))
        else:
            watchman.put_off(lock)
    return cleared > 0


def run_what_is_due(busy: AbstractSet[str] = frozenset(), queues: Sequence[str] = ()) -> Iterator[Report]:
    """Run each job that has a slot which is due, or is to be run again since its holder died; then the one-offs that
    are due, of these queues (none named: of all). None of the jobs of these names or locks.

    A job that fails stops no other. What others were faster with is reported as skipped; jobs that this release of the
    code does not know are not run. Raises database errors.
    """
    for report in _run_all(due_jobs(busy)):
        yield report
        if isinstance(report.error, DatabaseUnreachable):
            return  # each job would wait for it
    if one_offs().in_queues(queues).due().exists():
        yield from _run_one_offs(queues, busy)
        yield from _run_tasks(queues)


def is_anything_due(queues: Sequence[str] = ()) -> bool:
    """Whether it is worth while to look closer. Takes one query, whatever there is."""
    here = Value(1, output_field=IntegerField())
    one, *others = (
        rows.order_by().values_list(here)
        for rows in (gates().due(), locks().suspected(), one_offs().in_queues(queues).due())
    )
    return bool(one.union(*others, all=True)[:1])


def _run_one_offs(queues: Sequence[str], busy: AbstractSet[str]) -> Iterator[Report]:
    passed: set[str] = set()
    until, looked_at = None, local_now()
    while row := exclusive(queues, passed).next_due(until):
        # Those that come later are left to the next tick, or one that enqueues itself would never end it.
        until = until or row.now
        if is_told_to_end():
            return
        job = job_of(row)
        if job is None or not busy.isdisjoint({job.name, job.lock}):
            passed.add(row.job_name)
            continue
        report = run_one_off(job, row)
        yield report
        if isinstance(report.error, _FINAL):
            return
        if report.outcome and report.outcome.reason:
            # It waits its turn, and so do the others of its job.
            passed.add(row.job_name)
        if since(looked_at) >= DUE_JOBS_EVERY:
            yield from _run_all(due_jobs(busy))
            looked_at = local_now()


def exclusive(queues: Sequence[str], passed: AbstractSet[str] = frozenset()) -> "OneOffJobQuerySet":
    """The one-offs that run under their job's lock, of these queues, and of no job that was passed over."""
    return one_offs().exclusive().in_queues(queues).exclude(job_name__in=passed)


def job_of(row: "OneOffJob") -> Job | None:
    """``None``: this release of the code does not know it."""
    if registry.is_known(row.job_name):
        return registry.get(row.job_name)
    logger.warning("There is no job %r here: its one-offs wait.", row.job_name)
    return None


def run_one_off(job: Job, row: "OneOffJob") -> Report:
    """Run the one-off of the job, if its lock can be had."""
    asked = waitless(job)
    if task := django_tasks.find(row):
        asked = replace(asked, func=_of_task(job, row, task))
    report = logged(report_of(asked, partial(runner.run, asked, row.args, row.kwargs, trigger="one_off", one_off=row)))
    if task and not (report.outcome and report.outcome.reason):
        _send_finished(row, task)
    return report


def _send_finished(row: "OneOffJob", task: "Task[..., Any]") -> None:
    try:
        django_tasks.end(one_offs().get(pk=row.pk), task)
    except (Error, ObjectDoesNotExist) as error:
        logger.warning("Nobody is told that the task of %s has finished: %s", row, error)


def _of_task(job: Job, row: "OneOffJob", task: "Task[..., Any]") -> Callable[..., Any]:
    """The job's function for a task of Django's: it tells that it has begun, and takes a context."""

    def begin() -> list[Any]:
        return django_tasks.begin(one_offs().get(pk=row.pk), task)

    async def function_async(*args: Any, **kwargs: Any) -> Any:
        return await job.func(*await sync_to_async(begin)(), *args, **kwargs)

    def function(*args: Any, **kwargs: Any) -> Any:
        return job.func(*begin(), *args, **kwargs)

    return function_async if job.is_async else function


def _run_tasks(queues: Sequence[str]) -> Iterator[Report]:
    batches = Batches(queues)
    first = batches.waiting().next_due()
    try:
        while first and not is_told_to_end():
            claimed = batches.record_and_claim(1, first.now)
            if not claimed:
                return
            for perform in claimed:
                with Window() as window:
                    performance = perform(window)
                database.tidy_up()
                is_ours = batches.hand_in(performance)
                if performance.failure and is_ctrl_c(performance.failure):
                    raise performance.failure
                report = of_performance(performance, is_ours=is_ours)
                yield report
                if isinstance(report.error, _FINAL):
                    return
    finally:
        batches.close()
        batches.leave_to_expire()


def of_performance(performance: Performance, *, is_ours: bool) -> Report:
    """What became of a task, and whether that can be recorded."""
    row, failure = performance.row, performance.failure
    if failure is None and not is_ours:
        failure = LeaseLost()
    if failure:
        return logged(Report(row.name, error=failure))
    outcome = runner.Outcome(status="successful", value=performance.value, duration=performance.duration)
    return Report(row.name, outcome)


def waitless(job: Job) -> Job:
    """The job, asked for by somebody for whom others are waiting."""
    return replace(job, on_held="skip", wait=None)


def _run_all(jobs: Iterable[Job]) -> Iterator[Report]:
    for job in jobs:
        if is_told_to_end():
            return
        for report in run_due(waitless(job)):
            yield logged(report)


def logged(report: Report) -> Report:
    """The same; nobody else may ever see what went wrong."""
    status = status_of(report.error)
    if status == "interrupted":
        logger.warning("The job %r was interrupted: %s", report.name, summary(report.error))
    elif status != "successful":
        logger.error("The job %r failed.", report.name, exc_info=report.error)
    return report


def keep_up() -> None:
    """Have the database follow the schedules as they stand in the code: those that are new or changed begin at their
    next slot from now, those that are no more are forgotten. A restart alone changes nothing. One-offs whose lock was
    deleted by hand are put back."""
    one_offs().abandon_orphans("Its lock was deleted by hand.")
    statuses = gates().scheduled().without_mean().survey()
    with suppress(HistoryFailed):
        catch_up({name: end for name, status in statuses.items() if (end := status.unrecorded) is not None})
    for status in statuses.values():
        if registry.is_known(status.name) and registry.get(status.name).schedule is None:
            _despite_others(status, partial(leave, status))
    schedules = {job.name: policy.schedule for job in registry.all_jobs() if (policy := job.policy)}
    if new := schedules.keys() - statuses.keys():
        gates().remember(*sorted(new))
        statuses |= gates().look_up(new, ZERO)
    for name, schedule in schedules.items():
        status = statuses[name]
        if not is_followed(status, schedule):
            _despite_others(status, partial(follow, status, schedule, status.now))
        elif is_ahead(status, schedule):
            slot = instant_in_words(status.next_slot or status.now)
            logger.warning("The job %r waits for %s: the database's clock was set back since it ran last.", name, slot)


def _despite_others(status: "JobStatus", change: Callable[[], object]) -> None:
    try:
        change()
    except Error as error:
        if not database.is_transient(error):
            raise
        logger.info("The schedule of %r is left for the next tick, since others are at it: %s", status.name, error)


def due_jobs(busy: AbstractSet[str] = frozenset(), names: AbstractSet[str] | None = None) -> list[Job]:
    """The jobs, or those of ``names``, with a slot that is due, or is to be run again since its holder died; the oldest
    slot first. Not those of ``busy`` names or locks: of a job whose lock was renamed, the former one may be watched."""
    due = gates().due() if names is None else gates().due().filter(name__in=names)
    statuses = {name: status for name, status in due.without_mean().survey().items() if registry.is_known(name)}
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
        report = report_of(job, partial(runner.run, job, args, kwargs, trigger="schedule", early=early))
        is_over = report.error is None and report.outcome is not None and report.outcome.reason is not None
        if not (is_over and count):
            yield report
        if is_over or is_told_to_end() or isinstance(report.error, _FINAL):
            return


def report_of(job: Job, run: Callable[[], runner.Outcome]) -> Report:
    """What becomes of it, also if it is an exception."""
    pid = os.getpid()
    try:
        return Report(job.name, run())
    except BaseException as error:
        if is_ctrl_c(error) or os.getpid() != pid:
            raise  # also a forked child that leaves: the rest of the pass is not its own
        return Report(job.name, error=error)
