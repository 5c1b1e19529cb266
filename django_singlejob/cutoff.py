"""Cuts off database calls that take too long: a slow statement, and a call on a network that drops every packet, where
a driver would wait for a quarter of an hour.
"""

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple
from weakref import ref

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from django_singlejob.alarms import alarm_at
from django_singlejob.clock import local_now


@contextmanager
def cut_off_at(alias: str, instant: float) -> Iterator[None]:
    """Cut off this thread's connection if the block is still running at ``instant``, a value of ``local_now()``. A call
    that waits for an answer then fails as on any lost connection. Only the driver limits how long connecting takes."""
    connection = connections[alias]
    if not connection.in_atomic_block:
        connection.ensure_connection()
    made = _made.get(ref(connection))
    if made is None or not made.is_open:
        yield
        return
    with alarm_at(instant, made.cut):
        yield


class _Made(NamedTuple):
    """A connection to a server: the thread that made it, and its socket.

    Recorded in advance, because MySQL's driver tells other threads nothing about a connection that is busy.
    """

    thread: int
    fileno: int
    identity: tuple[int, int]

    @property
    def is_open(self) -> bool:
        """``False`` if it was closed, even if something else has its file descriptor by now."""
        with suppress(OSError):
            return _identity(self.fileno) == self.identity
        return False

    def cut(self) -> None:
        """Shut it down, so that a call that waits for an answer fails. The file descriptor stays the driver's."""
        with suppress(OSError):
            # Looked at again as a duplicate, which the driver cannot close meanwhile.
            if self.is_open:
                with socket.socket(fileno=os.dup(self.fileno)) as line:
                    if _identity(line.fileno()) == self.identity:
                        line.shutdown(socket.SHUT_RDWR)


def _identity(fileno: int) -> tuple[int, int]:
    status = os.fstat(fileno)
    return status.st_dev, status.st_ino


def remember(*, connection: BaseDatabaseWrapper, **others: Any) -> None:
    """Record a connection, so that it can be cut off: a receiver of Django's ``connection_created``."""
    fileno = getattr(connection.connection, "fileno", None)
    if fileno is None:
        return
    with suppress(Exception):  # a connection that cannot be cut off still works
        number = fileno()
        _made[ref(connection, _forget)] = _Made(threading.get_ident(), number, _identity(number))


def cut_off(thread: int) -> None:
    """Make this thread's current database call fail, as on any lost connection. A connection that is still being opened
    cannot be cut off."""
    for made in list(_made.values()):
        if made.thread == thread:
            made.cut()


def _forget(connection: "ref[BaseDatabaseWrapper]") -> None:
    _made.pop(connection, None)


# The last connection of each wrapper.
_made: "dict[ref[BaseDatabaseWrapper], _Made]" = {}
if hasattr(os, "register_at_fork"):
    # A forked child has copies of its parent's sockets: to shut one down would end the parent's session.
    os.register_at_fork(after_in_child=_made.clear)

# How many steps SQLite takes between two looks at the clock: about a millisecond.
_STEPS = 100_000


def limited(alias: str, patience: timedelta) -> AbstractContextManager[object]:
    """Make a statement in the block fail if it takes longer than ``patience``. The connection may be lost with it.

    On PostgreSQL this does nothing, because ``database.durable`` sets the limit when the transaction begins, which
    saves a round trip.
    """
    connection = connections[alias]
    if connection.vendor == "sqlite":
        return _limited_by_steps(connection, patience)
    if connection.vendor != "mysql":
        return nullcontext()
    if connection.mysql_is_mariadb:  # type: ignore[attr-defined]
        return connection.execute_wrapper(partial(_execute_limited, patience))
    return cut_off_at(alias, local_now() + patience.total_seconds())  # MySQL can only limit SELECT


@contextmanager
def _limited_by_steps(connection: BaseDatabaseWrapper, patience: timedelta) -> Iterator[None]:
    connection.ensure_connection()
    give_up_at = local_now() + patience.total_seconds()
    connection.connection.set_progress_handler(lambda: local_now() > give_up_at, _STEPS)
    try:
        yield
    finally:
        connection.connection.set_progress_handler(None, 0)


def _execute_limited(
    patience: timedelta, execute: Callable[..., Any], sql: str, params: Any, many: bool, context: dict[str, Any]
) -> Any:
    return execute(f"SET STATEMENT max_statement_time = {patience.total_seconds()} FOR {sql}", params, many, context)
