"""The table of the figures."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.clusters.witness import Figures

    # By the title of each scenario: its figures, and those that are broken.
    Rows = dict[str, tuple[Figures, Mapping[str, float]]]


def table(rows: Rows) -> Iterator[str]:
    """A line for each scenario, with its figures. Broken ones are marked with `!`."""
    lines = [["scenario", *TITLES], *(_line(name, seen, broken) for name, (seen, broken) in rows.items())]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        yield "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()


TITLES = {
    "grants": ("grants",),
    "at once": ("at_once",),
    "for s": ("overlap",),
    "fences again": ("fences_repeated",),
    "back": ("fences_back",),
    "fenced behind": ("fenced_behind",),
    "apart": ("fenced_apart",),
    "one-offs": ("one_offs",),
    "lost": ("one_offs_lost",),
    "left": ("one_offs_left",),
    "twice": ("one_offs_twice",),
    "slots": ("slots",),
    "missing": ("slots_missing",),
    "twice ": ("slots_twice",),
    "goes on s": ("goes_on",),
    "lines": ("lines", "lines_odd", "last_line"),
    "longest s": ("longest_line",),
    "died": ("died",),
    "stuck": ("stuck",),
    "ends s": ("slowest_end",),
}


def _line(name: str, seen: Figures, broken: Mapping[str, float]) -> list[str]:
    cells = [
        _shown(getattr(seen, keys[0])) + ("!" if any(key in broken for key in keys) else "") for keys in TITLES.values()
    ]
    return [name, *cells]


def _shown(figure: object) -> str:
    if isinstance(figure, float):
        return f"{figure:.1f}"
    if isinstance(figure, dict):
        return " ".join(f"{status}:{count}" for status, count in figure.items()) or "-"
    return str(figure)
