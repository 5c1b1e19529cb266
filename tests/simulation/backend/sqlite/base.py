"""SQLite as a backend of the simulation.

It never waits by itself: who waits for the writer is not scheduled until the writer has ended its transaction.
"""

from __future__ import annotations

import sqlite3
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from django.db.backends.sqlite3 import base

from tests.simulation import world
from tests.simulation.backend.stepping import Session, Stepped, Stepping
from tests.sqlite_clock import replace_clock

if TYPE_CHECKING:
    from tests.simulation.baton import Process

BEFORE = datetime(2029, 12, 31, tzinfo=UTC)
#: Connections that are open and not in use, by file.
_idle: dict[str, list[sqlite3.Connection]] = {}


def close_idle() -> None:
    """Close the connections that are kept open."""
    for connections in _idle.values():
        while connections:
            connections.pop().close()


class SQLiteSession(Session):
    """A connection to a file."""

    def __init__(self, raw: sqlite3.Connection, process: Process | None, path: str) -> None:
        super().__init__(raw, process)
        self._path = path
        self.changes = raw.total_changes

    def lost(self, message: str) -> Exception:
        # It has no code of SQLite's, so it means that the connection is lost.
        return sqlite3.OperationalError(message)

    def is_inside(self, raw: sqlite3.Connection) -> bool:
        return raw.in_transaction

    def end(self, raw: sqlite3.Connection) -> None:
        with suppress(sqlite3.Error):
            raw.rollback()
        raw.close()
        if world.current is not None:
            world.current.releases += 1

    # --- what Django and the package use of the driver's connection

    def cursor(self, factory: Any) -> sqlite3.Cursor:
        cursor: sqlite3.Cursor = self._open.cursor(factory)
        return cursor

    def commit(self) -> None:
        self._open.commit()

    def rollback(self) -> None:
        self._open.rollback()

    def close(self) -> None:
        if self.raw is None:
            return
        raw = self.take()
        if raw.in_transaction or world.current is None:
            self.end(raw)
            return
        raw.set_progress_handler(None, 0)
        _idle.setdefault(self._path, []).append(raw)

    @property
    def in_transaction(self) -> bool:
        if self.raw is None:
            raise sqlite3.ProgrammingError("Cannot operate on a closed database.")
        return bool(self.raw.in_transaction)

    @property
    def isolation_level(self) -> str | None:
        level: str | None = self._open.isolation_level
        return level

    @isolation_level.setter
    def isolation_level(self, level: str | None) -> None:
        """Django sets it to turn autocommit on. If a transaction is open, the driver then commits."""
        raw = self._open
        was_inside = raw.in_transaction
        raw.isolation_level = level
        if was_inside and not raw.in_transaction and world.current is not None:
            self.changes = raw.total_changes
            world.current.releases += 1
            world.current.history.step(self.process.name if self.process else "", "COMMIT", "by turning autocommit on")
            world.current.oracle.committed(self.process, "ok")


class Cursor(Stepped, base.SQLiteCursorWrapper):
    """A cursor each of whose statements is a step."""

    def execute(self, query: str, params: Any = None) -> Any:
        return self.stepped(query, lambda: base.SQLiteCursorWrapper.execute(self, query, params))

    def executemany(self, query: str, params: Any) -> Any:
        return self.stepped(query, lambda: base.SQLiteCursorWrapper.executemany(self, query, params))

    def close(self) -> None:
        # The cursors of a server's clients can be closed after the connection was lost.
        with suppress(sqlite3.ProgrammingError):
            super().close()


class DatabaseWrapper(Stepping, base.DatabaseWrapper):
    """A connection to SQLite each of whose steps is one of the simulation."""

    def open_session(self, params: Any, process: Process | None) -> SQLiteSession:
        path = str(params["database"])
        idle = _idle.get(path)
        raw = idle.pop() if idle and process is not None else self._opened(params)
        return SQLiteSession(raw, process, path)

    def _opened(self, params: Any) -> sqlite3.Connection:
        raw: sqlite3.Connection = base.DatabaseWrapper.get_new_connection(self, params)
        replace_clock(raw, _now)
        return raw

    def create_cursor(self, name: str | None = None) -> Any:
        cursor = self.connection.cursor(Cursor)
        cursor.wrapper = self
        return cursor

    def is_busy(self, error: BaseException) -> bool:
        # SQLITE_BUSY_SNAPSHOT and the like do not pass by waiting.
        return getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_BUSY

    def has_written(self) -> bool:
        session = self.connection
        if session is None or session.raw is None or session.raw.in_transaction:
            return False
        before, session.changes = session.changes, session.raw.total_changes
        return bool(session.changes != before)


def _now() -> datetime:
    return world.current.database_now if world.current else BEFORE
