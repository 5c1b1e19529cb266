"""What is due: slots, one-offs and the locks of dead holders."""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence, Set as AbstractSet
from datetime import datetime
from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING

from django.db import Error

from django_singlejob.conf import ZERO
from django_singlejob.database import errors
from django_singlejob.exceptions import InvalidSchedule
from django_singlejob.jobs import registry
from django_singlejob.jobs.registry import Job
from django_singlejob.locking.clear import Watchman, clear
from django_singlejob.locking.liveness import silence
from django_singlejob.locking.position import change, is_ahead, is_followed, leave
from django_singlejob.locking.recording import ORPHANED
from django_singlejob.models.jobs import gates
from django_singlejob.models.locks import locks
from django_singlejob.models.one_offs import one_offs
from django_singlejob.process.clock import DBNow, instant_in_words
from django_singlejob.process.holder import this_host
from django_singlejob.process.logs import about
from django_singlejob.process.received_signals import is_shutdown_requested
from django_singlejob.running.runner import most_slots
from django_singlejob.worker.left_out import LeftOut

if TYPE_CHECKING:
    from django_singlejob.models import JobStatus, OneOffJob
    from django_singlejob.models.one_offs import OneOffJobQuerySet

logger = logging.getLogger("django_singlejob")

# A worker logs no more unknown jobs than this: rows that were written by hand may name any number.
_MOST_REPORTED = 1_000


def follow_code(between: Callable[[], object] = lambda: None) -> None:
    """Update the schedules in the database to those in the code. A new or changed schedule begins at its next slot from
    now, and a schedule that was removed is forgotten. A restart alone changes nothing. One-offs whose lock was deleted
    by hand are put back. ``between`` is called between two rows that change."""
    one_offs().abandon_orphans(ORPHANED)
    statuses = gates().scheduled().survey()
    if new := {job.name for job in registry.all_jobs() if job.schedule is not None} - statuses.keys():
        for name in _until_a_signal(new):
            _despite_others(name, partial(gates().remember, name), between)
        # A gate is missing if others were at it.
        statuses |= gates().look_up(new, ZERO)
    for name in _until_a_signal(filter(registry.is_known, statuses)):
        _follow_code_of(registry.get(name), statuses[name], between)


def _until_a_signal(names: Iterable[str]) -> Iterator[str]:
    """The names, sorted, until this process is asked to end. Each takes a few milliseconds, and a new release may have
    thousands. The next worker goes on from there."""
    return takewhile(lambda _: not is_shutdown_requested(), sorted(names))


def _follow_code_of(job: Job, status: "JobStatus", between: Callable[[], object]) -> None:
    registry.left_out.pop(job.name, None)
    if job.policy is None:
        _despite_others(job.name, partial(leave, status), between)
        return
    try:
        schedule = job.policy.at(status).schedule
    except InvalidSchedule as error:
        registry.left_out[job.name] = error
        message = "The job %r is left out on this server, which does not know the schedule that it was given: %s"
        logger.error(message, job.name, error, extra=about(job=job.name, reason=error))
        return
    if not is_followed(status, schedule):
        _despite_others(job.name, partial(change, status, schedule), between)
    elif is_ahead(status, schedule):
        slot = instant_in_words(status.next_slot or status.now)
        message = "The job %r waits for %s: the database's clock was set back since it last ran."
        logger.warning(message, job.name, slot, extra=about(job=job.name, slot=status.next_slot))


def _despite_others(name: str, change: Callable[[], object], between: Callable[[], object]) -> None:
    try:
        change()
    except Error as error:
        if not errors.is_transient(error):
            raise
        message = "The schedule of %r is updated at the next tick, because another process is using it: %s"
        logger.info(message, name, errors.words_of(error), extra=about(job=name, reason=error))
    between()


