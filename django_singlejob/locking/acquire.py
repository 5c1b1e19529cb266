"""How a lease is granted: peek, watch, pass the gate, insert the row.

All servers race. The gate's conditional UPDATE lets one of them through, and the unique key of the lease is the proof
(Lu 2025, "A Simple Way to Run One Copy of a Job on Many Servers"). The losers usually read one row and write nothing.
"""

import logging
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import Enum, auto
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeGuard

from django.db import Error, models
from django.utils.translation import gettext_lazy as _

from django_singlejob import database
from django_singlejob.clock import DBNow, backoff, local_now, since, utc_now
from django_singlejob.conf import ZERO, options
from django_singlejob.exceptions import DatabaseUnreachable, SingleJobError
from django_singlejob.holder import Holder
from django_singlejob.interrupt import is_told_to_end, signals_let_in
from django_singlejob.lease import Grant, Lease
from django_singlejob.leftovers import announce, forget, give_back
from django_singlejob.memory import begun, follow, is_followed, pass_by, tell
from django_singlejob.querysets import gates, locks
from django_singlejob.queue import one_offs
from django_singlejob.recording import Entry, Writer, with_history
from django_singlejob.signals import lock_taken_over
from django_singlejob.slots import Misfires, Policy, claim, reach
from django_singlejob.timetable import latest_slot
from django_singlejob.watch import LONGEST_STAY, LONGEST_WATCH, WATCHED_INTERVALS, Watch, bury, disagreement, silence

if TYPE_CHECKING:
    from django_singlejob.models import JobLock, JobStatus, OneOffJob
    from django_singlejob.querysets import JobStatusQuerySet

logger = logging.getLogger("django_singlejob")

# For how long it is tried again while others are in the way, or the database does not answer. Seconds.
PERSEVERANCE = 5.0
# However long the lease: whoever wants the lock of a dead holder watches for two intervals.
LONGEST_INTERVAL = LONGEST_STAY / WATCHED_INTERVALS


class Reason(models.TextChoices):
    """Why a call did not run. None of these is an error."""

    HELD = "held", _("held by somebody else")
    PAUSED = "paused", _("paused")
    NOT_DUE = "not_due", _("not due")
    ALREADY_RAN = "already_ran", _("already ran")
    INTERRUPTED = "interrupted", _("told to end before it began")
    UNDECIDED = "undecided", _("undecided")


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What is asked for: which lock, for which job (``""``: none), for how long, on which conditions.

    ``policy``: the job's schedule. ``is_scheduled``: it is asked for a slot that is due, or, a cron daemon being at it,
    ``early``. ``one_off``: the one that it is asked for.
    """

    name: str
    holder: Holder
    lease: timedelta
    heartbeat_interval: timedelta | None
    job_name: str = ""
    wait: timedelta = ZERO
    min_interval: timedelta = ZERO
    rerun_abandoned: bool = True
    max_attempts: int = 1
    policy: Policy | None = None
    is_scheduled: bool = False
    early: timedelta = ZERO
    trigger: str | None = None
    one_off: "OneOffJob | None" = None

    @classmethod
    def of(cls, name: str, *, lease: timedelta | None, heartbeat: bool, wait: timedelta | None, **others: Any) -> Self:
        """With what the settings say where nothing else is asked for."""
        duration = lease or options().lease
        interval = min(duration / options().heartbeats_per_lease, LONGEST_INTERVAL) if heartbeat else None
        return cls(name=name, lease=duration, heartbeat_interval=interval, wait=wait or ZERO, **others)

    @property
    def own_name(self) -> str:
        """The gate that remembers the job; for most it is the lock's gate too."""
        return self.job_name or self.name


@dataclass(frozen=True)
class Refusal:
    """The lock was not granted.

    Attributes:
        reason: why not.
        lock: the row that was in the way; ``None``: none was.
        next_slot: when the job is due, if it is not now.
        detail: what was tried, if it could not be decided whether the lock is free.
    """

    reason: Reason
    lock: "JobLock | None" = None
    next_slot: datetime | None = None
    detail: str = ""

    @property
    def may_be_held(self) -> bool:
        """Whether somebody else holds the lock, as far as that is known: it may be free in a moment."""
        return self.reason in (Reason.HELD, Reason.UNDECIDED)


