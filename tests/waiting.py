"""How tests wait: for a condition, not for a duration. No other module of the tests sleeps or reads a clock, apart from
those that `tests/test_waiting.py` names.

How long anything takes is the machine's affair. A test that has to tell waiting from not waiting compares two durations
of one run, or makes the wait longer than any test may last.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

#: After this many seconds, what a test waits for counts as missing. The machine may be busy with anything else.
PATIENCE = 60.0
_STEP = 0.01


def eventually(see: Callable[[], T]) -> T:
    """The value of `see()`, as soon as it is true. It waits in short steps, so that an interrupt gets in.

    Raises:
        AssertionError: it was not true within `PATIENCE`.
    """
    deadline = time.monotonic() + PATIENCE
    while not (seen := see()):
        assert time.monotonic() < deadline, f"{see} was never true."
        time.sleep(_STEP)
    return seen


def in_the_end(see: Callable[[], T], moves: Callable[[], object]) -> T:
    """The value of `see()`, as soon as it is true, for what takes many steps. Each of them changes what `moves()`
    returns, and is waited for as `eventually` waits."""
    last, seen = moves(), see()

    def has_moved() -> bool:
        nonlocal seen
        seen = see()
        return bool(seen) or moves() != last

    while not seen:
        eventually(has_moved)
        last = moves()
    return seen


def a_moment() -> None:
    """Give something wrong the chance to happen. On a slow machine it may be overlooked, but nothing else changes."""
    time.sleep(0.2)


def work_for(seconds: float) -> None:
    """What the body of a job does for this long, at least. It can be interrupted at any time."""
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        time.sleep(min(left, _STEP))


def work_until_ended() -> None:
    """What the body of a job does until it is interrupted, or its process killed."""
    while True:
        time.sleep(_STEP)


def seconds_of(act: Callable[[], object]) -> float:
    """How long `act()` takes, to be compared with another duration of the same run."""
    begun_at = time.monotonic()
    act()
    return time.monotonic() - begun_at
