"""Keeps the leases of code that runs in this process: a job that was called, or a block inside ``job_lock``.

One thread sends the heartbeats of all of them. Nothing is raised in another thread: ``Lease.check``, ``lost`` and
``atomic``, the signal ``lease_lost``, and the end of the run or block report that a lease is lost.
"""

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from queue import Empty, SimpleQueue

from django.db import connections

from django_singlejob.database.transactions import forget_queries
from django_singlejob.locking.heartbeat import Heartbeats
from django_singlejob.locking.lease import Lease
from django_singlejob.process.clock import local_now, wait
from django_singlejob.process.logs import about
from django_singlejob.process.received_signals import start_thread

logger = logging.getLogger("django_singlejob")

# The thread ends after this many seconds without a lease.
IDLE = 1.0


@contextmanager
def kept_alive(lease: Lease) -> Iterator[None]:
    """Send heartbeats during the block. Raises ``RuntimeError`` if no thread can be started."""
    keeper = _of_this_process()
    keeper.keep(lease)
    try:
        yield
    finally:
        keeper.leave(lease)


class _Keeper:
    """The leases that are kept, and their thread."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._heartbeats = Heartbeats()
        # Not an event: a signal handler may run a job while it interrupts a call. Up to CPython 3.12, a signal may keep
        # get() waiting for ever, but this thread gets none.
        self._calls: SimpleQueue[None] = SimpleQueue()
        # Reentrant for the same reason.
        self._mutex = threading.RLock()
        # ``None`` if there is none, or if it is about to end.
        self._thread: threading.Thread | None = None

    def keep(self, lease: Lease) -> None:
        if lease.is_private:  # no other process can take it over
            return
        with self._mutex:
            self._heartbeats.keep(lease)
            if self._thread is None or not self._thread.is_alive():
                try:
                    self._thread = start_thread(self._run, "heartbeats")
                except RuntimeError:
                    self.leave(lease)
                    raise
        self._calls.put(None)

    def leave(self, lease: Lease) -> None:
        self._heartbeats.leave(lease)

    # --- in the thread

    def _run(self) -> None:
        try:
            while not self._is_idle():
                try:
                    self._heartbeats.beat()
                except Exception as error:  # whatever goes wrong, the leases must be kept
                    logger.exception("The heartbeats go on after an error.", extra=about(reason=error))
                forget_queries()
                self._wait(self._heartbeats.next_at - local_now() if self._heartbeats.are_needed else IDLE)
        finally:
            with suppress(Exception):  # drivers raise different errors if a connection is broken
                connections.close_all()

    def _wait(self, seconds: float) -> None:
        with suppress(Empty):
            wait(partial(self._calls.get, True), max(0.0, min(seconds, threading.TIMEOUT_MAX)))
            while True:  # the next look answers all calls that have come
                self._calls.get_nowait()

    def _is_idle(self) -> bool:
        """Whether to end. A process that keeps no lease any more has no thread of ours."""
        with self._mutex:
            if self._heartbeats.are_needed or not self._calls.empty():
                return False
            self._thread = None
            return True


_keeper = _Keeper()


def _of_this_process() -> _Keeper:
    """The keeper. A forked child has no thread, even if C code has forked it, and keeps no lease of its parent."""
    global _keeper  # noqa: PLW0603  (there is one in each process)
    if _keeper.pid != os.getpid():
        _keeper = _Keeper()
    return _keeper