def acquire(terms: Terms) -> Lease | Refusal:
    """Ask for the lock; waits up to ``terms.wait``, and as long as it takes to see that a stale holder is dead.

    Raises ``UnsafeTransaction`` inside a transaction, ``DatabaseUnreachable`` when the database does not answer.
    """
    attempt = Attempt(terms)
    while isinstance(answer := attempt.ask(), float):
        attempt.wait(answer)
    return answer


class _Again(Enum):
    """It is not decided yet."""

    WATCHING = auto()
    RACED = auto()


@dataclass(frozen=True)
class _Sight:
    """The rows of a name, as they were seen at one instant."""

    lock: "JobLock | None"
    gate: "JobStatus"
    own: "JobStatus"
    at: float


class _Start(NamedTuple):
    """What the run would be that is asked for.

    Attributes:
        slot: its slot; ``None``: no schedule starts it.
        attempt: 1, or more in the place of a run whose holder died.
        changes: to what is known of the job.
        misfires: the slots that nobody ran in time.
    """

    slot: datetime | None = None
    attempt: int = 1
    changes: Mapping[str, Any] = MappingProxyType({})
    misfires: Sequence[Misfires] = ()


class Attempt:
    """One acquisition: one token, however often it has to ask."""

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        self.token = uuid.uuid4()
        self._watch = Watch()
        self._longest_pause = float("inf")
        self._suspected_since: float | None = None
        self._give_up_at = local_now() + terms.wait.total_seconds()
        self._trouble_since: float | None = None
        self._pauses = backoff()
        self._is_warned = False
        # A COMMIT was sent whose answer never came.
        self._is_in_doubt = False
        #: The history row of the last attempt; ``None``: the caller asks for a lock without a job.
        self._entry: Entry | None = None

    def ask(self) -> Lease | Refusal | float:
        """Ask once. A number: it is not decided yet, ask again after so many seconds."""
        database.refuse_open_transaction(database.alias())
        announce(self.token, self.terms.name)
        try:
            answer = self._ask_or_excuse()
        except SingleJobError:
            if not self._is_in_doubt:
                forget(self.token)
            raise
        except BaseException:
            # It may have come behind a COMMIT, as a Ctrl-C inside one does.
            give_back(self.token)
            raise
        if isinstance(answer, Lease):
            return answer
        if is_told_to_end() and not self._is_final(answer):
            answer = Refusal(Reason.INTERRUPTED)
        if not self._is_final(answer):
            return min(next(self._pauses), self._longest_pause)
        self._leave_nothing()
        return answer

    def wait(self, seconds: float) -> None:
        """Wait until it is time to ask again. Nothing is granted meanwhile, so whatever a signal raises may come."""
        try:
            with signals_let_in():
                time.sleep(seconds)
        except BaseException:
            self._leave_nothing()
            raise

    def _leave_nothing(self) -> None:
        if self._is_in_doubt:
            give_back(self.token)
        forget(self.token)

    def _is_final(self, answer: "Refusal | _Again") -> TypeGuard[Refusal]:
        return isinstance(answer, Refusal) and (self._is_patience_over or not answer.may_be_held)

    @property
    def _is_patience_over(self) -> bool:
        return local_now() >= self._give_up_at

    def _ask_or_excuse(self) -> Lease | Refusal | _Again:
        error: Error | None = None
        try:
            answer = self._ask()
        except Error as problem:
            error, answer = problem, _Again.RACED
            self._excuse(error)
        if answer is not _Again.RACED:
            self._trouble_since = None
            return answer
        self._trouble_since = self._trouble_since or local_now()
        return self._give_up(error) if local_now() - self._trouble_since > PERSEVERANCE else answer

    def _excuse(self, error: Error) -> None:
        """Return if the same again may work; raise otherwise."""
        alias = database.alias()
        if database.is_connection_lost(error) and not database.is_private(alias):
            # Whether we were granted the lock is open; the next look at its row tells, for it knows our token.
            database.drop(alias)
        elif not database.is_transient(error) and not database.is_duplicate(error):
            raise error

    def _give_up(self, error: Error | None) -> Refusal:
        """It goes on for too long. An attempt that cannot be decided is never "acquired"."""
        if error and database.is_duplicate(error):
            raise error
        if error and not database.is_undone(error) and self._is_patience_over:
            raise DatabaseUnreachable(
                f"The database does not answer, so {self.terms.own_name!r} was not run: {error}"
            ) from error
        obstacle = f"others were in the way each time ({error})" if error else "others were changing its rows each time"
        return Refusal(Reason.UNDECIDED, detail=f"it was tried for {PERSEVERANCE:.0f} seconds, and {obstacle}")

    def _ask(self) -> Lease | Refusal | _Again:
        lock = locks().seen(self.terms.name)
        is_ours = lock is not None and lock.token == self.token
        left = self._watch.look(lock) if lock and not is_ours else ZERO
        if lock and left is None:
            self._suspected_since, self._longest_pause = None, float("inf")
            return Refusal(Reason.HELD, lock)
        sight = self._look(lock)
        if lock and is_ours:
            return self._adopt(lock, sight)
        start = self._start(sight)
        if not isinstance(start, _Start):
            return start
        if lock and left:
            return self._watch_on(lock, left)
        return self._grant(sight, start) or _Again.RACED

    def _watch_on(self, lock: "JobLock", left: timedelta) -> Refusal | _Again:
        self._longest_pause = self._watch.pause(lock)
        self._suspected_since = self._suspected_since or local_now()
        if left > LONGEST_STAY:
            return Refusal(Reason.UNDECIDED, lock, detail=disagreement(lock))
        if since(self._suspected_since) > LONGEST_WATCH:
            detail = f"each look at the lock takes longer than its heartbeat interval, {lock.heartbeat_interval}"
            return Refusal(Reason.UNDECIDED, lock, detail=detail)
        return _Again.WATCHING

    def _look(self, lock: "JobLock | None") -> _Sight:
        names = {self.terms.name, self.terms.own_name}
        seen = gates().seen(names, self.terms.min_interval)
        if missing := names - seen.keys():
            gates().remember(*missing)
            seen = gates().seen(names, self.terms.min_interval)
        return _Sight(lock, seen[self.terms.name], seen[self.terms.own_name], local_now())

    def _start(self, sight: _Sight) -> _Start | Refusal | _Again:
        if not self.terms.job_name:
            return _Start()
        policy = self.terms.policy if self.terms.is_scheduled else None
        if policy and not is_followed(sight.own, policy.schedule):
            follow(sight.own, policy.schedule, sight.own.now, self.terms.early)
            return _Again.RACED
        if sight.own.paused:
            return Refusal(Reason.PAUSED, sight.lock)
        start = self._scheduled(sight, policy) if policy else self._called(sight)
        if isinstance(start, _Start) and sight.own.started_recently and self._min_interval(sight, start) > ZERO:
            return Refusal(Reason.ALREADY_RAN, sight.lock)
        return start

    def _called(self, sight: _Sight) -> _Start:
        """A run that no schedule starts. It consumes no slot, also not that of a run whose holder died."""
        if self.terms.one_off:
            return _Start(attempt=self.terms.one_off.attempt + 1)
        dead = self._dead(sight)
        if dead and dead.slot is None and self._is_to_be_rerun(dead.attempt):
            return _Start(attempt=dead.attempt + 1)
        return _Start()

    def _scheduled(self, sight: _Sight, policy: Policy) -> _Start | Refusal | _Again:
        """The run of the slot that is due, or, once more, of the one whose holder died."""
        own = sight.own
        assert own.next_slot  # noqa: S101  (it follows the schedule)
        self._compare_clocks(own.now)
        again = own.last_slot if self._is_abandoned(sight) and self._is_to_be_rerun(own.last_attempt) else None
        claimed = claim(policy, own.next_slot, own.now, self.terms.early, again)
        if claimed is None:
            return self._not_due(own, policy, own.next_slot)
        if claimed.slot is None:
            return Refusal(Reason.NOT_DUE, next_slot=claimed.next_slot) if pass_by(own, claimed) else _Again.RACED
        attempt = own.last_attempt + 1 if claimed.slot == again else 1
        return _Start(claimed.slot, attempt, begun(claimed, attempt), claimed.misfires)

    def _not_due(self, own: "JobStatus", policy: Policy, due: datetime) -> Refusal:
        """A cron daemon fired for a slot that somebody has run, or for none."""
        meant = latest_slot(policy.schedule, reach(policy.schedule, own.now, self.terms.early))
        has_run = own.last_slot is not None and own.last_slot >= meant > own.now - options().slot_tolerance
        return Refusal(Reason.ALREADY_RAN if has_run else Reason.NOT_DUE, next_slot=due)

    def _compare_clocks(self, database_now: datetime) -> None:
        """A lone server whose clock is off by just the tolerance would fire for no slot at all."""
        error = utc_now() - database_now
        if self.terms.early and abs(error) > options().slot_tolerance / 2 and not self._is_warned:
            self._is_warned = True
            logger.warning(
                "This server's clock is %.0f seconds off the database's, and cron fires by it: set both by NTP.",
                error.total_seconds(),
            )

    def _is_abandoned(self, sight: _Sight) -> bool:
        """Whether who ran the last slot died: the lock is there still, or was cleared, or taken over."""
        dead, own = self._dead(sight), sight.own
        is_of_last_slot = dead is not None and (dead.slot, dead.attempt) == (own.last_slot, own.last_attempt)
        return own.last_slot is not None and (own.abandoned or is_of_last_slot)

    def _dead(self, sight: _Sight) -> "JobLock | None":
        """The stale lock of a run of our own job."""
        return sight.lock if sight.lock and sight.lock.job_name == self.terms.job_name else None

    def _is_to_be_rerun(self, attempt: int) -> bool:
        return self.terms.rerun_abandoned and attempt < self.terms.max_attempts

    def _min_interval(self, sight: _Sight, start: _Start) -> timedelta:
        # It is not too soon for a run that is in the place of a dead one, unless too many have died.
        dead, own = self._dead(sight), sight.own
        deaths = dead.attempt if dead else own.consecutive_failures
        is_replacement = (dead or own.last_status == "abandoned") and self._is_to_be_rerun(deaths)
        return ZERO if start.attempt > 1 or is_replacement else self.terms.min_interval

    def _grant(self, sight: _Sight, start: _Start) -> Lease | Refusal | None:
        """``None``: somebody was faster, look again; nothing was written."""
        lease = with_history(partial(self._grant_once, sight, start), self.terms.lease)
        if not isinstance(lease, Lease):
            return lease
        if self._entry:
            self._entry.begin_late(lease.acquired_at)
        tell(self.terms.own_name, start.misfires)
        if sight.lock:
            former = f"{sight.lock.holder}. {silence(sight.lock)}"
            logger.warning("The lock %r was taken over from %s.", self.terms.name, former)
            lock_taken_over.send_robust(sender=type(sight.lock), name=self.terms.name, lease=lease, lock=sight.lock)
        return lease

    def _grant_once(self, sight: _Sight, start: _Start, history: Writer) -> Lease | Refusal | None:
        alias = database.alias()
        asked_at, sent_at = local_now(), database.sent_now()
        facts = {"slot": start.slot, "attempt": start.attempt}
        self._entry = self._new_entry(sight, **facts)
        with database.durable(alias, statement_timeout=history.patience):
            if not self._pass_gates(sight, start, history) or not self._insert_or_take_over(
                sight.lock, self._row(sent_at=sent_at, **facts)
            ):
                database.roll_back(alias)
                return None
            if not self._claim():
                database.roll_back(alias)
                return Refusal(Reason.ALREADY_RAN)
            if self._entry:
                self._entry.begin(history)
            self._is_in_doubt = True
        self._is_in_doubt = False
        return Lease(self._granted(sight, asked_at=asked_at, **facts))

    def _insert_or_take_over(self, stale: "JobLock | None", row: dict[str, Any]) -> bool:
        if stale is None:
            return locks().grant(self.terms.name, row)
        # Never an INSERT here: if the row is gone, its holder was alive and has finished, and nothing is to be rerun.
        return locks().take_over(stale, row)

    def _claim(self) -> bool:
        """``False``: somebody else runs that one-off, or has, or it was cancelled."""
        one_off = self.terms.one_off
        return one_off is None or one_offs().claim(one_off, self.token, self.terms.holder)

    def _pass_gates(self, sight: _Sight, start: _Start, history: Writer) -> bool:
        is_own = sight.own is sight.gate
        begin = partial(self._begin, sight=sight, start=start, history=history)
        if self.terms.job_name and is_own and sight.lock is None:
            passed = {"fence": sight.gate.fence + 1, "token": self.token}
            return begin(gates().unchanged(sight.gate), passed)
        if sight.lock and not gates().is_at_hand(sight.gate.name):
            return False  # somebody is inside a fenced transaction: MySQL would wait for it for almost a minute
        if not gates().pass_through(sight.gate, self.token):
            return False
        if sight.lock:
            # Before the start, since both change what is known of the job. If its holder lives, it is rolled back.
            bury(sight.lock, f"{silence(sight.lock)}; {self.terms.holder.hostname} took the lock over.", history)
        if not self.terms.job_name:
            return True
        if is_own:
            return begin(gates().passed(sight.gate.name, self.token), {})
        return begin(gates().unchanged(sight.own), {"fence": sight.own.fence + 1})

    def _begin(
        self, own: "JobStatusQuerySet", changes: Mapping[str, Any], *, sight: _Sight, start: _Start, history: Writer
    ) -> bool:
        if sight.own.unrecorded is not None and not history.is_off:
            changes = {**changes, "unrecorded": None}  # the entry of this run brings it into the history
        if self._dead(sight) or sight.own.last_status == "abandoned":
            changes = {**changes, "last_status": ""}
        return own.start(self._min_interval(sight, start), {**changes, **start.changes})

    def _new_entry(self, sight: _Sight, **facts: Any) -> Entry | None:
        if self.terms.trigger is None:
            return None
        holder = self.terms.holder
        who = {"hostname": holder.hostname, "pid": holder.pid}
        grant = {"fence": sight.gate.fence + 1, "token": self.token, "trigger": self.terms.trigger}
        return Entry(sight.own, self.terms.lease, {**grant, **facts, **who})

    def _row(self, **facts: Any) -> dict[str, Any]:
        holder = self.terms.holder
        return {
            "token": self.token,
            "hostname": holder.hostname,
            "pid": holder.pid,
            "command": holder.command,
            "acquired_at": DBNow(),
            "heartbeat_at": DBNow(),
            "heartbeats": 0,
            "heartbeat_interval": self.terms.heartbeat_interval,
            "expires_at": DBNow() + self.terms.lease,
            "job_name": self.terms.job_name,
            **facts,
        }

    def _granted(self, sight: _Sight, *, asked_at: float, **facts: Any) -> Grant:
        return Grant(
            name=self.terms.name,
            own_name=self.terms.own_name,
            token=self.token,
            fence=sight.gate.fence + 1,
            duration=self.terms.lease,
            heartbeat_interval=self.terms.heartbeat_interval,
            asked_at=asked_at,
            acquired_at=sight.gate.now + timedelta(seconds=asked_at - sight.at),
            entry=self._entry,
            **facts,
        )

    def _adopt(self, lock: "JobLock", sight: _Sight) -> Lease | _Again:
        """Our COMMIT was carried out, though its answer was lost."""
        asked_at = local_now()
        sent_at = database.sent_now()
        if sight.gate.token != self.token or not locks().renew(lock.name, self.token, self.terms.lease, sent_at):
            return _Again.RACED
        grant = self._granted(sight, asked_at=asked_at, attempt=lock.attempt, slot=lock.slot)
        if self._entry:
            self._entry.adopt(lock.acquired_at)
        return Lease(replace(grant, fence=sight.gate.fence))
