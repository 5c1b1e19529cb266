"""The order in which things go wrong: two at a time, each pair of kinds in turn, then a calm."""

from __future__ import annotations

import random
from contextlib import ExitStack, contextmanager
from itertools import combinations, count, cycle
from typing import TYPE_CHECKING

from tests.chaos.history import now
from tests.chaos.nemesis import (
    FAULTS,
    SECONDS,
    ClockBack,
    ClockForward,
    DatabaseAway,
    Fault,
    Kill,
    KillGuard,
    Network,
    Stop,
    StopGuard,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.chaos.stage import Stage

Kinds = tuple[type[Fault], ...]

# The promise is that no two faults together break anything, so nothing of one pair may be left when the next comes.
# A holder that has not sent a heartbeat for a lease no longer trusts itself.
CALM = SECONDS


# A moment; longer than the watch before a takeover, but shorter than a lease (likelier); longer than both together.
DURATIONS = [0.2 * SECONDS, 0.7 * SECONDS, 0.7 * SECONDS, 2 * SECONDS]


def torment(stage: Stage, names: Sequence[str], seconds: float) -> None:
    """Torment the servers with these faults, or with all that are possible here."""
    until = now() + seconds
    found = pairs(stage, names)
    random.shuffle(found)
    rounds = zip(count(1), cycle(found))
    while now() < until:
        number, kinds = next(rounds)
        play(stage, kinds, number)
        stage.wait(CALM)
        stage.correct_instants()


def pairs(stage: Stage, names: Sequence[str]) -> list[Kinds]:
    """All pairs that can meet here. If there is only one fault, that one alone."""
    possible = [kind for kind in FAULTS if kind.is_possible(stage) and kind.name in (names or [kind.name])]
    found: list[Kinds] = [pair for pair in combinations(possible, 2) if can_meet(pair)]
    return found or [(kind,) for kind in possible]


def can_meet(pair: Kinds) -> bool:
    """Whether both can happen at once: there is one clock to set, and a database that is away has no network. Nothing
    is promised without supervisor and guard."""
    are_of_network = all(issubclass(kind, Network) for kind in pair)
    is_of_both = {Kill, Stop} & {*pair} and {KillGuard, StopGuard} & {*pair}
    return not (set(pair) == {ClockForward, ClockBack} or (are_of_network and DatabaseAway in pair) or is_of_both)


def play(stage: Stage, kinds: Kinds, number: int) -> None:
    """Begin and end these faults in a random order; for a while all of them last."""
    faults = [kind(stage, victim) for kind, victim in zip(kinds, victims(stage, kinds), strict=True)]
    with ExitStack() as everything:
        ends = []
        for fault in random.sample(faults, len(faults)):
            end = everything.enter_context(ExitStack())
            end.enter_context(inflicted(fault, number))
            ends.append(end)
            stage.wait(random.choice([0, random.uniform(0, SECONDS / 2)]))
        stage.wait(random.choice(DURATIONS))
        random.choice(ends).close()
        stage.wait(random.uniform(0, SECONDS / 2))


@contextmanager
def inflicted(fault: Fault, number: int) -> Iterator[None]:
    begun_at = now()
    fault.begin()
    try:
        yield
    finally:
        fault.end()
        if fault.has_happened:
            fault.stage.history.note(
                "fault", at=begun_at, to=now(), name=fault.name, server=fault.victim, number=number
            )


def victims(stage: Stage, kinds: Kinds) -> list[int]:
    """Mostly the same victim for all."""
    first = victim(stage, kinds[0].victims(stage))
    is_same = random.random() < 0.67
    found = [first]
    for kind in kinds[1:]:
        others = [number for number in kind.victims(stage) if number != first]
        found.append(first if is_same and first in kind.victims(stage) else victim(stage, others))
    return found


def victim(stage: Stage, numbers: list[int]) -> int:
    """A random server, but mostly one that holds a lock, because it has something to lose."""
    holders = [number for number in stage.holders() if number in numbers]
    return random.choice(holders if holders and random.random() < 0.75 else numbers)
