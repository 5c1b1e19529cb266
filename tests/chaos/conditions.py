"""The conditions under which a server works, as the nemesis changes them: wrong clocks, limits, orders.

They are files in one folder, which each process reads when it needs them:

* `clock`: the error of the database's clock, in seconds. (Not on PostgreSQL, which has a function for it.) SQLite's
clock is the host's, and so that of all servers.
* `skew-3`: the error of server 3's clock, in seconds.
* `limits`: SQL for each new connection. (Not on PostgreSQL, which has settings of a role.)
* `order-3`: what server 3 is to do next; `doing-3`: what it does, until that file is deleted.
"""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from django.db import connections
from django.db.backends.signals import connection_created

from django_singlejob.process import clock
from tests.sqlite_clock import replace_clock

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from django.db.backends.base.base import BaseDatabaseWrapper


def set_condition(folder: Path, name: str, value: object) -> None:
    """Set the condition at one instant for all processes that read it. An empty value removes it."""
    new = folder / f"{name}.new"
    new.write_text(str(value))
    new.replace(folder / name)


class Conditions:
    """The conditions for server number `number`."""

    def __init__(self, folder: Path, number: int) -> None:
        self._folder = folder
        self._number = number
        # The MariaDB sessions whose clock is set to another instant.
        self._shifted: WeakSet[Any] = WeakSet()

    def impose(self) -> None:
        """Subject this process to the conditions."""
        connection_created.connect(self._limit, weak=False)
        replace_everywhere("utc_now", lambda real: real() + self._skew())

    def taken_order(self, *kinds: str) -> str:
        """Take the order if it is one of these kinds. Only one thread gets it; an empty string means there is none."""
        order = self._read(f"order-{self._number}")
        if order not in kinds:
            return ""
        try:
            (self._folder / f"order-{self._number}").rename(self._folder / f"doing-{self._number}")
        except FileNotFoundError:  # another thread has taken it, or it was withdrawn
            return ""
        return order

    @property
    def is_order_in_force(self) -> bool:
        """Whether the order that was taken still holds."""
        return (self._folder / f"doing-{self._number}").exists()

    def _read(self, name: str) -> str:
        try:
            return (self._folder / name).read_text()
        except FileNotFoundError:
            return ""

    def _offset(self, name: str) -> timedelta:
        return timedelta(seconds=float(self._read(name) or 0))

    def _skew(self) -> timedelta:
        # SQLite uses the host's clock, which is this server's too.
        is_hosts = connections["default"].vendor == "sqlite"
        return self._offset(f"skew-{self._number}") + (self._offset("clock") if is_hosts else timedelta())

    def _limit(self, connection: BaseDatabaseWrapper, **_: object) -> None:
        if connection.vendor == "mysql" and self._set_clock not in connection.execute_wrappers:
            connection.execute_wrappers.append(self._set_clock)
        if connection.vendor == "sqlite":
            replace_clock(connection.connection, self._now)
        if limits := self._read("limits"):
            with connection.cursor() as cursor:
                cursor.execute(limits)

    def _set_clock(
        self, execute: Callable[..., Any], sql: str, params: Any, many: bool, context: dict[str, Any]
    ) -> Any:
        """MariaDB's clock can be set for a session, but then stands still, so set it for each statement."""
        offset, connection = self._offset("clock"), context["connection"]
        if offset or connection.connection in self._shifted:
            instant = f"{time.time() + offset.total_seconds():.6f}" if offset else "DEFAULT"
            with connection.wrap_database_errors:
                context["cursor"].cursor.execute(f"SET timestamp = {instant}")
            (self._shifted.add if offset else self._shifted.discard)(connection.connection)
        return execute(sql, params, many, context)

    def _now(self) -> datetime:
        return datetime.now(UTC) + self._offset("clock")


def replace_everywhere(name: str, replacement: Callable[[Any], Any]) -> None:
    """Make every module of the package use `replacement` in place of that function of `clock`. It is passed the real
    function."""
    real = getattr(clock, name)
    for module in [module for path, module in sys.modules.items() if path.startswith("django_singlejob")]:
        if getattr(module, name, None) is real:
            setattr(module, name, lambda: replacement(real))
