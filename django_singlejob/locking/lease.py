"""What a holder has in hand: the right to run, for a time. Renewing it, distrusting it, writing behind its fence.

The protocol is two rows a name. The gate (``JobStatus``) lasts for ever, and carries the token of the last grant; the
lease (``JobLock``) exists while somebody holds the lock. Everything changes them in one order, gate, lease, run, so
nothing deadlocks. How a lease is granted stands in ``locking.grant``, and how it ends in ``locking.release``.

A lease expires by the database's clock; its holder counts by its own, from before it asked, so it distrusts itself
first (Gray and Cheriton 1989, "Leases"). The fence is the fencing token of Kleppmann 2016.
"""

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import islice
from threading import Event

from django.db import Error, connections, transaction

from django_singlejob import database
from django_singlejob.clock import backoff, local_now, sleep
from django_singlejob.exceptions import LeaseLost
from django_singlejob.interrupt import Window, interrupt_behind
from django_singlejob.locking.at_exit import forget
from django_singlejob.locking.grant import Grant
from django_singlejob.locking.release import Release
from django_singlejob.querysets.jobs import gates
from django_singlejob.querysets.locks import locks
from django_singlejob.results import Ending

logger = logging.getLogger("django_singlejob")

# A fenced transaction that is silent for so many leases is ended by the server: its holder is presumed stopped.
FENCE_LEASES = 10
# How often a failed fenced transaction looks whether somebody took the lock over, while others are in the way.
LOOKS = 3


