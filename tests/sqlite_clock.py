"""Another clock for a connection to SQLite, which has no setting for it."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

# What a connection's own `strftime` has replaced.
_BUILT_IN = sqlite3.connect(":memory:", check_same_thread=False)


def replace_clock(raw: sqlite3.Connection, now: Callable[[], datetime]) -> None:
    """Let `now()` say what time it is for the statements of this connection. All that does not ask for the time, such
    as the constraints of the tables, stays as it is."""

    def strftime(form: str, instant: str | None) -> str | None:
        if isinstance(instant, str) and instant.upper() == "NOW":
            assert form == "%Y-%m-%d %H:%M:%f", form  # the one that `Now` uses
            return f"{now():%Y-%m-%d %H:%M:%S.%f}"[:-3]
        found: str | None = _BUILT_IN.execute("SELECT strftime(?, ?)", [form, instant]).fetchone()[0]
        return found

    raw.create_function("strftime", 2, strftime)
