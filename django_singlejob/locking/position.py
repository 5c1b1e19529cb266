"""The position of a job's schedule, as ``JobStatus`` remembers it, and how it moves without a run.

A claim moves it past a slot that is run. That is part of the grant: see ``locking.grant``.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Self

from django.db import Error
from django.db.models import F

from django_singlejob.conf import ZERO
from django_singlejob.database import transactions
from django_singlejob.exceptions import InvalidSchedule
from django_singlejob.jobs import registry
from django_singlejob.jobs.registry import Job
from django_singlejob.jobs.schedule import Schedule, next_slot
from django_singlejob.jobs.slots import Claim, Misfires, Policy, claim, first_slot
from django_singlejob.models.jobs import gates
from django_singlejob.process.clock import instant_in_words
from django_singlejob.process.escaping import listed
from django_singlejob.process.logs import about, in_english
from django_singlejob.signals import schedule_changed, slot_misfired

if TYPE_CHECKING:
    from django_singlejob.models import JobStatus

logger = logging.getLogger("django_singlejob")


def schedules(**which: Any) -> dict[str, Schedule]:
    """The schedules of the jobs, by name: an operator's, as far as the database tells and this release can parse it, or
    else the code's. ``which``: a filter of the gates."""
    policies = {job.name: job.policy for job in registry.all_jobs() if job.policy}
    given: dict[str, JobStatus] = {}
    with suppress(Error):  # the code's can be shown without a database
        given = gates().of_jobs().filter(**which).exclude(own_schedule="").in_bulk()
    for name in policies.keys() & given.keys():
        with suppress(InvalidSchedule):
            policies[name] = policies[name].at(given[name])
    return {name: policy.schedule for name, policy in policies.items()}


def is_followed(status: "JobStatus", schedule: Schedule) -> bool:
    """Whether the row follows this schedule."""
    at = (status.schedule, status.time_zone)
    return at == (schedule.text, schedule.time_zone) and status.next_slot is not None


def is_ahead(status: "JobStatus", schedule: Schedule) -> bool:
    """Whether the next slot is too far ahead for this schedule, because the database's clock was set back."""
    # If a cron daemon fired early, the coming slot is already claimed.
    if status.next_slot is None or status.next_slot <= (first := _coming(schedule, status.now)):
        return False
    return status.next_slot > next_slot(schedule, first)


@lru_cache(maxsize=4096)
def _coming(schedule: Schedule, now: datetime) -> datetime:
    # All rows of a query have the same time, in UTC, and of thousands of jobs many have the same schedule.
    return next_slot(schedule, now)


def has_due(status: "JobStatus") -> bool:
    """Whether a slot of the schedule that the row follows is due. It comes before any other schedule."""
    return bool(status.schedule and status.next_slot and status.next_slot <= status.now)


def is_waiting(status: "JobStatus") -> bool:
    """Whether another schedule waits until the slots that were due by then are done."""
    return bool(status.next_slot and status.schedule_until and status.next_slot <= status.schedule_until)


def change(status: "JobStatus", schedule: Schedule, early: timedelta = ZERO) -> bool:
    """Make the row follow this schedule, at once or, if a slot of its own is due, after that. ``False`` if there is
    nothing to do."""
    if is_followed(status, schedule) or (has_due(status) and is_waiting(status)):
        return False
    if has_due(status):
        _move_on(status, {"schedule_until": status.now})
    else:
        follow(status, schedule, early)
    return True


def follow(status: "JobStatus", schedule: Schedule, early: timedelta = ZERO) -> None:
    """Make the row follow this schedule, see ``following``. Does nothing if another process was faster, or if a slot of
    the former schedule has become due."""
    changes = following(status, schedule, early)
    if _move_on(status, changes, unless_due=bool(status.schedule)):
        report_change(status, changes, status.now)


def following(status: "JobStatus", schedule: Schedule, early: timedelta = ZERO) -> dict[str, Any]:
    """The changes to the row with which it follows this schedule, starting at its next slot.

    The first slot may be up to ``early`` in the past, because a cron daemon may just have fired for it. A slot that may
    already have run is not run again.
    """
    now = status.now
    slot = first_slot(schedule, now, early)
    if status.last_slot:
        slot = max(slot, next_slot(schedule, status.last_slot))
    elif status.last_started_at and status.last_started_at >= now - 2 * early:
        slot = next_slot(schedule, now + early)
    return _going_on(schedule, slot)


def claim_at(status: "JobStatus", policy: Policy, early: timedelta, again: datetime | None) -> Claim | None:
    """What to do about the slots that are due, see ``claim``: those of the schedule that the row follows, until another
    one took its place. Once none of them is left, the schedule of ``policy`` goes on from then."""
    assert status.next_slot  # noqa: S101  (it follows a schedule)
    if is_followed(status, policy.schedule):
        claimed = claim(policy, status.next_slot, status.now, early, again)
        # Somebody else's code has another schedule, and this one's holds.
        return claimed._replace(schedule=policy.schedule) if claimed and status.schedule_until else claimed
    until = status.schedule_until or status.now
    claimed = claim(policy.followed(status), status.next_slot, status.now, ZERO, again, until)
    if claimed is None or claimed.next_slot <= until:
        return claimed
    schedule, last = policy.schedule, claimed.slot or status.last_slot
    slot = first_slot(schedule, until, early)
    return claimed._replace(
        next_slot=max(slot, next_slot(schedule, last)) if last else slot, schedule=schedule, since=until
    )


