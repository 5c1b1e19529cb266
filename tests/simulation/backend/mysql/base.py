"""MariaDB as a backend of the simulation: see ``backend.server``.

Each statement that asks for the time gets that of the simulated clock, in place of ``UTC_TIMESTAMP(6)``.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

import MySQLdb  # type: ignore[import-untyped]
from django.db.backends.mysql import base
from MySQLdb.connections import Connection  # type: ignore[import-untyped]

from tests.simulation import world
from tests.simulation.backend.server import Line, Server, ServerSession
from tests.simulation.backend.stepping import Stepped, Stepping

if TYPE_CHECKING:
    from collections.abc import Collection

    from tests.simulation.baton import Process

#: The server's own limit for a wait, which counts real time, in seconds; and what it is in simulated time.
LONG = 3600
_USUAL_LIMIT = 50.0
_USUAL_IDLENESS = 28800.0
_STATEMENT_LIMIT = re.compile(r"SET STATEMENT max_statement_time = ([\d.]+) FOR ")
_LIMIT = re.compile(r"@@SESSION\.(\w+) = (\d+)")
_TRANSACTION = re.compile(
    r"^---TRANSACTION \d+, ACTIVE(?P<text>.*?)^(?:MariaDB|MySQL) thread id (?P<number>\d+)", re.MULTILINE | re.DOTALL
)
#: What the server would say if it had not been the simulation that killed the query.
_VERDICTS = {
    "lock_timeout": (1205, "Lock wait timeout exceeded; try restarting transaction"),
    "statement_timeout": (1969, "Query execution was interrupted (max_statement_time exceeded)"),
}


class Beside(Server):
    """The server, through a connection that sees everything."""

    def __init__(self, connection: Any) -> None:
        super().__init__()
        self._connection = connection

    def waiting(self, numbers: Collection[int]) -> set[int]:
        # Not information_schema.innodb_trx, which is up to 100 ms old.
        ((_, _, status),) = self._ask("SHOW ENGINE INNODB STATUS")
        found = _TRANSACTION.finditer(status)
        return {int(each["number"]) for each in found if "LOCK WAIT" in each["text"]} & set(numbers)

    def cancel(self, number: int) -> None:
        with suppress(MySQLdb.OperationalError):  # the session has ended
            self._ask(f"KILL QUERY {number}")

    def terminate(self, number: int) -> None:
        with suppress(MySQLdb.OperationalError):
            self._ask(f"KILL {number}")

    def is_gone(self, number: int) -> bool:
        return not self._ask(f"SELECT 1 FROM information_schema.processlist WHERE id = {number}")

    def close(self) -> None:
        """Close it."""
        self._connection.close()

    def _ask(self, sql: str) -> Any:
        cursor = self._connection.cursor()
        cursor.execute(sql)
        return cursor.fetchall()


#: The server of the storage that is open.
beside: Beside | None = None


class RawConnection(Line, Connection):  # type: ignore[misc]
    """mysqlclient's connection, which lets others go on while a statement waits for a lock."""

    @property
    def descriptor(self) -> int:
        return int(self.fileno())

    @property
    def is_in_transaction(self) -> bool:
        return not self.commits_itself

    @property
    def commits_itself(self) -> bool:
        return bool(self.get_autocommit())

    def hang_up(self) -> None:
        # The driver does not notice before it is used, and its cursors can still be closed, as after a real loss. It
        # closes the connection when nothing refers to it any more.
        pass

    def query(self, query: Any) -> None:
        """Replaces mysqlclient's way to send a statement and wait."""
        if not hasattr(self, "server"):
            super().query(query)
            return
        self.send_query(bytes(query))
        self.server.await_answer(self)
        try:
            self.read_query_result()
        except MySQLdb.OperationalError as error:
            verdict, self.verdict = self.verdict, None
            if error.args[0] == 1317 and verdict in _VERDICTS:
                raise MySQLdb.OperationalError(*_VERDICTS[verdict]) from error
            raise


class MariaDBSession(ServerSession):
    """A connection to MariaDB."""

    def lost(self, message: str) -> Exception:
        error: Exception = MySQLdb.OperationalError(2013, f"Lost connection to server during query ({message})")
        return error

    def cursor(self, *arguments: Any) -> Any:
        """A cursor, which keeps the package's limits on a transaction from the server."""
        return _RawCursor(self, self._open.cursor(*arguments))

    def limit_waits(self, seconds: float) -> None:
        """End a statement that waits for a lock for this many seconds."""
        self._open.limits["lock_timeout"] = seconds

    def prepared(self, sql: str) -> str:
        """The statement as the server gets it."""
        raw = self._open
        raw.limits.pop("statement_timeout", None)
        raw.limits.setdefault("lock_timeout", _USUAL_LIMIT)
        if world.current is None:
            return sql
        if limit := _STATEMENT_LIMIT.match(sql):
            raw.limits["statement_timeout"] = float(limit[1])
            sql = sql[limit.end() :]
        instant = world.current.database_now.strftime("%Y-%m-%d %H:%M:%S.%f")
        return sql.replace("UTC_TIMESTAMP(6)", f"TIMESTAMP'{instant}'")


class _RawCursor:
    """The driver's cursor."""

    def __init__(self, session: MariaDBSession, cursor: Any) -> None:
        self._session, self._cursor = session, cursor

    def execute(self, sql: Any, parameters: Any = None) -> Any:
        if world.current is not None and "@singlejob_" in sql:
            limits = {name: float(seconds) for name, seconds in _LIMIT.findall(sql)}  # none: the usual ones again
            self._session.limit_waits(limits.get("innodb_lock_wait_timeout", _USUAL_LIMIT))
            self._session.limit_idleness(limits.get("wait_timeout", _USUAL_IDLENESS))
            return 0
        return self._cursor.execute(sql, parameters)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._cursor.close()

    def __iter__(self) -> Any:
        return iter(self._cursor)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cursor, name)


class Cursor(Stepped, base.CursorWrapper):
    """A cursor each of whose statements is a step."""

    def execute(self, query: Any, args: Any = None) -> Any:
        return self.stepped(query, lambda: self._carry_out(query, args))

    def executemany(self, query: Any, args: Any) -> Any:
        return self.stepped(query, lambda: base.CursorWrapper.executemany(self, query, args))

    def _carry_out(self, query: Any, args: Any) -> Any:
        session = None if self.wrapper is None else self.wrapper.connection
        if not isinstance(session, MariaDBSession) or world.current is None:
            return base.CursorWrapper.execute(self, query, args)
        return session.execute(query, lambda: base.CursorWrapper.execute(self, session.prepared(query), args))


class DatabaseWrapper(Stepping, base.DatabaseWrapper):
    """A connection to MariaDB each of whose steps is one of the simulation."""

    def open_session(self, params: Any, process: Process | None) -> MariaDBSession:
        assert beside is not None
        raw = beside.idle.pop() if process is not None and beside.idle else self._opened(params, beside)
        return MariaDBSession(raw, process, beside)

    @staticmethod
    def _opened(params: Any, server: Beside) -> RawConnection:
        raw = RawConnection(**params)
        raw.encoders.pop(bytes, None)
        raw.begin(server, raw.thread_id())
        return raw

    def create_cursor(self, name: str | None = None) -> Any:
        cursor: Any = Cursor(self.connection.cursor())
        cursor.wrapper = self
        return cursor

    def has_written(self) -> bool:
        session = self.connection
        return isinstance(session, MariaDBSession) and session.has_written()
