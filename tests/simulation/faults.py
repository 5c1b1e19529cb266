"""What can go wrong in a schedule, where, and for how long."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

#: The whole process stops, as after SIGSTOP or while its machine is suspended, and goes on later.
PAUSE = "pause"
#: Only one thread stops for a while: it waits for the processor or for an answer.
SLOW = "slow"
#: kill -9.
DIE = "die"
#: The connection is lost, and the server ends the session.
CUT = "cut"
#: The connection is lost while a COMMIT is on its way, and the server carries the COMMIT out later.
LATE = "late"
#: The process cannot reach the server for a while.
PARTITION = "partition"
#: The same, and the server has noticed it: it ends the sessions of the process at once.
ISOLATION = "isolation"
#: The database's clock is set. On one host, this is everybody's time of day.
DATABASE_CLOCK = "database clock"
#: The time of day of one process is set.
UTC_CLOCK = "utc clock"

CLOCKS = (DATABASE_CLOCK, UTC_CLOCK)
OF_ONE_HOST = (PAUSE, PAUSE, SLOW, SLOW, DIE, DIE, DATABASE_CLOCK)
OF_SERVERS = (PAUSE, PAUSE, SLOW, SLOW, DIE, DIE, CUT, CUT, CUT, LATE, PARTITION, DATABASE_CLOCK, UTC_CLOCK)

_STOPS = (0.05, 1.0, 6.0, 12.0, 25.0, 45.0, 59.5, 61.0, 75.0, 90.0, 95.0, 100.0, 110.0, 120.0, 200.0)
_STEPS = (-3600.0, -100.0, -70.0, -30.0, -5.0, 5.0, 30.0, 55.0, 65.0, 100.0, 3600.0)
_DELAYS = (0.005, 0.5, 2.0, 10.0, 61.0)
# Most of what decides happens at few places. A fault that counts only these is more likely to hit them.
_PLACES = ("", "", "", "COMMIT", "COMMIT", "UPDATE", "INSERT", "DELETE", "BEGIN", "SELECT", "sleep")


class Where(NamedTuple):
    """The place of a fault: the ``at``-th step of a process, counting only the steps called ``on``, or all if that is
    empty."""

    on: str
    at: int


@dataclass(frozen=True)
class Fault:
    """One fault.

    Attributes:
        kind: one of the constants above.
        process: the number of the process that it happens to, and whose steps are counted; 0: whichever makes the step.
        on: the steps that are counted: ``"COMMIT"``, for example; all if it is empty.
        at: the number of the step, from 1.
        is_after: whether it happens after the step was carried out, before its answer arrives.
        seconds: how long it lasts, or how far a clock is set.
        is_chained: whether the count begins only when the fault before this one has happened.
    """

    kind: str
    process: int
    on: str = ""
    at: int = 1
    is_after: bool = False
    seconds: float = 0.0
    is_chained: bool = False

    def __str__(self) -> str:
        number = f"step {self.at}" if not self.on else f"{self.on} {self.at}"
        when = "after" if self.is_after else "before"
        who = f"P{self.process}" if self.process else "anybody"
        chained = ", counted from the fault before" if self.is_chained else ""
        seconds = f" ({self.seconds:+g} s)" if self.seconds else ""
        return f"{self.kind}{seconds} {when} {number} of {who}{chained}"


def drawn(random: Random, kinds: Sequence[str], processes: int) -> tuple[Fault, ...]:
    """The faults of a schedule: mostly two, near each other."""
    count = random.choices((0, 1, 2, 3), (3, 17, 55, 25))[0]
    faults: list[Fault] = []
    while len(faults) < count:
        fault = _drawn(random, kinds, processes, faults)
        if not _is_beyond_the_promise([*faults, fault]):
            faults.append(fault)
    return tuple(faults)


def _drawn(random: Random, kinds: Sequence[str], processes: int, before: Sequence[Fault]) -> Fault:
    kind = random.choice(kinds)
    where = Where("COMMIT", _early(random, 5)) if kind == LATE else _place(random)
    process = random.choice((0, random.randint(1, processes)))
    size, is_after = _size(random, kind), random.random() < 0.5
    fault = Fault(kind, process, *where, is_after=is_after, seconds=size)
    if not before or random.random() < 0.3:
        return fault
    # Near the fault before it: a few steps later, often in the same process.
    process = before[-1].process if random.random() < 0.5 else fault.process
    near = random.randint(1, 3) if fault.on else random.randint(1, 12)
    return replace(fault, process=process, at=near, is_chained=True)


def _place(random: Random) -> Where:
    on = random.choice(_PLACES)
    return Where(on, _early(random, 4 if on else 25))


def _early(random: Random, usual: int) -> int:
    """A number from 1, mostly a small one: many schedules are short."""
    return 1 + int(random.expovariate(1 / usual))


def _size(random: Random, kind: str) -> float:
    match kind:
        case "die" | "cut":
            return 0.0
        case "database clock" | "utc clock":
            return random.choice(_STEPS)
        case "late":
            return random.choice(_DELAYS)
    return random.choice(_STOPS)


def _is_beyond_the_promise(faults: Sequence[Fault]) -> bool:
    """Whether the protocol does not promise to survive them all: a holder may lose its lock while it trusts itself if
    it is silent, the database's clock is wrong and so is a server's time of day."""
    kinds = {fault.kind for fault in faults}
    return kinds.issuperset(CLOCKS)
