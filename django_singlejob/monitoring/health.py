"""How each job and each lock is doing, as far as the database knows. This module only reads."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set as AbstractSet
from contextlib import suppress
from datetime import UTC, datetime, timedelta, tzinfo
from enum import IntEnum
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from django.db import models
from django.db.models import Case, F, OuterRef, Q, Subquery, When
from django.db.models.functions import Coalesce, Substr
from django.utils.translation import gettext, gettext_lazy as _

from django_singlejob.conf import options
from django_singlejob.exceptions import InvalidSchedule
from django_singlejob.jobs import registry
from django_singlejob.jobs.schedule import EPOCH, PATIENCE, Schedule, next_slot, parse, slots_between
from django_singlejob.jobs.slots import MISFIRE_GRACE
from django_singlejob.jobs.words import schedule_in_words
from django_singlejob.locking.position import has_due, is_ahead, is_waiting
from django_singlejob.models.jobs import gates, is_active, mean_of
from django_singlejob.models.locks import locks
from django_singlejob.models.rows import whether
from django_singlejob.models.runs import FAILURES, RunStatus, runs
from django_singlejob.process.clock import DBNow

if TYPE_CHECKING:
    from django_singlejob.models import JobLock, JobStatus
    from django_singlejob.models.jobs import JobStatusQuerySet
    from django_singlejob.models.locks import JobLockQuerySet
    from django_singlejob.models.runs import JobRunQuerySet

# A slot that has been due for longer is overdue: neither cron nor a worker requests it.
OVERDUE = MISFIRE_GRACE
# A page that is refreshed every few seconds, or a check, looks at this many jobs and locks, the worst first.
MOST = 2_000
# If a later slot was written by hand, the slots after it are not shown.
LAST_SLOT = datetime.max.replace(tzinfo=UTC) - PATIENCE
# No list shows more characters of an error.
ERROR_LENGTH = 1_000


class Level(IntEnum):
    """How bad things are: the exit status of a Nagios plugin."""

    OK = 0
    WARNING = 1
    CRITICAL = 2


class State(models.TextChoices):
    """The state of a job; if several apply, the first one."""

    HIDDEN = "hidden", _("hidden")
    PAUSED = "paused", _("paused")
    IMPOSSIBLE = "impossible", _("impossible")
    STALE = "stale", _("stale")
    OVERDUE = "overdue", _("overdue")
    AHEAD = "ahead", _("ahead of the clock")
    FAILING = "failing", _("failing")
    OVERRUNNING = "overrunning", _("overrunning")
    DELAYED = "delayed", _("delayed")
    UNSEEN = "unseen", _("never requested")
    RUNNING = "running", _("running")
    IDLE = "idle", _("idle")

    @property
    def level(self) -> Level:
        """How bad the state is."""
        if self in (State.IMPOSSIBLE, State.STALE, State.OVERDUE, State.AHEAD, State.FAILING):
            return Level.CRITICAL
        return Level.WARNING if self in (State.OVERRUNNING, State.DELAYED, State.UNSEEN) else Level.OK


class Health(NamedTuple):
    """How one job, or one lock that belongs to no job, is doing.

    Attributes:
        name: the name of the job or of the lock.
        state: its state.
        status: its gate; ``None`` if no server has requested it yet.
        lock: the lock that it holds; ``None`` if it holds none.
    """

    name: str
    state: State
    status: "JobStatus | None"
    lock: "JobLock | None"

    @property
    def schedule(self) -> str:
        """The schedule in the database, which decides when it runs, in words; empty if it has none."""
        if self.status and self.status.schedule:
            schedule, status = schedule_of(self.status), self.status
            words = schedule_in_words(schedule) if schedule else status.schedule
            if is_waiting(status):
                words = gettext("{schedule}, until what was due is done").format(schedule=words)
            is_own = (status.schedule, status.time_zone) == (status.own_schedule, status.own_time_zone)
            return gettext("{schedule}, given by an operator").format(schedule=words) if is_own else words
        policy = registry.get(self.name).policy if registry.is_known(self.name) else None
        return schedule_in_words(policy.schedule) if policy else ""

    @property
    def is_job(self) -> bool:
        """Whether this is a job. A lock that belongs to no job has a ``Health`` while it is held."""
        return registry.is_known(self.name) or _has_run(self.status)


class Survey(NamedTuple):
    """How the jobs and the locks are doing.

    Attributes:
        healths: the jobs and the locks, sorted by name.
        is_cut: whether there are more of them: then these are the worst.
        is_ill_cut: whether even more of them may need attention.
    """

    healths: Sequence[Health]
    is_cut: bool = False
    is_ill_cut: bool = False


def survey(
    names: Collection[str] | None = None,
    *,
    part: str = "",
    ignored: Collection[str] = (),
    hidden: bool = False,
    rows: "JobStatusQuerySet | None" = None,
) -> Survey:
    """The jobs that are registered or have run, and the locks that are held: all, or those of ``names``; only those
    with ``part`` in their names, and without those that are ``ignored``. Hidden jobs are left out, unless ``names`` has
    them; with ``hidden``, they are read instead of the others that have run. ``rows``: the gates, if they are
    to tell more. Takes two queries, or at most five if there are more than ``MOST``."""
    rows = gates() if rows is None else rows
    chosen = _Choice(names=names, part=part, ignored=ignored, hidden=hidden)
    registered = {job.name for job in registry.all_jobs() if chosen.has(job.name)}
    held = worst_locks_first(locks().filter(chosen.of_locks)).survey(MOST + 1)
    needed = {_job_of(lock) for lock in held[:MOST]} | (registered if len(registered) <= MOST else set())
    telling = rows.filter(chosen.of_gates & (chosen.of_jobs | Q(name__in=needed)))
    found = list(worst_gates_first(telling).survey(MOST + 1).values())
    statuses = {status.name: status for status in found[:MOST]}
    seen, are_gates_cut, are_locks_cut = held[:MOST], len(found) > MOST, len(held) > MOST
    told: AbstractSet[str] = statuses.keys()
    if are_gates_cut:
        statuses |= rows.filter(name__in=needed - statuses.keys()).survey()
        told = set(telling.values_list("name", flat=True)) if len(registered) > MOST else statuses.keys()
    if are_locks_cut:
        unseen = statuses.keys() - {_job_of(lock) for lock in seen}
        seen += locks().filter(_Choice(names=unseen).of_locks).survey()
    silent = _silent(registered - told)
    return Survey(
        healths=_judge(statuses, seen, {*(registered & statuses.keys()), *silent[:MOST]}),
        is_cut=are_gates_cut or are_locks_cut or len(silent) > MOST,
        is_ill_cut=(are_gates_cut and found[-1].is_ill)
        or (are_locks_cut and held[-1].is_suspected)
        or any(map(_has_schedule, silent[MOST : MOST + 1])),
    )


def _silent(names: AbstractSet[str]) -> list[str]:
    """These jobs, of which no gate tells anything. Those with a schedule come first, for no server has ever requested
    them."""
    return sorted(names, key=lambda name: (not _has_schedule(name), name))


def _has_schedule(name: str) -> bool:
    return registry.is_known(name) and registry.get(name).schedule is not None


def worst_gates_first(gates: "JobStatusQuerySet") -> "JobStatusQuerySet":
    """With ``is_ill``: those that are failing, or whose slot is overdue, first, then those that have a schedule or are
    paused. Of these, the slot that is furthest ahead comes first."""
    # Without the tests for null, a comparison would be null as well, and PostgreSQL sorts that first.
    is_late = Q(next_slot__isnull=False, next_slot__lt=DBNow() - OVERDUE)
    is_late |= Q(abandoned=True, last_status="interrupted", last_finished_at__lt=DBNow() - OVERDUE)
    is_ill = is_active() & (Q(consecutive_failures__gt=0) | (is_late & is_active(OVERDUE)))
    facts = {"is_ill": whether(is_ill), "is_idle": whether(Q(schedule="") & is_active())}
    order = ("-is_ill", "is_idle", "-next_slot", "name")
    return gates.annotate(**facts).order_by(*order)


def worst_locks_first(locks: "JobLockQuerySet") -> "JobLockQuerySet":
    """Those whose holders may be dead first, then the jobs' own, which may be overrunning, the oldest first."""
    in_turn = {"is_of_no_job": whether(Q(job_name=""))}
    order = ("-is_impossible", "-is_stale", "is_of_no_job", "acquired_at", "name")
    return locks.judged().alias(**in_turn).order_by(*order)


