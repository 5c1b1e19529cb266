"""Where a person reads what a command says."""

from __future__ import annotations

import re
from io import StringIO


class Terminal(StringIO):
    """Keeps what is written to it. Commands say more to it than to a file."""

    def isatty(self) -> bool:
        return True


class Screen:
    """What a terminal of this size shows, of the little that is needed here."""

    _PARTS = re.compile(r"\x1b(?:(?P<simple>[78D])|\[(?P<numbers>[\d;]*)(?P<kind>[AHKmr]))|(?P<character>[^\x1b])")

    def __init__(self, columns: int, rows: int = 24) -> None:
        self._columns = columns
        self._cells = [[" "] * columns for _ in range(rows)]
        self._row = self._column = 0
        self._kept = (0, 0)
        self._last_scrolled = rows - 1
        self._rest = ""
        #: The lines that are no longer on the screen.
        self.above: list[str] = []

    @property
    def lines(self) -> list[str]:
        return ["".join(row).rstrip() for row in self._cells]

    @property
    def scrolls_all(self) -> bool:
        return self._last_scrolled == len(self._cells) - 1

    def write(self, text: str) -> None:
        text, self._rest, at = self._rest + text, "", 0
        while at < len(text):
            part = self._PARTS.match(text, at)
            if part is None and len(text) - at < 10:  # the rest of a sequence is still to come
                self._rest = text[at:]
                return
            assert part, f"This screen does not know {text[at : at + 10]!r}."
            if part["character"]:
                self._print(part["character"])
            else:
                self._obey(part["simple"] or part["kind"], part["numbers"] or "")
            at = part.end()

    def _obey(self, kind: str, numbers: str) -> None:
        match kind:
            case "7":
                self._kept = (self._row, self._column)
            case "8":
                self._row, self._column = self._kept
            case "D":
                self._go_down()
            case "A":
                self._row -= 1
            case "H":
                self._row, self._column = (int(number) - 1 for number in numbers.split(";"))
            case "K":
                assert numbers == "2"
                self._cells[self._row] = [" "] * self._columns
            case "r":
                last = int(numbers.partition(";")[2] or len(self._cells))
                self._last_scrolled, self._row, self._column = last - 1, 0, 0

    def _go_down(self) -> None:
        if self._row == self._last_scrolled:
            self.above.append("".join(self._cells.pop(0)).rstrip())
            self._cells.insert(self._last_scrolled, [" "] * self._columns)
        elif self._row < len(self._cells) - 1:
            self._row += 1

    def _print(self, character: str) -> None:
        if character == "\r":
            self._column = 0
        elif character == "\n":
            self._go_down()
        else:
            assert self._column < self._columns, "A line is longer than the screen is wide."
            self._cells[self._row][self._column] = character
            self._column += 1
