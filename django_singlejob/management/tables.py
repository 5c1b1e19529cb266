"""What commands print in columns, and how far away an instant is."""

from collections.abc import Iterable
from datetime import datetime

from django_singlejob.monitoring.findings import roughly
from django_singlejob.process.escaping import shown

# A text from the database is cut to this length.
LONGEST = 1_000


def table(titles: tuple[str, ...], rows: Iterable[tuple[object, ...]]) -> list[str]:
    """The lines of a table; empty without rows."""
    shown = [titles, *(tuple(map(printable, row)) for row in rows)]
    if len(shown) == 1:
        return []
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    return ["", *("  ".join(map(str.ljust, row, widths)).rstrip() for row in shown)]


def printable(value: object) -> str:
    """A text on one line, whatever the database contains. To Nagios, everything after a bar is figures."""
    return shown(str(value)[:LONGEST]).replace("|", r"\x7c")


def distance(now: datetime, instant: datetime | None) -> str:
    if instant is None:
        return ""
    return f"{roughly(now - instant)} ago" if instant < now else f"in {roughly(instant - now)}"
