"""Locks that another server holds, and holders that have died."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta

from django_singlejob.database.transactions import sent_now
from django_singlejob.exceptions import LeaseLost, LockHeld, SingleJobError
from django_singlejob.jobs.registry import Job
from django_singlejob.locking.acquire import acquire
from django_singlejob.locking.request import LockRequest, Refusal
from django_singlejob.models.locks import locks
from django_singlejob.process.clock import DBNow
from django_singlejob.process.holder import Holder
from django_singlejob.testing.arguments import lock_of

ANOTHER_SERVER = Holder(hostname="another-server", pid=4711, command="")
# Longer than a test that travels: only expire() ends it early.
_YEARS = timedelta(days=10 * 365)


@contextmanager
def held_elsewhere(lock: Job | str) -> Iterator[None]:
    """Have another server, ``another-server``, hold this lock during the block: that of a job, or the one of this name.

    No run is recorded. The lock is granted as any other is, and released at the end, unless it was taken over.

    Raises ``LockHeld`` if it is held already, and ``SingleJobError`` if this is neither a job nor a name.
    """
    name = lock_of(lock)
    answer = acquire(LockRequest.of(name, lease=_YEARS, heartbeat=False, wait=None, holder=ANOTHER_SERVER))
    if isinstance(answer, Refusal):
        raise LockHeld(answer.message(name))
    try:
        yield
    finally:
        with suppress(LeaseLost):
            answer.finish()


def expire(lock: Job | str) -> None:
    """Have the holder of this lock be dead: its lease has ended, by all clocks, and the next caller takes it over at
    once.

    A holder in this process that is not in a ``TestCase`` is alive all the same, and renews its lease within seconds.

    Raises ``SingleJobError`` if nobody holds it.
    """
    name = lock_of(lock)
    seen = locks().look_up(name)
    if seen is None:
        raise SingleJobError(
            f"Nobody holds the lock {name!r}, so no holder of it can be dead. Call expire() inside "
            f"held_elsewhere({name!r}), or while a job runs."
        )
    # A holder without heartbeats need not be watched for some: see locking.liveness.
    silent_for = 2 * seen.lease
    changes = {"heartbeat_at": DBNow() - silent_for, "sent_at": sent_now() - silent_for, "heartbeat_interval": None}
    locks().filter(name=name, token=seen.token).update(expires_at=DBNow() - seen.lease, **changes)