def telling_last_runs(gates: "JobStatusQuerySet") -> "JobStatusQuerySet":
    """With ``last_error``, of the last failure if the job is failing, ``last_success_at``, and ``failing_since``, when
    the first failure after that ended. They are ``None`` if that run has been pruned. The history is read only for jobs
    whose last run was not successful."""
    failed, successful = _latest("name", FAILURES), _latest("name", ["successful"])
    error = Subquery(failed.values(start=Substr("error", 1, ERROR_LENGTH))[:1])
    # It belongs to the gate, not to the run around it: so it is read once, and the runs before it are not read at all.
    success_before = Subquery(_latest(OuterRef("name"), ["successful"]).values("started_at")[:1])
    first = failed.filter(started_at__gt=Coalesce(success_before, EPOCH)).order_by("started_at", "pk")
    success = Case(
        When(last_status="successful", then=F("last_finished_at")),
        When(consecutive_failures__gt=0, then=Subquery(successful.values("finished_at")[:1])),
        output_field=models.DateTimeField(),
    )
    facts = {
        "last_error": Case(When(consecutive_failures__gt=0, then=error), output_field=models.TextField()),
        "last_success_at": success,
        "failing_since": Case(When(consecutive_failures__gt=1, then=Subquery(first.values("finished_at")[:1]))),
    }
    return gates.annotate(**facts)


