"""A database of PostgreSQL's for schedules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
from django.db import connections

from tests.simulation.backend.postgresql import base
from tests.simulation.oracle import State, Write

if TYPE_CHECKING:
    from collections.abc import Iterable

_GATES = "SELECT name, fence, token FROM django_singlejob_jobstatus"
_LOCKS = "SELECT name, token FROM django_singlejob_joblock"
_WRITES = "SELECT id, lock, fence FROM test_app_fencedwrite WHERE id > %s ORDER BY id"
#: Deleted rows slow a table down, until it is truncated.
_TRUNCATE_EVERY = 100
_RESTART = "SELECT setval(oid, 1, false) FROM pg_class WHERE relkind = 'S'"


class OnServer:
    """A database of PostgreSQL's."""

    def __init__(self, name: str, isolation: str = "read committed") -> None:
        level = psycopg.IsolationLevel[isolation.upper().replace(" ", "_")]
        self.settings = {
            "ENGINE": "tests.simulation.backend.postgresql",
            "NAME": name,
            "OPTIONS": {"isolation_level": level, "options": base.OPTIONS},
        }
        self._emptied = 0
        self._eye = self._connected(name)
        self._server = base.beside = base.Beside(self._connected(name))

    @staticmethod
    def _connected(name: str) -> psycopg.Connection[Any]:
        given = connections["default"].settings_dict
        return psycopg.connect(
            dbname=name,
            user=given["USER"] or None,
            password=given["PASSWORD"] or None,
            host=given["HOST"] or None,
            port=given["PORT"] or None,
            options="-c synchronous_commit=off",
            autocommit=True,
        )

    def empty(self, tables: Iterable[str]) -> None:
        self._server.clear()
        if self._emptied % _TRUNCATE_EVERY == 0:
            # A vacuum could get in the way of a statement.
            statements = [f"ALTER TABLE {table} SET (autovacuum_enabled = false)" for table in tables]
            statements += [f"TRUNCATE {', '.join(tables)}", "ANALYZE"]
        else:
            # Much faster than TRUNCATE.
            statements = [f"DELETE FROM {table}" for table in tables]
        self._emptied += 1
        self._eye.execute("; ".join([*statements, _RESTART]))

    def read(self, last_write: int) -> State:
        look = self._eye.execute
        return State(
            {name: (fence, token and token.hex) for name, fence, token in look(_GATES)},
            {name: token.hex for name, token in look(_LOCKS)},
            [Write(*row) for row in look(_WRITES, [last_write])],
        )

    def count(self, table: str, where: str) -> int:
        ((count,),) = self._eye.execute(f"SELECT COUNT(*) FROM {table} WHERE {where}")
        return int(count)

    def close(self) -> None:
        self._server.clear()
        self._server.close_idle()
        self._server.close()
        self._eye.close()
        base.beside = None
