"""Sends heartbeats, and finds out which leases are lost: those of the process, with one statement for all that are due.

The main thread of a supervisor calls ``Heartbeats.beat`` when one is due. For code that runs in this process, a job
that was called or a block inside ``job_lock``, a thread does. Nothing is raised in the code's own thread:
``Lease.check``, ``lost`` and ``atomic``, the signal ``lease_lost``, and the end of the run or block report that a lease
is lost.
"""

import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from itertools import groupby
from queue import Empty, SimpleQueue

from django.db import OperationalError, connections

from django_singlejob.database import errors, transactions
from django_singlejob.database.transactions import forget_queries
from django_singlejob.exceptions import LeaseLost
from django_singlejob.locking.lease import Lease
from django_singlejob.models.locks import locks
from django_singlejob.process.clock import local_now, wait
from django_singlejob.process.logs import about
from django_singlejob.process.received_signals import start_thread
from django_singlejob.signals import lease_lost

logger = logging.getLogger("django_singlejob")

# After a failed heartbeat, the next one follows this many times sooner.
HURRY = 4
# A heartbeat may be sent this part of an interval too soon, along with others.
EARLY = 1 / 4
# The most leases that one statement renews. Each of them has four parameters, and SQLite may accept no more than 999.
AT_ONCE = 200
# The thread ends after this many seconds without a lease.
IDLE = 1.0


class Heartbeats:
    """The leases that one thread renews. They may come and go in any thread, at any time.

    ``woken`` is called when a lease may be lost, or its run is to be stopped.
    """

    def __init__(self, woken: Callable[[], object] = lambda: None) -> None:
        self._heartbeats: dict[Lease, _Heartbeat] = {}
        self._woken = woken

    def __contains__(self, lease: Lease) -> bool:
        return lease in self._heartbeats

    @property
    def are_needed(self) -> bool:
        """Whether there is any lease."""
        return bool(self._heartbeats)

    @property
    def next_at(self) -> float:
        """When there is something to do, as ``local_now()``."""
        return min((beat.next_at for beat in list(self._heartbeats.values())), default=float("inf"))

    def add(self, lease: Lease) -> None:
        """Renew this lease from now on."""
        self._heartbeats.setdefault(lease, _Heartbeat(lease, self._woken))

    def remove(self, lease: Lease) -> None:
        """Renew this lease no longer."""
        self._heartbeats.pop(lease, None)

    def beat(self) -> None:
        """Send the heartbeats that are due, and report the leases that are lost."""
        beats, now = list(self._heartbeats.values()), local_now()
        if any(beat.due_at <= now for beat in beats):
            # Those that are almost due go along.
            _renew([beat for beat in beats if beat.due_at <= now + beat.early], is_alone=len(beats) == 1)
        for beat in beats:
            if beat.lease in self._heartbeats:
                beat.report_loss()


class _Heartbeat:
    """A lease, and when its next heartbeat is due."""

    def __init__(self, lease: Lease, woken: Callable[[], object]) -> None:
        self.lease = lease
        self._woken = woken
        # No other process can take over a private lease, so there is nothing to keep.
        interval = None if lease.is_private else lease.grant.request.heartbeat_interval
        self._interval = interval.total_seconds() if interval else float("inf")
        self.early = self._interval * EARLY if interval else 0.0
        self.due_at = local_now() + self._interval
        self._is_loss_reported = False

    @property
    def length(self) -> timedelta:
        """How long its lease lasts without a heartbeat."""
        return self.lease.grant.request.lease

    @property
    def next_at(self) -> float:
        """When there is something to do."""
        if self.lease.is_over:
            return float("inf")
        return min(self.due_at, float("inf") if self._is_loss_reported else self.lease.deadline)

    def skip(self) -> None:
        """Wait for an interval until the next heartbeat."""
        self.due_at = float("inf") if self.lease.is_over else local_now() + self._interval

    def renew(self, *, is_alone: bool) -> None:
        """Send its heartbeat. If that fails, the next one follows soon. Unless it is the only lease, this does not wait
        for a row that is locked: others could expire meanwhile."""
        try:
            if not is_alone and locks().is_locked(self.lease.name, self.lease.token):
                self.retry_soon(OperationalError("Another transaction has locked its row."))
            else:
                self.lease.renew()
                if self.lease.stopped_by:
                    self._woken()
        except LeaseLost:
            self.due_at = float("inf")
            self._woken()
        except Exception as error:  # not a loss yet: the lease goes on, and the next heartbeat may get through
            self.retry_soon(error)

    def retry_soon(self, error: Exception) -> None:
        """Send the next one soon, because this one failed."""
        self.due_at = min(self.due_at, local_now() + min(self._interval / HURRY, 1.0))
        # No heartbeat gets through while the lease's own transaction is the only writer.
        if not (self.lease.is_only_writer or self.lease.is_over):
            message = "A heartbeat of %r failed and will be retried soon: %s"
            extra = self.lease.grant.facts(reason=error)
            logger.warning(message, self.lease.name, errors.words_of(error), extra=extra)

    def report_loss(self) -> None:
        """Report that the lease is lost, if that is news."""
        is_lost = self.lease.lost and not self.lease.is_over
        if is_lost and not self._is_loss_reported:
            loss = LeaseLost(self.lease.why_lost())
            logger.error("%s", loss, extra=self.lease.grant.facts(reason=loss))
            lease_lost.send_robust(sender=Lease, name=self.lease.name, lease=self.lease)
        self._is_loss_reported = is_lost


