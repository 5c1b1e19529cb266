"""What a holder has in hand: the right to run for a limited time, with its renewal, its loss and its fence.

The protocol uses two rows for each name. The gate (``JobStatus``) is permanent and carries the token of the last grant.
The lease (``JobLock``) exists while a process holds the lock. All code changes them in one order (gate, lease, run), so
nothing deadlocks. ``locking.grant`` describes how a lease is granted, and ``locking.release`` how it ends.

A lease expires by the database's clock. Its holder counts by its own clock, from before it asked, so it is the first to
distrust itself (Gray and Cheriton 1989, "Leases"). The fence is the fencing token of Kleppmann 2016.
"""

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import islice
from typing import Any

from django.db import Error, connections, transaction

from django_singlejob.database import errors, transactions
from django_singlejob.database.errors import interrupt_behind
from django_singlejob.exceptions import JobStopped, JobTimeout, LeaseLost
from django_singlejob.jobs.schedule import duration_in_words
from django_singlejob.locking.at_exit import forget, release_granted
from django_singlejob.locking.endings import Ending
from django_singlejob.locking.grant import Grant
from django_singlejob.locking.release import Release
from django_singlejob.models.jobs import gates
from django_singlejob.models.locks import locks
from django_singlejob.process.clock import backoff, local_now, sleep
from django_singlejob.process.progress import Progress
from django_singlejob.process.received_signals import of_this_thread, without_signals

logger = logging.getLogger("django_singlejob")

# The database server ends a fenced transaction that is silent for this many leases: its holder is presumed stopped.
FENCE_LEASES = 10
# How many times a failed fenced transaction checks whether the lock was taken over, while others are in the way.
LOOKS = 3


class LeaseState:
    """What changes about a lease. A supervisor and its child keep it in memory that both of them see.

    Attributes:
        proven_at: when the last successful request was sent, as ``local_now()``.
        is_lost: whether the lock is known to be another's, or nobody's.
        is_ending: whether a release is under way. It decides what happened to the row, not a heartbeat that finds none.
        is_over: whether the lease was released, or ended in another way.
        is_only_writer: whether the child is in a fenced transaction that keeps its supervisor from writing.
        stopped_by: the user who has asked to stop the run; empty if nobody has, as far as is known.
        progress: how far the run is, as it has said itself.
        output: the end of what it has printed; empty if that is not known.
    """

    stopped_by: str = ""
    progress: Progress = Progress()
    output: str = ""
    #: Whether a heartbeat with news has not got through, as far as is known.
    is_reserved = False
    # What is recorded.
    _told: Mapping[str, Any] = Progress().stored

    def __init__(self, proven_at: float) -> None:
        self.proven_at = proven_at
        self.is_lost = self.is_ending = self.is_over = self.is_only_writer = False

    def begin_as(self, other: "LeaseState") -> None:
        """Take over what is known when the body begins."""
        self.proven_at, self.is_lost, self.is_over = other.proven_at, other.is_lost, other.is_over
        self.stopped_by = other.stopped_by

    @property
    def progress_with_output(self) -> Progress:
        """How far the run is, with the end of what it has printed."""
        return self.progress._replace(output=self.output)

    def news(self) -> Mapping[str, Any] | None:
        """The progress, for a heartbeat to record. ``None`` if it has not changed, or if a heartbeat with news has just
        failed: perhaps the database refuses them, and the lease must be kept."""
        progress = self.progress_with_output.stored
        return None if self.is_reserved or progress == self._told else progress

    def told(self, news: Mapping[str, Any] | None) -> None:
        """Take note that a heartbeat has got through, with these news."""
        self.is_reserved = False
        if news is not None:
            self._told = news


