"""What happened in a schedule, for people: one line for each step. Nothing is kept unless it is asked for."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_LONGEST = 110
_NOW = re.compile(r"STRFTIME\('[^']*', 'NOW'\)")
# In lines.
_LONGEST_REPETITION = 5
# Django puts the number of the thread into it.
_SAVEPOINT = re.compile(r"\bs\d+_x(\d+)")
_TABLE = re.compile(r'"django_singlejob_(\w+)"')
_COLUMNS = re.compile(r"^SELECT .*? FROM ", re.DOTALL)
_PREFIX = re.compile(r'"(?:job\w+|oneoffjob|tests_\w+)"\.')


class History:
    """The lines of one schedule."""

    def __init__(self, *, is_kept: bool = False) -> None:
        self.is_kept = is_kept
        self.lines: list[Line] = []
        #: True time, for the next line.
        self.clock: Callable[[], float] = lambda: 0.0

    def step(self, actor: str, what: str, outcome: str = "") -> None:
        """A step that was carried out, or was not, and its outcome."""
        if self.is_kept:
            self._add(actor, f"{what:<9} {outcome}".rstrip())

    def statement(self, actor: str, sql: str, cursor: Any) -> None:
        """A statement that was carried out."""
        if self.is_kept:
            rows = f"  -> {cursor.rowcount} rows" if cursor.rowcount >= 0 else ""
            self._add(actor, f"{_shortened(sql)}{rows}")

    def note(self, actor: str, text: str) -> None:
        """What is not a step: a fault, a grant, a violation."""
        if self.is_kept:
            self._add(actor, f"*** {text}")

    def _add(self, actor: str, text: str) -> None:
        self.lines.append(Line(self.clock(), actor, text))

    def __str__(self) -> str:
        return "\n".join(_without_repetitions(self.lines))


class Line(NamedTuple):
    """A line: when in true time, who, and what."""

    instant: float
    actor: str
    text: str

    def __str__(self) -> str:
        return f"{self.instant:10.3f}  {self.actor:<4} {self.text}"


def _without_repetitions(lines: Sequence[Line]) -> Iterator[str]:
    """The lines, with what an actor repeats while it waits left out."""
    kinds = [(line.actor, line.text.split("  ")[0]) for line in lines]
    index = 0
    while index < len(lines):
        size, times = _repetition(kinds, index)
        yield from map(str, lines[index : index + size])
        if times > 1:
            yield f"{'':10}  {lines[index].actor:<4} ... the same {times - 1} more times"
        index += size * times


def _repetition(kinds: Sequence[tuple[str, str]], index: int) -> tuple[int, int]:
    """The number of lines that are repeated from here, and how often they stand there: 1 if they are not repeated."""
    for size in range(1, _LONGEST_REPETITION + 1):
        block, times = kinds[index : index + size], 1
        while kinds[index + times * size : index + (times + 1) * size] == block:
            times += 1
        if times > 2:
            return size, times
    return 1, 1


def _shortened(sql: str) -> str:
    sql = _SAVEPOINT.sub(r"s\1", sql)
    sql = _TABLE.sub(r'"\1"', sql)
    sql = _PREFIX.sub("", _COLUMNS.sub("SELECT ... FROM ", sql)).replace('"', "")
    sql = sql.replace("STRFTIME('%Y-%m-%d %H:%M:%f', 'NOW')", "now").replace(
        "STRFTIME('%%Y-%%m-%%d %%H:%%M:%%f', 'NOW')", "now"
    )
    return sql if len(sql) <= _LONGEST else f"{sql[:_LONGEST]}..."
