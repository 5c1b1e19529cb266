"""The slots of the last and of the next 24 hours: which were run, which were not, and which are to come. This module
only reads, and counts them by quarters of an hour: a job may be due each second.

Quarters are numbered from the Unix epoch. All clocks in use are whole quarters apart, so a local hour has whole ones.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, NamedTuple

from django.db import models
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Count, Func, IntegerField, OuterRef, Q, Subquery
from django.db.models.functions import Coalesce
from django.db.models.sql.compiler import SQLCompiler
from django.utils.translation import gettext_lazy as _

from django_singlejob.admin.history import of_dead_holders
from django_singlejob.jobs import registry
from django_singlejob.jobs.schedule import EPOCH, Every, Schedule, slots_between
from django_singlejob.jobs.slots import count_slots
from django_singlejob.models.jobs import gates
from django_singlejob.models.runs import runs
from django_singlejob.monitoring.health import OVERDUE, Health, schedule_of

DAY, QUARTER = timedelta(days=1), timedelta(minutes=15)
# A cron daemon may fire early.
EARLY = timedelta(minutes=5)


class SlotState(models.TextChoices):
    """What became of a slot, or of a run without one; the worst first."""

    BAD = "bad", _("bad")
    NOT_RUN = "not_run", _("not run")
    RUNNING = "running", _("running")
    SUCCESSFUL = "successful", _("successful")
    SKIPPED = "skipped", _("skipped")
    TO_COME = "to_come", _("to come")


class Span(NamedTuple):
    """The last and the next 24 hours, in quarters: from ``first`` to ``last``, both included."""

    now: datetime

    @property
    def first(self) -> int:
        return quarter_of(self.now - DAY)

    @property
    def last(self) -> int:
        return quarter_of(self.now + DAY)


class Day(NamedTuple):
    """The slots of one job.

    Attributes:
        health: the job, and how it is doing.
        quarters: how many slots there are in each state, by quarter. Runs without a slot count as well.
        since: runs that began earlier are not counted, because there are too many; ``None`` if all are.
    """

    health: Health
    quarters: Mapping[int, Counter[SlotState]]
    since: datetime | None

    @property
    def counts(self) -> Counter[SlotState]:
        """The numbers of all quarters together."""
        return sum(self.quarters.values(), Counter())


def quarter_of(instant: datetime) -> int:
    """The quarter of an hour that the instant is in."""
    return (instant - EPOCH) // QUARTER


def begin_of(quarter: int) -> datetime:
    """When the quarter begins, in UTC."""
    return EPOCH + quarter * QUARTER


def days(healths: Collection[Health], span: Span, most: int) -> list[Day]:
    """The day of each of these jobs. Of each, at most the ``most`` newest runs are counted. Takes three queries."""
    names = [health.name for health in healths]
    ends = _ends(names, span, most)
    ran, started = _ran(names, ends, span)
    return [_day(health, span, ends.get(health.name, _Ends()), ran, started) for health in healths]


class _Ends(NamedTuple):
    """The slot of a job's oldest run, and when the newest one began that is not counted any more; ``None`` if there is
    no such run."""

    first: datetime | None = None
    cut: datetime | None = None


def _ends(names: Collection[str], span: Span, most: int) -> dict[str, _Ends]:
    of_job = runs().filter(job_name=OuterRef("name"))
    first = Subquery(of_job.order_by("started_at").values(at=Coalesce("slot", "started_at"))[:1])
    lately = of_job.filter(started_at__gte=begin_of(span.first) - EARLY).order_by("-started_at")
    cut = Subquery(lately.values("started_at")[most : most + 1])
    rows = gates().filter(name__in=names).values_list("name", first, cut)
    return {name: _Ends(*(end and end.astimezone(UTC) for end in found)) for name, *found in rows}


class Quarter(Func):
    """The quarter of an hour that an instant is in; null if it cannot be read."""

    output_field = IntegerField()

    def as_sqlite(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper, **_: Any) -> Any:
        return self.as_sql(compiler, connection, template="CAST(strftime('%%%%s', %(expressions)s) AS INTEGER) / 900")

    def as_postgresql(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper, **_: Any) -> Any:
        return self.as_sql(compiler, connection, template="FLOOR(EXTRACT(EPOCH FROM %(expressions)s) / 900)::bigint")

    def as_mysql(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper, **_: Any) -> Any:
        return self.as_sql(
            compiler, connection, template="TIMESTAMPDIFF(SECOND, '1970-01-01', %(expressions)s) DIV 900"
        )


def _ran(
    names: Collection[str], ends: Mapping[str, _Ends], span: Span
) -> tuple[dict[str, dict[int, Counter[SlotState]]], Counter[tuple[str, int]]]:
    """The numbers of runs by job and quarter, and the numbers of slots for which a run was started."""
    cut = {name: end.cut for name, end in ends.items() if end.cut}
    wanted = Q(job_name__in=[name for name in names if name not in cut])
    for name, instant in cut.items():
        wanted |= Q(job_name=name, started_at__gt=instant)
    dead = set(of_dead_holders().filter(job_name__in=names).values_list("job_name", flat=True))
    lately = runs().filter(wanted, started_at__gte=begin_of(span.first) - EARLY)
    counted = lately.order_by().values("job_name", "status", quarter=Quarter(Coalesce("slot", "started_at")))
    # A slot whose run was cut off is run again, as another attempt.
    numbers = counted.annotate(count=Count("pk"), slots=Count("pk", filter=Q(slot__isnull=False, attempt=1)))
    ran: dict[str, dict[int, Counter[SlotState]]] = {}
    started: Counter[tuple[str, int]] = Counter()
    for row in numbers.values_list("job_name", "status", "quarter", "count", "slots"):
        name, status, quarter, count, slots = row
        if quarter is None or not span.first <= quarter <= span.last:
            continue
        state = _state_of_run(status, is_dead=name in dead)
        ran.setdefault(name, {}).setdefault(quarter, Counter())[state] += count
        started[name, quarter] += slots
    return ran, started


def _state_of_run(status: str, *, is_dead: bool) -> SlotState:
    if status == "running":
        return SlotState.BAD if is_dead else SlotState.RUNNING
    return SlotState(status) if status in ("successful", "skipped") else SlotState.BAD


# --- what the schedule says


def _day(
    health: Health,
    span: Span,
    ends: _Ends,
    ran: Mapping[str, Mapping[int, Counter[SlotState]]],
    started: Mapping[tuple[str, int], int],
) -> Day:
    found = {quarter: Counter(counts) for quarter, counts in ran.get(health.name, {}).items()}
    schedule = _schedule(health)
    if schedule:
        settled = _settled(health, span)
        known = [instant for instant in (ends.first, _next_slot(health)) if instant]
        since = max([min(known, default=settled), *([ends.cut] if ends.cut else [])])
        for quarter, count in _slots(schedule, since, settled, span).items():
            _add(found, quarter, SlotState.NOT_RUN, count - started.get((health.name, quarter), 0))
        coming = _coming_from(health, settled)
        for quarter, count in _slots(schedule, coming, None, span).items() if coming else ():
            _add(found, quarter, SlotState.TO_COME, count)
    return Day(health=health, quarters=dict(sorted(found.items())), since=ends.cut)


def _add(found: dict[int, Counter[SlotState]], quarter: int, state: SlotState, count: int) -> None:
    if count > 0:
        found.setdefault(quarter, Counter())[state] += count


def _schedule(health: Health) -> Schedule | None:
    """The schedule in the database or, until a server has requested the job, that in the code."""
    if health.status and health.status.schedule:
        return schedule_of(health.status)
    policy = registry.get(health.name).policy if registry.is_known(health.name) else None
    return policy.schedule if policy else None


def _next_slot(health: Health) -> datetime | None:
    return health.status.next_slot if health.status else None


def _coming_from(health: Health, settled: datetime) -> datetime | None:
    """From when on slots are to come; ``None``: none is, because the job is paused until somebody resumes it."""
    if not (health.status and health.status.is_paused):
        return settled
    until = health.status.paused_until
    return until and max(settled, until)


def _settled(health: Health, span: Span) -> datetime:
    """Earlier slots have been run or will never be run, except if the job is late. Later ones are to come."""
    following = _next_slot(health) or span.now
    if following < span.now - OVERDUE or (health.status and health.status.is_paused):
        return max(following, span.now)
    return min(following, span.now + EARLY)


def _slots(schedule: Schedule, since: datetime, until: datetime | None, span: Span) -> dict[int, int]:
    """The numbers of slots in each quarter of the span, from ``since`` up to but not including ``until``."""
    since = max(since, begin_of(span.first))
    until = begin_of(span.last + 1) if until is None else min(until, begin_of(span.last + 1))
    first, last = quarter_of(since), quarter_of(until)
    whole = _slots_of_quarters(schedule, span.first, span.last)
    found = {quarter: count for quarter, count in whole.items() if first < quarter < last}
    for quarter in {first, last}:
        begin, end = max(begin_of(quarter), since), min(begin_of(quarter + 1), until)
        if begin < end:
            found[quarter] = count_slots(schedule, begin, end - timedelta.resolution)
    return {quarter: count for quarter, count in found.items() if count}


# The same for a quarter of an hour, and of all jobs with this schedule.
@lru_cache(maxsize=1024)
def _slots_of_quarters(schedule: Schedule, first: int, last: int) -> dict[int, int]:
    before = timedelta.resolution
    if isinstance(schedule, Every):
        quarters = range(first, last + 1)
        return {each: count_slots(schedule, begin_of(each), begin_of(each + 1) - before) for each in quarters}
    return dict(_by_quarter(slots_between(schedule, begin_of(first) - before, begin_of(last + 1) - before)))


def _by_quarter(slots: Iterable[datetime]) -> Counter[int]:
    return Counter(map(quarter_of, slots))