class Lease:
    """The time-limited right to run, as its holder sees it.

    Attributes:
        name: the lock's name.
        token: identifies this acquisition.
        fence: an integer that grew with this grant. Pass it to systems outside this database, and let them refuse
            a smaller one than they have already seen.
        acquired_at: when it was granted, by the database's clock (aware, UTC).
    """

    def __init__(self, grant: Grant) -> None:
        self.name = grant.request.name
        self.token = grant.token
        self.fence = grant.fence
        self.acquired_at = grant.acquired_at.astimezone(UTC)
        self.grant = grant
        self.is_private = transactions.is_private(transactions.alias())
        self._state = LeaseState(grant.asked_at)
        # Whether a release gave up after a COMMIT whose answer never came.
        self._is_in_doubt = False
        # Why it is not known whether the lock was released, or that it was not; empty if no release failed.
        self._unreleased = ""
        self._own_transaction: Callable[[], bool] | None = None
        #: How long the run may take, in seconds, and when that is over, as ``local_now()``.
        self.max_runtime = self.runtime_ends_at = float("inf")
        #: What ``check()`` has raised where signals raise, too. They need not raise the same once more.
        self.raised: type[Exception] | None = None
        self._pid = os.getpid()

    @classmethod
    def of_supervisor(cls, grant: Grant, state: LeaseState) -> "Lease":
        """In another process that the holder has started: the lease that it has in hand, with what it says of it."""
        lease = cls(grant)
        lease._state = state
        return lease

    def __repr__(self) -> str:
        return f"<Lease {self.name!r} fence={self.fence}>"

    @property
    def expires_at(self) -> datetime:
        """When the lease expires unless it is renewed, by the database's clock, as far as the holder knows."""
        return (
            self.acquired_at + timedelta(seconds=self._state.proven_at - self.grant.asked_at) + self.grant.request.lease
        )

    @property
    def deadline(self) -> float:
        """When the holder stops trusting itself, as ``local_now()``: one lease after it sent its last successful
        request."""
        # No other process can see a private row, and none can take over while our own transaction is the only writer.
        if self.is_private or self.is_only_writer:
            return float("inf")
        return self._state.proven_at + self.grant.request.lease.total_seconds()

    @property
    def is_only_writer(self) -> bool:
        """Whether a fenced transaction keeps everything else from writing, even heartbeats, as on SQLite."""
        own_transaction = self._own_transaction
        # The block or the database may have ended it.
        return self._state.is_only_writer if own_transaction is None else own_transaction()

    @property
    def lost(self) -> bool:
        """Whether the right to run is gone, or cannot be proven at the moment."""
        return self._state.is_lost or self._state.is_over or self.is_inherited or local_now() >= self.deadline

    @property
    def is_over(self) -> bool:
        """Whether the lease was released, or ended in another way."""
        return self._state.is_over

    @property
    def is_inherited(self) -> bool:
        # A forked child has a copy of everything, and owns nothing.
        return os.getpid() != self._pid

    @property
    def stopped_by(self) -> str:
        """The user who has asked to stop the run; empty if nobody has, as far as the last heartbeat knows."""
        return self._state.stopped_by

    @property
    def progress(self) -> Progress:
        """How far the run is."""
        return self._state.progress_with_output

    def take_progress(self, progress: Progress) -> None:
        """Have the next heartbeat record how far the run is."""
        self._state.progress = progress

    def share(self, state: LeaseState) -> None:
        """Keep what changes in ``state`` from now on, which another process may see and change."""
        state.begin_as(self._state)
        self._state = state

    def distrust(self) -> None:
        """Take note that the lock was seen to be another's, or nobody's."""
        self._state.is_lost = True

    def check(self) -> None:
        """Raise ``LeaseLost`` unless the lease can be trusted at this moment, ``JobStopped`` if a user has stopped the
        run, and ``JobTimeout`` if it has taken longer than its ``max_runtime``. Does not query the database."""
        if error := self._why_to_end():
            self.raised = type(error) if of_this_thread() else self.raised
            raise error

    def _why_to_end(self) -> Exception | None:
        if self.lost:
            return LeaseLost(self.why_lost())
        if self.stopped_by:
            return JobStopped(self.stopped_by)
        return JobTimeout() if local_now() >= self.runtime_ends_at else None

    def prove(self) -> None:
        """Raise ``LeaseLost`` unless the lease can be trusted, before the job starts. A lease that has expired, for
        example because the process was stopped after the grant, is renewed if the lock is still ours."""
        if self.lost and not (self._state.is_lost or self._state.is_over or self.is_inherited):
            with suppress(Error):
                self._beat()
        if self.lost:
            raise LeaseLost(self.why_lost())

    def why_lost(self) -> str:
        if self.is_inherited:
            return (
                f"The lease on {self.name!r} belongs to the parent process {self._pid}: a forked child holds nothing."
            )
        if self._unreleased:
            return self._unreleased
        if self._state.is_lost:
            return f"The lease on {self.name!r} was lost: it was taken over, cleared, or its row was deleted."
        if self._state.is_over:
            return f"The lease on {self.name!r} was released."
        length = duration_in_words(self.grant.request.lease)
        return (
            f"The lease on {self.name!r} was not renewed for {length}: this process was suspended, or the database did "
            "not answer. Another process may be running this job by now."
        )

    def renew(self) -> None:
        """Send a heartbeat now. Do not call this inside a transaction, where it would count only from the commit.

        Raises ``LeaseLost`` if the lock is no longer ours. Database errors pass through: they are not a loss yet.
        """
        if self.is_inherited or self._state.is_over:
            raise LeaseLost(self.why_lost())
        transactions.refuse_open_transaction(transactions.alias())
        if not self._beat():
            raise LeaseLost(self.why_lost())

    def _beat(self) -> bool:
        sent_at, news, known = local_now(), self.news(), self.stopped_by
        self._state.is_reserved = news is not None
        with transactions.durable(transactions.alias()):
            is_kept = self._renew_row(news)
        self.told(news)  # not before the commit
        if self.stopped_by != known:
            message = "The run of %r has to end: it was stopped by %s."
            logger.warning(message, self.grant.request.own_name, self.stopped_by, extra=self.grant.facts())
        if is_kept:
            self.proven(sent_at)
        elif not (self._state.is_ending or self._state.is_over):
            self._state.is_lost = True
        return is_kept

    def _renew_row(self, news: Mapping[str, Any] | None) -> bool:
        is_kept = self._renew_marked(news, self.stopped_by)
        if not is_kept and (mark := locks().stopped_by(self.name, self.token)):
            self._state.stopped_by = mark
            is_kept = self._renew_marked(news, mark)
        return is_kept

    def _renew_marked(self, news: Mapping[str, Any] | None, mark: str) -> bool:
        """Record a heartbeat if the row's mark is this one. This is the one statement of an ordinary heartbeat."""
        lease, sent_at = self.grant.request.lease, transactions.sent_now()
        return locks().renew(self.name, self.token, lease, sent_at, news=news, stopped_by=mark)

    def news(self) -> Mapping[str, Any] | None:
        """What is new about the progress, see ``LeaseState.news``."""
        return self._state.news()

    def told(self, news: Mapping[str, Any] | None) -> None:
        """Take note that a heartbeat has recorded these news."""
        self._state.told(news)

    def proven(self, sent_at: float) -> None:
        """Count the lease from this instant, at which a successful heartbeat was sent."""
        self._state.proven_at = max(self._state.proven_at, sent_at)

    def release(self) -> bool:
        """Release the lock; not inside a transaction. ``False`` if it was no longer ours: then nothing was changed."""
        transactions.refuse_open_transaction(transactions.alias())
        return not self._state.is_over and self.finish()

    @contextmanager
    def atomic(self) -> Iterator[None]:
        """A transaction on the lock's own database during which no other process can take over the lock.

        Raises ``LeaseLost`` before anything is written if the lease is no longer ours: a holder that was stopped and
        resumed too late cannot commit. Keep it short on SQLite, where it blocks every other writer. PostgreSQL and
        MySQL end a transaction that is silent for ten leases, since its holder is presumed stopped.
        """
        if self.is_inherited or self._state.is_over or self._state.is_lost:
            raise LeaseLost(self.why_lost())
        alias = transactions.alias()
        transactions.refuse_open_transaction(alias)
        fenced = self._fenced_as_only_writer if transactions.has_one_writer(alias) else self._fenced
        with self._explained(alias), fenced(alias):
            yield

    @contextmanager
    def _explained(self, alias: str) -> Iterator[None]:
        """Raise the cause of a database error: an interrupt that cut off a statement, or a successor that was in the
        way."""
        try:
            yield
        except Error as error:
            if interrupt := interrupt_behind(error):
                raise interrupt from None
            if not errors.is_undone(error) or self._has_the_gate(alias):
                raise
            self._state.is_lost = True
            raise LeaseLost(self.why_lost()) from error

    def _has_the_gate(self, alias: str) -> bool:
        """Whether no other caller has passed the gate since our grant. Also ``True`` if that cannot be determined."""
        if self.is_private or transactions.has_one_writer(alias):
            return True
        for pause in islice(backoff(), LOOKS):
            sleep(pause)
            # Reading the row is not enough: a Galera node may still be applying the write that was in the way.
            with suppress(Error), transactions.durable(alias):
                if gates().is_at_hand(self.name):
                    return gates().hold(self.name, self.token)
        return True

    @contextmanager
    def _fenced(self, alias: str) -> Iterator[None]:
        with self._entered(alias):
            yield
            # Once more, because the block may have ended the transaction, as DDL does on MySQL.
            if not transaction.get_rollback(using=alias):
                self._hold_the_gate()

    @contextmanager
    def _fenced_as_only_writer(self, alias: str) -> Iterator[None]:
        """Like ``_fenced``, but keeps even our own heartbeats out. So its last statement is one, or if the block fails,
        a heartbeat follows at once: otherwise a caller that waits could take the lock before the next one."""
        proven_at, is_kept = self._state.proven_at, self.is_private
        try:
            with self._entered(alias), self._writing_alone(alias):
                yield
                if not transaction.get_rollback(using=alias):
                    self._renew_at_the_end()
                    is_kept = True
        except BaseException:
            is_kept = self.is_private
            raise
        finally:
            if not (is_kept or self._state.is_lost):
                self._state.proven_at = proven_at  # what was proven inside counts only from the commit on
                self._catch_up()

    def _renew_at_the_end(self) -> None:
        sent_at = local_now()
        if not self._renew_row(None):
            self._state.is_lost = True
            raise LeaseLost(self.why_lost())
        self.proven(sent_at)

    def _catch_up(self) -> None:
        # Not renew(): its LeaseLost would replace what the block has raised.
        try:
            self._beat()
        except Error as error:
            message = "The heartbeat after a fenced transaction of %r failed: %s"
            logger.warning(message, self.name, errors.words_of(error), extra=self.grant.facts(reason=error))

    def _entered(self, alias: str) -> ExitStack:
        """An open transaction that holds the gate; the caller closes it. If one fails before it holds the gate, nothing
        was written, so another one is begun."""
        idle_timeout = self.grant.request.lease * FENCE_LEASES
        for pause in backoff():
            sleep(pause)
            try:
                with ExitStack() as block:
                    block.enter_context(transactions.fenced(alias, idle_timeout))
                    self._hold_the_gate()
                    return block.pop_all()
            except Error as error:
                is_lost = errors.is_connection_lost(error)
                if self.is_private or self.lost or not (is_lost or errors.is_transient(error)):
                    raise
                if is_lost:
                    transactions.drop(alias)
        raise AssertionError("backoff() never ends")

    @contextmanager
    def only_writer(self) -> Iterator[None]:
        """Trust the lease during the block, until it is seen to be lost. On SQLite, a body with long transactions keeps
        even its own heartbeats out, but nobody else can take the lock meanwhile, either."""
        self._state.is_only_writer = True
        try:
            yield
        finally:
            self._state.is_only_writer = False

    def _hold_the_gate(self) -> None:
        if not gates().hold(self.name, self.token):
            self._state.is_lost = True
            raise LeaseLost(self.why_lost())

    @contextmanager
    def _writing_alone(self, alias: str) -> Iterator[None]:
        self._own_transaction = partial(transactions.is_in_transaction, connections[alias])
        self._state.is_only_writer = True
        try:
            yield
        finally:
            # Before the transaction ends: from then on, others may write.
            self._state.is_only_writer = False
            self._own_transaction = None

    def finish(
        self,
        ending: Ending | None = None,
        *,
        patience: timedelta | None = None,
        pause: Callable[[float], object] = sleep,
    ) -> bool:
        """Release the lock and record how the run ended (``None`` if there was no run). If the database does not
        answer, retry for ``patience``, or until the lease expires if it is ``None``. ``pause`` is called
        with the seconds to wait before another try.

        Returns ``False`` if the lock was no longer ours: then only our own run's row is closed. Raises ``LeaseLost`` if
        the database could not be reached while the lease lasted.
        """
        if self.is_inherited:
            return False
        deadline = self.deadline if patience is None else min(self.deadline, local_now() + patience.total_seconds())
        if self._state.is_lost and not self._unreleased:
            deadline = float("-inf")  # it knows that it lost the lock
        release = Release(self.grant, ending, deadline, is_in_doubt=self._is_in_doubt)
        if not self._state.is_over:
            with without_signals():
                self._end(release, pause)
        else:
            transactions.leave_no_transaction(transactions.alias())
            release.write_more()
        forget(self.token)  # also if a child has released it
        if ending and ending.was_begun and self.grant.entry and not release.is_recorded:
            # Without the lock, we may write only our own run's row.
            end = ending.without_lease(self.why_lost()) if self._state.is_lost else ending
            self.grant.entry.end_late(end.result)
        return not self._state.is_lost

    def _end(self, release: Release, pause: Callable[[float], object]) -> None:
        self._state.is_ending = True
        try:
            is_kept = release.carry_out(pause, is_private=self.is_private)
            # A heartbeat that is under way finds no row, and must not report that as a loss.
            self._state.is_lost, self._state.is_over, self._unreleased = not is_kept, True, ""
        except LeaseLost as loss:
            self._distrust(str(loss))
            raise
        except BaseException as error:
            # An interrupt, or an error that no database raises. It goes through, and says nothing about the lock.
            unreleased = f"It is not known whether the lock {self.name!r} was released: {error!r} came in between."
            self._distrust(unreleased)
            logger.warning("%s", unreleased, extra=self.grant.facts(reason=error))
            # Signals wait for the release, except one that comes again and again. If it cut this off, try once more.
            release_granted(self.token)
            raise
        finally:
            self._is_in_doubt, self._state.is_ending = release.is_in_doubt, False

    def _distrust(self, unreleased: str) -> None:
        """Trust the lease no more after a release that failed."""
        if not self._state.is_lost:
            self._state.is_lost, self._unreleased = True, unreleased
