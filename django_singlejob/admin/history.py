"""What the history says about the latest runs. This module only reads."""

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from django.db.models import OuterRef, Q, QuerySet, Subquery
from django.utils.translation import gettext_lazy as _

from django_singlejob.conf import ZERO
from django_singlejob.models import JobRun
from django_singlejob.models.jobs import database_now, gates
from django_singlejob.models.locks import locks
from django_singlejob.models.one_offs import one_offs
from django_singlejob.models.runs import FAILURES, JobRunQuerySet, runs

if TYPE_CHECKING:
    from django.utils.functional import _StrOrPromise

RECENT = 30
NEAR = 20
# With more rows a page would be slow, and its bars too narrow to tell apart.
MOST = 3_000
BAD = frozenset({"failed", "abandoned"})
# What `judged` calls a run that is recorded as running, although no live process holds its lock. No row has this
# status: sooner or later, the run is recorded as abandoned.
STALE = "stale"
COST_BOUNDS = [timedelta(milliseconds=most) for most in (5, 10, 20, 50, 100, 200, 500, 1000)]


class PastRun(NamedTuple):
    """What is shown of each of a job's latest runs, or of those around one. It is not a model instance: a list of jobs
    has thousands of these, and to create as many instances would take longer than everything else on the page."""

    pk: int
    job_name: str
    status: str
    hostname: str
    started_at: datetime
    duration: timedelta | None
    error: str
    slot: datetime | None
    attempt: int


def label(status: str) -> "_StrOrPromise":
    """The status of a run, for people. A status that only a newer release knows is returned unchanged."""
    return _LABELS.get(status, status)


_LABELS: "dict[str, _StrOrPromise]" = {**dict(JobRun.Status.choices), STALE: _("stale")}


def recent_runs(names: Collection[str]) -> dict[str, list[PastRun]]:
    """The newest runs of each of these jobs, at most ``RECENT``, oldest first. Those of dead holders are ``STALE``.
    Takes three queries at most, which read no more than they return, however long the history is."""
    newest_first = runs().filter(job_name=OuterRef("name")).order_by("-started_at")
    oldest_wanted = Subquery(newest_first.values("started_at")[RECENT - 1 : RECENT])
    wanted = Q(pk__in=[])
    for name, since in gates().filter(name__in=names).values_list("name", oldest_wanted):
        wanted |= Q(job_name=name, started_at__gte=since) if since else Q(job_name=name)
    found: dict[str, list[PastRun]] = {name: [] for name in names}
    for row in runs().filter(wanted).order_by("started_at", "pk").values_list(*PastRun._fields):
        run = PastRun(*row)
        found[run.job_name].append(run)
    newest = {name: some[-RECENT:] for name, some in found.items()}
    dead = dead_among([run.pk for some in newest.values() for run in some if run.status == "running"])
    return {name: [_judged(run, dead) for run in some] for name, some in newest.items()}


# --- the runs before and after one


class Neighbours(NamedTuple):
    """The runs around one of a job: the one before it, the one after it (each ``None`` if there is none), and the other
    attempts at its slot, oldest first, on whatever servers."""

    before: PastRun | None
    after: PastRun | None
    of_slot: Sequence[PastRun]


def neighbours(run: JobRun) -> Neighbours:
    """Takes three queries at most, which read no more than they return. Attempts at a slot are close to each other:
    only the ``NEAR`` runs before this one, and as many after it, are looked at."""
    others = runs().filter(job_name=run.job_name).exclude(pk=run.pk)
    before = _near(others.filter(started_at__lte=run.started_at).order_by("-started_at"))
    after = _near(others.filter(started_at__gt=run.started_at).order_by("started_at"))
    near = [*before[::-1], *after]
    dead = dead_among([other.pk for other in near if other.status == "running"])
    judged = {other.pk: _judged(other, dead) for other in near}
    return Neighbours(
        before=judged[before[0].pk] if before else None,
        after=judged[after[0].pk] if after else None,
        of_slot=[other for other in judged.values() if run.slot and other.slot == run.slot],
    )


def _near(rows: QuerySet[Any]) -> list[PastRun]:
    return [PastRun(*row) for row in rows.values_list(*PastRun._fields)[:NEAR]]


# --- the runs of the last hours


class RecordedRun(NamedTuple):
    """What is known of each run in a period: few columns, since there may be many rows. Instants are in UTC."""

    pk: int
    job_name: str
    status: str
    hostname: str
    started_at: datetime
    finished_at: datetime | None
    acquire_duration: timedelta | None

    @property
    def is_bad(self) -> bool:
        return self.status in BAD


AnyRun = TypeVar("AnyRun", PastRun, RecordedRun)


class Period(NamedTuple):
    """The runs of the last hours.

    Attributes:
        now: the end of the period, by the database's clock.
        begin: its begin.
        runs: the runs that began in it, the newest first, at most ``MOST``.
        earlier: the runs that began before it and are still running.
        is_cut: whether more runs began in it than ``runs`` has.
    """

    now: datetime
    begin: datetime
    runs: Sequence[RecordedRun]
    earlier: Sequence[RecordedRun]
    is_cut: bool


def period(length: timedelta) -> Period:
    """The runs of this length of time until now. Takes three queries, which read no more than they return."""
    end = database_now()
    begin = end - length
    found = _read(runs().filter(started_at__gte=begin), MOST + 1)
    earlier = _read(runs().running().filter(started_at__lt=begin), MOST)
    return Period(now=end, begin=begin, runs=found[:MOST], earlier=earlier, is_cut=len(found) > MOST)


