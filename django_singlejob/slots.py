"""Which slot of a schedule is to be run now, and what becomes of those that nobody ran: pure functions."""

from collections import deque
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Literal, NamedTuple

from django.db import models
from django.utils.translation import gettext_lazy as _

from django_singlejob.conf import ZERO
from django_singlejob.timetable import MINUTE, Every, Schedule, latest_slot, next_slot, slots_between

CatchUp = Literal["none", "latest", "all"]

MISFIRE_GRACE = timedelta(minutes=5)
# Of a cron expression so many slots are counted at most: after a year without a database it takes no minute to go on.
COUNTED = 10_000
_RESOLUTION = timedelta(microseconds=1)


class Fate(models.TextChoices):
    """What became of a slot that nobody ran within its grace."""

    COALESCED = "coalesced", _("a later slot was run in its place")
    DROPPED = "dropped", _("not run")
    LATE = "late", _("run late")


@dataclass(frozen=True, kw_only=True)
class Policy:
    """A job's schedule, and what is done about slots that nobody ran in time."""

    schedule: Schedule
    catch_up: CatchUp = "latest"
    misfire_grace: timedelta = MISFIRE_GRACE
    max_catch_up: int = 100


@dataclass(frozen=True)
class Misfires:
    """Slots that nobody ran within their grace, as many as there are from ``first`` to ``last``."""

    first: datetime
    last: datetime
    count: int
    fate: Fate


class Claim(NamedTuple):
    """What to do about the slots that are due.

    Attributes:
        slot: the one to run; ``None``: they are all too late.
        next_slot: where the schedule goes on.
        misfires: those that nobody ran in time.
    """

    slot: datetime | None
    next_slot: datetime
    misfires: list[Misfires]


def tolerance(schedule: Schedule, now: datetime, most: timedelta) -> timedelta:
    """How far from a slot a cron daemon may fire and still mean it: never more than half the way to another."""
    if most <= ZERO:
        return ZERO
    return min(most, (next_slot(schedule, now) - latest_slot(schedule, now)) / 2)


def first_slot(schedule: Schedule, now: datetime, early: timedelta = ZERO) -> datetime:
    """Where a schedule begins that was not known before: a cron daemon that just fired meant the slot just gone by."""
    return next_slot(schedule, now - tolerance(schedule, now, early) - _RESOLUTION)


def claim(
    policy: Policy, due: datetime, now: datetime, early: timedelta = ZERO, again: datetime | None = None
) -> Claim | None:
    """What to do about the slots from ``due`` on; ``None``: none is due yet.

    ``early``: how long before its slot a run may begin. ``again``: the slot of a run whose holder died; it is run again
    unless a newer one takes its place.
    """
    due, now, again = due.astimezone(UTC), now.astimezone(UTC), again and again.astimezone(UTC)
    at = now + tolerance(policy.schedule, now, early)
    first = due if again is None else again
    if first > at:
        return None
    newest = max(latest_slot(policy.schedule, at), first)
    slot = _chosen(policy, first, newest, now)
    # A run whose holder died was begun in time, so it is none of those that were missed.
    missed = due if again is None else max(due, next_slot(policy.schedule, again))
    if slot is None:
        dropped = _misfires(policy.schedule, missed, newest, Fate.DROPPED)
        return Claim(again, next_slot(policy.schedule, newest), dropped)
    fate = Fate.DROPPED if policy.catch_up == "all" else Fate.COALESCED
    misfires = _misfires(policy.schedule, missed, slot - _RESOLUTION, fate)
    if slot < now - policy.misfire_grace and slot != again:
        misfires.append(Misfires(slot, slot, 1, Fate.LATE))
    return Claim(slot, max(next_slot(policy.schedule, slot), due), misfires)


def _chosen(policy: Policy, first: datetime, newest: datetime, now: datetime) -> datetime | None:
    if policy.catch_up == "all":
        return _oldest_of_newest(policy.schedule, first, newest, policy.max_catch_up)
    if policy.catch_up == "none" and newest < now - policy.misfire_grace:
        return None
    return newest


def _oldest_of_newest(schedule: Schedule, first: datetime, newest: datetime, most: int) -> datetime:
    """Of the last ``most`` slots from ``first`` to ``newest`` the oldest."""
    if isinstance(schedule, Every):
        return max(first, newest - (most - 1) * schedule.interval)
    span = MINUTE
    while True:
        begin = max(first - _RESOLUTION, newest - span)
        slots = deque(slots_between(schedule, begin, newest), maxlen=most)
        if len(slots) == most or begin < first:
            return slots[0] if slots else newest
        span *= 2


def _misfires(schedule: Schedule, first: datetime, last: datetime, fate: Fate) -> list[Misfires]:
    count = _count(schedule, first, last)
    return [Misfires(first, latest_slot(schedule, last), count, fate)] if count else []


def _count(schedule: Schedule, first: datetime, last: datetime) -> int:
    if last < first:
        return 0
    if isinstance(schedule, Every):
        return (last - first) // schedule.interval + 1
    return sum(1 for _ in islice(slots_between(schedule, first - _RESOLUTION, last), COUNTED))
