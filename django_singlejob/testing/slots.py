"""Compares the slots of a job with those that are expected."""

from collections.abc import Sequence
from datetime import UTC, date, datetime, time, timedelta

from django_singlejob.exceptions import SingleJobError
from django_singlejob.jobs.registry import Job
from django_singlejob.jobs.schedule import slots_between
from django_singlejob.testing.arguments import day_of, job_of

_DAY = timedelta(days=1)


def assert_scheduled(job: Job | str, day: date | str, times: Sequence[str]) -> None:
    """Raise ``AssertionError`` unless the job's slots on this day, in its time zone, are at these times, such as
    ``["01:30", "13:30"]``. A time that comes twice because clocks are set back is listed twice if it is due twice.

    The schedule is that of the code. Raises ``UnknownJob``, and ``SingleJobError`` if the job has none.
    """
    found, on = job_of(job), day_of(day)
    if found.policy is None:
        raise SingleJobError(f"The job {found.name!r} has no schedule, so it has no slots.")
    schedule, noon = found.policy.schedule, datetime.combine(on, time(12), UTC)
    # On each clock of the world, the day is between these.
    local = (slot.astimezone(schedule.zone) for slot in slots_between(schedule, noon - 2 * _DAY, noon + 2 * _DAY))
    due = [_shown(slot.time()) for slot in local if slot.date() == on]
    if due != list(times):
        zone = schedule.time_zone
        raise AssertionError(f"The job {found.name!r} is due on {on} ({zone}) at {due}, and not at {list(times)}.")


def _shown(at: time) -> str:
    return at.isoformat("auto" if at.second or at.microsecond else "minutes")