def _latest(name: str | OuterRef, statuses: Collection[str]) -> "JobRunQuerySet":
    """The runs of the job that has its name in that column of the outer query, with these statuses, latest first."""
    # Not filter(): SQLite would prefer the status's index to the job's, and read the runs of all jobs for each.
    others = {*RunStatus.values} - {*statuses}
    return runs().filter(job_name=OuterRef(name)).exclude(status__in=others).order_by("-started_at", "-pk")


class _Choice(NamedTuple):
    """Which jobs and locks to look at."""

    names: Collection[str] | None
    part: str = ""
    ignored: Collection[str] = ()
    hidden: bool = False

    def has(self, name: str) -> bool:
        return self.part in name and name not in self.ignored and (self.names is None or name in self.names)

    @property
    def of_gates(self) -> Q:
        return self._on("name")

    @property
    def of_jobs(self) -> Q:
        are_of_jobs = Q(of_job__in=[True])
        return are_of_jobs & Q(hidden=self.hidden) if self.names is None else are_of_jobs

    @property
    def of_locks(self) -> Q:
        return (~Q(job_name="") & self._on("job_name")) | (Q(job_name="") & self._on("name"))

    def _on(self, column: str) -> Q:
        found = Q() if self.names is None else Q(**{f"{column}__in": self.names})
        if self.part:
            found &= Q(**{f"{column}__contains": self.part})
        return found & ~Q(**{f"{column}__in": self.ignored}) if self.ignored else found


def _job_of(lock: "JobLock") -> str:
    return lock.job_name or lock.name


def _judge(statuses: Mapping[str, "JobStatus"], seen: Iterable["JobLock"], known: set[str]) -> list[Health]:
    # A job may hold two locks, for example while it moves from one to the other: show the suspected one.
    held = {_job_of(lock): lock for lock in sorted(seen, key=lambda lock: lock.is_suspected)}
    have_run = {name for name, status in statuses.items() if _has_run(status)}
    return [_health(name, statuses.get(name), held.get(name)) for name in sorted(known | have_run | held.keys())]


