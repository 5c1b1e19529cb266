"""What the code says about the schedules of all its jobs, in the words of their rows."""

from collections.abc import Sequence
from datetime import timedelta
from functools import cache

from django.conf import settings

from django_singlejob.jobs import registry
from django_singlejob.jobs.schedule import parse
from django_singlejob.models.jobs import position

# So many rows are looked at closely in each turn.
AT_ONCE = 25


def positions() -> set[str]:
    """The name, schedule and time zone that the row of each scheduled job should have, as ``gates().positions()`` reads
    them. Raises ``InvalidSchedule`` if a schedule cannot work in the project's time zone."""
    project_zone = settings.TIME_ZONE  # there may be thousands of jobs
    return {
        position(job.name, *_recorded(job.schedule, job.time_zone or project_zone))
        for job in registry.registered()
        if job.schedule is not None
    }


@cache
def _recorded(schedule: str | timedelta, time_zone: str) -> tuple[str, str]:
    parsed = parse(schedule, time_zone)
    return parsed.text, parsed.time_zone


def unscheduled() -> set[str]:
    """The names of the jobs without a schedule."""
    return {job.name for job in registry.registered() if job.schedule is None}


def part(turn: int) -> Sequence[str]:
    """The names of about ``AT_ONCE`` of the scheduled jobs. Successive turns name them all, again and again."""
    names = sorted(job.name for job in registry.registered() if job.schedule is not None)
    parts = -(-len(names) // AT_ONCE) or 1
    return names[turn % parts :: parts]
