"""What the code says about all its jobs, in the words of their rows. Worked out again only when the jobs have
changed: a tick needs it each time, and there may be thousands of jobs."""

from collections.abc import Mapping, Sequence, Set as AbstractSet
from datetime import timedelta
from functools import cache, cached_property

from django.conf import settings

from django_singlejob.jobs import registry
from django_singlejob.jobs.registry import Job
from django_singlejob.jobs.schedule import parse
from django_singlejob.models.jobs import position

# So many rows are looked at closely in each turn.
AT_ONCE = 25


class Timetable:
    """The jobs of this release of the code."""

    def __init__(self, jobs: Sequence[Job], time_zone: str) -> None:
        self._jobs = jobs
        self._time_zone = time_zone

    def is_of(self, jobs: Sequence[Job], time_zone: str) -> bool:
        """Whether this is still true."""
        # A list compares its items by identity first, so this takes no time.
        return self._jobs == jobs and self._time_zone == time_zone

    @cached_property
    def positions(self) -> AbstractSet[str]:
        """The name, schedule and time zone that the row of each scheduled job should have, as ``gates().positions()``
        reads them. Raises ``InvalidSchedule`` if a schedule cannot work in the project's time zone."""
        return {
            position(job.name, *_recorded(job.schedule, job.time_zone or self._time_zone))
            for job in self._jobs
            if job.schedule is not None
        }

    @cached_property
    def unscheduled(self) -> AbstractSet[str]:
        """The names of the jobs without a schedule."""
        return {job.name for job in self._jobs if job.schedule is None}

    def part(self, turn: int) -> Sequence[str]:
        """The names of about ``AT_ONCE`` of the scheduled jobs. Successive turns name them all, again and again."""
        parts = -(-len(self._names) // AT_ONCE) or 1
        return self._names[turn % parts :: parts]

    def sharing(self, lock: str) -> AbstractSet[str]:
        """The names of the jobs that have this lock."""
        return self._sharing.get(lock, frozenset())

    @cached_property
    def _sharing(self) -> Mapping[str, AbstractSet[str]]:
        found: dict[str, set[str]] = {}
        for job in self._jobs:
            found.setdefault(job.lock, set()).add(job.name)
        return found

    @cached_property
    def _names(self) -> Sequence[str]:
        return sorted(job.name for job in self._jobs if job.schedule is not None)


@cache
def _recorded(schedule: str | timedelta, time_zone: str) -> tuple[str, str]:
    parsed = parse(schedule, time_zone)
    return parsed.text, parsed.time_zone


def timetable() -> Timetable:
    """The timetable as of now."""
    global _last  # noqa: PLW0603  (one assignment, so no thread sees half of it)
    last, now = _last, (registry.registered(), settings.TIME_ZONE)
    if not last.is_of(*now):
        _last = last = Timetable(*now)
    return last


_last = Timetable([], "")
