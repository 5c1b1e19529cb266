"""What a caller requests, and why it may be refused."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from django.db import models
from django.utils.translation import gettext_lazy as _

from django_singlejob.conf import SHORTEST_LEASE, ZERO, options
from django_singlejob.jobs.names import is_reserved
from django_singlejob.jobs.slots import Policy
from django_singlejob.locking.liveness import LONGEST_STAY, WATCHED_INTERVALS
from django_singlejob.process.clock import instant_in_words
from django_singlejob.process.holder import Holder
from django_singlejob.process.logs import in_english

if TYPE_CHECKING:
    from django_singlejob.models import JobLock, OneOffJob

# It limits long leases too: a caller that wants a dead holder's lock watches it for two intervals.
LONGEST_INTERVAL = LONGEST_STAY / WATCHED_INTERVALS
# Of the shortest lease, this is a tenth.
SHORTEST_INTERVAL = SHORTEST_LEASE / 10


class LockRequest(NamedTuple):
    """A request: which lock, for which job (``""`` if none), for how long and under which conditions.

    With ``policy``, the job's schedule, it is for the run of a slot that is due; if cron makes it, the slot may also be
    due within ``early``. ``one_off`` is the one to run, if any. ``slot``: the past slot that somebody wants to run by
    hand, if any. ``queues`` are the queues that a worker serves, if the lock is a worker's; empty if it serves all of
    them. ``is_elsewhere``: the job is for other servers.
    """

    name: str
    holder: Holder
    lease: timedelta
    heartbeat_interval: timedelta | None
    job_name: str = ""
    wait: timedelta = ZERO
    min_interval: timedelta = ZERO
    max_attempts: int = 1
    policy: Policy | None = None
    early: timedelta = ZERO
    trigger: str | None = None
    one_off: "OneOffJob | None" = None
    slot: datetime | None = None
    queues: Sequence[str] = ()
    is_elsewhere: bool = False

    @classmethod
    def of(cls, name: str, *, lease: timedelta | None, heartbeat: bool, wait: timedelta | None, **others: Any) -> Self:
        """A request with the defaults from the settings."""
        duration = lease or options().lease
        usual = max(duration / options().heartbeats_per_lease, SHORTEST_INTERVAL)
        interval = min(usual, LONGEST_INTERVAL) if heartbeat else None
        return cls(name=name, lease=duration, heartbeat_interval=interval, wait=wait or ZERO, **others)

    @property
    def own_name(self) -> str:
        """The name of the gate that remembers the job; for most jobs this is the lock's gate too."""
        return self.job_name or self.name

    @property
    def requested_by(self) -> str:
        """The user who requested the run in the admin; empty if nobody did."""
        return self.one_off.requested_by if self.one_off else ""

    @property
    def why_not(self) -> "Reason | None":
        """Why this server does not even ask; ``None``: it does."""
        # A copy of production is migrated, too.
        if self.job_name and not (options().enabled or is_reserved(self.job_name)):
            return Reason.DISABLED
        return Reason.NOT_HERE if self.is_elsewhere else None

    def allows_rerun(self, attempt: int) -> bool:
        """Whether to rerun a run that was cut off in this attempt."""
        return attempt < self.max_attempts


class Reason(models.TextChoices):
    """Why a call was skipped. None of these is an error, and all but ``ITSELF`` are refusals: nothing was run."""

    HELD = "held", _("held by somebody else")
    PAUSED = "paused", _("paused")
    DISABLED = "disabled", _("disabled by SINGLEJOB['ENABLED']")
    NOT_HERE = "not_here", _("for other servers")
    NOT_DUE = "not_due", _("not due")
    ALREADY_RAN = "already_ran", _("already ran")
    INTERRUPTED = "interrupted", _("interrupted before it started")
    UNDECIDED = "undecided", _("undecided")
    NOT_BEGUN = "not_begun", _("not begun")
    ITSELF = "itself", _("skipped itself")


class Refusal(NamedTuple):
    """The lock was not granted.

    Attributes:
        reason: why not.
        lock: the lock that was in the way; ``None`` if no lock was.
        next_slot: when the job is next due, if it is not due now.
        detail: why it could not be decided whether the lock is free, if that is the reason; until when the job is
            paused, and why; or how the last run ended, if the job already ran but was not successful.
    """

    reason: Reason
    lock: "JobLock | None" = None
    next_slot: datetime | None = None
    detail: str = ""

    def message(self, name: str) -> str:
        """Why the lock of that name was not granted, as a sentence."""
        if self.reason == Reason.UNDECIDED:
            return f"It could not be decided whether the lock {name!r} is free: {self.detail}"
        if self.reason == Reason.HELD and self.lock:
            acquired_at = instant_in_words(self.lock.acquired_at)
            return f"The lock {name!r} has been held by {self.lock.holder} since {acquired_at}."
        return f"The lock {name!r} was not granted: {in_english(self.reason.label)}."

    @property
    def may_be_held(self) -> bool:
        """Whether another caller holds the lock, or may hold it: it may be free in a moment."""
        return self.reason in (Reason.HELD, Reason.UNDECIDED)
