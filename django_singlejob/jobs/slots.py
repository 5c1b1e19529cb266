"""Which slot of a schedule to run now, and what happens to missed slots: pure functions."""

from collections import deque
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Literal, NamedTuple, Protocol, Self

from django.db import models
from django.utils.translation import gettext_lazy as _

from django_singlejob.conf import ZERO
from django_singlejob.exceptions import InvalidSchedule
from django_singlejob.jobs.schedule import EPOCH, MINUTE, Every, Schedule, latest_slot, next_slot, parse, slots_between

CatchUp = Literal["none", "latest", "all"]

MISFIRE_GRACE = timedelta(minutes=5)
# The most slots of a cron expression that are counted, so that resuming after a year without a database takes less than
# a minute.
COUNTED = 10_000
_RESOLUTION = timedelta(microseconds=1)
# Nothing is earlier, not even by a microsecond.
_BEGINNING = datetime.min.replace(tzinfo=UTC)


# How many missed slots are run at most.
MAX_CATCH_UP = 100


class MisfireOutcome(models.TextChoices):
    """What happened to a slot that was not run within its grace."""

    COALESCED = "coalesced", _("a later slot was run in its place")
    DROPPED = "dropped", _("not run")
    LATE = "late", _("run late")


class Gate(Protocol):
    """The schedule that a job's gate follows, and the one that an operator has given the job, if one has."""

    schedule: str
    time_zone: str
    own_schedule: str
    own_time_zone: str


class Policy(NamedTuple):
    """A job's schedule, and what to do about slots that were not run in time."""

    schedule: Schedule
    catch_up: CatchUp = "latest"
    misfire_grace: timedelta = MISFIRE_GRACE
    max_catch_up: int = 100

    def at(self, gate: Gate) -> Self:
        """The same with the schedule that an operator has given the job, if one has. Raises ``InvalidSchedule``."""
        return self._replace(schedule=parse(gate.own_schedule, gate.own_time_zone)) if gate.own_schedule else self

    def followed(self, gate: Gate) -> Self:
        """The same with the schedule that the gate follows, as far as this release can parse it."""
        try:
            return self._replace(schedule=parse(gate.schedule, gate.time_zone))
        except InvalidSchedule:
            return self


class Misfires(NamedTuple):
    """Slots that were not run within their grace: ``number`` of them, from ``first`` to ``last``."""

    first: datetime
    last: datetime
    number: int
    outcome: MisfireOutcome


class Claim(NamedTuple):
    """What to do about the slots that are due.

    Attributes:
        slot: the one to run; ``None``: they are all too late.
        next_slot: where the schedule goes on.
        misfires: those that no server ran in time.
        coalesced: the number of slots that were still in time, and in whose place ``slot`` runs.
        schedule: the one that goes on from there, if not the same; ``since``: when it took the other one's place.
    """

    slot: datetime | None
    next_slot: datetime
    misfires: list[Misfires]
    coalesced: int = 0
    schedule: Schedule | None = None
    since: datetime | None = None


def reach(schedule: Schedule, now: datetime, early: timedelta) -> datetime:
    """The instant up to which slots are due: ``now``, or the coming slot if a cron daemon that fires now means it."""
    coming = next_slot(schedule, now) if early > ZERO else now
    return coming if coming - now <= tolerance(schedule, now, early) else now


def tolerance(schedule: Schedule, now: datetime, most: timedelta) -> timedelta:
    """How far from a slot a cron daemon may fire and still mean it: ``most``, but at most half the time between two
    slots."""
    if most <= ZERO:
        return ZERO
    return min(most, (next_slot(schedule, now) - latest_slot(schedule, now)) / 2)


def first_slot(schedule: Schedule, now: datetime, early: timedelta = ZERO) -> datetime:
    """Where a new schedule begins. If a cron daemon has just fired, it meant the slot that has just passed."""
    return next_slot(schedule, now - tolerance(schedule, now, early) - _RESOLUTION)


