"""Where a person reads what a command says."""

from __future__ import annotations

from io import StringIO


class Terminal(StringIO):
    """Keeps what is written to it. Commands say more to it than to a file."""

    def isatty(self) -> bool:
        return True
