"""What is due: slots, one-offs, the locks of dead holders and, once a day, pruning."""

import logging
from collections.abc import Callable, Sequence, Set as AbstractSet
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

from django.db import Error
from django.db.models import IntegerField, Value

from django_singlejob import database, registry
from django_singlejob.clock import instant_in_words
from django_singlejob.conf import ZERO, options
from django_singlejob.cursor import follow, is_ahead, is_followed, leave
from django_singlejob.locking.clear import Watchman, clear
from django_singlejob.locking.liveness import silence
from django_singlejob.logs import about, about_lock
from django_singlejob.querysets.jobs import gates
from django_singlejob.querysets.locks import locks
from django_singlejob.querysets.one_offs import one_offs
from django_singlejob.querysets.runs import runs
from django_singlejob.recording import HistoryFailed, alone, catch_up
from django_singlejob.registry import Job

if TYPE_CHECKING:
    from django_singlejob.models import JobStatus
    from django_singlejob.querysets.one_offs import OneOffJobQuerySet

logger = logging.getLogger("django_singlejob")

# A worker logs no more unknown jobs than this: rows that were written by hand may name any number.
_MOST_REPORTED = 1_000


def keep_up() -> None:
    """Update the schedules in the database to those in the code. A new or changed schedule begins at its next slot from
    now, and a schedule that was removed is forgotten. A restart alone changes nothing. One-offs whose lock was deleted
    by hand are put back."""
    one_offs().abandon_orphans("Its lock was deleted by hand.")
    statuses = gates().scheduled().without_mean().survey()
    with suppress(HistoryFailed):
        catch_up({name: end for name, status in statuses.items() if (end := status.unrecorded) is not None})
    for status in statuses.values():
        if registry.is_known(status.name) and registry.get(status.name).schedule is None:
            _despite_others(status.name, partial(leave, status))
    schedules = {job.name: policy.schedule for job in registry.all_jobs() if (policy := job.policy)}
    if new := schedules.keys() - statuses.keys():
        for name in sorted(new):
            _despite_others(name, partial(gates().remember, name))
        statuses |= gates().look_up(new, ZERO)
    # A gate is missing if others were at it, or if another release forgets it at this moment.
    for name in schedules.keys() & statuses.keys():
        status, schedule = statuses[name], schedules[name]
        if not is_followed(status, schedule):
            _despite_others(name, partial(follow, status, schedule, status.now))
        elif is_ahead(status, schedule):
            slot = instant_in_words(status.next_slot or status.now)
            message = "The job %r waits for %s: the database's clock was set back since it last ran."
            logger.warning(message, name, slot, extra=about(job=name, slot=status.next_slot))


def _despite_others(name: str, change: Callable[[], object]) -> None:
    try:
        change()
    except Error as error:
        if not database.is_transient(error):
            raise
        message = "The schedule of %r is updated at the next tick, because another process is using it: %s"
        logger.info(message, name, database.words_of(error), extra=about(job=name, reason=error))


def clear_dead(watchman: Watchman) -> bool:
    """Clear the locks whose holders are known to be dead by now. ``False`` if no lock was cleared."""
    cleared = 0
    for lock in watchman.dead():
        if clear(lock, error=f"{silence(lock)}; a worker cleared the lock."):
            cleared += 1
            message = "The lock %r was cleared; its holder was %s. %s."
            logger.warning(message, lock.name, lock.holder, silence(lock), extra=about_lock(lock))
        else:
            watchman.put_off(lock)
    return cleared > 0


def is_anything_due(queues: Sequence[str] = ()) -> bool:
    """Whether a closer look is worthwhile. Takes one query, however much is due."""
    here = Value(1, output_field=IntegerField())
    one, *others = (
        rows.order_by().values_list(here)
        for rows in (gates().due(), locks().suspected(), one_offs().in_queues(queues).due())
    )
    return bool(one.union(*others, all=True)[:1])


def due_jobs(busy: AbstractSet[str] = frozenset(), names: AbstractSet[str] | None = None) -> list[Job]:
    """The jobs, or those of ``names``, with a slot that is due, or has to be rerun because its holder died. The oldest
    slot is first. Jobs whose name or lock is in ``busy`` are left out: after a lock was renamed, the old one may be
    watched.
    """
    due = gates().due() if names is None else gates().due().filter(name__in=names)
    statuses = {name: status for name, status in due.without_mean().survey().items() if registry.is_known(name)}
    jobs = [job for name, status in statuses.items() if _is_due(job := registry.get(name), status)]
    return [job for job in jobs if busy.isdisjoint({job.name, job.lock})]


def _is_due(job: Job, status: "JobStatus") -> bool:
    if job.schedule is None or status.next_slot is None:
        return False
    is_to_be_rerun = status.abandoned and job.rerun_abandoned and status.last_attempt < job.max_attempts
    return is_to_be_rerun or status.next_slot <= status.now


def exclusive(queues: Sequence[str], passed: AbstractSet[str] = frozenset()) -> "OneOffJobQuerySet":
    """The one-offs in these queues that run under their job's lock, if this release of the code knows the job. Those of
    jobs that were passed over are left out."""
    # By the names that are known: the table may have any number of others.
    known = {job.name for job in registry.all_jobs()}
    return one_offs().exclusive().in_queues(queues).filter(job_name__in=known - passed)


def unknown_jobs(queues: Sequence[str], reported: AbstractSet[str]) -> set[str]:
    """Some of the jobs that have due one-offs but are unknown to this release of the code, except those in
    ``reported``. Each is logged."""
    known = {job.name for job in registry.all_jobs()}
    due = one_offs().exclusive().in_queues(queues).due().exclude(job_name__in=known | reported)
    found = set(due.order_by().values_list("job_name", flat=True).distinct()[: _MOST_REPORTED - len(reported)])
    for name in sorted(found):
        report_unknown(name)
    return found


def report_unknown(name: str) -> None:
    """Log that this release of the code does not know a job."""
    logger.warning("This release of the code has no job %r: its one-offs wait.", name, extra=about(job=name))


def prune() -> str:
    """Delete runs and one-offs that are older than the settings allow. First record the ends that the gates keep."""
    alone(runs().exists)  # raises if the table is locked: a thread that waited for it would run no jobs
    catch_up(gates().kept_ends())
    age = timedelta(days=options().history_days)
    return f"{runs().surplus(age, options().history_keep).prune()} runs, {one_offs().surplus(age).prune()} one-offs"


# Once a day on all servers together. It is not registered, so that only workers run it.
PRUNING = Job(name="django_singlejob.prune", func=prune, min_interval=timedelta(days=1))
