"""PostgreSQL as a backend of the simulation: see ``backend.server``.

Each statement that asks for the time gets that of the simulated clock, in place of ``STATEMENT_TIMESTAMP()``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import psycopg
from django.db.backends.postgresql import base
from psycopg import errors
from psycopg.pq import TransactionStatus
from psycopg.waiting import Ready, Wait

from tests.simulation import world
from tests.simulation.backend.server import Line, Server, ServerSession
from tests.simulation.backend.stepping import Stepped, Stepping

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Generator

    from tests.simulation.baton import Process

#: What every session has: time-outs that do not count real time, and no wait for a disk.
OPTIONS = "-c deadlock_timeout=1h -c synchronous_commit=off"
# Its stubs know less.
_Cursor: Any = base.Cursor
#: The package's settings, and what they are called here.
_LIMITS = {
    "lock_timeout": "lock_timeout",
    "statement_timeout": "statement_timeout",
    "idle_in_transaction_session_timeout": "idle_timeout",
}
_LIMIT = re.compile(r"SET LOCAL (\w+) = '(\d+)ms'(?:; |$)")
_DURABLE = "SET LOCAL synchronous_commit = 'on'"
#: What the server would say if it had not been the simulation that cancelled the statement.
_VERDICTS: dict[str, type[psycopg.Error]] = {
    "lock_timeout": errors.LockNotAvailable,
    "deadlock": errors.DeadlockDetected,
}


class Beside(Server):
    """The server, through a connection that sees everything."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        super().__init__()
        self._connection = connection

    def waiting(self, numbers: Collection[int]) -> set[int]:
        rows = self._ask("SELECT DISTINCT pid FROM pg_locks WHERE NOT granted AND pid = ANY(%s)", [list(numbers)])
        return {pid for (pid,) in rows}

    def has_deadlock(self, number: int) -> bool:
        rows = self._ask("SELECT pid, pg_blocking_pids(pid) FROM pg_locks WHERE NOT granted", [])
        blocking: dict[int, list[int]] = dict(rows)
        reached: set[int] = set()
        ahead = list(blocking.get(number, []))
        while ahead:
            pid = ahead.pop()
            if pid not in reached:
                reached.add(pid)
                ahead += blocking.get(pid, [])
        return number in reached

    def cancel(self, number: int) -> None:
        self._ask("SELECT pg_cancel_backend(%s)", [number])

    def terminate(self, number: int) -> None:
        self._ask("SELECT pg_terminate_backend(%s)", [number])

    def is_gone(self, number: int) -> bool:
        return not self._ask("SELECT 1 FROM pg_stat_activity WHERE pid = %s", [number])

    def close(self) -> None:
        """Close it."""
        self._connection.close()

    def _ask(self, sql: str, parameters: list[Any]) -> list[Any]:
        return self._connection.execute(sql, parameters).fetchall()


#: The server of the storage that is open.
beside: Beside | None = None


class RawConnection(Line, psycopg.Connection[Any]):
    """psycopg's connection, which lets others go on while a statement waits for a lock."""

    @property
    def descriptor(self) -> int:
        return self.pgconn.socket

    @property
    def is_in_transaction(self) -> bool:
        return self.pgconn.transaction_status != TransactionStatus.IDLE

    @property
    def commits_itself(self) -> bool:
        return self.autocommit

    def hang_up(self) -> None:
        self.close()

    def wait(self, gen: Generator[Any, Any, Any], *args: Any, **options: Any) -> Any:
        """Replaces psycopg's way to wait."""
        if not hasattr(self, "server"):
            return super().wait(gen, *args, **options)
        try:
            wanted = next(gen)
            while True:
                if wanted == Wait.R:
                    self.server.await_answer(self)
                    wanted = gen.send(Ready.R)
                else:
                    # There is always room for what is sent here.
                    wanted = gen.send(Ready.RW if self.has_answered() and wanted == Wait.RW else Ready.W)
        except StopIteration as stop:
            return stop.value
        except errors.QueryCanceled as error:
            verdict, self.verdict = self.verdict, None
            if verdict in _VERDICTS:
                raise _VERDICTS[verdict](f"Cancelled by the simulation: {verdict}") from error
            raise


