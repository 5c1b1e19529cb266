"""What is asked for, and why it may be refused."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Self

from django.db import models
from django.utils.translation import gettext_lazy as _

from django_singlejob.conf import ZERO, options
from django_singlejob.holder import Holder
from django_singlejob.locking.liveness import LONGEST_STAY, WATCHED_INTERVALS
from django_singlejob.scheduling.slots import Policy

if TYPE_CHECKING:
    from django_singlejob.models import JobLock, OneOffJob

# However long the lease: whoever wants the lock of a dead holder watches for two intervals.
LONGEST_INTERVAL = LONGEST_STAY / WATCHED_INTERVALS


@dataclass(frozen=True, kw_only=True)
class LockRequest:
    """What is asked for: which lock, for which job (``""``: none), for how long, on which conditions.

    ``policy``: the job's schedule. ``is_scheduled``: it is asked for a slot that is due, or, a cron daemon being at it,
    ``early``. ``one_off``: the one that it is asked for. ``queues``: of a worker's lock,
    the queues that it serves; empty: all queues.
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
    queues: Sequence[str] = ()

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

    @property
    def due_policy(self) -> Policy | None:
        """The schedule whose slot is asked for; ``None``: it is called outside of any schedule."""
        return self.policy if self.is_scheduled else None

    def allows_rerun(self, attempt: int) -> bool:
        """Whether a run whose holder died in this attempt is to be run once more."""
        return self.rerun_abandoned and attempt < self.max_attempts


class Reason(models.TextChoices):
    """Why a call did not run. None of these is an error."""

    HELD = "held", _("held by somebody else")
    PAUSED = "paused", _("paused")
    NOT_DUE = "not_due", _("not due")
    ALREADY_RAN = "already_ran", _("already ran")
    INTERRUPTED = "interrupted", _("told to end before it began")
    UNDECIDED = "undecided", _("undecided")


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