def judged(found: Period) -> Period:
    """The period, in which the runs of dead holders have the status ``STALE``. Takes one query.

    These runs are still recorded as running, although their locks are stale or gone.
    """
    dead = set(of_dead_holders().order_by("-started_at").values_list("pk", flat=True)[:MOST])
    runs, earlier = ([_judged(run, dead) for run in some] for some in (found.runs, found.earlier))
    return found._replace(runs=runs, earlier=earlier)


def of_dead_holders() -> JobRunQuerySet:
    """The runs that no live process is running, although they are recorded as running."""
    # A single statement: a run that begins or ends between two reads would seem to have no lock.
    return runs().running().exclude(token__in=locks().live().values("token"))


def dead_among(keys: Collection[int]) -> set[int]:
    """The runs of dead holders among these. Takes a query, unless there are no keys."""
    return set(of_dead_holders().filter(pk__in=keys).values_list("pk", flat=True)) if keys else set()


def dead_one_offs(keys: Collection[int]) -> set[int]:
    """The one-offs among these that are in progress, although no live process is running them. Takes a query, unless
    there are no keys."""
    # A single statement here too.
    held = locks().live().values("token")
    dead = one_offs().in_progress().filter(pk__in=keys).exclude(token__in=held)
    return set(dead.values_list("pk", flat=True)) if keys else set()


def _judged(run: AnyRun, dead: Collection[int]) -> AnyRun:
    return run._replace(status=STALE) if run.status == "running" and run.pk in dead else run


def _read(rows: QuerySet[Any], most: int) -> list[RecordedRun]:
    return [
        _run_in_utc(RecordedRun(*row)) for row in rows.order_by("-started_at").values_list(*RecordedRun._fields)[:most]
    ]


def _run_in_utc(run: RecordedRun) -> RecordedRun:
    # A connection's own time zone comes back with every instant, and two of one zone are compared by their wall clocks.
    if run.started_at.tzinfo is UTC:
        return run
    finished_at = run.finished_at and run.finished_at.astimezone(UTC)
    return run._replace(started_at=run.started_at.astimezone(UTC), finished_at=finished_at)


# --- what the runs of a period tell


class Winner(NamedTuple):
    """A server that won runs: how many, which share of all, how many of them ended badly, its last sign of life."""

    hostname: str
    won: int
    share: float
    bad: int
    last_seen: datetime


def winners(won: Sequence[RecordedRun], heartbeats: Iterable[tuple[str, datetime]] = ()) -> list[Winner]:
    """The servers that won these runs, the one with the most wins first. ``heartbeats`` are further signs of life:
    pairs of a host name and an instant."""
    signs = [*heartbeats, *(sign for run in won for sign in _signs_of_life(run))]
    last_seen: dict[str, datetime] = {}
    for hostname, instant in signs:
        last_seen[hostname] = max(instant, last_seen.get(hostname, instant))
    wins = Counter(run.hostname for run in won)
    bad = Counter(run.hostname for run in won if run.is_bad)
    return [
        Winner(hostname=name, won=count, share=count / len(won), bad=bad[name], last_seen=last_seen[name])
        for name, count in sorted(wins.items(), key=lambda win: (-win[1], win[0]))
    ]


def _signs_of_life(run: RecordedRun) -> Iterable[tuple[str, datetime]]:
    yield run.hostname, run.started_at
    # That a run was abandoned is recorded by another server.
    if run.finished_at and run.status != "abandoned":
        yield run.hostname, run.finished_at


class Costs(NamedTuple):
    """How long it took to acquire the locks.

    ``counts`` has the number of runs for each bound: those that took longer than the bound before it, and no longer
    than this one. The last bound is ``None``, for all that took longer.
    """

    counts: Sequence[tuple[timedelta | None, int]]
    least: timedelta
    median: timedelta
    mean: timedelta
    p95: timedelta
    most: timedelta


def costs(won: Iterable[RecordedRun]) -> Costs | None:
    """``None`` if no cost was recorded."""
    ordered = sorted(run.acquire_duration for run in won if run.acquire_duration is not None)
    if not ordered:
        return None
    places = Counter(bisect_left(COST_BOUNDS, cost) for cost in ordered)
    return Costs(
        counts=[(bound, places[place]) for place, bound in enumerate([*COST_BOUNDS, None])],
        least=ordered[0],
        median=(ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2,
        mean=sum(ordered, ZERO) / len(ordered),
        p95=ordered[math.ceil(0.95 * len(ordered)) - 1],
        most=ordered[-1],
    )


# --- what went wrong


class LastError(NamedTuple):
    """Where a failing job went wrong last. ``pk``: of the run."""

    pk: int
    error: str


def last_errors(names: Collection[str]) -> dict[str, LastError]:
    """The latest error of each of these jobs that is failing, without those whose run has been pruned since."""
    # Two runs may have begun at the same instant, and both columns are to be of the same one.
    latest = runs().filter(job_name=OuterRef("name"), status__in=FAILURES).order_by("-started_at", "-pk")
    failing = gates().filter(name__in=names, consecutive_failures__gt=0)
    found = failing.annotate(run=Subquery(latest.values("pk")[:1]), error=Subquery(latest.values("error")[:1]))
    return {name: LastError(pk, error) for name, pk, error in found.values_list("name", "run", "error") if pk}
