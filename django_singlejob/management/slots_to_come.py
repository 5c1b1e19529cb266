"""The slots to come, by the schedules in the code, and what stands out among them: ``run_singleton --list --from``."""

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from itertools import islice, pairwise
from operator import itemgetter
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

from django.conf import settings

from django_singlejob.conf import ZERO
from django_singlejob.jobs import registry
from django_singlejob.jobs.schedule import MINUTE, Cron, Schedule, duration_in_words, next_slot, slots_between
from django_singlejob.jobs.slots import COUNTED, count_slots
from django_singlejob.management.exit_status import refuse_settings
from django_singlejob.management.output import Output
from django_singlejob.models.jobs import gates, mean_of
from django_singlejob.process.clock import instant_in_words, utc_now
from django_singlejob.process.escaping import listed

# How many slots are listed: of each job, and of all together.
MOST_OF_ONE, MOST_OF_ALL = 50, 1_000
# If this many jobs begin in the same minute, or more, a line says so.
CROWD = 5
JUST = timedelta.resolution
# How often a job runs that is due in an hour that is lost, or comes twice, and has fixed times or not.
EFFECTS = {
    (True, True): (1, "runs once, at {end}, in place of {times}"),
    (True, False): (0, "does not run at {times}"),
    (False, True): (1, "runs only the first time at {times}"),
    (False, False): (2, "runs twice at {times}"),
}


class Coming(NamedTuple):
    """A job, its first slots, and how many later ones are left out; of a cron expression, ``COUNTED`` at most."""

    name: str
    schedule: Schedule
    slots: Sequence[datetime]
    left_out: int


class Entry(NamedTuple):
    """A line of the list, or several: ``at`` is in UTC, and ``facts`` are for programs."""

    at: datetime
    lines: Sequence[str]
    facts: dict[str, Any]


def list_slots(output: Output, begin: datetime | None, days: int | None) -> None:
    """Write the slots of this many days from ``begin`` on; by default, of one day from now on."""
    here = ZoneInfo(settings.TIME_ZONE)
    local = (begin or utc_now()).astimezone(here)
    # On the wall clock: a day on which clocks change does not have 24 hours.
    first, until = local.astimezone(UTC), (local + timedelta(days=days or 1)).astimezone(UTC)
    schedules = [(job.name, job.policy.schedule) for job in registry.all_jobs() if job.policy]
    jobs = [Coming(name, schedule, *_slots_and_rest(schedule, first, until)) for name, schedule in schedules]
    zones = {str(zone): zone for zone in (here, *(job.schedule.zone for job in jobs))}
    changes = [_change(*change, jobs) for name in sorted(zones) for change in _changes(zones[name], first, until)]
    found = sorted((_slot(slot, job, here) for job in jobs for slot in job.slots), key=itemgetter(0))
    slots, cut = found[:MOST_OF_ALL], found[MOST_OF_ALL:]
    left_out = Counter({job.name: job.left_out for job in jobs if job.left_out})
    left_out.update(slot.facts["name"] for slot in cut)
    crowds = _crowds(jobs)
    output.line(f"From {instant_in_words(first, here)} to {instant_in_words(until, here)}:")
    lines = [line for entry in sorted([*changes, *slots], key=itemgetter(0)) for line in entry.lines]
    for line in [*lines, *_notes(jobs, left_out, crowds, here)]:
        output.line(line)
    refuse_settings()
    slow = [*_slow(jobs)]
    for name, mean, interval in slow:
        between = f"the {duration_in_words(interval)} between two of its slots"
        output.line(f"{name} takes {mean.total_seconds():.1f} s on average, longer than {between}.")
    output.end(
        {
            "from": local,
            "until": until.astimezone(here),
            "slots": [slot.facts for slot in slots],
            "clock_changes": [change.facts for change in changes],
            "left_out": left_out,
            "crowds": [{"at": minute, "jobs": count} for minute, count in crowds],
            "slow": [{"name": name, "mean_duration": mean, "interval": interval} for name, mean, interval in slow],
        }
    )


# Many jobs may be due each minute.
@lru_cache
def _slots_and_rest(schedule: Schedule, first: datetime, until: datetime) -> tuple[Sequence[datetime], int]:
    slots = [*islice(slots_between(schedule, first - JUST, until - JUST), MOST_OF_ONE)]
    return slots, count_slots(schedule, slots[-1] + JUST, until - JUST) if slots else 0


