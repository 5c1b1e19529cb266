"""Sends heartbeats, and finds out which leases are lost: those of the process, with one statement for all that are due.

The main thread of a supervisor, or the thread of ``locking.keeper``, calls ``Heartbeats.beat`` when one is due.
"""

import logging
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from itertools import groupby

from django.db import OperationalError

from django_singlejob.database import errors, transactions
from django_singlejob.exceptions import LeaseLost
from django_singlejob.locking.lease import Lease
from django_singlejob.models.locks import locks
from django_singlejob.process.clock import local_now
from django_singlejob.signals import lease_lost

logger = logging.getLogger("django_singlejob")

# After a failed heartbeat, the next one follows this many times sooner.
HURRY = 4
# A heartbeat may be sent this part of an interval too soon, along with others.
EARLY = 1 / 4
# The most leases that one statement renews. Each of them has four parameters, and SQLite may accept no more than 999.
AT_ONCE = 200


class Heartbeats:
    """The leases that one thread keeps. Others may come and go in any thread, at any time.

    ``woken`` is called when a lease may be lost, or its run is to be stopped.
    """

    def __init__(self, woken: Callable[[], object] = lambda: None) -> None:
        self._kept: dict[Lease, _Kept] = {}
        self._woken = woken

    def __contains__(self, lease: Lease) -> bool:
        return lease in self._kept

    @property
    def are_needed(self) -> bool:
        """Whether any lease is kept."""
        return bool(self._kept)

    @property
    def next_at(self) -> float:
        """When there is something to do, as ``local_now()``."""
        return min((kept.next_at for kept in list(self._kept.values())), default=float("inf"))

    def keep(self, lease: Lease) -> None:
        """Keep this lease alive from now on."""
        self._kept.setdefault(lease, _Kept(lease, self._woken))

    def leave(self, lease: Lease) -> None:
        """Keep this lease alive no longer."""
        self._kept.pop(lease, None)

    def beat(self) -> None:
        """Send the heartbeats that are due, and report the leases that are lost."""
        all_kept, now = list(self._kept.values()), local_now()
        if any(kept.due_at <= now for kept in all_kept):
            # Those that are almost due go along.
            _renew([kept for kept in all_kept if kept.due_at <= now + kept.early], is_alone=len(all_kept) == 1)
        for kept in all_kept:
            if kept.lease in self._kept:
                kept.report_loss()


class _Kept:
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
        for a row that is locked: MySQL waits for almost a minute, and others would expire meanwhile."""
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


def _renew(due: list[_Kept], *, is_alone: bool) -> None:
    for kept in due:
        kept.skip()
    for some in _in_groups([kept for kept in due if not kept.lease.is_over]):
        for kept in some if is_alone else _renew_together(some):
            kept.renew(is_alone=is_alone)


def _in_groups(due: Iterable[_Kept]) -> Iterator[list[_Kept]]:
    """Those of leases of one length, the shortest first, as many as one statement renews."""

    def length(kept: _Kept) -> timedelta:
        return kept.length

    for _, group in groupby(sorted(due, key=length), length):
        alike = list(group)
        for start in range(0, len(alike), AT_ONCE):
            yield alike[start : start + AT_ONCE]


def _renew_together(some: list[_Kept]) -> list[_Kept]:
    """Renew these leases, which have one length, with one statement. Returns those that have to be renewed one by one:
    rows that are gone, or that wait for another transaction, must not hold up the others."""
    sent_at = local_now()
    leases = [kept.lease for kept in some]
    news = {lease.token: told for lease in leases if (told := lease.news()) is not None}
    try:
        with transactions.durable(transactions.alias()):
            renewed = locks().renew_together(leases, some[0].length, transactions.sent_now(), news)
    except Exception as error:
        if errors.is_connection_lost(error) or errors.is_transient(error):
            for kept in some:
                kept.retry_soon(error)
            return []
        return some  # one of the rows may be the reason
    for lease in leases:
        if lease.token in renewed:
            lease.proven(sent_at)
            lease.told(news.get(lease.token))
    return [kept for kept in some if kept.lease.token not in renewed]
