"""The schedule that an operator gives a job, in place of the code's, until it is reset."""

import json
from functools import partial
from typing import Any, NamedTuple

from django.conf import settings

from django_singlejob.control.notes import noted
from django_singlejob.control.pausing import at_the_gate
from django_singlejob.exceptions import SingleJobError
from django_singlejob.jobs.hashed import without_h
from django_singlejob.jobs.registry import Job
from django_singlejob.jobs.schedule import Schedule, parse
from django_singlejob.jobs.slots import Gate
from django_singlejob.locking.position import following, has_due, is_followed, is_waiting, report_change
from django_singlejob.models.jobs import gates
from django_singlejob.models.notes import NoteKind


class Own(NamedTuple):
    """An operator's schedule, as the gate stores it; empty: the job has none."""

    schedule: str = ""
    time_zone: str = ""

    @classmethod
    def of(cls, gate: Gate) -> "Own":
        return cls(gate.own_schedule, gate.own_time_zone)


def parsed(job: Job, schedule: str, time_zone: str = "") -> Schedule:
    """The schedule that these words give the job; by default in its own time zone. Raises ``InvalidSchedule``."""
    if schedule.startswith("P"):  # an interval counts from the Unix epoch
        return parse(schedule)
    return parse(without_h(schedule, job.name), time_zone or job.time_zone or settings.TIME_ZONE)


def refusal(job: Job, schedule: Schedule | None) -> str:
    """Why the job cannot be given this schedule, or, if that is ``None``, have the code's again; empty if it can."""
    if schedule and job.schedule is None:
        return f"The job {job.name!r} has no schedule in the code, so it cannot be given another one. Add one there."
    if schedule and not job.editable:
        return f"The schedule of {job.name!r} is not to be changed here: the code says editable=False."
    return ""


def give_schedule(
    job: Job, schedule: Schedule | None, *, instead_of: Own, by: str = "", reason: str = "", patience: float = 0.0
) -> bool | None:
    """Give the job this schedule, or, if that is ``None``, the code's again, ``instead_of`` the operator's schedule
    that the caller has seen. A slot of the former schedule that is due is run before.

    Returns ``False`` if somebody else has changed it meanwhile, and ``None`` if the job's gate is busy for ``patience``
    seconds. Raises ``SingleJobError`` if that is refused.
    """
    if why := refusal(job, schedule):
        raise SingleJobError(why)
    own = Own(schedule.text, schedule.time_zone) if schedule else Own()
    act = partial(_give, job, own, instead_of, by=by, reason=reason)
    given = at_the_gate(job.name, act, patience=patience)
    if given:
        seen, changes = given
        if changes:
            report_change(seen, changes, seen.now)
        return True
    return given


def _give(job: Job, own: Own, instead_of: Own, *, by: str, reason: str) -> Any:
    """The row as it was, and how its schedule has moved. ``None`` if a slot has become due meanwhile: look again."""
    seen = gates().filter(name=job.name).survey()[job.name]
    if Own.of(seen) != instead_of:
        return False
    code, columns = job.policy and job.policy.schedule, {"own_schedule": own.schedule, "own_time_zone": own.time_zone}
    schedule = parse(*own) if own.schedule else code
    changes: dict[str, Any] = {"schedule_until": None} if seen.schedule_until else {}
    if schedule and not is_followed(seen, schedule):
        end = seen.schedule_until if is_waiting(seen) else seen.now
        changes = {"schedule_until": end} if has_due(seen) else following(seen, schedule)
    is_moved = "next_slot" in changes
    if not gates().move_on(seen, changes | columns, unless_due=is_moved):
        return None
    details = json.dumps({"before": instead_of, "after": own, "code": [code.text, code.time_zone] if code else None})
    noted(NoteKind.SCHEDULE_EDITED, job.name, by=by, reason=reason, details=details)
    return seen, changes if is_moved else {}
