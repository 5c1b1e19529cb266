"""A database of MariaDB's for schedules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import MySQLdb  # type: ignore[import-untyped]
from django.db import connections

from tests.simulation.backend.mysql import base
from tests.simulation.oracle import State, Write

if TYPE_CHECKING:
    from collections.abc import Iterable

_GATES = "SELECT name, fence, token FROM django_singlejob_jobstatus"
_LOCKS = "SELECT name, token FROM django_singlejob_joblock"
_WRITES = "SELECT id, `lock`, fence FROM test_app_fencedwrite WHERE id > %s ORDER BY id"


class OnServer:
    """A database of MariaDB's."""

    def __init__(self, name: str, isolation: str = "read committed") -> None:
        self._name = name
        self.settings = {
            "ENGINE": "tests.simulation.backend.mysql",
            "NAME": name,
            "OPTIONS": {
                "isolation_level": isolation,
                "init_command": f"SET SESSION innodb_lock_wait_timeout = {base.LONG}",
            },
        }
        self._eye = self._connected()
        self._server = base.beside = base.Beside(self._connected())

    def _connected(self) -> Any:
        given = connections["default"].get_connection_params()
        connection = MySQLdb.connect(**{**given, "database": self._name})
        connection.autocommit(True)
        return connection

    def empty(self, tables: Iterable[str]) -> None:
        self._server.clear()
        for table in tables:
            self._ask(f"DELETE FROM {table}")
            self._ask(f"ALTER TABLE {table} AUTO_INCREMENT = 1")

    def read(self, last_write: int) -> State:
        return State(
            {name: (fence, token and _hex(token)) for name, fence, token in self._ask(_GATES)},
            {name: _hex(token) for name, token in self._ask(_LOCKS)},
            [Write(*row) for row in self._ask(_WRITES, [last_write])],
        )

    def count(self, table: str, where: str) -> int:
        ((count,),) = self._ask(f"SELECT COUNT(*) FROM {table} WHERE {where}")
        return int(count)

    def close(self) -> None:
        self._server.clear()
        self._server.close_idle()
        self._server.close()
        self._eye.close()
        base.beside = None

    def _ask(self, sql: str, parameters: Any = None) -> Any:
        cursor = self._eye.cursor()
        cursor.execute(sql, parameters)
        return cursor.fetchall()


def _hex(token: Any) -> str:
    return str(token).replace("-", "")
