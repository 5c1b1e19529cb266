"""How far a job's schedule has got: what ``JobStatus`` remembers of it, and how that moves on without a run.

A claim, which moves it past a slot that is run, is part of the grant: see ``locking.grant``.
"""

import logging
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from django.db.models import F

from django_singlejob import database
from django_singlejob.clock import instant_in_words
from django_singlejob.conf import ZERO
from django_singlejob.querysets.jobs import gates
from django_singlejob.registry import Job
from django_singlejob.scheduling.schedule import Schedule, next_slot
from django_singlejob.scheduling.slots import Claim, MisfireOutcome, Misfires, first_slot
from django_singlejob.signals import slot_misfired

if TYPE_CHECKING:
    from django_singlejob.models import JobStatus

logger = logging.getLogger("django_singlejob")


def is_followed(status: "JobStatus", schedule: Schedule) -> bool:
    """Whether this is the schedule that the row is at."""
    at = (status.schedule, status.time_zone)
    return at == (schedule.text, schedule.time_zone) and status.next_slot is not None


def is_ahead(status: "JobStatus", schedule: Schedule) -> bool:
    """Whether the next slot is too far away to be this schedule's: the database's clock was set back since."""
    # A cron daemon may have been early for the coming one.
    if status.next_slot is None or status.next_slot <= (first := next_slot(schedule, status.now)):
        return False
    return status.next_slot > next_slot(schedule, first)


def follow(status: "JobStatus", schedule: Schedule, now: datetime, early: timedelta = ZERO) -> None:
    """Have the row begin with this schedule, at its next slot from now; somebody else may be faster.

    A slot of the former schedule that was due by then is not run, and counted as a misfire. ``early``: a slot that has
    gone by no longer ago is the first, since a cron daemon may just have fired for it; but none is run that may have
    been run already.
    """
    slot = first_slot(schedule, now, early)
    if status.last_slot:
        slot = max(slot, next_slot(schedule, status.last_slot))
    elif status.last_started_at and status.last_started_at >= now - 2 * early:
        slot = next_slot(schedule, now + early)
    changes = {"schedule": schedule.text, "time_zone": schedule.time_zone, "next_slot": slot}
    if _move_on(status, changes | _count(_overtaken(status, now))):
        level = logging.WARNING if status.schedule else logging.INFO
        logger.log(level, "The job %r has a new schedule; it is due next at %s.", status.name, instant_in_words(slot))
        tell(status.name, _overtaken(status, now))


def _overtaken(status: "JobStatus", now: datetime) -> list[Misfires]:
    slot = status.next_slot
    return [Misfires(slot, slot, 1, MisfireOutcome.DROPPED)] if slot and slot <= now else []


def leave(status: "JobStatus") -> None:
    """Have the row forget a schedule that its job has no more."""
    _move_on(status, {"schedule": "", "time_zone": "", "next_slot": None, "abandoned": False})


def pass_by(status: "JobStatus", claim: Claim) -> bool:
    """Move on past slots that are all too late to be run. ``False``: somebody was faster, look again."""
    is_passed = _move_on(status, moved(claim))
    if is_passed:
        tell(status.name, claim.misfires)
    return is_passed


def _move_on(status: "JobStatus", changes: dict[str, Any]) -> bool:
    with database.durable(database.alias()):
        return gates().is_at_hand(status.name) and gates().move_on(status, changes)


def begun(claim: Claim, attempt: int) -> dict[str, Any]:
    """What it changes in the row that the slot which is claimed is run."""
    return {"last_slot": claim.slot, "last_attempt": attempt, "abandoned": False} | moved(claim)


def moved(claim: Claim) -> dict[str, Any]:
    """What a claim changes in the row."""
    return {"next_slot": claim.next_slot} | _count(claim.misfires, claim.coalesced)


def _count(misfires: Sequence[Misfires], coalesced: int = 0) -> dict[str, Any]:
    counts = {"misfire_count": sum(missed.count for missed in misfires), "coalesced_count": coalesced}
    return {name: F(name) + count for name, count in counts.items() if count}


def tell(name: str, misfires: Sequence[Misfires]) -> None:
    """Tell the log and whoever listens of slots that nobody ran in time, once for all of them."""
    for missed in misfires:
        slots = f"{missed.count} slots from {instant_in_words(missed.first)} to" if missed.count > 1 else "the slot"
        logger.warning(
            "The job %r misfired: %s %s, %s.", name, slots, instant_in_words(missed.last), missed.outcome.label
        )
        slot_misfired.send_robust(
            sender=Job, name=name, slot=missed.last, reason=missed.outcome, first=missed.first, count=missed.count
        )
