"""What the nemesis can do to each kind of database server, and what must be undone in the end.

The servers of the chaos have a role, or files, of their own, so their settings affect nobody else.
"""

from __future__ import annotations

import random
import secrets
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from django.db import Error, OperationalError, connection

from tests.chaos.conditions import set_condition

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path
    from types import TracebackType
    from typing import Self


class Database:
    """The database that the servers share. This one is SQLite, which is a file, and uses the host's clock."""

    port: int | None = None
    isolation_levels: tuple[str, ...] = ("",)
    limits: tuple[str, ...] = ("PRAGMA busy_timeout = 1", "PRAGMA busy_timeout = 50")

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self._folder = folder

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.set_clock(0)
        self.lift_limits()

    def set_clock(self, offset: float) -> None:
        """Make the database's clock wrong by `offset` seconds, for all sessions at once."""
        set_condition(self._folder, "clock", offset or "")

    def set_limits(self) -> None:
        """Give every new session a time limit that is much too short."""
        set_condition(self._folder, "limits", random.choice(self.limits))

    def lift_limits(self) -> None:
        set_condition(self._folder, "limits", "")

    def end_sessions(self, ports: Collection[int]) -> None:
        """End the sessions whose clients use these ports."""


class MariaDB(Database):
    """MariaDB, or MySQL."""

    port = 3306
    isolation_levels = ("read uncommitted", "read committed", "repeatable read", "serializable")
    limits = (
        "SET SESSION max_statement_time = 0.005",
        "SET SESSION max_statement_time = 0.2",
        "SET SESSION wait_timeout = 1",
        "SET SESSION innodb_lock_wait_timeout = 1",
        "SET SESSION lock_wait_timeout = 1",
    )

    def end_sessions(self, ports: Collection[int]) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT id, host FROM information_schema.processlist WHERE db = database()")
            for session, host in cursor.fetchall():
                if int(host.rpartition(":")[2] or 0) in ports:
                    with suppress(Error):  # the session has just ended by itself
                        cursor.execute("KILL %s", [session])


class PostgreSQL(Database):
    """The servers have a role of their own, whose settings are the limits, and a clock that can be set."""

    port = 5432
    isolation_levels = ("read committed", "repeatable read", "serializable")
    limits = (
        "statement_timeout = 5",
        "statement_timeout = 200",
        "lock_timeout = 20",
        "idle_session_timeout = 150",
        "idle_in_transaction_session_timeout = 100",
    )

    def __init__(self, url: str, folder: Path) -> None:
        where = urlsplit(url)
        self._role = f"{where.path.strip('/')}_server"
        password = secrets.token_hex(16)
        netloc = f"{self._role}:{password}@{where.netloc.rpartition('@')[2]}"
        super().__init__(where._replace(netloc=netloc).geturl(), folder)
        self._password = password

    def __enter__(self) -> Self:
        self._drop_role()
        with connection.cursor() as cursor:
            cursor.execute(
                f"""
                CREATE ROLE {self._role} LOGIN PASSWORD '{self._password}';
                GRANT ALL ON SCHEMA public TO {self._role};
                GRANT ALL ON ALL TABLES IN SCHEMA public TO {self._role};
                GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO {self._role};
                CREATE SCHEMA chaos;
                CREATE TABLE chaos.clock (late interval NOT NULL);
                INSERT INTO chaos.clock VALUES ('0');
                CREATE FUNCTION chaos.statement_timestamp() RETURNS timestamptz STABLE LANGUAGE sql AS
                    'SELECT pg_catalog.statement_timestamp() + (SELECT late FROM chaos.clock)';
                GRANT USAGE ON SCHEMA chaos TO {self._role};
                GRANT SELECT ON chaos.clock TO {self._role};
                -- Named explicitly: otherwise pg_catalog comes first.
                ALTER ROLE {self._role} SET search_path = chaos, pg_catalog, public;
                """
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._drop_role()

    def _drop_role(self) -> None:
        with connection.cursor() as cursor:
            cursor.execute("DROP SCHEMA IF EXISTS chaos CASCADE")
            cursor.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", [self._role])
            if cursor.fetchone():
                cursor.execute(f"DROP OWNED BY {self._role}; DROP ROLE {self._role}")

    def set_clock(self, offset: float) -> None:
        with connection.cursor() as cursor:
            cursor.execute("UPDATE chaos.clock SET late = %s * interval '1 second'", [offset])

    def set_limits(self) -> None:
        with connection.cursor() as cursor:
            cursor.execute(f"ALTER ROLE {self._role} SET {random.choice(self.limits)}")

    def lift_limits(self) -> None:
        with connection.cursor() as cursor:
            for limit in self.limits:
                cursor.execute(f"ALTER ROLE {self._role} RESET {limit.partition(' ')[0]}")

    def end_sessions(self, ports: Collection[int]) -> None:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE client_port = ANY(%s)", [list(ports)]
            )


def database(url: str, folder: Path) -> Database:
    """The kind of database that the URL names."""
    scheme = urlsplit(url).scheme
    kinds = {"postgres": PostgreSQL, "postgresql": PostgreSQL, "mysql": MariaDB}
    return kinds.get(scheme, Database)(url, folder)


@contextmanager
def created_if_missing() -> Iterator[None]:
    """Inside, the database of the settings exists. If there was none before, it is dropped again."""
    try:
        connection.ensure_connection()
    except OperationalError:
        name = connection.ops.quote_name(str(connection.settings_dict["NAME"]))
        with connection._nodb_cursor() as cursor:
            cursor.execute(f"CREATE DATABASE {name}")
        try:
            yield
        finally:
            connection.close()
            with connection._nodb_cursor() as cursor:
                cursor.execute(f"DROP DATABASE {name}")
    else:
        yield
