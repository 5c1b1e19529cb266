"""How a lease is granted: look, watch, plan, pass the gate, insert the row.

A caller that loses usually reads one row and writes nothing. Each time an acquisition asks, it gets a ``Lease``, a
``Refusal``, ``RACED``, or the most seconds to wait before it asks again: a holder that may be alive is given time to
send a heartbeat. One place decides whether to retry.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias
from uuid import UUID, uuid4

from django.db import Error

from django_singlejob.conf import ZERO, options
from django_singlejob.database import errors, transactions
from django_singlejob.database.timeline import known_for
from django_singlejob.database.unusable import refusal, refused, unreachable
from django_singlejob.exceptions import DatabaseUnreachable, DatabaseUnusable, InvalidSchedule, UnreadableRow
from django_singlejob.jobs.slots import Claim
from django_singlejob.locking.at_exit import announce, begin, forget, release_granted
from django_singlejob.locking.grant import Grant, PlannedRun, Snapshot, plan
from django_singlejob.locking.lease import Lease
from django_singlejob.locking.liveness import (
    LONGEST_STAY,
    LONGEST_WATCH,
    WATCHED_INTERVALS,
    Watch,
    disagreement,
    silence,
)
from django_singlejob.locking.position import change, pass_by, report
from django_singlejob.locking.recording import Writer, with_history
from django_singlejob.locking.request import LockRequest, Reason, Refusal
from django_singlejob.models.jobs import gates
from django_singlejob.models.locks import locks
from django_singlejob.models.unreadable import refuse, reporting
from django_singlejob.process import rooms
from django_singlejob.process.clock import backoff, local_now, since, sleep, utc_now
from django_singlejob.process.logs import about
from django_singlejob.process.received_signals import is_shutdown_requested, without_signals
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
        with acquisition.waiting():
            (pause or sleep)(answer)
    return answer


#: Asks for a grant with one statement. Calls the first function with it before the database may have granted it, and
#: the second if it certainly has not. Returns the grant; or the lock's row, if that is in the way; or ``None`` if the
#: rows are out of the ordinary.
AtOnce: TypeAlias = "Callable[[LockRequest, Callable[[Grant], None], Callable[[Grant], None]], Grant | JobLock | None]"
#: Others, or the database, were in the way: ask again. If this goes on for too long, the acquisition gives up.
RACED: Final = None


class Acquisition:
    """One acquisition, no matter how often it has to ask. Each try has a token of its own."""

    def __init__(self, request: LockRequest) -> None:
        self.request = request
        self._alias = transactions.alias()
        self._give_up_at = local_now() + request.wait.total_seconds()
        self._watch = Watch()
        self._pauses = backoff()
        #: Since when others, or the database, have been in the way each time; ``None`` if they are not.
        self._trouble_since: float | None = None
        #: By token, what the database may have granted: the COMMIT was sent, but there was no answer.
        self._in_doubt: dict[UUID, Grant] = {}
        self._logged: set[str] = set()

    def ask(self) -> Lease | Refusal | float:
        """Ask once. A number means that nothing is decided yet: ask again after that many seconds."""
        if reason := self.request.why_not:
            return Refusal(reason)
        transactions.refuse_open_transaction(self._alias, is_of_job=bool(self.request.job_name))
        try:
            with without_signals():
                answer = self._ask_despite_trouble()
        except DatabaseUnreachable:
            raise  # what may have been granted is released at exit, or left to expire
        except BaseException:
            self._undo()
            raise
        if isinstance(answer, Lease):
            begin(answer.token)
            del self._in_doubt[answer.token]
            for grant in list(self._in_doubt.values()):
                self._rule_out(grant)  # this one would have been in its way
            return answer
        if isinstance(answer, Refusal) and (self._is_patience_over or not answer.may_be_held):
            self.leave_nothing()
            return answer
        if is_shutdown_requested():
            return Refusal(Reason.INTERRUPTED, detail="" if self.leave_nothing() else IN_DOUBT)
        left = self._give_up_at - local_now()
        after = answer if isinstance(answer, float) else float("inf")
        return min(next(self._pauses), after, left if left > 0 else float("inf"))

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Wait in the block until it is time to ask again. Nothing is granted meanwhile, so a signal may raise here."""
        try:
            yield
        except BaseException:
            self.leave_nothing()
            raise

    def leave_nothing(self) -> bool:
        """Release what may have been granted. ``False`` if that is uncertain: the lock, if any, is left to expire."""
        are_released = [release_granted(token) for token in self._in_doubt]
        self._in_doubt.clear()
        return all(are_released)

    def _undo(self) -> None:
        """Undo what was done when an error came. A Ctrl-C may come during a COMMIT, in the middle of another statement,
        or right after a BEGIN of which Django does not know yet. A session that can go on is kept: it is the caller's.
        """
        self.leave_nothing()
        try:
            transactions.leave_no_transaction(self._alias)
        except Error:
            transactions.drop(self._alias)

    @property
    def _is_patience_over(self) -> bool:
        return local_now() >= self._give_up_at

    @property
    def _lock_timeout(self) -> timedelta:
        """How long to wait for a row at most: until it is time to give up. Then only rows that are free are changed."""
        now = local_now()
        left = max(self._give_up_at, (self._trouble_since or now) + PERSEVERANCE) - now
        return timedelta(seconds=min(left, PERSEVERANCE))

    # --- trouble

    def _ask_despite_trouble(self) -> Lease | Refusal | float | None:
        error: Error | None = None
        try:
            answer = self._ask()
            # A COMMIT may take longer than the lease if it waits for a lost standby or node. If the row is still ours,
            # the next look adopts it.
            if isinstance(answer, Lease) and answer.lost:
                answer = RACED
        except UnreadableRow as row:
            return Refusal(Reason.UNDECIDED, detail=str(row))
        except Error as problem:
            self._raise_unless_retryable(problem)
            error, answer = problem, RACED
        except Exception as problem:  # Django and the drivers raise many kinds if DATABASES is wrong
            if unusable := refusal(problem, f"{self._undone}: ", job_name=self.request.job_name):
                raise unusable from problem
            raise
        if answer is not None:
            self._trouble_since = None
            return answer
        self._trouble_since = self._trouble_since or local_now()
        return self._give_up(error) if local_now() - self._trouble_since > PERSEVERANCE else answer

    def _raise_unless_retryable(self, error: Error) -> None:
        """Raise the error, unless a retry may succeed."""
        if errors.is_connection_lost(error):
            if transactions.is_private(self._alias):
                raise error
            # We do not know whether we were granted the lock. The next look shows it: the row would have our token.
            transactions.drop(self._alias)
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

    # --- one try

    def _ask(self) -> Lease | Refusal | float | None:
        if options().single_statement and (answer := self._ask_at_once()):
            return answer
        asked_at = local_now()
        lock = locks().look_up(self.request.name)
        if lock and lock.token in self._in_doubt:
            return self._adopt(lock, self._in_doubt[lock.token])
        left = self._watch.look(lock, asked_at) if lock else ZERO
        if lock and left is None:
            return Refusal(Reason.HELD, lock)
        snapshot = self._snapshot(lock)
        planned = self._plan(snapshot)
        if not isinstance(planned, PlannedRun):
            return planned
        if lock and left:
            return self._watch_on(lock, left)
        if rest := self._rest_after_failover(snapshot.gate):
            return rest.total_seconds()
        return self._grant(snapshot, planned)

    def _ask_at_once(self) -> Lease | Refusal | None:
        """Ask with one statement. ``None`` if anything is out of the ordinary: then the portable path goes on."""
        asked_at, is_smooth = local_now(), self._trouble_since is None and not self._in_doubt
        ask: AtOnce | None = rooms.find("grant_at_once") if is_smooth else None
        answer = ask(self.request, self._doubt, self._rule_out) if ask else None
        if isinstance(answer, Grant):
            return Lease(answer)
        is_held = answer and self._watch.look(answer, asked_at) is None
        return Refusal(Reason.HELD, answer) if is_held else None

    def _snapshot(self, lock: "JobLock | None") -> Snapshot:
        names = {self.request.name, self.request.own_name}
        with reporting(refuse):
            found = gates().look_up(names, self.request.min_interval)
            if missing := names - found.keys():
                gates().remember(*missing)
                found = gates().look_up(names, self.request.min_interval)
        return Snapshot(lock, found[self.request.name], found[self.request.own_name], local_now())

    def _plan(self, snapshot: Snapshot) -> PlannedRun | Refusal | None:
        """The run to start. If the schedule has to move first, or instead, this moves it."""
        own, request = snapshot.own, self.request
        if request.policy:
            try:
                schedule = request.policy.at(own).schedule
            except InvalidSchedule as error:
                return Refusal(Reason.NOT_HERE, detail=str(error))
            if change(own, schedule, request.early):
                return RACED
            self._compare_clocks(own.now)
        planned = plan(request, snapshot)
        if not isinstance(planned, Claim):
            return planned
        is_passed = pass_by(own, planned) and planned.next_slot > own.now  # another schedule may be due at once
        return Refusal(Reason.NOT_DUE, next_slot=planned.next_slot) if is_passed else RACED

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
            extra = about(job=self.request.job_name, lock=self.request.name)
            logger.log(level, message, *facts, extra=extra)

    def _watch_on(self, lock: "JobLock", left: timedelta) -> Refusal | float:
        if left > LONGEST_STAY:
            return Refusal(Reason.UNDECIDED, lock, detail=disagreement(lock))
        if self._watch.suspected_at and since(self._watch.suspected_at) > LONGEST_WATCH:
            detail = f"looks at the lock take too long for its heartbeat interval, {lock.heartbeat_interval}"
            return Refusal(Reason.UNDECIDED, lock, detail=detail)
        return self._watch.pause(lock)

    def _rest_after_failover(self, gate: "JobStatus") -> timedelta:
        """How long to wait before the lock may be granted. A holder from before a failover may not know of the
        failover yet, and finds out by a heartbeat."""
        known = known_for(self._alias, gate.timeline)  # counted from the first look at any gate
        interval = self.request.heartbeat_interval
        if interval is None or not gate.is_from_failover or transactions.is_private(self._alias):
            return ZERO
        needed = WATCHED_INTERVALS * interval
        if known >= needed or gates().have_started_on(gate.timeline, needed):
            return ZERO
        rest = needed - known
        message = "The lock %r was last granted before a failover. It can be granted again in %.1f s."
        self._log_once(logging.INFO, message, gate.name, rest.total_seconds())
        return rest

    def _grant(self, snapshot: Snapshot, planned: PlannedRun) -> Lease | Refusal | None:
        answer = with_history(partial(self._grant_once, snapshot, planned), self.request.lease)
        if not isinstance(answer, Lease):
            return answer
        if planned.claim:
            report(snapshot.own, planned.claim)
        if snapshot.lock:
            _report_takeover(answer, snapshot.lock)
        return answer

    def _grant_once(self, snapshot: Snapshot, planned: PlannedRun, history: Writer) -> Lease | Refusal | None:
        """``RACED`` if another caller was faster: nothing was written."""
        grant = Grant.of(self.request, uuid4(), planned, snapshot)
        with transactions.durable(self._alias, statement_timeout=history.patience, lock_timeout=self._lock_timeout):
            if not grant.take(snapshot, planned, history):
                transactions.roll_back(self._alias)
                return RACED
            if not grant.claim():
                transactions.roll_back(self._alias)
                # A unique one is due once more after the commit of a transaction that has asked for it.
                is_unique = self.request.one_off is not None and self.request.one_off.unique_key
                return Refusal(Reason.NOT_DUE if is_unique else Reason.ALREADY_RAN)
            if grant.entry:
                grant.entry.begin(history)
            self._doubt(grant)
        return Lease(grant)

    def _doubt(self, grant: Grant) -> None:
        """From now on, the database may have granted it."""
        announce(grant.token, grant.request.name)
        self._in_doubt[grant.token] = grant

    def _rule_out(self, grant: Grant) -> None:
        """It was not granted, and never will be."""
        del self._in_doubt[grant.token]
        forget(grant.token)

    def _adopt(self, lock: "JobLock", grant: Grant) -> Lease | None:
        """Take up a lock whose COMMIT was carried out although its answer was lost."""
        asked_at, sent_at = local_now(), transactions.sent_now()
        snapshot = self._snapshot(lock)
        if snapshot.gate.token != grant.token:
            return RACED
        with transactions.durable(self._alias):
            is_kept = locks().renew(lock.name, grant.token, self.request.lease, sent_at)
        if not is_kept:
            return RACED
        if grant.entry:
            grant.entry.facts |= {"fence": snapshot.gate.fence, "started_at": lock.acquired_at}
            grant.entry.find()
        grant = grant._replace(asked_at=asked_at, acquired_at=snapshot.time_at(asked_at), fence=snapshot.gate.fence)
        return Lease(grant)


def _report_takeover(lease: Lease, former: "JobLock") -> None:
    message = "The lock %r was taken over from %s. %s."
    logger.warning(message, lease.name, former.holder, silence(former), extra=lease.grant.facts())
    lock_taken_over.send_robust(sender=type(former), name=lease.name, lease=lease, lock=former)
