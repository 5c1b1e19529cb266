"""The slots to come, by the schedules in the code, and what stands out among them: ``run_singleton --list --from``."""

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from operator import itemgetter
from typing import Any, NamedTuple

from django.utils.text import format_lazy

from django_singlejob.jobs.schedule import duration_in_words
from django_singlejob.jobs.slots import COUNTED
from django_singlejob.locking.position import schedules
from django_singlejob.management.exit_status import refuse_settings
from django_singlejob.management.output import Output
from django_singlejob.process.clock import instant_in_words, project_zone, utc_now
from django_singlejob.process.escaping import listed
from django_singlejob.to_come import ClockChange, Coming, clock_changes, coming_slots, crowds, slow_jobs

# How many slots are listed of all jobs together.
MOST_OF_ALL = 1_000


class Entry(NamedTuple):
    """A line of the list, or several: ``at`` is in UTC, and ``facts`` are for programs."""

    at: datetime
    lines: Sequence[str]
    facts: dict[str, Any]


def list_slots(output: Output, begin: datetime | None, days: int | None) -> None:
    """Write the slots of this many days from ``begin`` on; by default, of one day from now on."""
    here = project_zone()
    local = (begin or utc_now()).astimezone(here)
    # On the wall clock: a day on which clocks change does not have 24 hours.
    first, until = local.astimezone(UTC), (local + timedelta(days=days or 1)).astimezone(UTC)
    jobs = coming_slots(schedules().items(), first, until)
    changes = [_change(change, here) for change in clock_changes(jobs, here, first, until)]
    found = sorted((_slot(slot, job, here) for job in jobs for slot in job.slots), key=itemgetter(0))
    slots, cut = found[:MOST_OF_ALL], found[MOST_OF_ALL:]
    left_out = Counter({job.name: job.left_out for job in jobs if job.left_out})
    left_out.update(slot.facts["name"] for slot in cut)
    crowded = crowds(jobs)
    output.line(f"From {instant_in_words(first, here)} to {instant_in_words(until, here)}:")
    lines = [line for entry in sorted([*changes, *slots], key=itemgetter(0)) for line in entry.lines]
    for line in [*lines, *_notes(jobs, left_out, crowded, here)]:
        output.line(line)
    refuse_settings()
    slow = [*slow_jobs(jobs)]
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
            "crowds": [{"at": minute, "jobs": count} for minute, count in crowded],
            "slow": [{"name": name, "mean_duration": mean, "interval": interval} for name, mean, interval in slow],
        }
    )


def _change(change: ClockChange, here: tzinfo) -> Entry:
    what = f"{change.begin} to {change.end} {'is left out' if change.is_lost else 'comes twice'}"
    lines = [f"{_when(change.at, here, change.zone)}: clocks change in {change.zone}, and {what}."]
    for name, times, _runs, words in change.effects:
        lines.append(f"    {name} {format_lazy(words, end=change.end, times=listed(times))}.")
    facts = {
        "at": change.at.astimezone(change.zone),
        "time_zone": str(change.zone),
        "kind": "lost" if change.is_lost else "doubled",
        "begin": change.begin,
        "end": change.end,
        "jobs": [{"name": name, "times": times, "runs": runs} for name, times, runs, _words in change.effects],
    }
    return Entry(change.at, lines, facts)


def _slot(slot: datetime, job: Coming, here: tzinfo) -> Entry:
    later = " (its later slots are left out)" if job.left_out and slot == job.slots[-1] else ""
    line = f"{_when(slot, here, job.schedule.zone)}: {job.name}{later}"
    facts = {"slot": slot.astimezone(job.schedule.zone), "name": job.name, "time_zone": job.schedule.time_zone}
    return Entry(slot, [line], facts)


def _when(instant: datetime, here: tzinfo, there: tzinfo) -> str:
    """On the clocks of the project and, if they show something else, of the job."""
    project, own = instant_in_words(instant, here), instant_in_words(instant, there)
    return project if own == project else f"{project} ({own})"


def _notes(
    jobs: Sequence[Coming], left_out: Counter[str], crowded: Sequence[tuple[datetime, int]], here: tzinfo
) -> Iterator[str]:
    if not any(job.slots for job in jobs):
        yield "No job has a slot then. Use more --days."
    if left_out:
        number = f"{'At least ' if any(job.left_out == COUNTED for job in jobs) else ''}{left_out.total():,}"
        of = listed(f"{count:,} of {name}" for name, count in left_out.most_common())
        yield f"{number} later slots are left out: {of}. Use a later --from, or fewer --days."
    if crowded:
        of = listed(f"{count} at {instant_in_words(minute, here)}" for minute, count in crowded)
        yield f"Jobs that begin in the same minute: {of}. To spread them out, write H for the minute."