def clear_dead(watchman: Watchman) -> bool:
    """Clear the locks whose holders are known to be dead by now. ``False`` if no lock was cleared."""
    cleared = 0
    for lock in watchman.dead():
        if clear(lock, error=f"{silence(lock)}; a worker cleared the lock."):
            cleared += 1
            message = "The lock %r was cleared; its holder was %s. %s."
            logger.warning(message, lock.name, lock.holder, silence(lock), extra=lock.facts())
        else:
            watchman.put_off(lock)
    return cleared > 0


def anything_due(queues: Sequence[str] = ()) -> datetime | None:
    """The time by the database's clock, if anything is due here by then. Takes one query, however much is due."""
    slots, waiting = gates().due(), one_offs().in_queues(queues).due()
    if others := elsewhere():
        slots, waiting = slots.exclude(name__in=others), waiting.exclude(job_name__in=others)
    one, *rest = (rows.order_by().values_list(DBNow(), flat=True) for rows in (slots, locks().suspected(), waiting))
    return next(iter(one.union(*rest, all=True)[:1]), None)


def due_jobs(names: AbstractSet[str] | None = None, until: datetime | None = None) -> list[Job]:
    """The jobs, or those of ``names``, with a slot that is due, or was due at ``until``, or has to be rerun because
    its run was cut off. The oldest slot is first, and of two at the same time the first name."""
    due = gates().due() if names is None else gates().due().filter(name__in=names)
    # Sorted here: SQLite would go through all rows by the index, to sort the few that are due.
    statuses = due.order_by().survey().values()
    oldest_first = sorted(statuses, key=lambda status: (status.next_slot or status.now, status.name))
    mine = _known() - elsewhere()
    known = ((registry.get(status.name), status) for status in oldest_first if status.name in mine)
    return [job for job, status in known if _is_due(job, status, until)]


def elsewhere() -> set[str]:
    """The names of the jobs that are for other servers: this one asks for none of their slots and one-offs."""
    hostname = this_host()
    return {job.name for job in registry.all_jobs() if not job.is_for(hostname)} | registry.left_out.keys()


def _is_due(job: Job, status: "JobStatus", until: datetime | None) -> bool:
    if job.schedule is None or status.next_slot is None:
        return False
    is_to_be_rerun = status.abandoned and status.last_attempt < job.max_attempts
    return is_to_be_rerun or status.next_slot <= (until or status.now)


class DueSlots:
    """The jobs with a slot that is due, as far as is known."""

    def __init__(self, *, is_endless: bool) -> None:
        """Unless the worker ``is_endless``, no job has more slots than it may run in a row: one that is always due
        would never let the worker end."""
        self._is_endless = is_endless
        self._jobs: dict[str, Job] = {}
        self._to_ask: set[str] = set()
        self._begun: Counter[str] = Counter()

    def look(self, until: datetime | None, *, is_cleared: bool) -> None:
        """Ask which jobs are due. ``is_cleared``: whether a lock was cleared, so that a slot may run once more."""
        if is_cleared:
            self._begun.clear()
        self._to_ask.clear()
        self._jobs = self._due(None, until)

    def ask_again(self, name: str) -> None:
        """Ask for this job before the next look: it has just ended, and may be due again."""
        self._to_ask.add(name)

    def give_back(self, name: str) -> None:
        """A slot of this job has not begun, and is still due."""
        self._begun[name] -= 1
        self.ask_again(name)

    def next(self, left_out: LeftOut, until: datetime | None) -> Job | None:
        """The next to run, which is not due any more then. ``None``: no job that may begin is due."""
        if self._to_ask:
            again = self._due(self._to_ask, until)
            self._to_ask.clear()
            self._jobs = self._jobs | again if self._is_endless else again | self._jobs
        job = self.first(left_out)
        if job:
            del self._jobs[job.name]
            self._begun[job.name] += 1
        return job

    def first(self, left_out: LeftOut) -> Job | None:
        """The first that may begin of those that are known to be due."""
        return next((job for job in self._jobs.values() if not left_out.blocks(job)), None)

    def _due(self, names: AbstractSet[str] | None, until: datetime | None) -> dict[str, Job]:
        jobs = due_jobs(names, until)
        return {job.name: job for job in jobs if self._is_endless or self._begun[job.name] < most_slots(job)}


