"""Forgetting a name: deleting the gate of a job or lock that the code no longer has."""

from datetime import timedelta
from typing import TYPE_CHECKING

from django.db import Error, models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from django_singlejob import database, registry
from django_singlejob.conf import ZERO
from django_singlejob.names import is_reserved
from django_singlejob.querysets.jobs import FORGOTTEN, gates
from django_singlejob.querysets.locks import locks
from django_singlejob.querysets.one_offs import one_offs
from django_singlejob.timeline import is_from_before

if TYPE_CHECKING:
    from django_singlejob.models import JobStatus

# A server that still runs a release with the job would start it again: the slot and the start are forgotten.
_RECENTLY = timedelta(minutes=5)


class Obstacle(models.TextChoices):
    """Why a name cannot be forgotten, and what to do."""

    UNKNOWN = "unknown", _("no job or lock has this name (singleton_status lists the names)")
    REGISTERED = "registered", _("this release of the code has the job (remove it from the code first, or pause it)")
    OURS = "ours", _("it belongs to django-singlejob itself")
    HELD = "held", _("its lock is held (wait until it is released, or clear it)")
    DUE = "due", _("its one-offs are waiting or in progress (cancel them, or wait until they have finished)")
    RECENT = "recent", _("it ran in the last 5 minutes (wait until no server runs a release that has it)")
    FAILOVER = "failover", _("the database has just failed over, and the holder may not know yet (retry later)")
    BUSY = "busy", _("another process is using it (retry later)")


def forget_name(name: str) -> Obstacle | None:
    """Delete the gate of this name, with everything that it remembers except its fence; ``None`` if it is forgotten.

    The next grant of the name has a greater fence than any before. The history keeps the runs until they are pruned.
    """
    seen = None if name == FORGOTTEN else gates().look_up({name}, ZERO).get(name)
    if seen is None:
        return Obstacle.UNKNOWN
    try:
        gates().remember(FORGOTTEN)
        return _obstacle_before(seen) or _forget(seen)
    except Error as error:
        if not database.is_undone(error):
            raise
        return Obstacle.BUSY


def _obstacle_before(seen: "JobStatus") -> Obstacle | None:
    """What the gate itself shows."""
    if registry.is_known(seen.name):
        return Obstacle.REGISTERED
    if is_reserved(seen.name):
        return Obstacle.OURS
    # The lock of a live holder may be lost, and a new gate would not know that it has to wait for that holder.
    if is_from_before(seen) and not gates().have_started_on(seen.timeline, _RECENTLY):
        return Obstacle.FAILOVER
    return None


def _forget(seen: "JobStatus") -> Obstacle | None:
    with database.durable(alias := database.alias()):
        # In the order in which new gates are inserted, so that nothing deadlocks.
        gates().keep_fence(seen.fence)
        is_dropped = gates().is_at_hand(seen.name) and gates().drop(seen)
        # Only now: from here on, no caller can pass the gate.
        obstacle = _obstacle_behind(seen) if is_dropped else Obstacle.BUSY
        if obstacle:
            database.roll_back(alias)
    return obstacle


def _obstacle_behind(seen: "JobStatus") -> Obstacle | None:
    """What cannot change any more while the gate is ours."""
    if locks().filter(Q(name=seen.name) | Q(job_name=seen.name)).exists():
        return Obstacle.HELD
    if (one_offs().waiting() | one_offs().in_progress()).filter(job_name=seen.name).exists():
        return Obstacle.DUE
    if seen.last_started_at and seen.last_started_at > seen.now - _RECENTLY:
        return Obstacle.RECENT
    return None
