"""Whether a request is granted, by the rows as they were seen, and the writes of a grant: one transaction, in the order
gate, lock, one-off, run.

All servers race. The gate's conditional UPDATE lets one of them through, and the unique key of the lock's row is the
proof (Lu 2025, "A Simple Way to Run One Copy of a Job on Many Servers").
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Self
from uuid import UUID

from django_singlejob.conf import ZERO, options
from django_singlejob.database import transactions
from django_singlejob.jobs.names import REASON_LENGTH
from django_singlejob.jobs.schedule import duration_in_words, latest_slot
from django_singlejob.jobs.slots import Claim, Policy, reach
from django_singlejob.locking.clear import take_from
from django_singlejob.locking.liveness import SECOND, silence
from django_singlejob.locking.position import begun, claim_at
from django_singlejob.locking.recording import Entry, Writer
from django_singlejob.locking.request import LockRequest, Reason, Refusal
from django_singlejob.models.jobs import gates
from django_singlejob.models.locks import locks
from django_singlejob.models.one_offs import one_offs
from django_singlejob.models.runs import runs
from django_singlejob.process.clock import DBNow, instant_in_words, local_now, utc_now
from django_singlejob.process.escaping import printable
from django_singlejob.process.logs import about

if TYPE_CHECKING:
    from django_singlejob.models import JobLock, JobStatus


# The fence of a grant by one statement, until it is granted.
UNKNOWN_FENCE = 0


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
        claim: what it does about the slots that are due; ``None`` if no schedule starts it.
        min_interval: how long ago the job's last start must be.
    """

    slot: datetime | None = None
    attempt: int = 1
    changes: Mapping[str, Any] = MappingProxyType({})
    claim: Claim | None = None
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
    policy = request.policy and request.policy.at(own)
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


def _called(request: LockRequest, snapshot: Snapshot) -> PlannedRun | Refusal:
    """A run that no schedule starts. It consumes no slot, not even that of a run whose holder died."""
    own, is_again = snapshot.own, snapshot.is_slot_abandoned and request.allows_rerun(snapshot.own.last_attempt)
    if request.slot and is_left_to_schedule(own, request.slot, is_again=is_again):
        return Refusal(Reason.NOT_DUE, next_slot=snapshot.own.next_slot)
    if request.one_off:
        return PlannedRun(attempt=request.one_off.attempt + 1)
    dead = snapshot.dead_run
    if dead and dead.slot is None and not request.slot and request.allows_rerun(dead.attempt):
        return PlannedRun(attempt=dead.attempt + 1)
    return PlannedRun()


def is_left_to_schedule(own: "JobStatus", slot: datetime, *, is_again: bool) -> bool:
    """Whether the slot is to come, or due, or will be run again: by hand, it would run twice. ``is_again``: the run of
    the last slot was cut off, and may begin again."""
    # Cron may fire late for a slot that the row does not have yet, because the schedule is new.
    due = min(own.next_slot or own.now, own.now - options().slot_tolerance)
    return slot >= due or (is_again and slot == own.last_slot) or one_offs().will_retry(own.name, slot)


def _scheduled(request: LockRequest, snapshot: Snapshot, policy: Policy) -> PlannedRun | Refusal | Claim:
    """The run of the slot that is due, or a rerun of the slot whose run was cut off."""
    own = snapshot.own
    again = own.last_slot if snapshot.is_slot_abandoned and request.allows_rerun(own.last_attempt) else None
    claimed = claim_at(own, policy, request.early, again)
    if claimed is None:
        return _not_due(request, own, policy)
    if claimed.slot is None:
        return claimed
    attempt = own.last_attempt + 1 if claimed.slot == again else 1
    return PlannedRun(claimed.slot, attempt, begun(claimed, attempt), claimed)


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


# --- the grant