class DueOneOffs:
    """The ``exclusive`` one-offs in a worker's queues.

    Attributes:
        may_be_due: whether any job may have one that is due.
    """

    def __init__(self, queues: Sequence[str] = ()) -> None:
        self.may_be_due = False
        self._queues = queues
        #: Jobs that may have one although no other job has.
        self._to_ask: set[str] = set()
        #: Jobs that this release of the code does not know, and which have been logged.
        self._unknown: set[str] = set()
        #: One-offs of a job that only MySQL finds: it ignores case when it compares names.
        self._misnamed: set[int] = set()
        #: Whether to leave out those that others have locked, until the next look.
        self._passes_locked = False

    def look(self) -> None:
        """Ask again for those of any job."""
        self.may_be_due, self._passes_locked = True, False

    def pass_locked(self) -> None:
        """Leave out those that are locked: a transaction that has asked for one once more may be open."""
        self._passes_locked = True

    def ask_again(self, names: AbstractSet[str]) -> None:
        """Ask for those of these jobs before the next look: each has ended, or waited for the lock of one that has."""
        self._to_ask |= names

    def next(self, left_out: AbstractSet[str], until: datetime | None = None) -> "OneOffJob | None":
        """The next to run of a job that is not left out. ``None``: none is due, or was due at ``until``."""
        while self.may_be_due or self._to_ask:
            row = self._first(left_out, until)
            if row is None:
                self.may_be_due = False
                self._to_ask.clear()
            elif registry.is_known(row.job_name):
                return row
            else:
                report_unknown(row.job_name)
                self._misnamed.add(row.pk)
        return None

    def _first(self, left_out: AbstractSet[str], until: datetime | None) -> "OneOffJob | None":
        if self.may_be_due:
            # Almost always the first one is of a known job, and thousands of names need not be listed.
            strangers = {name for name in self._unknown if not registry.is_known(name)} | elsewhere()
            rows = one_offs().exclusive().in_queues(self._queues).exclude(job_name__in=left_out | strangers)
            row = self._next_of(rows, until)
            if row is None or registry.is_known(row.job_name):
                return row
            self._unknown |= unknown_jobs(self._queues, self._unknown)
        # A job may have many one-offs, and the database would read past them all each time that one finishes.
        rows = exclusive(self._queues, left_out, None if self.may_be_due else self._to_ask)
        return self._next_of(rows, until)

    def _next_of(self, rows: "OneOffJobQuerySet", until: datetime | None) -> "OneOffJob | None":
        rows = rows.exclude(pk__in=self._misnamed)
        return rows.next_unlocked(until) if self._passes_locked else rows.next_due(until)


def exclusive(
    queues: Sequence[str], left_out: AbstractSet[str] = frozenset(), names: AbstractSet[str] | None = None
) -> "OneOffJobQuerySet":
    """The one-offs in these queues that run under their job's lock, if this release of the code knows the job, and the
    job is for this server: those of all jobs, or of the jobs ``names``."""
    # By the names that are known: the table may have any number of others.
    known = _known() if names is None else {name for name in names if registry.is_known(name)}
    return one_offs().exclusive().in_queues(queues).filter(job_name__in=known - left_out - elsewhere())


def _known() -> set[str]:
    return {job.name for job in registry.all_jobs()}


def unknown_jobs(queues: Sequence[str], reported: AbstractSet[str]) -> set[str]:
    """Some of the jobs that have due one-offs but are unknown to this release of the code, except those in
    ``reported``. Each is logged."""
    strange = one_offs().exclusive().in_queues(queues).due().order_by().exclude(job_name__in=_known() | reported)
    found = set(strange.values_list("job_name", flat=True).distinct()[: _MOST_REPORTED - len(reported)])
    for name in sorted(found):
        report_unknown(name)
    return found


def report_unknown(name: str) -> None:
    """Log that this release of the code does not know a job."""
    logger.warning("This release of the code has no job %r: its one-offs wait.", name, extra=about(job=name))