class Lease:
    """The time-limited right to run, as its holder sees it.

    Attributes:
        name: the lock's name.
        token: identifies this acquisition.
        fence: an integer that grew with this grant. Hand it to systems outside this database, and let them refuse
            a smaller one than they have seen.
        acquired_at: when it was granted, by the database's clock (aware, UTC).
    """

    def __init__(self, grant: Grant) -> None:
        self.name = grant.request.name
        self.token = grant.token
        self.fence = grant.fence
        self.acquired_at = grant.acquired_at.astimezone(UTC)
        self.grant = grant
        self.is_private = database.is_private(database.alias())
        self._proven_at = grant.asked_at
        self._is_lost = False
        self._is_over = False
        # Whether a release is under way: it tells what has become of the row, and not a heartbeat that finds none.
        self._is_ending = False
        # Whether a release gave up behind a COMMIT whose answer never came.
        self._is_in_doubt = False
        self._own_transaction: Callable[[], bool] | None = None
        self._pid = os.getpid()

    def __repr__(self) -> str:
        return f"<Lease {self.name!r} fence={self.fence}>"

    @property
    def expires_at(self) -> datetime:
        """When it ends unless it is renewed, by the database's clock, as far as the holder knows."""
        return self.acquired_at + timedelta(seconds=self._proven_at - self.grant.asked_at) + self.grant.request.lease

    @property
    def deadline(self) -> float:
        """When the holder stops trusting itself, as ``local_now()``: a lease after it last asked with success."""
        # Nobody else can see a private row; and while our own transaction is the only writer, nobody takes over.
        if self.is_private or self.is_only_writer:
            return float("inf")
        return self._proven_at + self.grant.request.lease.total_seconds()

    @property
    def is_only_writer(self) -> bool:
        """Whether a fenced transaction keeps everybody else from writing, heartbeats too: one on SQLite."""
        own_transaction = self._own_transaction
        # The block or the database may have ended it.
        return own_transaction is not None and own_transaction()

    @property
    def lost(self) -> bool:
        """Whether the right is gone, or cannot be proven at the moment."""
        return self._is_lost or self._is_over or self.is_inherited or local_now() >= self.deadline

    @property
    def is_over(self) -> bool:
        """Whether it was released, or ended otherwise."""
        return self._is_over

    @property
    def is_inherited(self) -> bool:
        # A forked child has a copy of everything, and owns nothing.
        return os.getpid() != self._pid

    def check(self) -> None:
        """Raise ``LeaseLost`` unless the right can be trusted at this moment. Asks no database."""
        if self.lost:
            raise LeaseLost(self.why_lost())

    def prove(self) -> None:
        """``check``, before the job begins. A lease that is over, as in a process that was stopped since the grant, is
        renewed if the lock is still ours."""
        if self.lost and not (self._is_lost or self._is_over or self.is_inherited):
            with suppress(Error):
                self._beat()
        self.check()

    def why_lost(self) -> str:
        if self.is_inherited:
            return (
                f"The lease on {self.name!r} belongs to the parent process {self._pid}: a forked child holds nothing."
            )
        if self._is_lost:
            return f"The lease on {self.name!r} was lost: it was taken over, cleared, or its row was deleted."
        if self._is_over:
            return f"The lease on {self.name!r} was released."
        return (
            f"The lease on {self.name!r} could not be renewed for {self.grant.request.lease}: "
            "the database does not answer, and somebody else may run this job by now."
        )

    def renew(self) -> None:
        """Send a heartbeat now. Raises ``LeaseLost`` if the lock is no longer ours, and database errors as they are:
        they are no loss yet. Not inside a transaction: it would count only from the commit."""
        if self.is_inherited or self._is_over:
            raise LeaseLost(self.why_lost())
        database.refuse_open_transaction(database.alias())
        if not self._beat():
            raise LeaseLost(self.why_lost())

    def _beat(self) -> bool:
        sent_at = local_now()
        with database.durable(database.alias()):
            is_kept = self._renew_row()
        if is_kept:
            self._prove(sent_at)
        elif not (self._is_ending or self._is_over):
            self._is_lost = True
        return is_kept

    def _renew_row(self) -> bool:
        return locks().renew(self.name, self.token, self.grant.request.lease, database.sent_now())

    def _prove(self, sent_at: float) -> None:
        self._proven_at = max(self._proven_at, sent_at)

    def release(self) -> bool:
        """Release the lock; not inside a transaction. ``False``: it was no longer ours, and nothing was changed."""
        database.refuse_open_transaction(database.alias())
        with Window():
            return not self._is_over and self.finish()

    @contextmanager
    def atomic(self) -> Iterator[None]:
        """A transaction on the lock's own database during which nobody can take the lock over.

        Raises ``LeaseLost`` before anything is written if the lease is no longer ours: a holder that was stopped and
        woke too late cannot commit. Keep it short on SQLite, where it blocks every other writer. A transaction that is
        silent for ten leases is ended by PostgreSQL and MySQL, for its holder is presumed stopped.
        """
        if self.is_inherited or self._is_over or self._is_lost:
            raise LeaseLost(self.why_lost())
        alias = database.alias()
        database.refuse_open_transaction(alias)
        fenced = self._fenced_as_only_writer if database.has_one_writer(alias) else self._fenced
        with self._explained(alias), fenced(alias):
            yield

    @contextmanager
    def _explained(self, alias: str) -> Iterator[None]:
        """Raise what is behind an error of the database: an interrupt that cut a statement off, or a successor that
        was in the way."""
        try:
            yield
        except Error as error:
            if interrupt := interrupt_behind(error):
                raise interrupt from None
            if not database.is_undone(error) or self._has_the_gate(alias):
                raise
            self._is_lost = True
            raise LeaseLost(self.why_lost()) from error

    def _has_the_gate(self, alias: str) -> bool:
        """``True`` as well if that cannot be told."""
        if self.is_private or database.has_one_writer(alias):
            return True
        for pause in islice(backoff(), LOOKS):
            sleep(pause)
            # Not by a mere look: a node of a Galera cluster may still be applying what was in the way.
            with suppress(Error), database.durable(alias):
                if gates().is_at_hand(self.name):
                    return gates().hold(self.name, self.token)
        return True

    @contextmanager
    def _fenced(self, alias: str) -> Iterator[None]:
        with self._entered(alias):
            yield
            # Once more: what the block did may have ended the transaction, as DDL does on MySQL.
            if not transaction.get_rollback(using=alias):
                self._hold_the_gate()

    @contextmanager
    def _fenced_as_only_writer(self, alias: str) -> Iterator[None]:
        """Keeps our own heartbeats out, so its last statement is one: nobody comes in between the block and the next.

        The block has a savepoint of its own, for if it fails the heartbeat is committed all the same.
        """
        proven_at, is_committed = self._proven_at, Event()
        failure: BaseException | None = None
        try:
            with self._entered(alias):
                transaction.on_commit(is_committed.set, using=alias)
                with self._writing_alone(alias):
                    with transaction.atomic(using=alias):
                        try:
                            yield
                        except BaseException as error:
                            failure = error
                            transaction.set_rollback(True, using=alias)
                    if not transaction.get_rollback(using=alias):
                        self._renew_at_the_end(failure)
        except Error:
            if failure is None:
                raise
        finally:
            # What was proven inside counts from the commit on; in a TestCase there is none.
            if not (is_committed.is_set() or self.is_private or self._is_lost):
                self._proven_at = proven_at
                self._catch_up()
        if failure:
            raise failure

    def _catch_up(self) -> None:
        # Not renew(), whose LeaseLost could not be told from an interrupt that arrives meanwhile, and must go through.
        try:
            self._beat()
        except Error as error:
            logger.warning("The heartbeat after a fenced transaction of %r failed: %s", self.name, error)

    def _renew_at_the_end(self, failure: BaseException | None) -> None:
        sent_at = local_now()
        if self._renew_row():
            self._prove(sent_at)
        elif failure is None:
            self._is_lost = True
            raise LeaseLost(self.why_lost())

    def _entered(self, alias: str) -> ExitStack:
        """A transaction that holds the gate; the caller leaves it. If it fails before it holds the gate, nothing was
        written, so another one begins."""
        idle_timeout = self.grant.request.lease * FENCE_LEASES
        for pause in backoff():
            sleep(pause)
            try:
                with ExitStack() as block:
                    block.enter_context(database.durable(alias, lock_timeout=None, idle_timeout=idle_timeout))
                    self._hold_the_gate()
                    return block.pop_all()
            except Error as error:
                is_lost = database.is_connection_lost(error)
                if self.is_private or self.lost or not (is_lost or database.is_transient(error)):
                    raise
                if is_lost:
                    database.drop(alias)
        raise AssertionError("backoff() never ends")

    def _hold_the_gate(self) -> None:
        if not gates().hold(self.name, self.token):
            self._is_lost = True
            raise LeaseLost(self.why_lost())

    @contextmanager
    def _writing_alone(self, alias: str) -> Iterator[None]:
        self._own_transaction = partial(database.is_in_transaction, connections[alias])
        try:
            yield
        finally:
            # Before it ends: from then on others may come in.
            self._own_transaction = None

    def finish(self, ending: Ending | None = None, *, patience: timedelta | None = None) -> bool:
        """Release the lock and record how the run ended (``None``: there was no run). If the database does not answer,
        it is retried for ``patience``; ``None``: while the lease lasts.

        ``False``: the lock was not ours any more; then only our own run is still closed. Raises ``LeaseLost`` if the
        database could not be asked while the lease lasted.
        """
        if self.is_inherited:
            return False
        release = Release(
            self.grant,
            ending,
            deadline=self.deadline if patience is None else min(self.deadline, local_now() + patience.total_seconds()),
            is_lost=self._is_lost,
            is_private=self.is_private,
            is_in_doubt=self._is_in_doubt,
        )
        if self._is_over:
            database.leave_no_transaction(database.alias())
            is_kept = not self._is_lost
        else:
            is_kept = self._end(release)
        release.record_late("" if is_kept else self.why_lost())
        return is_kept

    def _end(self, release: Release) -> bool:
        self._is_ending = True
        try:
            is_kept = release.carry_out()
            # A heartbeat that is under way finds no row, and must not call that a loss.
            self._is_lost, self._is_over = not is_kept, True
        except LeaseLost:
            self._is_lost = True
            raise
        finally:
            self._is_in_doubt, self._is_ending = release.is_in_doubt, False
        forget(self.token)
        return is_kept