def _has_run(status: "JobStatus | None") -> bool:
    return bool(status and (status.last_started_at or status.schedule))


def _health(name: str, status: "JobStatus | None", lock: "JobLock | None") -> Health:
    return Health(name=name, state=next(_states(name, status, lock)), status=status, lock=lock)


def _states(name: str, status: "JobStatus | None", lock: "JobLock | None") -> Iterator[State]:
    if status and status.hidden and not lock and not registry.is_known(name):
        yield State.HIDDEN
    if status and status.is_paused:
        yield State.PAUSED
    if lock and lock.is_impossible:
        yield State.IMPOSSIBLE
    if lock and lock.is_stale:
        yield State.STALE
    if status:
        yield from _troubles(status, lock)
    if _has_schedule(name) and (not status or not status.next_slot):
        yield State.UNSEEN
    yield State.RUNNING if lock else State.IDLE


def _troubles(status: "JobStatus", lock: "JobLock | None") -> Iterator[State]:
    is_overdue = _may_run_since(status) < status.now - OVERDUE
    if is_overdue and not lock:
        yield State.OVERDUE
    if _is_ahead(status):
        yield State.AHEAD
    if status.consecutive_failures:
        yield State.FAILING
    if lock and is_overrunning(status, lock):
        yield State.OVERRUNNING
    if is_overdue and lock:
        yield State.DELAYED


def _may_run_since(status: "JobStatus") -> datetime:
    """When a slot was or will be due, but not before a pause that ended by itself."""
    return max(due_since(status) or status.now, status.paused_until or EPOCH)


def due_since(status: "JobStatus") -> datetime | None:
    """When the slot that is to be run next was or will be due: if a signal ended its run, since then. ``None`` if the
    job has no schedule."""
    is_interrupted = status.abandoned and status.last_status == "interrupted"
    return status.last_finished_at if is_interrupted else status.next_slot


def is_overrunning(status: "JobStatus", lock: "JobLock") -> bool:
    """Whether the lock has been held for much longer than a run of the job usually takes."""
    mean = mean_of(status)
    return mean is not None and (status.now - lock.acquired_at) / mean >= options().overrun_factor


def _is_ahead(status: "JobStatus") -> bool:
    schedule = schedule_of(status)
    return schedule is not None and is_ahead(status, schedule)


def has_other_schedule(status: "JobStatus") -> bool:
    """Whether the database has another schedule for a job than the code of this process."""
    policy = registry.get(status.name).policy if registry.is_known(status.name) else None
    if policy is None or not status.schedule or has_due(status):  # what is due comes before another schedule
        return False
    with suppress(InvalidSchedule):  # this server leaves the job out, and says so
        schedule = policy.at(status).schedule
        return (status.schedule, status.time_zone) != (schedule.text, schedule.time_zone)
    return False


def zone_of_schedule(status: "JobStatus") -> tzinfo:
    """The time zone of its schedule; UTC if there is none."""
    schedule = schedule_of(status)
    return schedule.zone if schedule else UTC


def schedule_of(status: "JobStatus") -> Schedule | None:
    """``None`` if there is none, or if a newer release has written one that this release cannot parse."""
    try:
        return parse(status.schedule, status.time_zone) if status.schedule else None
    except InvalidSchedule:
        return None


def next_slots(status: "JobStatus", most: int) -> list[datetime]:
    """The next slots of a job, ``most`` of them or fewer, starting with the one in the database, or the first after a
    pause."""
    schedule, first = schedule_of(status), status.next_slot
    if schedule is None or first is None:
        return []
    if status.is_paused:
        if status.paused_until is None:
            return []
        first = next_slot(schedule, min(max(first, status.paused_until), LAST_SLOT) - timedelta.resolution)
    later = slots_between(schedule, first, min(first, LAST_SLOT) + PATIENCE)
    return [first, *islice(later, most - 1)]
