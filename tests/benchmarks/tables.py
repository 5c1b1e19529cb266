"""The one table that a run prints: Markdown, so that it can go into a page as it is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

T = TypeVar("T")
WIDTH = 64


class Table:
    """One row for each work, one column for each way to do it."""

    def __init__(self, title: str, columns: Sequence[str]) -> None:
        self.columns = columns
        print()
        self._print([f"{title:{WIDTH}}", *columns])
        print(f"|{'-' * (WIDTH + 2)}|{'|'.join('-' * (cell_width(column) + 2) for column in columns)}|")

    def row(self, label: str, cells: dict[str, str]) -> None:
        """At once, so that you see how far it is. A way that was not measured has no cell."""
        padded = [f"{cells.get(column, ''):{cell_width(column)}}" for column in self.columns]
        self._print([f"{label:{WIDTH}}", *padded])

    def note(self, text: str) -> None:
        """Why a row is missing."""
        self._print([text, *("" for _ in self.columns)])

    def _print(self, cells: Sequence[str]) -> None:
        print(f"| {' | '.join(f'{cell:{cell_width(cell)}}' for cell in cells)} |", flush=True)


def cell_width(column: str) -> int:
    return max(len(column), 22)


def by_work(values: Mapping[str, T]) -> Iterator[tuple[str, dict[str, T]]]:
    """What was measured for each candidate, as the rows of a table: a work, and the value of each way."""
    rows: dict[str, dict[str, T]] = {}
    for candidate, value in values.items():
        work, way = candidate.split(", ")
        rows.setdefault(work, {})[way] = value
    yield from rows.items()
