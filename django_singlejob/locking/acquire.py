"""How a lease is granted: look, watch, plan, pass the gate, insert the row.

A caller that loses usually reads one row and writes nothing. Each time an acquisition asks, it gets one of four
answers: a ``Lease``, a ``Refusal``, or one of the two ``Undecided`` values. One place decides whether to retry.
"""

import logging
import uuid
from collections.abc import Callable
from datetime import datetime, timedelta
from enum import Enum, auto
from typing import TYPE_CHECKING

from django.db import Error

from django_singlejob.conf import ZERO, options
from django_singlejob.database import errors, transactions
from django_singlejob.database.timeline import known_for
from django_singlejob.database.unusable import refusal, refused, unreachable
from django_singlejob.exceptions import DatabaseUnreachable, DatabaseUnusable, SingleJobError, UnreadableRow
from django_singlejob.jobs.slots import Claim
from django_singlejob.locking import single_statement
from django_singlejob.locking.at_exit import announce, forget, release_granted
from django_singlejob.locking.grant import Grant, Granting
from django_singlejob.locking.lease import Lease
from django_singlejob.locking.liveness import (
    LONGEST_STAY,
    LONGEST_WATCH,
    WATCHED_INTERVALS,
    Watch,
    disagreement,
    silence,
)
from django_singlejob.locking.plan import PlannedRun, Snapshot, plan
from django_singlejob.locking.position import follow, is_followed, pass_by, report_misfires
from django_singlejob.locking.recording import Writer, writers
from django_singlejob.locking.request import LockRequest, Reason, Refusal
from django_singlejob.models.jobs import gates
from django_singlejob.models.locks import locks
from django_singlejob.process.clock import backoff, local_now, since, sleep, utc_now
from django_singlejob.process.logs import about
from django_singlejob.process.received_signals import is_shutdown_requested, kept_out
from django_singlejob.signals import lock_taken_over

if TYPE_CHECKING:
    from django_singlejob.models import JobLock, JobStatus

logger = logging.getLogger("django_singlejob")

# How long to retry while others are in the way or the database does not answer, in seconds.
PERSEVERANCE = 5.0
IN_THE_WAY = "others changed its rows each time, or are inside a fenced transaction"
IN_DOUBT = "but it is not known whether the lock was granted: if it was, it is left to expire"


def acquire(request: LockRequest, pause: Callable[[float], object] | None = None) -> Lease | Refusal:
    """Ask for the lock. Waits up to ``request.wait``, and as long as it takes to see that a stale holder is dead.
    ``pause`` is called with the seconds to wait, instead of ``sleep``.

    Raises ``UnsafeTransaction`` inside a transaction, ``DatabaseUnreachable`` if the database does not answer, and
    ``DatabaseUnusable`` if it refuses.
    """
    acquisition = Acquisition(request)
    while isinstance(answer := acquisition.ask(), float):
        acquisition.wait(answer, pause)
    return answer


class Undecided(Enum):
    """Nothing is decided yet: ask again."""

    #: Others, or the database, were in the way. If this goes on for too long, the acquisition gives up.
    RACED = auto()
    #: A holder that may be alive is given time to send a heartbeat.
    WATCHING = auto()


