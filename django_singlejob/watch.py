"""Is a holder whose lease has expired dead? Age alone is no proof."""

from datetime import timedelta
from typing import TYPE_CHECKING

from django_singlejob import database
from django_singlejob.clock import local_now, since
from django_singlejob.querysets import gates, runs
from django_singlejob.queue import one_offs

if TYPE_CHECKING:
    from django_singlejob.models import JobLock

# A stale lock is taken over only when its heartbeats have stood still for so many of its intervals.
WATCHED_INTERVALS = 2
# Who did not look for so long, or for longer than an interval, begins anew.
LONGEST_GAP = timedelta(seconds=5)


class Watch:
    """Tells a dead holder from one whose lease expired behind its back.

    After an outage of the database that was longer than a lease, or a step of its clock, every lease is stale and
    every holder alive. So nobody takes a lock over before its heartbeats have stood still for two of its intervals,
    counted by our own clock, from a moment when the gate could be changed: while it could not, a fenced transaction
    was open, and on SQLite heartbeats cannot get through then. Nor is time counted in which nobody looked: the database
    may have been away.
    """

    def __init__(self) -> None:
        self._sight: object = None
        self._since = 0.0
        self._looked_at = local_now()

    def is_over(self, lock: "JobLock") -> bool:
        """Whether the holder of this stale lock is dead by what was seen so far."""
        if lock.heartbeat_interval is None:
            return True
        sight = (lock.token, lock.heartbeats)
        looked_at, self._looked_at = self._looked_at, local_now()
        if sight != self._sight or since(looked_at) > max(lock.heartbeat_interval, LONGEST_GAP):
            if not _can_be_changed(lock.name):
                return False
            self._sight, self._since = sight, local_now()
        return since(self._since) >= lock.heartbeat_interval * WATCHED_INTERVALS


def _can_be_changed(name: str) -> bool:
    with database.durable(database.alias()):
        is_at_hand = gates().is_at_hand(name)
        if is_at_hand:
            gates().knock(name)
        return is_at_hand


def bury(dead: "JobLock", error: str) -> None:
    """Record the death of a holder whose lock is taken from it, in the same transaction."""
    runs().abandon(dead, error)
    one_offs().abandon(dead, error)
    if dead.job_name:
        gates().abandon(dead)
