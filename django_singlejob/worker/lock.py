"""The lock of a worker. Its heartbeats count for all tasks that the worker has claimed. Others see the worker by it."""

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from datetime import timedelta
from itertools import count

from django_singlejob.conf import ZERO
from django_singlejob.exceptions import LeaseLost
from django_singlejob.jobs.names import WORKER_LOCK
from django_singlejob.locking.acquire import acquire
from django_singlejob.locking.at_exit import forget
from django_singlejob.locking.lease import Lease
from django_singlejob.locking.request import LockRequest, Reason, Refusal
from django_singlejob.models.locks import locks
from django_singlejob.process.clock import sleep
from django_singlejob.process.holder import this_process
from django_singlejob.process.received_signals import is_shutdown_requested

logger = logging.getLogger("django_singlejob")

# How many times to try to acquire a lock while other workers are faster.
TRIES = 10


class WorkerLock:
    """The lock, as long as the worker needs one.

    Attributes:
        lease: the lease; ``None`` if there is none.
    """

    def __init__(
        self,
        queues: Sequence[str],
        renewing: Callable[[Lease], AbstractContextManager[object]],
        pause: Callable[[float], object] = sleep,
    ) -> None:
        """``renewing``: renews the lease during a block. ``pause``: is called with the seconds to wait."""
        self.lease: Lease | None = None
        self._queues = queues
        self._renewing = renewing
        self._pause = pause
        self._life = ExitStack()

    def hold(self) -> Lease | None:
        """The lease. A lock that was lost is replaced by another one. ``None`` if others are in the way."""
        if not (self.lease and self._is_ours(self.lease)):
            self._take()
        return self.lease

    def _is_ours(self, lease: Lease) -> bool:
        """Whether the lease is still ours. Asks the database only if the lease cannot be trusted otherwise."""
        try:
            if lease.lost:
                lease.renew()
        except LeaseLost:  # which is reported by who keeps the lease
            self.release()
        return self.lease is not None

    def _take(self) -> None:
        for _ in range(TRIES):
            held = set(locks().filter(name__startswith=f"{WORKER_LOCK}.").values_list("name", flat=True))
            # To take a dead worker's lock over takes a while; another number is free at once.
            name = next(name for number in count(1) if (name := f"{WORKER_LOCK}.{number}") not in held)
            asked = LockRequest.of(
                name, lease=None, heartbeat=True, wait=ZERO, holder=this_process(), queues=self._queues
            )
            answer = acquire(asked, self._pause)
            if not isinstance(answer, Refusal):
                self.lease = answer
                self._life.enter_context(self._renewing(answer))
                return
            # An undecided try takes seconds, and everything that is due waits meanwhile.
            if answer.reason == Reason.UNDECIDED or is_shutdown_requested():
                return  # otherwise another worker was faster

    def release(self, patience: timedelta | None = None) -> None:
        """Release the lock, if there is one. This is retried for ``patience``; ``None``: while the lease lasts."""
        self._life.close()
        lease, self.lease = self.lease, None
        if lease is None:
            return
        try:
            lease.finish(patience=patience, pause=self._pause)
        except LeaseLost as loss:
            logger.warning("%s", loss, extra=lease.grant.facts(reason=loss))

    def leave_to_expire(self) -> None:
        """Do not release the lock. Others put back what was running under it, once the lease has expired."""
        self._life.close()
        if self.lease:
            forget(self.lease.token)
        self.lease = None
