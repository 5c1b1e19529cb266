"""Keeping a lease alive while its job runs, and interrupting the job if the lease is lost.

There are two kinds of thread, so that a driver that hangs cannot hide the loss. The keeper only looks at the clock.
Each heartbeat is sent by a short-lived thread of its own, on a connection of its own.
"""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Protocol

from django.db import connections

from django_singlejob.clock import local_now, wait
from django_singlejob.database import alias, words_of
from django_singlejob.exceptions import JobTimeout, LeaseLost
from django_singlejob.locking.lease import Lease
from django_singlejob.logs import about_grant
from django_singlejob.received_signals import blocked_signals
from django_singlejob.signals import lease_lost

logger = logging.getLogger("django_singlejob")

# After a failed heartbeat, the next one follows this many times sooner.
HURRY = 4
# The most heartbeats under way. While the driver hangs, they hang with it, each with a thread and a connection.
MOST_BEATS = 6


class Interruptible(Protocol):
    """What is interrupted when the lease is lost: a window, or several."""

    def fire(self, exception: type[BaseException], /) -> None:
        """Raise ``exception`` in the window's body."""


@contextmanager
def kept_alive(lease: Lease, window: Interruptible, max_runtime: timedelta | None = None) -> Iterator[None]:
    """Send heartbeats during the block. If the lease is lost or ``max_runtime`` is over, interrupt the window."""
    keeper = _Keeper(lease, window, max_runtime)
    try:
        keeper.start()
        yield
    finally:
        keeper.leave()


class _Keeper:
    def __init__(self, lease: Lease, window: Interruptible, max_runtime: timedelta | None) -> None:
        self._lease = lease
        self._window = window
        self._wake = threading.Event()
        self._is_left = False
        self._is_reported = False
        self._beats_under_way = 0
        interval = None if lease.is_private else lease.grant.request.heartbeat_interval
        self._interval = interval.total_seconds() if interval else float("inf")
        self._beat_at = local_now() + self._interval
        self._timeout_at = local_now() + max_runtime.total_seconds() if max_runtime else float("inf")
        self._longest_wait = lease.grant.request.lease.total_seconds() / 4

    def start(self) -> None:
        # No other process can take over a private lease, so there is nothing to keep.
        if not self._lease.is_private or self._timeout_at < float("inf"):
            _start_thread(self._watch, f"keeper of {self._lease.name}")

    def leave(self) -> None:
        if self._lease.is_inherited:
            return  # the keeper is in the parent, and a thread of the parent may hold the event's lock
        self._is_left = True
        self._wake.set()

    def _watch(self) -> None:
        while not self._is_done:
            wait(self._wake.wait, self._seconds_to_wait())
            self._wake.clear()
            if not self._is_done:
                self._look_at_the_clock()

    @property
    def _is_done(self) -> bool:
        # If its own holder released a lease early, that is not a loss.
        return self._is_left or (self._lease.is_over and self._timeout_at == float("inf"))

    def _seconds_to_wait(self) -> float:
        deadline = float("inf") if self._is_reported else self._lease.deadline
        return max(0.0, min(min(self._beat_at, self._timeout_at, deadline) - local_now(), self._longest_wait))

    def _look_at_the_clock(self) -> None:
        if self._lease.is_over or not self._lease.lost:
            self._is_reported = False
        elif not self._is_reported:
            self._report_loss()
        if local_now() >= self._timeout_at:
            self._timeout_at = float("inf")
            self._window.fire(JobTimeout)
        if local_now() >= self._beat_at and not self._lease.is_over:
            self._beat_at = local_now() + self._interval
            if self._beats_under_way < MOST_BEATS:
                self._start_beat()

    def _report_loss(self) -> None:
        self._is_reported = True
        try:
            self._lease.check()
        except LeaseLost as loss:
            logger.error("%s", loss, extra=about_grant(self._lease.grant, reason=loss))
            self._window.fire(LeaseLost)
            lease_lost.send_robust(sender=Lease, name=self._lease.name, lease=self._lease)

    def _start_beat(self) -> None:
        self._beats_under_way += 1
        try:
            _start_thread(self._beat, f"heartbeat of {self._lease.name}")
        except RuntimeError as error:  # no more threads are available
            self._beats_under_way -= 1
            self._retry_soon(error)

    def _beat(self) -> None:
        try:
            self._lease.renew()
        except LeaseLost:
            self._beat_at = float("inf")
            self._wake.set()
        except Exception as error:  # not a loss yet: the lease goes on, and the next heartbeat may get through
            self._retry_soon(error)
        finally:
            self._beats_under_way -= 1
            connections[alias()].close()

    def _retry_soon(self, error: Exception) -> None:
        # No heartbeat gets through while the lease's own transaction is the only writer, and none is needed.
        if not (self._is_left or self._lease.is_only_writer):
            message = "A heartbeat of %r failed and will be retried soon: %s"
            extra = about_grant(self._lease.grant, reason=error)
            logger.warning(message, self._lease.name, words_of(error), extra=extra)
        self._beat_at = min(self._beat_at, local_now() + min(self._interval / HURRY, 1.0))
        self._wake.set()


def _start_thread(target: Callable[[], None], name: str) -> None:
    with blocked_signals():
        threading.Thread(target=target, name=name, daemon=True).start()