class Acquisition:
    """One acquisition: one token, no matter how often it has to ask."""

    def __init__(self, request: LockRequest) -> None:
        self.request = request
        self.token = uuid.uuid4()
        self._give_up_at = local_now() + request.wait.total_seconds()
        self._watch = Watch()
        self._pauses = backoff()
        self._longest_pause = float("inf")
        #: Since when others, or the database, have been in the way each time; ``None`` if they are not.
        self._trouble_since: float | None = None
        #: What the database may have granted: the COMMIT was sent, but the caller does not have the lease in hand yet.
        self._in_doubt: Grant | None = None
        #: Whether one statement may be tried: not after an error in one.
        self._is_single = single_statement.is_chosen()
        self._is_history_slow = False
        self._logged: set[str] = set()

    def ask(self) -> Lease | Refusal | float:
        """Ask once. A number means that nothing is decided yet: ask again after that many seconds."""
        transactions.refuse_open_transaction(transactions.alias(), is_of_job=bool(self.request.job_name))
        announce(self.token, self.request.name)
        try:
            with kept_out():
                answer = self._ask_despite_trouble()
        except Exception as error:
            if not self._in_doubt:
                forget(self.token)
            elif isinstance(error, DatabaseUnusable) or not isinstance(error, SingleJobError):
                release_granted(self.token)
            raise
        except BaseException:
            # It may have come after a COMMIT, as a Ctrl-C during one does.
            release_granted(self.token)
            raise
        if isinstance(answer, Lease):
            self._in_doubt = None
            return answer
        return self._end_or_go_on(answer)

    def wait(self, seconds: float, pause: Callable[[float], object] | None = None) -> None:
        """Wait until it is time to ask again. Nothing is granted meanwhile, so a signal may raise here."""
        try:
            (pause or sleep)(seconds)
        except BaseException:
            self.leave_nothing()
            raise

    def leave_nothing(self) -> bool:
        """Release what may have been granted. ``False`` if that is uncertain: the lock, if any, is left to expire."""
        is_certain = not self._in_doubt or release_granted(self.token)
        forget(self.token)
        return is_certain

    def _end_or_go_on(self, answer: Refusal | Undecided) -> Refusal | float:
        """End with a refusal, or ask again: while there is patience left, the holder may release the lock."""
        if isinstance(answer, Refusal) and (self._is_patience_over or not answer.may_be_held):
            self.leave_nothing()
            return answer
        if is_shutdown_requested():
            return Refusal(Reason.INTERRUPTED, detail="" if self.leave_nothing() else IN_DOUBT)
        return min(next(self._pauses), self._longest_pause)

    @property
    def _is_patience_over(self) -> bool:
        return local_now() >= self._give_up_at

    def _ask_despite_trouble(self) -> Lease | Refusal | Undecided:
        error: Error | None = None
        try:
            answer = self._ask()
        except UnreadableRow as row:
            return Refusal(Reason.UNDECIDED, detail=str(row))
        except Error as problem:
            self._raise_unless_retryable(problem)
            error, answer = problem, Undecided.RACED
        except Exception as problem:  # Django and the drivers raise many kinds if DATABASES is wrong
            if unusable := refusal(problem, f"{self._undone}: ", job_name=self.request.job_name):
                raise unusable from problem
            raise
        if answer is not Undecided.RACED:
            self._trouble_since = None
            return answer
        self._trouble_since = self._trouble_since or local_now()
        return self._give_up(error) if local_now() - self._trouble_since > PERSEVERANCE else answer

    def _raise_unless_retryable(self, error: Error) -> None:
        """Raise the error, unless a retry may succeed."""
        alias = transactions.alias()
        if errors.is_connection_lost(error):
            if transactions.is_private(alias):
                raise error
            # We do not know whether we were granted the lock. The next look shows it: the row would have our token.
            transactions.drop(alias)
        elif not errors.is_transient(error) and not errors.is_duplicate(error):
            raise self._refused(error) from error

    def _refused(self, error: Error) -> DatabaseUnusable:
        return refused(error, f"{self._undone}: ", job_name=self.request.job_name)

    @property
    def _undone(self) -> str:
        """What was not done, for a message."""
        request = self.request
        return (
            f"{request.job_name!r} was not run" if request.job_name else f"the lock {request.name!r} was not acquired"
        )

    def _give_up(self, error: Error | None) -> Refusal:
        """Give up after too much trouble. An acquisition that cannot be decided is never "acquired"."""
        # A database that is read-only may be in the middle of a failover.
        if error and (errors.is_duplicate(error) or (errors.lack(error) and self._is_patience_over)):
            raise self._refused(error) from error
        words = errors.words_of(error) if error else ""
        if error and not errors.is_undone(error) and self._is_patience_over:
            undone = f", so {self.request.own_name!r} was not run"
            raise DatabaseUnreachable(unreachable(error, undone)) from error
        obstacle = f"others were in the way each time ({words})" if words else IN_THE_WAY
        return Refusal(Reason.UNDECIDED, detail=f"retried for {PERSEVERANCE:.0f} seconds, but {obstacle}")

    def _ask(self) -> Lease | Refusal | Undecided:
        if self._is_single and not self._in_doubt:
            asked_at, history = local_now(), next(writers(self.request.lease))
            if single_statement.is_ordinary_grant(self.request, history):
                return self._ask_at_once(asked_at, history)
        return self._look_and_ask()

    def _ask_at_once(self, asked_at: float, history: Writer) -> Lease | Refusal | Undecided:
        """Ask with one statement. If it finds the rows out of the ordinary, the portable path goes on."""
        self._in_doubt = grant = single_statement.requested(self.request, self.token)
        self._is_single = False  # until there is an answer
        try:
            answer = single_statement.ask(grant, history)
        except Error as error:
            self._is_history_slow = grant.entry is not None and single_statement.took_long(asked_at, history)
            if single_statement.was_undone(error):
                self._in_doubt = None
            if errors.is_connection_lost(error) or errors.is_transient(error) or errors.is_duplicate(error):
                raise
        else:
            self._is_single, self._in_doubt = True, answer.grant
            return self._answered(asked_at, answer)
        return self._look_and_ask()

    def _answered(self, asked_at: float, answer: single_statement.Answer) -> Lease | Refusal | Undecided:
        if answer.grant:
            lease = Lease(answer.grant)
            return Undecided.RACED if lease.lost else lease  # as in _grant
        if answer.lock and self._watch.look(answer.lock, asked_at) is None:
            return self._held(answer.lock)
        return self._look_and_ask()

    def _look_and_ask(self) -> Lease | Refusal | Undecided:
        asked_at = local_now()
        lock = locks().look_up(self.request.name)
        if lock and lock.token == self.token:
            return self._adopt(lock, self._snapshot(lock))
        left = self._watch.look(lock, asked_at) if lock else ZERO
        if lock and left is None:
            return self._held(lock)
        snapshot = self._snapshot(lock)
        if self._in_doubt and self._in_doubt.is_superseded(snapshot.gate):
            self._start_over()
        planned = self._plan(snapshot)
        if not isinstance(planned, PlannedRun):
            return planned
        if lock and left:
            return self._watch_on(lock, left)
        if rest := self._rest_after_failover(snapshot.gate):
            self._longest_pause = rest.total_seconds()
            return Undecided.WATCHING
        return self._grant(snapshot, planned) or Undecided.RACED

    def _held(self, lock: "JobLock") -> Refusal:
        self._longest_pause = float("inf")
        return Refusal(Reason.HELD, lock)

    def _start_over(self) -> None:
        """Take a new token, because the history may have recorded the run of the old one as abandoned."""
        forget(self.token)
        self.token = uuid.uuid4()
        announce(self.token, self.request.name)
        self._in_doubt = None

    def _snapshot(self, lock: "JobLock | None") -> Snapshot:
        names = {self.request.name, self.request.own_name}
        found = gates().look_up(names, self.request.min_interval)
        if missing := names - found.keys():
            gates().remember(*missing)
            found = gates().look_up(names, self.request.min_interval)
        return Snapshot(lock, found[self.request.name], found[self.request.own_name], local_now())

    def _plan(self, snapshot: Snapshot) -> PlannedRun | Refusal | Undecided:
        """The run to start. If the schedule has to move first, or instead, this moves it."""
        own, early, policy = snapshot.own, self.request.early, self.request.due_policy
        if policy and not is_followed(own, policy.schedule):
            follow(own, policy.schedule, own.now, early)
            return Undecided.RACED
        if policy and not own.paused:
            self._compare_clocks(own.now)
        planned = plan(self.request, snapshot)
        if not isinstance(planned, Claim):
            return planned
        return Refusal(Reason.NOT_DUE, next_slot=planned.next_slot) if pass_by(own, planned) else Undecided.RACED

    def _compare_clocks(self, database_now: datetime) -> None:
        """Warn of a wrong clock: a lone server that is off by just the tolerance would run no slot at all."""
        error = utc_now() - database_now
        if self.request.early and abs(error) > options().slot_tolerance / 2:
            self._log_once(
                logging.WARNING,
                "This server's clock is %.0f seconds off the database's, and cron uses it. Synchronize both with NTP.",
                error.total_seconds(),
            )

    def _log_once(self, level: int, message: str, *facts: object) -> None:
        if message not in self._logged:
            self._logged.add(message)
            extra = about(job=self.request.job_name, lock=self.request.name, token=self.token)
            logger.log(level, message, *facts, extra=extra)

    def _watch_on(self, lock: "JobLock", left: timedelta) -> Refusal | Undecided:
        self._longest_pause = self._watch.pause(lock)
        if left > LONGEST_STAY:
            return Refusal(Reason.UNDECIDED, lock, detail=disagreement(lock))
        if self._watch.suspected_at and since(self._watch.suspected_at) > LONGEST_WATCH:
            detail = f"looks at the lock take too long for its heartbeat interval, {lock.heartbeat_interval}"
            return Refusal(Reason.UNDECIDED, lock, detail=detail)
        return Undecided.WATCHING

    def _rest_after_failover(self, gate: "JobStatus") -> timedelta:
        """How long to wait before the lock may be granted. A holder from before a failover may not know of the
        failover yet, and finds out by a heartbeat."""
        known = known_for(transactions.alias(), gate.timeline)  # counted from the first look at any gate
        interval = self.request.heartbeat_interval
        if interval is None or not gate.is_from_failover or transactions.is_private(transactions.alias()):
            return ZERO
        needed = WATCHED_INTERVALS * interval
        if known >= needed or gates().have_started_on(gate.timeline, needed):
            return ZERO
        rest = needed - known
        message = "The lock %r was last granted before a failover. It can be granted again in %.1f s."
        self._log_once(logging.INFO, message, gate.name, rest.total_seconds())
        return rest

    def _grant(self, snapshot: Snapshot, planned: PlannedRun) -> Lease | Refusal | None:
        """``None`` means look again: another caller was faster and nothing was written, or the lease is over by now."""
        lease: Lease | Refusal | None = None
        for history in writers(ZERO if self._is_history_slow else self.request.lease):
            with history:
                lease = self._grant_once(snapshot, planned, history)
        if not isinstance(lease, Lease):
            return lease
        report_misfires(self.request.own_name, planned.misfires)
        if snapshot.lock:
            _report_takeover(lease, snapshot.lock)
        # A COMMIT may take longer than the lease if it waits for a lost standby or node. If the row is still ours, the
        # next look adopts it, as after a COMMIT without an answer.
        return None if lease.lost else lease

    def _grant_once(self, snapshot: Snapshot, planned: PlannedRun, history: Writer) -> Lease | Refusal | None:
        alias = transactions.alias()
        grant = Grant.of(self.request, self.token, snapshot, planned)
        granting = Granting(grant, snapshot, planned, history)
        with transactions.durable(alias, statement_timeout=history.patience):
            if not (granting.pass_gate() and granting.take_lock()):
                transactions.roll_back(alias)
                return None
            if not granting.claim_one_off():
                transactions.roll_back(alias)
                return Refusal(Reason.ALREADY_RAN)
            granting.begin_entry()
            self._in_doubt = grant
        return Lease(grant)

    def _adopt(self, lock: "JobLock", snapshot: Snapshot) -> Lease | Undecided:
        """Take up a lock whose COMMIT was carried out although its answer was lost."""
        asked_at, sent_at = local_now(), transactions.sent_now()
        if self._in_doubt is None or snapshot.gate.token != self.token:
            return Undecided.RACED
        with transactions.durable(transactions.alias()):
            is_kept = locks().renew(lock.name, self.token, self.request.lease, sent_at)
        if not is_kept:
            return Undecided.RACED
        if self._in_doubt.entry:
            self._in_doubt.entry.facts |= {"fence": snapshot.gate.fence, "started_at": lock.acquired_at}
            self._in_doubt.entry.find()
        # The COMMIT may have been that of a try before the last one.
        grant = self._in_doubt._replace(fence=snapshot.gate.fence, slot=lock.slot, attempt=lock.attempt)
        return Lease(grant._replace(asked_at=asked_at, acquired_at=snapshot.time_at(asked_at)))


def _report_takeover(lease: Lease, former: "JobLock") -> None:
    message = "The lock %r was taken over from %s. %s."
    logger.warning(message, lease.name, former.holder, silence(former), extra=lease.grant.facts())
    lock_taken_over.send_robust(sender=type(former), name=lease.name, lease=lease, lock=former)
