"""Cuts off database calls that take too long: a slow statement, and a call on a network that drops every packet, where
a driver would wait for a quarter of an hour.
"""

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple
from weakref import ref

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from django_singlejob.clock import later, local_now
from django_singlejob.received_signals import blocked_signals


@contextmanager
def cut_off_at(alias: str, instant: float) -> Iterator[None]:
    """Cut off this thread's connection if the block is still running at ``instant``, a value of ``local_now()``. A call
    that waits for an answer then fails as on any lost connection. Only the driver limits how long connecting takes."""
    line = _line(connections[alias])
    if line is None:
        yield
        return
    with closing(line):
        timer = later(max(0.0, instant - local_now()), partial(_cut, line))
        with blocked_signals():
            timer.start()
        try:
            yield
        finally:
            timer.cancel()


def _line(connection: BaseDatabaseWrapper) -> socket.socket | None:
    """A socket for the connection to the server; ``None`` if there is no connection, or it is closed."""
    if not connection.in_atomic_block:
        connection.ensure_connection()
    fileno = getattr(connection.connection, "fileno", None)
    if fileno is None:
        return None
    with suppress(Exception):  # drivers raise different errors for a closed connection
        # A duplicate: if the connection is closed meanwhile, its file descriptor may be reused.
        return socket.socket(fileno=os.dup(fileno()))
    return None


def _cut(line: socket.socket) -> None:
    with suppress(OSError):  # it is already closed
        line.shutdown(socket.SHUT_RDWR)


class _Made(NamedTuple):
    """A connection to a server, the thread that made it, and what identifies its socket.

    Recorded in advance, because MySQL's driver tells other threads nothing about a connection that is busy.
    """

    thread: int
    fileno: int
    inode: int


def remember(*, connection: BaseDatabaseWrapper, **others: Any) -> None:
    """Record a connection for ``cut_off``: a receiver of Django's ``connection_created``."""
    fileno = getattr(connection.connection, "fileno", None)
    if fileno is None:
        return
    with suppress(Exception):  # a connection that cannot be cut off still works
        number = fileno()
        _made[ref(connection, _forget)] = _Made(threading.get_ident(), number, os.fstat(number).st_ino)


def cut_off(thread: int) -> None:
    """Make this thread's current database call fail, as on any lost connection. A connection that is still being opened
    cannot be cut off."""
    for made in list(_made.values()):
        with suppress(OSError):
            # It may be closed, and its file descriptor reused.
            if made.thread == thread and os.fstat(made.fileno).st_ino == made.inode:
                with socket.socket(fileno=os.dup(made.fileno)) as line:
                    _cut(line)


def _forget(connection: "ref[BaseDatabaseWrapper]") -> None:
    _made.pop(connection, None)


# The last connection of each wrapper.
_made: "dict[ref[BaseDatabaseWrapper], _Made]" = {}

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
