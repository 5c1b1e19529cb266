"""The slots to come by the schedules of jobs, and what stands out among them. It runs nothing and simulates nothing."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from itertools import islice, pairwise
from typing import TYPE_CHECKING, NamedTuple
from zoneinfo import ZoneInfo

from django.utils.translation import gettext_lazy as _

from django_singlejob.conf import ZERO
from django_singlejob.jobs.schedule import MINUTE, Cron, Schedule, latest_slot, next_slot, slots_between
from django_singlejob.jobs.slots import count_slots
from django_singlejob.models.jobs import gates, mean_of

if TYPE_CHECKING:
    from django.utils.functional import _StrOrPromise

    from django_singlejob.models import JobStatus

# How many slots of each job are listed.
MOST_OF_ONE = 50
# How many slots are shown after a change of clocks.
AROUND = 3
# If this many jobs begin in the same minute, or more, they are named.
CROWD = 5
JUST = timedelta.resolution
# How often a job runs that is due in an hour that is lost, or comes twice, and has fixed times or not.
EFFECTS = {
    (True, True): (1, _("runs once, at {end}, in place of {times}")),
    (True, False): (0, _("does not run at {times}")),
    (False, True): (1, _("runs only the first time at {times}")),
    (False, False): (2, _("runs twice at {times}")),
}


class Coming(NamedTuple):
    """A job, its first slots, and how many later ones are left out; of a cron expression, ``COUNTED`` at most."""

    name: str
    schedule: Schedule
    slots: Sequence[datetime]
    left_out: int


class Effect(NamedTuple):
    """A change of clocks concerns a job: at which times of the wall clock, how often it runs, and the same in words,
    with ``end`` and ``times`` in braces."""

    name: str
    times: list[str]
    runs: int
    words: "_StrOrPromise"


class ClockChange(NamedTuple):
    """Clocks change in this zone. From ``begin`` to ``end`` on the wall clock, the time is left out or comes twice."""

    at: datetime
    zone: tzinfo
    is_lost: bool
    begin: str
    end: str
    effects: Sequence[Effect]


class Preview(NamedTuple):
    """The next slots of a schedule, and those around the next change of clocks, if these are later.

    Attributes:
        schedule: this one.
        slots: the next ones.
        clocks_change_at: the next change of clocks in its zone within a year; ``None`` if there is none.
        around: the last slot before that, and some from then on; empty if they are among ``slots``.
    """

    schedule: Schedule
    slots: Sequence[datetime]
    clocks_change_at: datetime | None
    around: Sequence[datetime]

    def marked(self) -> Iterator[tuple[datetime, bool, bool]]:
        """Each slot, whether slots before it are left out, and whether the clocks have changed since the one before."""
        at, before = self.clocks_change_at, None
        for slot in (*self.slots, *self.around):
            is_after_gap = slot in self.around[:1] and slot != next_slot(self.schedule, self.slots[-1])
            is_after_change = at is not None and slot >= at and (before is None or before < at)
            yield slot, is_after_gap, is_after_change
            before = slot


class Slow(NamedTuple):
    """A job takes longer than the shortest time between two of its slots."""

    name: str
    mean: timedelta
    interval: timedelta


def coming_slots(schedules: Iterable[tuple[str, Schedule]], first: datetime, until: datetime) -> list[Coming]:
    """The slots from ``first`` on, and before ``until``, of each of these jobs."""
    return [Coming(name, schedule, *_slots_and_rest(schedule, first, until)) for name, schedule in schedules]


# Many jobs may be due each minute.
@lru_cache
def _slots_and_rest(schedule: Schedule, first: datetime, until: datetime) -> tuple[Sequence[datetime], int]:
    slots = [*islice(slots_between(schedule, first - JUST, until - JUST), MOST_OF_ONE)]
    return slots, count_slots(schedule, slots[-1] + JUST, until - JUST) if slots else 0


def preview(schedule: Schedule, after: datetime, count: int = 10) -> Preview:
    """The next slots of the schedule, across a change of clocks."""
    slots, at = _next_slots(schedule, after, count), next_clock_change(schedule.zone, after)
    if at is None or at <= slots[-1]:
        return Preview(schedule, slots, at, [])
    around = [latest_slot(schedule, at - JUST), *_next_slots(schedule, at - JUST, AROUND)]
    return Preview(schedule, slots, at, [slot for slot in around if slot > slots[-1]])


def _next_slots(schedule: Schedule, after: datetime, count: int) -> list[datetime]:
    found = list[datetime]()
    for _number in range(count):
        found.append(next_slot(schedule, found[-1] if found else after))
    return found


def next_clock_change(zone: tzinfo, after: datetime) -> datetime | None:
    """When the clocks of the zone change next, to the minute; ``None``: not within a year."""
    day, before = timedelta(days=1), after.astimezone(zone).utcoffset()
    for number in range(1, 367):
        if (after + number * day).astimezone(zone).utcoffset() != before:
            until = after + number * day
            return next((at for at, _by in _changes(zone, until - day, until + MINUTE)), None)
    return None


def clock_changes(jobs: Sequence[Coming], here: tzinfo, first: datetime, until: datetime) -> list[ClockChange]:
    """The changes of clocks ``here``, and in the zones of the jobs."""
    zones = {str(zone): zone for zone in (here, *(job.schedule.zone for job in jobs))}
    return [
        _change(at, zones[name], by, jobs) for name in sorted(zones) for at, by in _changes(zones[name], first, until)
    ]


def _changes(zone: tzinfo, first: datetime, until: datetime) -> Iterator[tuple[datetime, timedelta]]:
    """When the clocks of the zone change, and by how much they do."""
    first = first.replace(second=0, microsecond=0)
    for before, at in pairwise(first + number * MINUTE for number in range(-1, -((first - until) // MINUTE))):
        if change := _wall(at, zone) - _wall(before, zone) - MINUTE:
            yield at, change


def _change(at: datetime, zone: tzinfo, by: timedelta, jobs: Sequence[Coming]) -> ClockChange:
    is_lost, (begin, end) = by > ZERO, sorted((_wall(at, zone), _wall(at, zone) - by))
    effects = [*_effects(str(zone), begin, end, is_lost, jobs)]
    return ClockChange(at, zone, is_lost, f"{begin:%H:%M}", f"{end:%H:%M}", effects)


def _effects(zone: str, begin: datetime, end: datetime, is_lost: bool, jobs: Sequence[Coming]) -> Iterator[Effect]:
    for name, schedule, *_rest in jobs:
        if isinstance(schedule, Cron) and schedule.time_zone == zone:
            # On a clock that never changes, it is due at each time that it names.
            named = slots_between(schedule._replace(zone=ZoneInfo("UTC")), begin - JUST, end - JUST)
            if times := [f"{time:%H:%M}" for time in named]:
                yield Effect(name, times, *EFFECTS[is_lost, schedule.is_fixed])


def _wall(instant: datetime, zone: tzinfo) -> datetime:
    """What the clocks show, as an instant in UTC."""
    return instant.astimezone(zone).replace(tzinfo=UTC, fold=0)


def crowds(jobs: Sequence[Coming]) -> list[tuple[datetime, int]]:
    """The minutes in which many jobs begin, the fullest first, and how many they are."""
    # A job counts once a minute: if it is due each second, H does not help.
    begun = {(slot.replace(second=0, microsecond=0), job.name) for job in jobs for slot in job.slots}
    minutes = Counter(minute for minute, _name in sorted(begun)).most_common()
    return [(minute, count) for minute, count in minutes if count >= CROWD]


def slow_jobs(jobs: Sequence[Coming], rows: "Mapping[str, JobStatus] | None" = None) -> Iterator[Slow]:
    """Those of the jobs that take too long for their schedules. ``rows``: the jobs' gates, if they have been read."""
    if rows is None:
        rows = gates().filter(name__in=[job.name for job in jobs if job.slots]).survey()
    for name, schedule, slots, _left_out in jobs:
        if mean := mean_of(rows[name]) if slots and name in rows else None:
            interval = min(later - slot for slot, later in pairwise([*slots, next_slot(schedule, slots[-1])]))
            if mean > interval:
                yield Slow(name, mean, interval)
