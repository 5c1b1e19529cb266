"""The decisions of a schedule: drawn from a seed at first, and recorded, so that they can be replayed and left out."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Choices:
    """Numbered decisions. Each is a small number, and 0 means that nothing special happens.

    Only the others are recorded. So a schedule is made smaller by dropping entries of the record.
    """

    def __init__(self, seed: int, replayed: Mapping[int, int] | None = None, switches: float = 0.3) -> None:
        self._random = Random(f"choices of {seed}")
        self._replayed = replayed
        self._switches = switches
        self.count = 0
        self.made: dict[int, int] = {}

    def next_strand(self, ready: Sequence[Any]) -> int:
        """Which of the strands that are ready goes next; 0 is the one that has the baton, if it is ready."""
        return self._decide(len(ready), self._switches)

    def latency(self, levels: int) -> int:
        """How slow a step is; 0 is the usual time."""
        return self._decide(levels, 0.015)

    def _decide(self, options: int, chance: float) -> int:
        number, self.count = self.count, self.count + 1
        if options < 2:
            return 0
        if self._replayed is not None:
            choice = min(self._replayed.get(number, 0), options - 1)
        else:
            choice = self._random.randrange(1, options) if self._random.random() < chance else 0
        if choice:
            self.made[number] = choice
        return choice