class Grant(NamedTuple):
    """What the database is asked to grant.

    Attributes:
        asked_at: when we asked, as ``local_now()``.
        acquired_at: the same instant by the database's clock.
        entry: the run's history row; ``None`` if there is no job.
        columns: the values of the lock's row.
        before: what the start has changed of the job's gate, apart from its schedule, as it was before.
    """

    request: LockRequest
    token: UUID
    fence: int
    asked_at: float
    acquired_at: datetime
    entry: Entry | None
    slot: datetime | None
    attempt: int
    columns: Mapping[str, Any]
    before: Mapping[str, Any]

    @classmethod
    def of(cls, request: LockRequest, token: UUID, planned: PlannedRun, snapshot: Snapshot | None = None) -> Self:
        """The grant to request at this moment, by what was seen. If nothing was, its fence is not known, and its time
        is this machine's, until the database has answered."""
        asked_at, sent_at, holder = local_now(), transactions.sent_now(), request.holder
        run: dict[str, Any] = {"token": token, "slot": planned.slot, "attempt": planned.attempt}
        facts = {**run, "hostname": holder.hostname, "pid": holder.pid}
        # A run by hand does not put its slot into the lock's row: after a death, the schedule would run that again.
        slot = planned.slot or request.slot
        asked = {"trigger": request.trigger, "requested_by": request.requested_by, "slot": slot}
        asked["retried_slot"] = request.one_off.retried_slot if request.one_off else None
        fence = snapshot.gate.next_fence if snapshot else UNKNOWN_FENCE
        names = {"job_name": request.own_name, "lock": request.name}
        entry = Entry(request.lease, {**names, **facts, "fence": fence, **asked})
        columns = {
            **facts,
            "command": holder.command,
            "job_name": request.job_name,
            "queues": list(request.queues),
            "acquired_at": DBNow(),
            "heartbeat_at": DBNow(),
            "heartbeats": 0,
            "heartbeat_interval": request.heartbeat_interval,
            "expires_at": DBNow() + request.lease,
            "sent_at": sent_at,
            "stopped_by": "",
            "progress": {},
        }
        return cls(
            **run,
            request=request,
            fence=fence,
            asked_at=asked_at,
            acquired_at=snapshot.time_at(asked_at) if snapshot else utc_now(),
            entry=entry if request.trigger is not None else None,
            columns=columns,
            before=_before(snapshot) if snapshot else {"last_started_at": None},
        )

    @property
    def is_last_of_slot(self) -> bool:
        """Whether this is the last attempt at its slot; ``False`` if it has none."""
        return self.slot is not None and not self.request.allows_rerun(self.attempt)

    @property
    def slot_of_run(self) -> datetime | None:
        """The slot that it runs, also by hand or as a retry; ``None`` if it is not the run of a slot."""
        one_off = self.request.one_off
        return self.slot or self.request.slot or (one_off.retried_slot if one_off else None)

    @property
    def run_id(self) -> int | None:
        """The primary key of its run in the history; ``None`` if it has none, or none is known."""
        return self.entry.pk if self.entry else None

    def facts(self, *, job: str = "", reason: str | BaseException | None = None) -> dict[str, Any]:
        """What a log record carries about it. ``job``: what runs under it, if the request does not say."""
        return about(
            job=job or self.request.job_name,
            lock=self.request.name,
            run=self.run_id,
            fence=self.fence,
            slot=self.slot_of_run,
            reason=reason,
            token=self.token,
        )

    # --- its writes. Each returns ``False`` if the transaction must be rolled back.

    def take(self, snapshot: Snapshot, planned: PlannedRun, history: Writer) -> bool:
        """Pass the lock's gate, take the lock, and start the job. ``False`` if another caller was faster."""
        if snapshot.lock:
            return self._take_from_dead(snapshot.lock, snapshot.gate, history) and self._start_inside(snapshot, planned)
        if self.request.job_name and snapshot.is_own_gate:
            is_passed = self._pass_own_gate(snapshot.gate, planned)
        else:
            is_passed = self._pass_other_gate(snapshot, planned)
        return is_passed and locks().insert(self.request.name, self.columns)

    def _pass_own_gate(self, gate: "JobStatus", planned: PlannedRun) -> bool:
        """The gate is the job's own, and the lock is free: one UPDATE passes it and starts the job.

        This is safe because it requires the row as it was seen: of all callers that have seen this row, only one
        changes it.
        """
        passed = {"fence": self.fence, "token": self.token}
        return gates().pass_and_start(gate, planned.min_interval, {**passed, **planned.changes})

    def _pass_other_gate(self, snapshot: Snapshot, planned: PlannedRun) -> bool:
        """The lock has no job, or several jobs share it: pass its gate first, then start the job at its own gate.

        This is safe because every caller that wants the lock must change the lock's gate as it was seen. The job's own
        row may be the gate of another lock, so it is compared as well, and takes no token.
        """
        return gates().pass_through(snapshot.gate, self.token) and self._start_inside(snapshot, planned)

    def _take_from_dead(self, dead: "JobLock", gate: "JobStatus", history: Writer) -> bool:
        """The lock is stale: pass its gate as any caller does, and replace its holder.

        This is safe because no write of the former holder gets through a gate that has another token. If that holder
        is alive, its row has changed, and so it is not replaced.
        """
        # Never an INSERT here: if the row is gone, its holder was alive and has finished, so nothing must be rerun.
        is_taken = take_from(
            dead,
            pass_gate=lambda: gates().pass_through(gate, self.token),
            end_lease=lambda: locks().take_over(dead, self.columns),
            error=f"{silence(dead)}; {self.request.holder.hostname} took the lock over.",
            history=history,
        )
        return bool(is_taken)

    def _start_inside(self, snapshot: Snapshot, planned: PlannedRun) -> bool:
        """Start the job, if there is one, once the lock's gate is passed."""
        if not self.request.job_name:
            return True
        changes: Mapping[str, Any] = {}
        if snapshot.is_own_gate:
            own = gates().passed(self.request.name, self.token)
        else:
            own, changes = gates().unchanged(snapshot.own), {"fence": snapshot.own.fence + 1}
        return own.start(planned.min_interval, {**changes, **planned.changes})

    def claim(self) -> bool:
        """Claim the requested one-off. ``False`` if another process runs it or has run it, or if it was cancelled; or
        if the slot that is to be run by hand has been run successfully."""
        name, one_off, slot = self.request.job_name, self.request.one_off, self.request.slot
        if slot and runs().has_succeeded(name, slot):
            return False
        return one_off is None or one_offs().claim(one_off, self.token, self.request.holder)


def _before(snapshot: Snapshot) -> dict[str, Any]:
    # What a takeover records of the dead holder stays.
    last_status = "abandoned" if snapshot.dead_run else snapshot.own.last_status
    return {"last_started_at": snapshot.own.last_started_at, "last_status": last_status}