def claim(
    policy: Policy,
    due: datetime,
    now: datetime,
    early: timedelta = ZERO,
    again: datetime | None = None,
    until: datetime | None = None,
) -> Claim | None:
    """What to do about the slots from ``due`` on, or ``None`` if none is due yet.

    ``early``: how long before its slot a run may begin. ``again``: an earlier slot whose run was cut off. It is run
    again unless a newer slot takes its place. ``until``: no later slot counts, because another schedule follows.
    """
    due, now, again = due.astimezone(UTC), now.astimezone(UTC), again and again.astimezone(UTC)
    at = reach(policy.schedule, now, early) if until is None else min(now, until)
    again = again if again is not None and again <= at else None
    if again is not None and (due > at or policy.catch_up == "all"):
        return Claim(again, due, [])
    if due > at:
        return None
    newest = max(latest_slot(policy.schedule, at), due)
    slot = _chosen(policy, due, newest, now)
    if slot is None:
        return Claim(
            again, next_slot(policy.schedule, newest), _misfires(policy.schedule, due, newest, MisfireOutcome.DROPPED)
        )
    missed, coalesced = _missed(policy, due, slot, now), _coalesced(policy, due, slot, now)
    return Claim(slot, next_slot(policy.schedule, slot), missed, coalesced)


def _chosen(policy: Policy, first: datetime, newest: datetime, now: datetime) -> datetime | None:
    if policy.catch_up == "all":
        return _oldest_of_newest(policy.schedule, first, newest, policy.max_catch_up)
    if policy.catch_up == "none" and newest < _in_time_from(policy, now):
        return None
    return newest


def _oldest_of_newest(schedule: Schedule, first: datetime, newest: datetime, most: int) -> datetime:
    """The oldest of the last ``most`` slots from ``first`` to ``newest``."""
    if isinstance(schedule, Every):
        return newest - min(most - 1, (newest - first) // schedule.interval) * schedule.interval
    span = MINUTE
    while True:
        begin = newest - min(span, newest - first + _RESOLUTION)
        slots = deque(slots_between(schedule, begin, newest), maxlen=most)
        if len(slots) == most or begin < first:
            return slots[0] if slots else newest
        span *= 2


def _missed(policy: Policy, due: datetime, slot: datetime, now: datetime) -> list[Misfires]:
    """The misfires if ``slot`` is run now. A slot that a later one replaces within its grace is not a misfire."""
    before, too_late = slot - _RESOLUTION, _in_time_from(policy, now) - _RESOLUTION
    if policy.catch_up == "all":
        misfires = _misfires(policy.schedule, due, before, MisfireOutcome.DROPPED)
    else:
        misfires = _misfires(policy.schedule, due, min(before, too_late), MisfireOutcome.COALESCED)
    return [*misfires, Misfires(slot, slot, 1, MisfireOutcome.LATE)] if slot <= too_late else misfires


def _coalesced(policy: Policy, due: datetime, slot: datetime, now: datetime) -> int:
    """The number of slots before this one that are not misfires, although they do not run: it runs in their place."""
    if policy.catch_up == "all":
        return 0
    in_time = _slot_from(policy.schedule, _in_time_from(policy, now))
    return count_slots(policy.schedule, max(due, in_time), slot - _RESOLUTION)


def _in_time_from(policy: Policy, now: datetime) -> datetime:
    # A very long grace could reach back further than a datetime can.
    return now - min(policy.misfire_grace, now - EPOCH)


def _misfires(schedule: Schedule, first: datetime, last: datetime, outcome: MisfireOutcome) -> list[Misfires]:
    count = count_slots(schedule, first, last)
    return [Misfires(_slot_from(schedule, first), latest_slot(schedule, last), count, outcome)] if count else []


def count_slots(schedule: Schedule, first: datetime, last: datetime) -> int:
    """The number of slots from ``first`` to ``last``, both included; of a cron expression, ``COUNTED`` at most."""
    if last < first:
        return 0
    if isinstance(schedule, Every):
        return (latest_slot(schedule, last) - _slot_from(schedule, first)) // schedule.interval + 1
    return sum(1 for _ in islice(slots_between(schedule, _just_before(first), last), COUNTED))


def _slot_from(schedule: Schedule, instant: datetime) -> datetime:
    """The first slot that is not earlier. A due instant that was edited by hand may not be a slot."""
    return next_slot(schedule, _just_before(instant))


def _just_before(instant: datetime) -> datetime:
    return max(instant, _BEGINNING + _RESOLUTION) - _RESOLUTION
