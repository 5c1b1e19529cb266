"""The run that a request would start: pure functions of the request and of the rows as they were seen."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from django_singlejob.conf import ZERO, options
from django_singlejob.jobs.names import REASON_LENGTH
from django_singlejob.jobs.schedule import duration_in_words, latest_slot
from django_singlejob.jobs.slots import Claim, Misfires, Policy, claim, reach
from django_singlejob.locking.liveness import SECOND
from django_singlejob.locking.position import begun
from django_singlejob.locking.request import LockRequest, Reason, Refusal
from django_singlejob.process.clock import instant_in_words
from django_singlejob.process.escaping import printable

if TYPE_CHECKING:
    from django_singlejob.models import JobLock, JobStatus


class Snapshot(NamedTuple):
    """The rows of a name, as they were seen at one instant.

    Attributes:
        lock: the stale lock; ``None`` if the lock is free.
        gate: the lock's gate.
        own: the gate that remembers the job; for most jobs it is the same.
        at: the instant, as ``local_now()``.
    """

    lock: "JobLock | None"
    gate: "JobStatus"
    own: "JobStatus"
    at: float

    @property
    def is_own_gate(self) -> bool:
        """Whether the lock's gate is the job's own."""
        return self.own is self.gate

    def time_at(self, instant: float) -> datetime:
        """The time by the database's clock at an instant of ``local_now()``."""
        return self.gate.now + timedelta(seconds=instant - self.at)

    @property
    def dead_run(self) -> "JobLock | None":
        """The stale lock, if it belongs to a run of our own job."""
        return self.lock if self.lock and self.lock.job_name == self.own.name else None

    @property
    def is_slot_abandoned(self) -> bool:
        """Whether the run of the last slot was cut off: a signal ended it, or its holder died, whose lock may still
        exist, or was cleared or taken over."""
        own, dead = self.own, self.dead_run
        is_of_last_slot = dead is not None and (dead.slot, dead.attempt) == (own.last_slot, own.last_attempt)
        return own.last_slot is not None and (own.abandoned or is_of_last_slot)


class PlannedRun(NamedTuple):
    """The run that a request would start.

    Attributes:
        slot: its slot; ``None`` if no schedule starts it.
        attempt: 1, or more if it repeats a run that was cut off or retries a one-off.
        changes: what to change in the job's gate.
        misfires: the slots that no server ran in time.
        min_interval: how long ago the job's last start must be.
    """

    slot: datetime | None = None
    attempt: int = 1
    changes: Mapping[str, Any] = MappingProxyType({})
    misfires: Sequence[Misfires] = ()
    min_interval: timedelta = ZERO


def plan(request: LockRequest, snapshot: Snapshot) -> PlannedRun | Refusal | Claim:
    """The run to start, or why there is none. A ``Claim`` means that all due slots are too late: pass them by.

    If a slot is requested, the job's own row must follow the schedule.
    """
    if not request.job_name:
        return PlannedRun()
    own = snapshot.own
    if own.is_paused:
        return Refusal(Reason.PAUSED, snapshot.lock, detail=pause_in_words(own))
    policy = request.due_policy
    planned = _scheduled(request, snapshot, policy) if policy else _called(request, snapshot)
    if not isinstance(planned, PlannedRun):
        return planned
    min_interval = _min_interval(request, snapshot, planned)
    if own.started_recently and min_interval > ZERO:
        return Refusal(Reason.ALREADY_RAN, snapshot.lock, detail=_how_it_ended(own))
    is_rerun = snapshot.dead_run or own.last_status == "abandoned"
    changes = {**planned.changes, "last_status": ""} if is_rerun else planned.changes
    return planned._replace(changes=changes, min_interval=min_interval)


def pause_in_words(own: "JobStatus") -> str:
    """Until when the job is paused, and why: ``until 2026-12-01 06:00:00 UTC (maintenance)``; empty if nobody said."""
    until = f"until {instant_in_words(own.paused_until)}" if own.paused_until else ""
    because = f"({printable(own.pause_reason, REASON_LENGTH)})" if own.pause_reason else ""
    return f"{until} {because}".strip()


def _called(request: LockRequest, snapshot: Snapshot) -> PlannedRun:
    """A run that no schedule starts. It consumes no slot, not even that of a run whose holder died."""
    if request.one_off:
        return PlannedRun(attempt=request.one_off.attempt + 1)
    dead = snapshot.dead_run
    if dead and dead.slot is None and request.allows_rerun(dead.attempt):
        return PlannedRun(attempt=dead.attempt + 1)
    return PlannedRun()


def _scheduled(request: LockRequest, snapshot: Snapshot, policy: Policy) -> PlannedRun | Refusal | Claim:
    """The run of the slot that is due, or a rerun of the slot whose run was cut off."""
    own = snapshot.own
    assert own.next_slot  # noqa: S101  (it follows the schedule)
    again = own.last_slot if snapshot.is_slot_abandoned and request.allows_rerun(own.last_attempt) else None
    claimed = claim(policy, own.next_slot, own.now, request.early, again)
    if claimed is None:
        return _not_due(request, own, policy)
    if claimed.slot is None:
        return claimed
    attempt = own.last_attempt + 1 if claimed.slot == again else 1
    return PlannedRun(claimed.slot, attempt, begun(claimed, attempt), claimed.misfires)


def _not_due(request: LockRequest, own: "JobStatus", policy: Policy) -> Refusal:
    """The answer if cron fires for a slot that was already run, or for no slot."""
    meant = latest_slot(policy.schedule, reach(policy.schedule, own.now, request.early))
    has_run = own.last_slot is not None and own.last_slot >= meant > own.now - options().slot_tolerance
    if has_run:
        return Refusal(Reason.ALREADY_RAN, next_slot=own.next_slot, detail=_how_it_ended(own))
    return Refusal(Reason.NOT_DUE, next_slot=own.next_slot)


def _how_it_ended(own: "JobStatus") -> str:
    """How the last run ended, and when; empty: well, or it has not ended, or its holder died."""
    if own.last_status not in _VERBS or own.last_finished_at is None:
        return ""
    if own.last_started_at and own.last_started_at > own.last_finished_at:
        return ""  # this is how the run before it ended
    ago = max(own.now - own.last_finished_at, ZERO) // SECOND * SECOND
    return f"its last run {_VERBS[own.last_status]} {duration_in_words(ago)} ago"


_VERBS = {"failed": "failed", "interrupted": "was interrupted", "skipped": "skipped itself"}


def _min_interval(request: LockRequest, snapshot: Snapshot, planned: PlannedRun) -> timedelta:
    """How long ago the job's last start must be. A run that repeats another one does not have to wait."""
    dead, own = snapshot.dead_run, snapshot.own
    if planned.attempt > 1:
        return ZERO  # it is the same run, retried
    if dead and request.allows_rerun(dead.attempt):
        return ZERO  # the last start came to nothing: its holder died
    if not dead and own.last_status == "abandoned" and request.allows_rerun(own.consecutive_failures):
        return ZERO  # the same, but its lock was cleared, or taken over by a job that shares it
    return request.min_interval  # also if too many holders have died
