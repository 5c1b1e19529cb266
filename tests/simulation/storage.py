"""The database of the simulated processes: emptied before each schedule, and read by the oracle behind their backs."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Any, Protocol

from tests.simulation.backend.sqlite.base import close_idle
from tests.simulation.oracle import State, Write

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


class Storage(Protocol):
    """A database for schedules."""

    #: What goes into ``DATABASES``.
    settings: dict[str, Any]

    def empty(self, tables: Iterable[str]) -> None:
        """Empty these tables, and begin their keys at 1 again."""

    def read(self, last_write: int) -> State:
        """What every process sees now; the fenced writes after that one."""

    def count(self, table: str, where: str) -> int:
        """How many rows there are."""

    def close(self) -> None:
        """Let go of the database."""


class SQLite:
    """A file of SQLite's."""

    def __init__(self, folder: Path) -> None:
        path = str(folder / "simulation.sqlite3")
        self.settings = {
            "ENGINE": "tests.simulation.backend.sqlite",
            "NAME": path,
            "OPTIONS": {
                "transaction_mode": "IMMEDIATE",
                "timeout": 0,
                "cached_statements": 500,
                "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=OFF",
            },
        }
        self._eye = sqlite3.connect(path, isolation_level=None, timeout=0, check_same_thread=False)

    def empty(self, tables: Iterable[str]) -> None:
        self._eye.execute("BEGIN IMMEDIATE")
        for table in tables:
            self._eye.execute(f"DELETE FROM {table}")
        self._eye.execute("DELETE FROM sqlite_sequence")
        self._eye.execute("COMMIT")

    def read(self, last_write: int) -> State:
        look = self._eye.execute
        gates = look("SELECT name, fence, token FROM django_singlejob_jobstatus")
        locks = look("SELECT name, token FROM django_singlejob_joblock")
        writes = look("SELECT id, lock, fence FROM test_app_fencedwrite WHERE id > ? ORDER BY id", [last_write])
        return State(
            {name: (fence, token) for name, fence, token in gates}, dict(locks), [Write(*row) for row in writes]
        )

    def count(self, table: str, where: str) -> int:
        ((count,),) = self._eye.execute(f"SELECT COUNT(*) FROM {table} WHERE {where}")
        return int(count)

    def close(self) -> None:
        close_idle()
        self._eye.close()
