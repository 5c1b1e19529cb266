"""How a lease is granted: peek, watch, pass the gate, insert the row.

All servers race. The gate's conditional UPDATE lets one of them through, and the unique key of the lease is the proof
(Lu 2025, "A Simple Way to Run One Copy of a Job on Many Servers"). The losers usually read one row and write nothing.
"""

import logging
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
from django_singlejob.clock import DBNow, backoff, local_now, since, sleep, utc_now
from django_singlejob.conf import ZERO, options
from django_singlejob.cursor import begun, follow, is_followed, pass_by, tell
from django_singlejob.exceptions import DatabaseUnreachable, SingleJobError
from django_singlejob.handlers import signals_let_in
from django_singlejob.holder import Holder
from django_singlejob.locking.at_exit import announce, forget, release_granted
from django_singlejob.locking.lease import Grant, Lease
from django_singlejob.locking.liveness import (
    LONGEST_STAY,
    LONGEST_WATCH,
    WATCHED_INTERVALS,
    Watch,
    abandon,
    disagreement,
    silence,
)
from django_singlejob.querysets.jobs import gates
from django_singlejob.querysets.locks import locks
from django_singlejob.querysets.one_offs import one_offs
from django_singlejob.received_signals import is_told_to_end
from django_singlejob.recording import Entry, Writer, with_history
from django_singlejob.scheduling.schedule import latest_slot
from django_singlejob.scheduling.slots import Misfires, Policy, claim, reach
from django_singlejob.signals import lock_taken_over
from django_singlejob.timeline import is_from_before, known_for, next_fence

if TYPE_CHECKING:
    from django_singlejob.models import JobLock, JobStatus, OneOffJob
    from django_singlejob.querysets.jobs import JobStatusQuerySet

logger = logging.getLogger("django_singlejob")

# For how long it is tried again while others are in the way, or the database does not answer. Seconds.
PERSEVERANCE = 5.0
IN_DOUBT = "but whether the lock was granted is not known: if it was, it is left to expire"
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
class LockRequest:
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


def acquire(request: LockRequest) -> Lease | Refusal:
    """Ask for the lock; waits up to ``request.wait``, and as long as it takes to see that a stale holder is dead.

    Raises ``UnsafeTransaction`` inside a transaction, ``DatabaseUnreachable`` when the database does not answer.
    """
    acquisition = Acquisition(request)
    while isinstance(answer := acquisition.ask(), float):
        acquisition.wait(answer)
    return answer


class Undecided(Enum):
    """Nothing is decided yet: ask again."""

    WATCHING = auto()
    RACED = auto()


@dataclass(frozen=True)
class Snapshot:
    """The rows of a name, as they were seen at one instant."""

    lock: "JobLock | None"
    gate: "JobStatus"
    own: "JobStatus"
    at: float


class PlannedRun(NamedTuple):
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


