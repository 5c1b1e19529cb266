"""How far a run is, as its heartbeats tell."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple, Self

from django_singlejob.process.escaping import printable, printable_end

# From here on, not every whole number has a float of its own.
_WHOLE = 2**53
# The text of ``progress()``, a line of output, and the end of the output are cut to these lengths.
TEXT_LENGTH, LINE_LENGTH, OUTPUT_LENGTH = 80, 200, 1_000


class Progress(NamedTuple):
    """How far a run is.

    Attributes:
        done: how much is done, in whatever unit; ``None`` if the run has not said.
        total: how much there is to do; ``None`` if that is not known.
        text: what is being done; may be empty.
        output: the end of what the run has printed; may be empty.
    """

    done: float | None = None
    total: float | None = None
    text: str = ""
    output: str = ""

    @classmethod
    def read(cls, stored: object) -> Self:
        """What a lock's row says. A value that no heartbeat writes counts as nothing."""
        found = stored if isinstance(stored, Mapping) else {}
        done, total = (_number(found.get(name)) for name in ("done", "total"))
        text, output = (str(found.get(name) or "") for name in ("text", "output"))
        return cls(done, total, text[:TEXT_LENGTH], output[-OUTPUT_LENGTH:])

    @property
    def stored(self) -> dict[str, Any]:
        """What a heartbeat records: only what is known, and nothing that a database refuses."""
        texts = {"text": printable(self.text, TEXT_LENGTH), "output": printable_end(self.output, OUTPUT_LENGTH)}
        known = {"done": _number(self.done), "total": _number(self.total), **texts}
        return {name: value for name, value in known.items() if value not in (None, "")}

    @property
    def line(self) -> str:
        """The last line of the output."""
        last = next((line.strip() for line in reversed(self.output.splitlines()) if line.strip()), "")
        return last[:LINE_LENGTH]

    @property
    def share(self) -> float | None:
        """The part that is done, from 0 to 1; ``None`` if it is not known."""
        if self.done is None or not self.total or self.total < 0:
            return None
        return min(1.0, max(0.0, self.done / self.total))

    @property
    def percentage(self) -> str:
        """The same in whole percents: ``24 %``. It is 100 only if all is done. Empty if it is not known."""
        if self.share is None:
            return ""
        # Of 0.29, the product is a little less than 29.
        return f"{100 if self.share == 1 else min(99, int(round(100 * self.share, 6)))} %"

    @property
    def in_words(self) -> str:
        """``120 of 500, importing``; empty if the run has not said anything itself."""
        done, total = (None if number is None else _figure(number) for number in (self.done, self.total))
        return ", ".join(filter(None, (f"{done} of {total}" if done and total else done, self.text)))

    @property
    def in_short(self) -> str:
        """For a table: ``24 % importing``, or ``120 importing`` if the total is not known; if the run has not said
        anything itself, the last line that it printed."""
        figure = self.percentage or ("" if self.done is None else _figure(self.done))
        return " ".join(filter(None, (figure, self.text))) or self.line


def _figure(number: float) -> str:
    return f"{number:,}" if isinstance(number, int) else f"{number:.6g}"


def _number(value: object) -> float | None:
    """A finite number, an ``int`` if it is whole; ``None`` for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    if not math.isfinite(number):
        return None
    return int(number) if number.is_integer() and abs(number) < _WHOLE else number
