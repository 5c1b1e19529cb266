"""A grant and its writes: one transaction, in the order gate, lock, one-off, run.

All servers race. The gate's conditional UPDATE lets one of them through, and the unique key of the lock's row is the
proof (Lu 2025, "A Simple Way to Run One Copy of a Job on Many Servers").
"""

from collections.abc import Mapping
from datetime import datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Self
from uuid import UUID

from django_singlejob.database import transactions
from django_singlejob.locking.clear import take_from
from django_singlejob.locking.liveness import silence
from django_singlejob.locking.plan import PlannedRun, Snapshot
from django_singlejob.locking.recording import Entry, Writer
from django_singlejob.locking.request import LockRequest
from django_singlejob.models.jobs import gates
from django_singlejob.models.locks import locks
from django_singlejob.models.one_offs import one_offs
from django_singlejob.process.clock import DBNow, local_now, utc_now
from django_singlejob.process.logs import about

if TYPE_CHECKING:
    from django_singlejob.models import JobLock
    from django_singlejob.models.jobs import JobStatusQuerySet


# The fence of a grant by one statement, until it is granted.
UNKNOWN_FENCE = 0


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
    before: Mapping[str, Any] = MappingProxyType({"last_started_at": None})

    @classmethod
    def of(cls, request: LockRequest, token: UUID, snapshot: Snapshot, planned: PlannedRun) -> Self:
        """The grant to request at this moment, by what was seen."""
        grant = cls.unseen(request, token, planned, snapshot.gate.next_fence)
        # What a takeover records of the dead holder stays.
        last_status = "abandoned" if snapshot.dead_run else snapshot.own.last_status
        before = {"last_started_at": snapshot.own.last_started_at, "last_status": last_status}
        return grant._replace(acquired_at=snapshot.time_at(grant.asked_at), before=before)

    @classmethod
    def unseen(
        cls,
        request: LockRequest,
        token: UUID,
        planned: PlannedRun,
        fence: int = UNKNOWN_FENCE,
    ) -> Self:
        """The grant to request at this moment. Its time is this machine's until the database has answered."""
        asked_at, sent_at, holder = local_now(), transactions.sent_now(), request.holder
        run: dict[str, Any] = {"token": token, "slot": planned.slot, "attempt": planned.attempt}
        facts = {**run, "hostname": holder.hostname, "pid": holder.pid}
        asked = {"trigger": request.trigger, "requested_by": request.requested_by}
        entry = Entry(request.lease, {"job_name": request.own_name, **facts, "fence": fence, **asked})
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
            acquired_at=utc_now(),
            entry=entry if request.trigger is not None else None,
            columns=columns,
        )

    @property
    def is_last_of_slot(self) -> bool:
        """Whether this is the last attempt at its slot; ``False`` if it has none."""
        return self.slot is not None and not self.request.allows_rerun(self.attempt)

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
            slot=self.slot,
            reason=reason,
            token=self.token,
        )


class Granting(NamedTuple):
    """One try at a grant: the writes of its transaction. Each returns ``False`` if it must be rolled back."""

    grant: Grant
    snapshot: Snapshot
    planned: PlannedRun
    history: Writer

    def take(self) -> bool:
        """Pass the lock's gate, take the lock, and start the job. ``False`` if another caller was faster."""
        if self.snapshot.lock:
            return self._take_from_dead(self.snapshot.lock)
        if self.grant.request.job_name and self.snapshot.is_own_gate:
            return self._pass_own_gate() and self._insert()
        return self._pass_other_gate() and self._insert()

    def _insert(self) -> bool:
        return locks().insert(self.grant.request.name, self.grant.columns)

    def _pass_own_gate(self) -> bool:
        """The gate is the job's own, and the lock is free: one UPDATE passes it and starts the job.

        This is safe because it requires the row as it was seen: of all callers that have seen this row, only one
        changes it.
        """
        passed = {"fence": self.grant.fence, "token": self.grant.token}
        return gates().pass_and_start(self.snapshot.gate, self.planned.min_interval, {**passed, **self.planned.changes})

    def _pass_other_gate(self) -> bool:
        """The lock has no job, or several jobs share it: pass its gate first, then start the job at its own gate.

        This is safe because every caller that wants the lock must change the lock's gate as it was seen. The job's own
        row may be the gate of another lock, so it is compared as well, and takes no token.
        """
        return gates().pass_through(self.snapshot.gate, self.grant.token) and self._start_inside()

    def _take_from_dead(self, dead: "JobLock") -> bool:
        """The lock is stale: pass its gate as any caller does, and replace its holder.

        This is safe because no write of the former holder gets through a gate that has another token. If that holder
        is alive, its row has changed, and so it is not replaced.
        """
        error = f"{silence(dead)}; {self.grant.request.holder.hostname} took the lock over."
        # Never an INSERT here: if the row is gone, its holder was alive and has finished, so nothing must be rerun.
        is_taken = take_from(
            dead,
            pass_gate=lambda: gates().pass_through(self.snapshot.gate, self.grant.token),
            end_lease=lambda: locks().take_over(dead, self.grant.columns),
            error=error,
            history=self.history,
        )
        return bool(is_taken) and self._start_inside()

    def _start_inside(self) -> bool:
        """Start the job, if there is one, once the lock's gate is passed."""
        if not self.grant.request.job_name:
            return True
        if self.snapshot.is_own_gate:
            return self._start(gates().passed(self.grant.request.name, self.grant.token), {})
        return self._start(gates().unchanged(self.snapshot.own), {"fence": self.snapshot.own.fence + 1})

    def _start(self, own: "JobStatusQuerySet", changes: Mapping[str, Any]) -> bool:
        return own.start(self.planned.min_interval, {**changes, **self.planned.changes})

    def claim_one_off(self) -> bool:
        """Claim the requested one-off. ``False`` if another process runs it or has run it, or if it was cancelled."""
        one_off = self.grant.request.one_off
        return one_off is None or one_offs().claim(one_off, self.grant.token, self.grant.request.holder)

    def begin_entry(self) -> None:
        """Record the start of the run in the history."""
        if self.grant.entry:
            self.grant.entry.begin(self.history)
