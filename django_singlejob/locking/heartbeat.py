"""Sends heartbeats: those of all leases that are due, with one statement if the database can."""

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import timedelta
from itertools import groupby

from django_singlejob import database
from django_singlejob.clock import local_now
from django_singlejob.exceptions import LeaseLost
from django_singlejob.locking.crew import Crew
from django_singlejob.locking.lease import Lease
from django_singlejob.logs import about_grant
from django_singlejob.querysets.locks import locks

logger = logging.getLogger("django_singlejob")

# After a failed heartbeat, the next one follows this many times sooner.
HURRY = 4
# A heartbeat may be sent this part of an interval too soon, along with others.
EARLY = 1 / 4
# The most heartbeats of a lease that are under way. While the driver hangs, they hang with it, each with a thread and a
# connection.
MOST_BEATS = 6
# The most threads that send heartbeats. More than those of one lease: if its row is locked, or if its intervals are
# short, it must not use up the threads of the others.
MOST_SENDERS = 4 * MOST_BEATS
# The most leases that one statement renews. Each of them has two parameters, and SQLite may accept no more than 999.
AT_ONCE = 400


class Pulse:
    """The heartbeats of one lease: when the next one is due, and how many are under way."""

    def __init__(self, lease: Lease, wake: Callable[[], object]) -> None:
        self.lease = lease
        #: Whether its body is over.
        self.is_left = False
        #: Whether its heartbeat waits for a thread that sends it.
        self.is_waiting = False
        #: A load for each heartbeat that is under way.
        self.under_way: set[object] = set()
        self._wake = wake
        # No other process can take over a private lease, so there is nothing to keep.
        interval = None if lease.is_private else lease.grant.request.heartbeat_interval
        self.interval = interval.total_seconds() if interval else float("inf")
        self.due_at = local_now() + self.interval

    def is_due(self, now: float, early: float = 0.0) -> bool:
        """Whether one is due, or will be within the part ``early`` of an interval."""
        return self.due_at <= now + min(self.interval * early, 1e9) and not self.lease.is_over

    @property
    def length(self) -> timedelta:
        """How long its lease lasts without a heartbeat."""
        return self.lease.grant.request.lease

    def skip(self) -> None:
        """Wait for an interval until the next one."""
        self.due_at = local_now() + self.interval

    def stop(self) -> None:
        """Send no more of them: the lease is lost, or over."""
        self.due_at = float("inf")
        self._wake()

    def retry_soon(self, error: Exception) -> None:
        """Send the next one soon, because this one failed."""
        self.due_at = min(self.due_at, local_now() + min(self.interval / HURRY, 1.0))
        self._wake()
        self.log_failure(error)

    def log_failure(self, error: Exception) -> None:
        """Log that a heartbeat failed, unless none is needed."""
        # No heartbeat gets through while the lease's own transaction is the only writer.
        if not (self.is_left or self.lease.is_only_writer):
            message = "A heartbeat of %r failed and will be retried soon: %s"
            extra = about_grant(self.lease.grant, reason=error)
            logger.warning(message, self.lease.name, database.words_of(error), extra=extra)


class Heartbeats:
    """Sends the heartbeats of all leases of the process, in threads of their own.

    Usually there is one thread, and it ends when nothing has been due for a second. If it is held up for a heartbeat
    interval, as by a connection that is dead, the next thread sends what is due, on a connection of its own.
    """

    def __init__(self) -> None:
        # A dict, because any thread may take from it at any time.
        self._due: dict[Pulse, None] = {}
        self._senders = Crew("heartbeats", self._send, lambda: bool(self._due), MOST_SENDERS)

    def send(self, pulses: Iterable[Pulse]) -> float:
        """Have the heartbeats that are due sent. Only one thread may call this, and it does not wait for a database.

        Returns when to call again, as ``local_now()``. Raises ``RuntimeError`` if no thread can be started.
        """
        now = local_now()
        if any(pulse.is_due(now) for pulse in pulses):
            for pulse in pulses:
                if pulse.is_due(now, EARLY):
                    self._add(pulse)
        patience = min((pulse.interval for pulse in list(self._due)), default=0.0)
        return self._senders.see_to_it(patience)

    def _add(self, pulse: Pulse) -> None:
        pulse.skip()
        if len(pulse.under_way) < MOST_BEATS:
            pulse.is_waiting = True
            self._due[pulse] = None

    # --- in the threads that send

    def _send(self) -> None:
        load = object()
        pulses = list(self._taken(load))
        try:
            self._send_all(pulses, load)
        finally:
            # Whatever went wrong, a lease must not seem to have heartbeats under way for ever.
            for pulse in pulses:
                pulse.under_way.discard(load)

    def _send_all(self, pulses: Iterable[Pulse], load: object) -> None:
        alone: list[Pulse] = []
        for some in _in_groups(pulses):
            alone += self._send_together(some, load)
        # Last, because these may have to wait for their rows.
        for pulse in alone:
            send_alone(pulse)
            pulse.under_way.discard(load)

    def _taken(self, load: object) -> Iterator[Pulse]:
        with suppress(KeyError):
            while True:
                pulse, _ = self._due.popitem()
                pulse.under_way.add(load)
                pulse.is_waiting = False
                yield pulse

    def _send_together(self, pulses: list[Pulse], load: object) -> list[Pulse]:
        """Returns those that have to be sent one by one."""
        alone = _renew_together(pulses) if len(pulses) > 1 else pulses
        for pulse in set(pulses).difference(alone):
            pulse.under_way.discard(load)
        return alone


def renew(pulses: Iterable[Pulse]) -> None:
    """Send these heartbeats."""
    alone: list[Pulse] = []
    for some in _in_groups(pulses):
        alone += _renew_together(some) if len(some) > 1 else some
    for pulse in alone:
        send_alone(pulse)


def _in_groups(pulses: Iterable[Pulse]) -> Iterator[list[Pulse]]:
    """Those of leases of one length, the shortest first, as many as one statement renews."""

    def length(pulse: Pulse) -> timedelta:
        return pulse.length

    for _, group in groupby(sorted(pulses, key=length), length):
        alike = list(group)
        for start in range(0, len(alike), AT_ONCE):
            yield alike[start : start + AT_ONCE]


def _renew_together(pulses: list[Pulse]) -> list[Pulse]:
    """Renew these leases, which have one length, with one statement. Returns those that have to be renewed one by one:
    rows that are gone, or that wait for another transaction, must not hold up the others."""
    sent_at = local_now()
    try:
        with database.durable(database.alias()):
            renewed = locks().renew_together([pulse.lease for pulse in pulses], pulses[0].length, database.sent_now())
    except Exception as error:
        if database.is_connection_lost(error) or database.is_transient(error):
            for pulse in pulses:
                pulse.retry_soon(error)
            return []
        return pulses  # one of the rows may be the reason
    for pulse in pulses:
        if pulse.lease.token in renewed:
            pulse.lease.proven(sent_at)
    return [pulse for pulse in pulses if pulse.lease.token not in renewed]


def send_alone(pulse: Pulse) -> None:
    """Renew this lease. If that fails, its next heartbeat follows soon."""
    try:
        pulse.lease.renew()
    except LeaseLost:
        pulse.stop()
    except Exception as error:  # not a loss yet: the lease goes on, and the next heartbeat may get through
        pulse.retry_soon(error)