class Acquisition:
    """One acquisition: one token, however often it has to ask."""

    def __init__(self, request: LockRequest) -> None:
        self.request = request
        self.token = uuid.uuid4()
        self._watch = Watch()
        self._longest_pause = float("inf")
        self._suspected_since: float | None = None
        self._give_up_at = local_now() + request.wait.total_seconds()
        self._trouble_since: float | None = None
        self._pauses = backoff()
        self._is_warned = False
        self._is_told_of_failover = False
        # A COMMIT was sent whose answer never came.
        self._is_in_doubt = False
        self._fence_in_doubt = 0
        #: The history row of the last try; ``None``: the caller asks for a lock without a job.
        self._entry: Entry | None = None

    def ask(self) -> Lease | Refusal | float:
        """Ask once. A number: it is not decided yet, ask again after so many seconds."""
        database.refuse_open_transaction(database.alias())
        announce(self.token, self.request.name)
        try:
            answer = self._ask_despite_trouble()
        except SingleJobError:
            if not self._is_in_doubt:
                forget(self.token)
            raise
        except BaseException:
            # It may have come behind a COMMIT, as a Ctrl-C inside one does.
            release_granted(self.token)
            raise
        if isinstance(answer, Lease):
            return answer
        if is_told_to_end() and not self._is_final(answer):
            answer = Refusal(Reason.INTERRUPTED)
        if not self._is_final(answer):
            return min(next(self._pauses), self._longest_pause)
        if not self.leave_nothing() and answer.reason == Reason.INTERRUPTED:
            answer = replace(answer, detail=IN_DOUBT)
        return answer

    def wait(self, seconds: float) -> None:
        """Wait until it is time to ask again. Nothing is granted meanwhile, so whatever a signal raises may come."""
        try:
            with signals_let_in():
                sleep(seconds)
        except BaseException:
            self.leave_nothing()
            raise

    def leave_nothing(self) -> bool:
        """``False``: a lock that was granted, if it was, is left to expire."""
        is_certain = not self._is_in_doubt or release_granted(self.token)
        forget(self.token)
        return is_certain

    def _is_final(self, answer: "Refusal | Undecided") -> TypeGuard[Refusal]:
        return isinstance(answer, Refusal) and (self._is_patience_over or not answer.may_be_held)

    @property
    def _is_patience_over(self) -> bool:
        return local_now() >= self._give_up_at

    def _ask_despite_trouble(self) -> Lease | Refusal | Undecided:
        error: Error | None = None
        try:
            answer = self._ask()
        except Error as problem:
            error, answer = problem, Undecided.RACED
            self._raise_unless_retryable(error)
        if answer is not Undecided.RACED:
            self._trouble_since = None
            return answer
        self._trouble_since = self._trouble_since or local_now()
        return self._give_up(error) if local_now() - self._trouble_since > PERSEVERANCE else answer

    def _raise_unless_retryable(self, error: Error) -> None:
        """Return if the same again may work; raise otherwise."""
        alias = database.alias()
        if database.is_connection_lost(error) and not database.is_private(alias):
            # Whether we were granted the lock is open; the next look at its row tells, for it knows our token.
            database.drop(alias)
        elif not database.is_transient(error) and not database.is_duplicate(error):
            raise error

    def _give_up(self, error: Error | None) -> Refusal:
        """It goes on for too long. An acquisition that cannot be decided is never "acquired"."""
        if error and database.is_duplicate(error):
            raise error
        if error and not database.is_undone(error) and self._is_patience_over:
            raise DatabaseUnreachable(
                f"The database does not answer, so {self.request.own_name!r} was not run: {error}"
            ) from error
        obstacle = f"others were in the way each time ({error})" if error else "others were changing its rows each time"
        return Refusal(Reason.UNDECIDED, detail=f"it was tried for {PERSEVERANCE:.0f} seconds, and {obstacle}")

    def _ask(self) -> Lease | Refusal | Undecided:
        lock = locks().look_up(self.request.name)
        is_ours = lock is not None and lock.token == self.token
        left = self._watch.look(lock) if lock and not is_ours else ZERO
        if lock and left is None:
            self._suspected_since, self._longest_pause = None, float("inf")
            return Refusal(Reason.HELD, lock)
        snapshot = self._look(lock)
        if lock and is_ours:
            return self._adopt(lock, snapshot)
        if self._is_in_doubt and self._is_superseded(snapshot.gate):
            self._begin_anew()
        planned = self._plan(snapshot)
        if not isinstance(planned, PlannedRun):
            return planned
        if lock and left:
            return self._watch_on(lock, left)
        if rest := self._rest_after_failover(snapshot.gate):
            self._longest_pause = rest.total_seconds()
            return Undecided.WATCHING
        return self._grant(snapshot, planned) or Undecided.RACED

    def _is_superseded(self, gate: "JobStatus") -> bool:
        """Whether somebody else has passed the gate, before our COMMIT whose outcome is in doubt, or after it."""
        return gate.token != self.token and gate.fence >= self._fence_in_doubt

    def _begin_anew(self) -> None:
        """With another token: the history may know this one's run as abandoned."""
        forget(self.token)
        self.token = uuid.uuid4()
        announce(self.token, self.request.name)
        self._is_in_doubt = False

    def _watch_on(self, lock: "JobLock", left: timedelta) -> Refusal | Undecided:
        self._longest_pause = self._watch.pause(lock)
        self._suspected_since = self._suspected_since or local_now()
        if left > LONGEST_STAY:
            return Refusal(Reason.UNDECIDED, lock, detail=disagreement(lock))
        if since(self._suspected_since) > LONGEST_WATCH:
            detail = f"each look at the lock takes longer than its heartbeat interval, {lock.heartbeat_interval}"
            return Refusal(Reason.UNDECIDED, lock, detail=detail)
        return Undecided.WATCHING

    def _rest_after_failover(self, gate: "JobStatus") -> timedelta:
        """For how long the lock is not granted yet: who was granted it before a fail-over may not know of that, and
        finds out by a heartbeat."""
        known = known_for(database.alias(), gate.timeline)  # counts from the first look, at whichever gate
        interval = self.request.heartbeat_interval
        if interval is None or not is_from_before(gate) or database.is_private(database.alias()):
            return ZERO
        needed = WATCHED_INTERVALS * interval
        if known >= needed or gates().have_started_on(gate.timeline, needed):
            return ZERO
        rest = needed - known
        if not self._is_told_of_failover:
            self._is_told_of_failover = True
            seconds = rest.total_seconds()
            logger.info("The lock %r was last granted before a fail-over: it is granted in %.1f s.", gate.name, seconds)
        return rest

    def _look(self, lock: "JobLock | None") -> Snapshot:
        names = {self.request.name, self.request.own_name}
        seen = gates().look_up(names, self.request.min_interval)
        if missing := names - seen.keys():
            gates().remember(*missing)
            seen = gates().look_up(names, self.request.min_interval)
        return Snapshot(lock, seen[self.request.name], seen[self.request.own_name], local_now())

    def _plan(self, snapshot: Snapshot) -> PlannedRun | Refusal | Undecided:
        if not self.request.job_name:
            return PlannedRun()
        policy = self.request.policy if self.request.is_scheduled else None
        if policy and not is_followed(snapshot.own, policy.schedule):
            follow(snapshot.own, policy.schedule, snapshot.own.now, self.request.early)
            return Undecided.RACED
        if snapshot.own.paused:
            return Refusal(Reason.PAUSED, snapshot.lock)
        planned = self._scheduled(snapshot, policy) if policy else self._called(snapshot)
        if (
            isinstance(planned, PlannedRun)
            and snapshot.own.started_recently
            and self._min_interval(snapshot, planned) > ZERO
        ):
            return Refusal(Reason.ALREADY_RAN, snapshot.lock)
        return planned

    def _called(self, snapshot: Snapshot) -> PlannedRun:
        """A run that no schedule starts. It consumes no slot, also not that of a run whose holder died."""
        if self.request.one_off:
            return PlannedRun(attempt=self.request.one_off.attempt + 1)
        dead = self._dead(snapshot)
        if dead and dead.slot is None and self._is_to_be_rerun(dead.attempt):
            return PlannedRun(attempt=dead.attempt + 1)
        return PlannedRun()

    def _scheduled(self, snapshot: Snapshot, policy: Policy) -> PlannedRun | Refusal | Undecided:
        """The run of the slot that is due, or, once more, of the one whose holder died."""
        own = snapshot.own
        assert own.next_slot  # noqa: S101  (it follows the schedule)
        self._compare_clocks(own.now)
        again = own.last_slot if self._is_abandoned(snapshot) and self._is_to_be_rerun(own.last_attempt) else None
        claimed = claim(policy, own.next_slot, own.now, self.request.early, again)
        if claimed is None:
            return self._not_due(own, policy, own.next_slot)
        if claimed.slot is None:
            return Refusal(Reason.NOT_DUE, next_slot=claimed.next_slot) if pass_by(own, claimed) else Undecided.RACED
        attempt = own.last_attempt + 1 if claimed.slot == again else 1
        return PlannedRun(claimed.slot, attempt, begun(claimed, attempt), claimed.misfires)

    def _not_due(self, own: "JobStatus", policy: Policy, due: datetime) -> Refusal:
        """A cron daemon fired for a slot that somebody has run, or for none."""
        meant = latest_slot(policy.schedule, reach(policy.schedule, own.now, self.request.early))
        has_run = own.last_slot is not None and own.last_slot >= meant > own.now - options().slot_tolerance
        return Refusal(Reason.ALREADY_RAN if has_run else Reason.NOT_DUE, next_slot=due)

    def _compare_clocks(self, database_now: datetime) -> None:
        """A lone server whose clock is off by just the tolerance would fire for no slot at all."""
        error = utc_now() - database_now
        if self.request.early and abs(error) > options().slot_tolerance / 2 and not self._is_warned:
            self._is_warned = True
            logger.warning(
                "This server's clock is %.0f seconds off the database's, and cron fires by it: set both by NTP.",
                error.total_seconds(),
            )

    def _is_abandoned(self, snapshot: Snapshot) -> bool:
        """Whether who ran the last slot died: the lock is there still, or was cleared, or taken over."""
        dead, own = self._dead(snapshot), snapshot.own
        is_of_last_slot = dead is not None and (dead.slot, dead.attempt) == (own.last_slot, own.last_attempt)
        return own.last_slot is not None and (own.abandoned or is_of_last_slot)

    def _dead(self, snapshot: Snapshot) -> "JobLock | None":
        """The stale lock of a run of our own job."""
        return snapshot.lock if snapshot.lock and snapshot.lock.job_name == self.request.job_name else None

    def _is_to_be_rerun(self, attempt: int) -> bool:
        return self.request.rerun_abandoned and attempt < self.request.max_attempts

    def _min_interval(self, snapshot: Snapshot, planned: PlannedRun) -> timedelta:
        # It is not too soon for a run that is in the place of a dead one, unless too many have died.
        dead, own = self._dead(snapshot), snapshot.own
        deaths = dead.attempt if dead else own.consecutive_failures
        is_replacement = (dead or own.last_status == "abandoned") and self._is_to_be_rerun(deaths)
        return ZERO if planned.attempt > 1 or is_replacement else self.request.min_interval

    def _grant(self, snapshot: Snapshot, planned: PlannedRun) -> Lease | Refusal | None:
        """``None``: look again. Somebody was faster, and nothing was written; or the lease is over by now."""
        lease = with_history(partial(self._grant_once, snapshot, planned), self.request.lease)
        if not isinstance(lease, Lease):
            return lease
        if self._entry:
            self._entry.begin_late(lease.acquired_at)
        tell(self.request.own_name, planned.misfires)
        if snapshot.lock:
            former = f"{snapshot.lock.holder}. {silence(snapshot.lock)}"
            logger.warning("The lock %r was taken over from %s.", self.request.name, former)
            lock_taken_over.send_robust(
                sender=type(snapshot.lock), name=self.request.name, lease=lease, lock=snapshot.lock
            )
        # A COMMIT may take longer than the lease, behind a standby or a node that is lost. If the row is still ours, it
        # is renewed, as after a COMMIT without an answer.
        self._is_in_doubt = lease.lost
        return None if lease.lost else lease

    def _grant_once(self, snapshot: Snapshot, planned: PlannedRun, history: Writer) -> Lease | Refusal | None:
        alias = database.alias()
        asked_at, sent_at = local_now(), database.sent_now()
        facts = {"slot": planned.slot, "attempt": planned.attempt}
        self._entry = self._new_entry(snapshot, **facts)
        with database.durable(alias, statement_timeout=history.patience):
            if not self._pass_gates(snapshot, planned, history) or not self._insert_or_take_over(
                snapshot.lock, self._row(sent_at=sent_at, **facts)
            ):
                database.roll_back(alias)
                return None
            if not self._claim():
                database.roll_back(alias)
                return Refusal(Reason.ALREADY_RAN)
            if self._entry:
                self._entry.begin(history)
            self._is_in_doubt, self._fence_in_doubt = True, next_fence(snapshot.gate)
        self._is_in_doubt = False
        return Lease(self._granted(snapshot, asked_at=asked_at, **facts))

    def _insert_or_take_over(self, stale: "JobLock | None", row: dict[str, Any]) -> bool:
        if stale is None:
            return locks().grant(self.request.name, row)
        # Never an INSERT here: if the row is gone, its holder was alive and has finished, and nothing is to be rerun.
        return locks().take_over(stale, row)

    def _claim(self) -> bool:
        """``False``: somebody else runs that one-off, or has, or it was cancelled."""
        one_off = self.request.one_off
        return one_off is None or one_offs().claim(one_off, self.token, self.request.holder)

    def _pass_gates(self, snapshot: Snapshot, planned: PlannedRun, history: Writer) -> bool:
        is_own = snapshot.own is snapshot.gate
        begin = partial(self._begin, snapshot=snapshot, planned=planned, history=history)
        if self.request.job_name and is_own and snapshot.lock is None:
            passed = {"fence": next_fence(snapshot.gate), "token": self.token}
            return begin(gates().grantable(snapshot.gate), passed)
        if snapshot.lock and not gates().is_at_hand(snapshot.gate.name):
            return False  # somebody is inside a fenced transaction: MySQL would wait for it for almost a minute
        if not gates().pass_through(snapshot.gate, self.token):
            return False
        if snapshot.lock:
            # Before the start, since both change what is known of the job. If its holder lives, it is rolled back.
            abandon(
                snapshot.lock, f"{silence(snapshot.lock)}; {self.request.holder.hostname} took the lock over.", history
            )
        if not self.request.job_name:
            return True
        if is_own:
            return begin(gates().passed(snapshot.gate.name, self.token), {})
        return begin(gates().unchanged(snapshot.own), {"fence": snapshot.own.fence + 1})

    def _begin(
        self,
        own: "JobStatusQuerySet",
        changes: Mapping[str, Any],
        *,
        snapshot: Snapshot,
        planned: PlannedRun,
        history: Writer,
    ) -> bool:
        if snapshot.own.unrecorded is not None and not history.is_off:
            changes = {**changes, "unrecorded": None}  # the entry of this run brings it into the history
        if self._dead(snapshot) or snapshot.own.last_status == "abandoned":
            changes = {**changes, "last_status": ""}
        return own.start(self._min_interval(snapshot, planned), {**changes, **planned.changes})

    def _new_entry(self, snapshot: Snapshot, **facts: Any) -> Entry | None:
        if self.request.trigger is None:
            return None
        holder = self.request.holder
        who = {"hostname": holder.hostname, "pid": holder.pid}
        grant = {"fence": next_fence(snapshot.gate), "token": self.token, "trigger": self.request.trigger}
        return Entry(snapshot.own, self.request.lease, {**grant, **facts, **who})

    def _row(self, **facts: Any) -> dict[str, Any]:
        holder = self.request.holder
        return {
            "token": self.token,
            "hostname": holder.hostname,
            "pid": holder.pid,
            "command": holder.command,
            "acquired_at": DBNow(),
            "heartbeat_at": DBNow(),
            "heartbeats": 0,
            "heartbeat_interval": self.request.heartbeat_interval,
            "expires_at": DBNow() + self.request.lease,
            "job_name": self.request.job_name,
            **facts,
        }

    def _granted(self, snapshot: Snapshot, *, asked_at: float, **facts: Any) -> Grant:
        return Grant(
            name=self.request.name,
            own_name=self.request.own_name,
            token=self.token,
            fence=next_fence(snapshot.gate),
            duration=self.request.lease,
            heartbeat_interval=self.request.heartbeat_interval,
            asked_at=asked_at,
            acquired_at=snapshot.gate.now + timedelta(seconds=asked_at - snapshot.at),
            entry=self._entry,
            **facts,
        )

    def _adopt(self, lock: "JobLock", snapshot: Snapshot) -> Lease | Undecided:
        """Our COMMIT was carried out, though its answer was lost."""
        asked_at = local_now()
        sent_at = database.sent_now()
        if snapshot.gate.token != self.token:
            return Undecided.RACED
        with database.durable(database.alias()):
            is_kept = locks().renew(lock.name, self.token, self.request.lease, sent_at)
        if not is_kept:
            return Undecided.RACED
        grant = self._granted(snapshot, asked_at=asked_at, attempt=lock.attempt, slot=lock.slot)
        if self._entry:
            self._entry.adopt(lock.acquired_at)
        return Lease(replace(grant, fence=snapshot.gate.fence))
