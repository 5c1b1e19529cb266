"""Faults that are drawn near a dangerous place, where two of them rarely meet by themselves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from tests.simulation.faults import DATABASE_CLOCK, DIE, ISOLATION, PARTITION, PAUSE, SLOW, Fault
from tests.simulation.world import ONE_HOST, SERVERS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from random import Random


@dataclass(frozen=True, kw_only=True)
class Aim:
    """A fault of which only a part is left to chance.

    Attributes:
        kinds: what goes wrong: one of these.
        process: the number of the process that it happens to; 0: whichever makes the step.
        on: the steps that are counted: those of one of these names.
        most: the highest number of the step.
        seconds: how long it lasts, or how far the clock is set: one of these.
        chance: how likely it is at all.
        is_chained: whether the count begins only when the fault before this one has happened.
    """

    kinds: Sequence[str]
    process: int = 0
    on: Sequence[str] = ("",)
    most: int
    seconds: Sequence[float] = (0.0,)
    chance: float = 1.0
    is_chained: bool = False

    def drawn(self, random: Random) -> Iterator[Fault]:
        """The fault, or none."""
        if random.random() < self.chance:
            kind = random.choice(self.kinds)
            yield Fault(
                kind,
                self.process,
                random.choice(self.on),
                random.randint(1, self.most),
                is_after=random.random() < 0.5,
                seconds=0.0 if kind == DIE else random.choice(self.seconds),
                is_chained=self.is_chained,
            )


#: The aims of a scenario, by profile.
Aims: TypeAlias = "Mapping[str, Sequence[Aim]]"

_LONGER_THAN_A_LEASE = (61.0, 75.0, 90.0, 110.0, 200.0)
_ELSEWHERE = Aim(
    kinds=(PAUSE, SLOW, DIE),
    on=("", "COMMIT", "UPDATE", "SELECT"),
    most=12,
    seconds=(1.0, 12.0, 45.0, 90.0),
    chance=0.2,
)

#: The first process, which stays in its fenced block, is stopped or cut off.
INSIDE_A_BLOCK: Aims = {
    ONE_HOST: (
        Aim(kinds=(PAUSE, SLOW), process=1, on=("sleep",), most=5, seconds=_LONGER_THAN_A_LEASE, chance=0.5),
        Aim(
            kinds=(DATABASE_CLOCK,), on=("sleep", "SELECT"), most=5, seconds=(-3600.0, -70.0, 65.0, 3600.0), chance=0.3
        ),
    ),
    SERVERS: (
        Aim(
            kinds=(ISOLATION, ISOLATION, PARTITION, PAUSE),
            process=1,
            on=("sleep",),
            most=5,
            seconds=_LONGER_THAN_A_LEASE,
            chance=0.8,
        ),
        _ELSEWHERE,
    ),
}

_SET_BACK = Aim(
    kinds=(DATABASE_CLOCK,), process=1, on=("sleep", "COMMIT"), most=4, seconds=(-3600.0, -900.0, -70.0), chance=0.5
)
_SOON_DEAD = Aim(kinds=(DIE, DIE, PAUSE), process=1, most=4, seconds=_LONGER_THAN_A_LEASE, is_chained=True)
_AWAY = (12.0, 25.0, 40.0, 59.5)
_LOOKS = ("SELECT", "SELECT", "sleep")

#: The first process falls silent, perhaps just after the clock was set back, and the second one, which watches it, is
#: away for a while.
AROUND_A_DEATH: Aims = {
    ONE_HOST: (_SET_BACK, _SOON_DEAD, Aim(kinds=(PAUSE,), process=2, on=_LOOKS, most=15, seconds=_AWAY, chance=0.6)),
    SERVERS: (
        _SET_BACK,
        _SOON_DEAD,
        Aim(kinds=(PAUSE, PAUSE, PARTITION), process=2, on=_LOOKS, most=15, seconds=_AWAY, chance=0.6),
    ),
}

_STOPPED = Aim(kinds=(PAUSE, PAUSE, SLOW), on=("grant",), most=2, seconds=_LONGER_THAN_A_LEASE, chance=0.9)

#: A process is stopped when it has been granted a lease, before the body.
BEFORE_A_BODY: Aims = {ONE_HOST: (_STOPPED, _ELSEWHERE), SERVERS: (_STOPPED, _ELSEWHERE)}


def aimed_at(aims: Sequence[Aim], random: Random) -> tuple[Fault, ...]:
    """The faults of a schedule."""
    return tuple(fault for aim in aims for fault in aim.drawn(random))
