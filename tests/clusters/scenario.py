"""A scenario: something is done to a cluster while the application works, and limits are promised for some figures."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.clusters.stage import Stage
from tests.clusters.witness import figures

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from tests.clusters.witness import Figures

# The limits of the figures, whatever happens to a cluster.
ALWAYS = {"fenced_behind": 0, "lines_odd": 0, "last_line": 0, "died": 0, "stuck": 0}
NOTHING_LOST = {
    "at_once": 1,
    "overlap": 0,
    "fences_repeated": 0,
    "fences_back": 0,
    "fenced_apart": 0,
    "one_offs_lost": 0,
    "one_offs_twice": 0,
    "slots_missing": 0,
    "slots_twice": 0,
}


@dataclass(frozen=True)
class Scenario:
    """`act(stage, seconds)` starts a cluster and applications, does something to them, and winds them down. `seconds`:
    how long they work before and after the fault. `promised`: the largest value allowed for each figure."""

    name: str
    act: Callable[[Stage, float], None]
    promised: Mapping[str, float] = field(default_factory=dict)

    def play(self, folder: Path, seconds: float) -> Figures:
        with Stage(folder) as stage:
            self.act(stage, seconds)
            return figures(stage.events)

    def broken(self, seen: Figures) -> dict[str, float]:
        """The figures that are larger than promised."""
        found = {name: getattr(seen, name) for name in self.promised}
        return {name: figure for name, figure in found.items() if figure > self.promised[name]}