def _slot(slot: datetime, job: Coming, here: tzinfo) -> Entry:
    own, project = instant_in_words(slot, job.schedule.zone), instant_in_words(slot, here)
    later = " (its later slots are left out)" if job.left_out and slot == job.slots[-1] else ""
    line = f"{own if own == project else f'{own} ({project})'}: {job.name}{later}"
    facts = {"slot": slot.astimezone(job.schedule.zone), "name": job.name, "time_zone": job.schedule.time_zone}
    return Entry(slot, [line], facts)


def _changes(zone: tzinfo, first: datetime, until: datetime) -> Iterator[tuple[datetime, tzinfo, timedelta]]:
    """When the clocks of the zone change, the zone, and by how much they do."""
    first = first.replace(second=0, microsecond=0)
    for before, at in pairwise(first + number * MINUTE for number in range(-1, -((first - until) // MINUTE))):
        if change := _wall(at, zone) - _wall(before, zone) - MINUTE:
            yield at, zone, change


def _change(at: datetime, zone: tzinfo, by: timedelta, jobs: Sequence[Coming]) -> Entry:
    is_lost, (begin, end) = by > ZERO, sorted((_wall(at, zone), _wall(at, zone) - by))
    effects = [*_effects(str(zone), begin, end, is_lost, jobs)]
    what = f"{begin:%H:%M} to {end:%H:%M} {'is left out' if is_lost else 'comes twice'}"
    lines = [f"{instant_in_words(at, zone)}: clocks change in {zone}, and {what}."]
    for name, times, _, words in effects:
        lines.append(f"    {name} {words.format(end=f'{end:%H:%M}', times=listed(times))}.")
    facts = {
        "at": at.astimezone(zone),
        "time_zone": str(zone),
        "kind": "lost" if is_lost else "doubled",
        "begin": f"{begin:%H:%M}",
        "end": f"{end:%H:%M}",
        "jobs": [{"name": name, "times": times, "runs": runs} for name, times, runs, _ in effects],
    }
    return Entry(at, lines, facts)


def _effects(
    zone: str, begin: datetime, end: datetime, is_lost: bool, jobs: Sequence[Coming]
) -> Iterator[tuple[str, list[str], int, str]]:
    for name, schedule, *_ in jobs:
        if isinstance(schedule, Cron) and schedule.time_zone == zone:
            # On a clock that never changes, it is due at each time that it names.
            named = slots_between(schedule._replace(zone=ZoneInfo("UTC")), begin - JUST, end - JUST)
            if times := [f"{time:%H:%M}" for time in named]:
                yield name, times, *EFFECTS[is_lost, schedule.is_fixed]


def _wall(instant: datetime, zone: tzinfo) -> datetime:
    """What the clocks show, as an instant in UTC."""
    return instant.astimezone(zone).replace(tzinfo=UTC, fold=0)


def _crowds(jobs: Sequence[Coming]) -> list[tuple[datetime, int]]:
    """The minutes in which many jobs begin, the fullest first, and how many they are."""
    # A job counts once a minute: if it is due each second, H does not help.
    begun = {(slot.replace(second=0, microsecond=0), job.name) for job in jobs for slot in job.slots}
    minutes = Counter(minute for minute, _ in sorted(begun)).most_common()
    return [(minute, count) for minute, count in minutes if count >= CROWD]


def _notes(
    jobs: Sequence[Coming], left_out: Counter[str], crowds: Sequence[tuple[datetime, int]], here: tzinfo
) -> Iterator[str]:
    if not any(job.slots for job in jobs):
        yield "No job has a slot then. Use more --days."
    if left_out:
        number = f"{'At least ' if any(job.left_out == COUNTED for job in jobs) else ''}{left_out.total():,}"
        of = listed(f"{count:,} of {name}" for name, count in left_out.most_common())
        yield f"{number} later slots are left out: {of}. Use a later --from, or fewer --days."
    if crowds:
        of = listed(f"{count} at {instant_in_words(minute, here)}" for minute, count in crowds)
        yield f"Jobs that begin in the same minute: {of}. To spread them out, write H for the minute."


def _slow(jobs: Sequence[Coming]) -> Iterator[tuple[str, timedelta, timedelta]]:
    """The jobs that take longer than the shortest time between two of their slots."""
    rows = gates().filter(name__in=[job.name for job in jobs if job.slots]).survey()
    for name, schedule, slots, _ in jobs:
        if mean := mean_of(rows[name]) if name in rows else None:
            interval = min(later - slot for slot, later in pairwise([*slots, next_slot(schedule, slots[-1])]))
            if mean > interval:
                yield name, mean, interval