def _renew(due: list[_Heartbeat], *, is_alone: bool) -> None:
    for beat in due:
        beat.skip()
    for some in _in_groups([beat for beat in due if not beat.lease.is_over]):
        for beat in some if is_alone else _renew_together(some):
            beat.renew(is_alone=is_alone)


def _in_groups(due: Iterable[_Heartbeat]) -> Iterator[list[_Heartbeat]]:
    """Those of leases of one length, the shortest first, as many as one statement renews."""

    def length(beat: _Heartbeat) -> timedelta:
        return beat.length

    for _, group in groupby(sorted(due, key=length), length):
        alike = list(group)
        for start in range(0, len(alike), AT_ONCE):
            yield alike[start : start + AT_ONCE]


def _renew_together(some: list[_Heartbeat]) -> list[_Heartbeat]:
    """Renew these leases, which have one length, with one statement. Returns those that have to be renewed one by one:
    rows that are gone, or that wait for another transaction, must not hold up the others."""
    sent_at = local_now()
    leases = [beat.lease for beat in some]
    news = {lease.token: told for lease in leases if (told := lease.news()) is not None}
    try:
        with transactions.durable(transactions.alias()):
            renewed = locks().renew_together(leases, some[0].length, transactions.sent_now(), news)
    except Exception as error:
        if errors.is_connection_lost(error) or errors.is_transient(error):
            for beat in some:
                beat.retry_soon(error)
            return []
        return some  # one of the rows may be the reason
    for lease in leases:
        if lease.token in renewed:
            lease.proven(sent_at)
            lease.told(news.get(lease.token))
    return [beat for beat in some if beat.lease.token not in renewed]


# --- the thread of a process of your own


@contextmanager
def renewing(lease: Lease) -> Iterator[None]:
    """Send heartbeats during the block. Raises ``RuntimeError`` if no thread can be started."""
    thread = _of_this_process()
    thread.add(lease)
    try:
        yield
    finally:
        thread.remove(lease)


class _HeartbeatThread:
    """Sends the heartbeats of leases whose code runs in this process."""

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

    def add(self, lease: Lease) -> None:
        if lease.is_private:  # no other process can take it over
            return
        with self._mutex:
            self._heartbeats.add(lease)
            if self._thread is None or not self._thread.is_alive():
                try:
                    self._thread = start_thread(self._run, "heartbeats")
                except RuntimeError:
                    self.remove(lease)
                    raise
        self._calls.put(None)

    def remove(self, lease: Lease) -> None:
        self._heartbeats.remove(lease)

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


_own_thread = _HeartbeatThread()


def _of_this_process() -> _HeartbeatThread:
    """The thread. A forked child has no thread, even if C code has forked it, and keeps no lease of its parent."""
    global _own_thread  # noqa: PLW0603  (there is one in each process)
    if _own_thread.pid != os.getpid():
        _own_thread = _HeartbeatThread()
    return _own_thread
