"""Is a holder whose lease has expired dead? Age alone is no proof."""

from typing import TYPE_CHECKING

from django_singlejob import database
from django_singlejob.clock import local_now, since
from django_singlejob.querysets import gates, runs
from django_singlejob.queue import one_offs

if TYPE_CHECKING:
    from django_singlejob.models import JobLock

# A stale lock is taken over only when its heartbeats have stood still for so many of its intervals.
WATCHED_INTERVALS = 2


class Watch:
    """Tells a dead holder from one whose lease expired behind its back.

    After an outage of the database that was longer than a lease, or a step of its clock, every lease is stale and
    every holder alive. So nobody takes a lock over before its heartbeats have stood still for two of its intervals,
    counted by our own clock, from a moment when the gate could be changed: while it could not, a fenced transaction
    was open, and on SQLite heartbeats cannot get through then.
    """

    def __init__(self) -> None:
        self._sight: object = None
        self._since = 0.0

    def is_over(self, lock: "JobLock") -> bool:
        """Whether the holder of this stale lock is dead by what was seen so far."""
        if lock.heartbeat_interval is None:
            return True
        sight = (lock.token, lock.heartbeats)
        if sight != self._sight:
            with database.durable(database.alias()):
                gates().knock(lock.name)
            self._sight, self._since = sight, local_now()
        return since(self._since) >= lock.heartbeat_interval * WATCHED_INTERVALS


def bury(dead: "JobLock", error: str) -> None:
    """Record the death of a holder whose lock is taken from it, in the same transaction."""
    runs().abandon(dead, error)
    one_offs().abandon(dead, error)
    if dead.job_name:
        gates().abandon(dead)
