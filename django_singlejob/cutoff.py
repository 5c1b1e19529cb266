"""Calling off what a driver waits for: on a network that swallows everything it would wait for a quarter of an hour."""

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from django_singlejob.clock import local_now
from django_singlejob.interrupt import blocked_signals


@contextmanager
def cut_off_at(alias: str, instant: float) -> Iterator[None]:
    """Cut this thread's connection off if the block is not over at that instant, a value of ``local_now()``: what waits
    for an answer then fails as on any connection that is lost. How long it takes to connect is left to the driver."""
    line = _line(connections[alias])
    if line is None:
        yield
        return
    with closing(line):
        timer = threading.Timer(max(0.0, instant - local_now()), _cut, [line])
        timer.daemon = True
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
