"""Makes a schedule that breaks a promise as small as possible: fewer faults, then processes, then choices."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tests.simulation.schedule import Result, Schedule


def shrunk(result: Result, play: Callable[[Schedule], Result], *, most_tries: int = 400) -> Result:
    """The smallest result that was found within ``most_tries``. It breaks a promise too, perhaps another one."""
    tries = 0
    # A schedule that is cut short where it failed is another one: keep the original if it does not fail again.
    best = result
    is_smaller = True
    while is_smaller:
        is_smaller = False
        for candidate in _smaller(best.schedule):
            if tries >= most_tries:
                return best
            tries += 1
            found = play(candidate)
            if found.violation:
                best, is_smaller = found, True
                break
    return best


def _smaller(schedule: Schedule) -> Iterator[Schedule]:
    """Schedules with a part left out, the largest parts first."""
    for index in range(len(schedule.faults)):
        yield replace(schedule, faults=schedule.faults[:index] + schedule.faults[index + 1 :])
    for number in range(1, schedule.processes + 1):
        if number not in schedule.absent:
            yield replace(schedule, absent=(*schedule.absent, number))
    choices = sorted((schedule.choices or {}).items())
    size = len(choices)
    while size:
        for left in _without(choices, size):
            yield replace(schedule, choices=dict(left))
        size //= 2


def _without(choices: Sequence[tuple[int, int]], size: int) -> Iterator[Sequence[tuple[int, int]]]:
    for start in range(0, len(choices), size):
        yield [*choices[:start], *choices[start + size :]]
