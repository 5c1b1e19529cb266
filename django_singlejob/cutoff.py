"""Calling off what a driver waits for: on a network that swallows everything it would wait for a quarter of an hour;
and a statement that takes too long.
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
    """Cut this thread's connection off if the block is not over at that instant, a value of ``local_now()``: what waits
    for an answer then fails as on any connection that is lost. How long it takes to connect is left to the driver."""
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
    """The connection to the server. ``None``: there is none, or it is closed."""
    if not connection.in_atomic_block:
        connection.ensure_connection()
    fileno = getattr(connection.connection, "fileno", None)
    if fileno is None:
        return None
    with suppress(Exception):  # drivers differ in what they say of a closed one
        # A duplicate: if the connection is closed meanwhile, its number may be given to something else.
        return socket.socket(fileno=os.dup(fileno()))
    return None


def _cut(line: socket.socket) -> None:
    with suppress(OSError):  # it is over
        line.shutdown(socket.SHUT_RDWR)


class _Made(NamedTuple):
    """A connection to a server, by whom it was made, and what tells its socket from all others.

    MySQL's driver says nothing of a connection to others than the thread that it is busy for.
    """

    thread: int
    fileno: int
    inode: int


def remember(*, connection: BaseDatabaseWrapper, **others: Any) -> None:
    """A receiver of Django's ``connection_created``, for ``cut_off``."""
    fileno = getattr(connection.connection, "fileno", None)
    if fileno is None:
        return
    with suppress(Exception):  # what cannot be cut off is a connection all the same
        number = fileno()
        _made[ref(connection, _forget)] = _Made(threading.get_ident(), number, os.fstat(number).st_ino)


def cut_off(thread: int) -> None:
    """Have the call to a database that this thread is in fail, as on any connection that is lost. Nothing can be done
    about one that is just connecting."""
    for made in list(_made.values()):
        with suppress(OSError):
            # It may be closed, and its number be given to something else.
            if made.thread == thread and os.fstat(made.fileno).st_ino == made.inode:
                with socket.socket(fileno=os.dup(made.fileno)) as line:
                    _cut(line)


def _forget(connection: "ref[BaseDatabaseWrapper]") -> None:
    _made.pop(connection, None)


# The last one of each wrapper.
_made: "dict[ref[BaseDatabaseWrapper], _Made]" = {}

# How many steps SQLite takes between two looks at the clock: about a millisecond's worth.
_STEPS = 100_000


def limited(alias: str, patience: timedelta) -> AbstractContextManager[object]:
    """A statement fails inside if it takes longer than that, and the connection may be lost with it.

    On PostgreSQL it does nothing: there it takes a round trip less if the transaction has the limit from its beginning,
    see ``database.durable``.
    """
    connection = connections[alias]
    if connection.vendor == "sqlite":
        return _limited_by_steps(connection, patience)
    if connection.vendor != "mysql":
        return nullcontext()
    if connection.mysql_is_mariadb:  # type: ignore[attr-defined]
        return connection.execute_wrapper(partial(_execute_limited, patience))
    return cut_off_at(alias, local_now() + patience.total_seconds())  # MySQL limits only what reads


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
