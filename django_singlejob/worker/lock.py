"""The lock of a worker. Its heartbeats count for all tasks that the worker has claimed. Others see the worker by it."""

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from datetime import timedelta
from itertools import count

from django.db import Error

from django_singlejob import database
from django_singlejob.clock import sleep
from django_singlejob.conf import ZERO
from django_singlejob.exceptions import JobDied, LeaseLost
from django_singlejob.holder import this_process
from django_singlejob.locking.acquire import acquire
from django_singlejob.locking.at_exit import forget
from django_singlejob.locking.lease import Lease
from django_singlejob.locking.request import LockRequest, Reason, Refusal
from django_singlejob.logs import about_grant
from django_singlejob.names import WORKER_LOCK
from django_singlejob.querysets.locks import locks
from django_singlejob.querysets.one_offs import one_offs
from django_singlejob.received_signals import is_shutdown_requested

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
        keeping: Callable[[Lease], AbstractContextManager[object]],
        pause: Callable[[float], object] = sleep,
    ) -> None:
        """``keeping``: keeps the lease alive during a block. ``pause``: waits before a release is tried again."""
        self.lease: Lease | None = None
        self._queues = queues
        self._keeping = keeping
        self._pause = pause
        self._life = ExitStack()
        # How tasks ended whose process is over, as long as that is not recorded; ``None``: all are.
        self._error: str | None = None

    def hold(self) -> Lease | None:
        """The lease. A lock that was lost is replaced by another one. ``None`` if others are in the way."""
        if self.lease and self._is_ours(self.lease):
            self._put_back_if_left()
        else:
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
            answer = acquire(asked)
            if not isinstance(answer, Refusal):
                self.lease = answer
                self._life.enter_context(self._keeping(answer))
                return
            # An undecided try takes seconds, and everything that is due waits meanwhile.
            if answer.reason == Reason.UNDECIDED or is_shutdown_requested():
                return  # otherwise another worker was faster

    def put_back(self, error: str) -> None:
        """Put back the tasks that were in progress under the lock: their process is over. The attempt counts. If the
        database does not answer, ``hold`` tries again."""
        self._error = error
        self._put_back_if_left()

    def _put_back_if_left(self) -> None:
        if self._error is None or self.lease is None:
            return
        with database.durable(database.alias()):
            count = one_offs().filter(token=self.lease.token).put_back(self._error, JobDied)
        if count:
            message = "%d tasks that this worker was running have been put back: %s"
            logger.warning(message, count, self._error, extra=about_grant(self.lease.grant))
        self._error = None

    def release(self, patience: timedelta | None = None) -> None:
        """Release the lock, if there is one. This is retried for ``patience``; ``None``: while the lease lasts."""
        self._life.close()
        lease, self.lease = self.lease, None
        if lease is None:
            return
        try:
            lease.finish(patience=patience, pause=self._pause)
        except LeaseLost as loss:
            logger.warning("%s", loss, extra=about_grant(lease.grant, reason=loss))

    def close(self, patience: timedelta | None = None) -> None:
        """``release``, unless tasks could not be put back: then the lock is left to expire, and others do that."""
        try:
            self._put_back_if_left()
        except Error as error:
            message = "Tasks could not be put back. The lock of this worker is left to expire: %s"
            logger.warning(
                message,
                database.words_of(error),
                extra=about_grant(self.lease.grant, reason=error) if self.lease else None,
            )
            self.leave_to_expire()
        self.release(patience)

    def leave_to_expire(self) -> None:
        """Do not release the lock. Others put back what was running under it, once the lease has expired."""
        self._life.close()
        if self.lease:
            forget(self.lease.token)
        self.lease = None