class PostgreSQLSession(ServerSession):
    """A connection to PostgreSQL."""

    def lost(self, message: str) -> Exception:
        # It has no SQLSTATE, so it means that the connection is lost.
        return psycopg.OperationalError(message)

    @property
    def autocommit(self) -> bool:
        return bool(self._open.autocommit)

    @autocommit.setter
    def autocommit(self, value: bool) -> None:
        self._open.autocommit = value

    @property
    def isolation_level(self) -> Any:
        return self._open.isolation_level

    @isolation_level.setter
    def isolation_level(self, value: Any) -> None:
        self._open.isolation_level = value

    def prepared(self, sql: str) -> str:
        """The statement as the server gets it."""
        if world.current is None:
            return sql
        if sql.startswith("SET LOCAL"):
            sql = self._without_limits(sql)
        return self.at_this_time(sql)

    def at_this_time(self, sql: str) -> str:
        """The statement, by the simulated clock."""
        assert world.current is not None
        return sql.replace("STATEMENT_TIMESTAMP()", f"TIMESTAMPTZ '{world.current.database_now.isoformat()}'")

    def execute(self, sql: str, execute: Callable[[], Any]) -> Any:
        if self.request is None:
            return super().execute(sql, execute)
        try:
            result = super().execute(sql, execute)
            self.has_changed = True
        finally:
            if self.raw is not None and not self.raw.is_in_transaction:
                self.raw.limits.clear()
                self.server.settle()
        return result

    def let_go(self) -> Callable[[], None]:
        """The server gets what was sent later; by then, it waits for nobody."""
        if self.request is None:
            return super().let_go()
        sql, process, raw, server = self.request, self.process, self.take(), self.server
        raw.process = process
        server.orphans[raw.number] = raw, False

        def finish() -> None:
            if raw.number not in server.orphans:
                return  # the server has ended it in the meantime
            if world.current is not None:
                rest = sql.partition("SET CONSTRAINTS")[2]
                request = f"SET LOCAL synchronous_commit = off; SET LOCAL lock_timeout = 1; SET CONSTRAINTS{rest}"
                raw.pgconn.exec_(self.at_this_time(request).encode())
                server.settle()
                world.current.oracle.committed(process, "late")
            server.end(raw)

        return finish

    def _without_limits(self, sql: str) -> str:
        raw = self._open
        for name, milliseconds in _LIMIT.findall(sql):
            raw.limits[_LIMITS[name]] = int(milliseconds) / 1000
        # A real disk need not be waited for.
        return _LIMIT.sub("", sql).replace(_DURABLE, "SET LOCAL synchronous_commit = 'off'").rstrip("; ")


class Cursor(Stepped, base.Cursor):
    """A cursor each of whose statements is a step."""

    def execute(self, query: Any, params: Any = None) -> Any:
        return self.stepped(query, lambda: self._carry_out(query, params))

    def executemany(self, query: Any, params: Any) -> Any:
        return self.stepped(query, lambda: _Cursor.executemany(self, query, params))

    def _carry_out(self, query: Any, params: Any) -> Any:
        session = None if self.wrapper is None else self.wrapper.connection
        if not isinstance(session, PostgreSQLSession) or world.current is None:
            return _Cursor.execute(self, query, params)
        return session.execute(query, lambda: _Cursor.execute(self, session.prepared(query), params))


class DatabaseWrapper(Stepping, base.DatabaseWrapper):
    """A connection to PostgreSQL each of whose steps is one of the simulation."""

    def open_session(self, params: Any, process: Process | None) -> PostgreSQLSession:
        assert beside is not None
        if process is not None and beside.idle:
            self.isolation_level = self.settings_dict["OPTIONS"]["isolation_level"]
            return PostgreSQLSession(beside.idle.pop(), process, beside)
        return PostgreSQLSession(self._opened(params, beside), process, beside)

    def _opened(self, params: Any, server: Beside) -> RawConnection:
        self.isolation_level = psycopg.IsolationLevel(self.settings_dict["OPTIONS"]["isolation_level"])
        raw = RawConnection.connect(**{**params, "cursor_factory": Cursor})
        raw.isolation_level = self.isolation_level
        raw.begin(server, raw.info.backend_pid)
        return raw

    def create_cursor(self, name: str | None = None) -> Any:
        cursor = super().create_cursor(name)
        cursor.wrapper = self
        return cursor

    def has_written(self) -> bool:
        session = self.connection
        return isinstance(session, PostgreSQLSession) and session.has_written()
