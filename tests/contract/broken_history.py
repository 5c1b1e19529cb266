"""Everything that can be wrong with one table, usually the history's, and with no other."""

from __future__ import annotations

import secrets
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connection

from tests.databases import named

if TYPE_CHECKING:
    from collections.abc import Iterator

TABLE = "django_singlejob_jobrun"

#: The faults, and the databases on which each can happen.
TROUBLES = {
    "locked": ("postgresql", "mysql"),
    "renamed": ("sqlite", "postgresql", "mysql"),
    "read-only": ("postgresql", "mysql"),
    "full": ("sqlite", "postgresql", "mysql"),
    "full at the commit": ("postgresql",),
    "slow": ("sqlite", "postgresql", "mysql"),
}

#: Those of which only a limit of time makes an error.
NEVER_ENDING = {"locked", "slow"}

each_trouble = pytest.mark.parametrize(
    "trouble", [pytest.param(name, marks=pytest.mark.on_database(*on)) for name, on in TROUBLES.items()]
)


class History:
    """Inside `with history.broken("locked"):`, nothing can be written to the history, or to another table."""

    def __init__(self, table: str = TABLE) -> None:
        self._table = table
        self._connection = connection.copy()
        self._connection.inc_thread_sharing()  # a job breaks it in a thread of its own

    def close(self) -> None:
        self._connection.close()

    @contextmanager
    def broken(self, trouble: str) -> Iterator[None]:
        name = trouble.replace("-", "_").replace(" ", "_")
        with pytest.MonkeyPatch.context() as patch, getattr(self, f"_{name}")():
            if trouble in NEVER_ENDING:
                # What is slow keeps a processor busy until then. In other troubles, what can be written has its time.
                patch.setattr("django_singlejob.locking.recording.PATIENCE", timedelta(seconds=0.3))
            yield

    def _execute(self, *statements: str) -> None:
        with self._connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        if connection.vendor == "mysql":
            self._execute(f"LOCK TABLES {self._table} WRITE")
        else:
            self._execute("BEGIN", f"LOCK TABLE {self._table} IN ACCESS EXCLUSIVE MODE")
        try:
            yield
        finally:
            self._execute("UNLOCK TABLES" if connection.vendor == "mysql" else "ROLLBACK")

    @contextmanager
    def _renamed(self) -> Iterator[None]:
        self._execute(f"ALTER TABLE {self._table} RENAME TO elsewhere")
        try:
            yield
        finally:
            self._execute(f"ALTER TABLE elsewhere RENAME TO {self._table}")

    @contextmanager
    def _read_only(self) -> Iterator[None]:
        with ExitStack() as undo, pytest.MonkeyPatch.context() as patch:
            reader = self._mysql_reader(undo) if connection.vendor == "mysql" else self._postgresql_reader(undo)
            for key, value in reader.items():
                patch.setitem(connection.settings_dict, key, value)
            connection.close()
            yield
            connection.close()

    def _postgresql_reader(self, undo: ExitStack) -> dict[str, Any]:
        role = f"{connection.settings_dict['NAME']}_reader"
        self._execute(
            f"CREATE ROLE {role}",
            f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {role}",
            f"GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO {role}",
            f"REVOKE INSERT, UPDATE, DELETE ON {self._table} FROM {role}",
        )
        undo.callback(self._execute, f"DROP OWNED BY {role}", f"DROP ROLE {role}")
        return {"OPTIONS": {**connection.settings_dict["OPTIONS"], "options": f"-c role={role}"}}

    def _mysql_reader(self, undo: ExitStack) -> dict[str, Any]:
        user, password, database = named("reader"), secrets.token_hex(16), connection.settings_dict["NAME"]
        tables = [name for name in connection.introspection.table_names() if name != self._table]
        if not self._may_grant():
            pytest.skip("needs a user who may GRANT")
        undo.callback(self._execute, f"DROP USER {user}@'%', {user}@localhost")
        self._execute(
            f"CREATE USER {user}@'%' IDENTIFIED BY '{password}'",
            f"CREATE USER {user}@localhost IDENTIFIED BY '{password}'",
            *(f"GRANT ALL ON {database}.{name} TO {user}@{host}" for name in tables for host in ("'%'", "localhost")),
            *(f"GRANT SELECT ON {database}.{self._table} TO {user}@{host}" for host in ("'%'", "localhost")),
        )
        return {"USER": user, "PASSWORD": password}

    def _may_grant(self) -> bool:
        with self._connection.cursor() as cursor:
            cursor.execute("SHOW GRANTS")
            return any("WITH GRANT OPTION" in grant for (grant,) in cursor.fetchall())

    def _full(self) -> Any:
        return self._triggered(
            sqlite="SELECT RAISE(ABORT, 'disk full');",
            postgresql="RAISE EXCEPTION 'disk full' USING ERRCODE = 'disk_full';",
            mysql="SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'disk full'",
        )

    def _full_at_the_commit(self) -> Any:
        return self._triggered(
            postgresql="RAISE EXCEPTION 'no room' USING ERRCODE = 'check_violation';",
            kind="CONSTRAINT TRIGGER",
            when="AFTER",
            how="DEFERRABLE INITIALLY DEFERRED",
        )

    def _slow(self) -> Any:
        if not getattr(connection, "mysql_is_mariadb", True):
            pytest.skip("MySQL limits the time of SELECTs only")
        steps = "WITH RECURSIVE steps(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM steps LIMIT 2000000000)"
        return self._triggered(
            sqlite=f"SELECT count(*) FROM ({steps} SELECT n FROM steps);",
            postgresql="PERFORM pg_sleep(3600);",
            mysql="DO SLEEP(3600)",
        )

    @contextmanager
    def _triggered(
        self, *, kind: str = "TRIGGER", when: str = "BEFORE", how: str = "", **bodies: str
    ) -> Iterator[None]:
        body, undo = bodies[connection.vendor], []
        if connection.vendor == "postgresql":
            function = f"BEGIN {body} RETURN NEW; END"
            self._execute(f"CREATE FUNCTION trouble() RETURNS trigger LANGUAGE plpgsql AS $$ {function} $$")
            undo.append("DROP FUNCTION trouble")
        for event in ("INSERT", "UPDATE"):
            name = f"trouble_{event}"
            action = {
                "sqlite": f"BEGIN {body} END",
                "postgresql": f"{how} FOR EACH ROW EXECUTE FUNCTION trouble()",
                "mysql": f"FOR EACH ROW {body}",
            }
            self._execute(f"CREATE {kind} {name} {when} {event} ON {self._table} {action[connection.vendor]}")
            undo.insert(0, f"DROP TRIGGER {name}" + (f" ON {self._table}" if connection.vendor == "postgresql" else ""))
        try:
            yield
        finally:
            self._execute(*undo)


@pytest.fixture
def history() -> Iterator[History]:
    history = History()
    yield history
    history.close()
