"""What is seen while it happens: a table that changes in place, or a line for each step."""

import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping

from django.core.management.base import OutputWrapper
from django.core.management.color import Style

from .locks import CUSTOMERS, LOCKS
from .workers import Report

WORKERS = 1, 2
MARGIN, CELL = 14, 15
WIDTH = MARGIN + CELL * len(WORKERS) * len(LOCKS)
HEIGHT = len(CUSTOMERS) + 4

# What a line says of each report. What is not here has no line.
SENTENCES = {
    "waits": "asks for the lock",
    "holds": "has the lock",
    "wrote": "writes the invoice of customer {customer}",
    "repeats": "writes the invoice of customer {customer} AGAIN",
    "frozen": "is frozen ({detail})",
    "wakes": "wakes ({detail})",
    "lost": "is refused customer {customer}'s invoice: LeaseLost",
    "done": "is done",
}
# What the table says of a worker since its last such report, and of an invoice.
STATES = {
    "waits": "waits",
    "holds": "has the lock",
    "frozen": "FROZEN",
    "wakes": "awake again",
    "lost": "LeaseLost",
    "done": "done",
}
TIMED = "waits", "frozen"
CELLS = {"wrote": "invoice", "repeats": "INVOICE AGAIN", "lost": "refused"}


def screen_on(out: OutputWrapper, style: Style) -> "Lines | Table":
    """The table needs a terminal that it fits into, and that can go back to an earlier line."""
    columns, rows = shutil.get_terminal_size()
    fits = columns >= WIDTH and rows > HEIGHT and os.environ.get("TERM", "dumb") != "dumb"
    return Table(out, style) if out.isatty() and fits else Lines(out, style)


class Lines:
    """A line for each step."""

    def __init__(self, out: OutputWrapper, style: Style) -> None:
        self._out, self._colours = out, _colours(style)
        self._begun_at: float | None = None

    def show(self, lock: str, worker: int, report: Report) -> None:
        self._begun_at = self._begun_at or time.monotonic()
        if sentence := SENTENCES.get(report.act):
            colour = self._colours.get(report.act, str)
            text = colour(sentence.format(customer=report.customer, detail=report.detail))
            self._out.write(f"{time.monotonic() - self._begun_at:5.1f} s  {lock:16}  worker {worker} {text}")
            self._out.flush()

    def tick(self) -> None:
        """Nothing changes without a step."""


class Table:
    """A line for each customer, and a column for each worker. It is drawn anew whenever something changes."""

    def __init__(self, out: OutputWrapper, style: Style) -> None:
        self._out, self._style, self._colours = out, style, _colours(style)
        self._states: dict[tuple[str, int], tuple[str, float]] = {}
        self._cells: dict[tuple[str, int, int], str] = {}
        self._is_drawn = False

    def show(self, lock: str, worker: int, report: Report) -> None:
        if report.act in STATES:
            self._states[lock, worker] = report.act, time.monotonic()
        if report.act in CELLS:
            self._cells[lock, worker, report.customer] = report.act
        self.tick()

    def tick(self) -> None:
        lines = [*self._lines()]
        back = f"\x1b[{len(lines)}F" if self._is_drawn else ""
        self._out.write(back + "\n".join(lines))
        self._out.flush()
        self._is_drawn = True

    def _lines(self) -> Iterator[str]:
        bold = self._style.MIGRATE_HEADING
        columns = [(lock, worker) for lock in LOCKS for worker in WORKERS]
        yield " " * MARGIN + "".join(bold(f"{lock:{CELL * len(WORKERS)}}") for lock in LOCKS)
        yield " " * MARGIN + "".join(f"{f'worker {worker}':{CELL}}" for _, worker in columns)
        yield " " * MARGIN + "".join(self._state(*column) for column in columns)
        yield ""
        for customer in CUSTOMERS:
            yield f"  customer {customer:2} " + "".join(self._cell(*column, customer) for column in columns)

    def _state(self, lock: str, worker: int) -> str:
        act, since = self._states.get((lock, worker), ("", 0.0))
        seconds = f" {time.monotonic() - since:.1f} s" if act in TIMED else ""
        return self._coloured(act, STATES.get(act, "") + seconds)

    def _cell(self, lock: str, worker: int, customer: int) -> str:
        act = self._cells.get((lock, worker, customer), "")
        return self._coloured(act, CELLS.get(act, ""))

    def _coloured(self, act: str, text: str) -> str:
        return self._colours.get(act, str)(f"{text:{CELL}}")


def _colours(style: Style) -> Mapping[str, Callable[[str], str]]:
    return {"repeats": style.ERROR, "frozen": style.WARNING, "wakes": style.WARNING, "lost": style.SUCCESS}