def leave(status: "JobStatus") -> None:
    """Make the row forget its schedule, because the job no longer has one."""
    changes = {"schedule": "", "time_zone": "", "next_slot": None, "schedule_until": None}
    if _move_on(status, changes | {"abandoned": False}):
        report_change(status, changes, status.now)


def report_change(status: "JobStatus", changes: Mapping[str, Any], since: datetime | None) -> None:
    """Log that the row, as it was, follows another schedule since then, and send ``schedule_changed``."""
    before, after = (status.schedule, status.time_zone), (changes["schedule"], changes["time_zone"])
    slot = changes["next_slot"]
    schedule_changed.send_robust(sender=Job, name=status.name, before=before, after=after, next_slot=slot, since=since)
    if slot:
        level = logging.WARNING if status.schedule else logging.INFO
        message = "The job %r has a new schedule. It is next due at %s."
        logger.log(level, message, status.name, instant_in_words(slot), extra=about(job=status.name, slot=slot))


def pass_by(status: "JobStatus", claim: Claim) -> bool:
    """Move past slots that are all too late to run. ``False`` if another process was faster: look again."""
    is_passed = _move_on(status, moved(claim))
    if is_passed:
        report(status, claim)
    return is_passed


def _move_on(status: "JobStatus", changes: Mapping[str, Any], *, unless_due: bool = False) -> bool:
    with transactions.durable(transactions.alias()):
        return gates().is_at_hand(status.name) and gates().move_on(status, changes, unless_due=unless_due)


def begun(claim: Claim, attempt: int) -> dict[str, Any]:
    """The changes to the row when the claimed slot is run."""
    return {"last_slot": claim.slot, "last_attempt": attempt, "abandoned": False} | moved(claim)


def moved(claim: Claim) -> dict[str, Any]:
    """The changes to the row when a claim moves its schedule on."""
    changes = _going_on(claim.schedule, claim.next_slot) if claim.schedule else {"next_slot": claim.next_slot}
    return changes | _count(claim.misfires, claim.coalesced)


def _going_on(schedule: Schedule, slot: datetime) -> dict[str, Any]:
    columns = {"schedule": schedule.text, "time_zone": schedule.time_zone}
    return {**columns, "next_slot": slot, "schedule_until": None}


def _count(misfires: Sequence[Misfires], coalesced: int = 0) -> dict[str, Any]:
    counts = {"misfire_count": sum(missed.number for missed in misfires), "coalesced_count": coalesced}
    return {name: F(name) + count for name, count in counts.items() if count}


# Called at once. In a supervisor, receivers are called later.
_listeners: list[Callable[[str, Misfires], object]] = []


def report(status: "JobStatus", claim: Claim) -> None:
    """Log what the claim has changed, and send the signals."""
    report_misfires(status.name, claim.misfires)
    if claim.schedule and claim.since:
        report_change(status, _going_on(claim.schedule, claim.next_slot), claim.since)


def report_misfires(name: str, misfires: Sequence[Misfires]) -> None:
    """Log slots that no server ran in time, and send ``slot_misfired``, once for each series of slots. A command logs
    one warning for those of all jobs: see ``MissedSlots``."""
    for missed in misfires:
        extra = about(job=name, slot=missed.last, reason=missed.outcome)
        logger.info("The job %r misfired: %s.", name, _in_words(missed), extra=extra)
        for listener in _listeners:
            listener(name, missed)
        slot_misfired.send_robust(
            sender=Job, name=name, slot=missed.last, reason=missed.outcome, first=missed.first, count=missed.number
        )


def _in_words(missed: Misfires) -> str:
    """For people: ``3 slots from 2026-11-21 08:00:00 UTC to 2026-11-21 10:00:00 UTC, not run``."""
    slots = f"{missed.number} slots from {instant_in_words(missed.first)} to" if missed.number > 1 else "the slot"
    return f"{slots} {instant_in_words(missed.last)}, {in_english(missed.outcome.label)}"


class MissedSlots:
    """The misfires that this process has reported since the last record. It is one record for all jobs: after an
    outage, a record for each of them would be as many lines in a mail. Use it as a context manager, which logs those
    that are left at its end."""

    def __init__(self) -> None:
        self._missed: dict[str, list[Misfires]] = {}

    def __enter__(self) -> Self:
        _listeners.append(self._note)
        return self

    def __exit__(self, *error: object) -> None:
        _listeners.remove(self._note)
        self.log()

    def _note(self, name: str, missed: Misfires) -> None:
        self._missed.setdefault(name, []).append(missed)

    def log(self) -> None:
        """Log a warning, if a slot was missed since the last one."""
        missed, self._missed = self._missed, {}
        if len(missed) == 1:
            ((name, series),) = missed.items()
            extra = about(job=name, slot=series[-1].last, reason=series[-1].outcome)
            logger.warning("1 job misfired: %s (%s).", name, "; ".join(map(_in_words, series)), extra=extra)
        elif missed:
            counts = {name: sum(each.number for each in series) for name, series in missed.items()}
            named = listed(f"{name} ({count})" for name, count in sorted(counts.items()))
            words = "%d jobs misfired, %d slots in all: %s."
            logger.warning(words, len(counts), sum(counts.values()), named, extra=about())
