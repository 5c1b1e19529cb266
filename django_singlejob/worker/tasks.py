"""Django's tasks that are due: claimed, run by threads or by the caller, and recorded."""

import logging
from collections.abc import Callable, Sequence
from datetime import datetime

from django_singlejob.database import transactions
from django_singlejob.exceptions import LeaseLost
from django_singlejob.locking.lease import Lease
from django_singlejob.models.one_offs import one_offs
from django_singlejob.process.clock import local_now
from django_singlejob.process.logs import about
from django_singlejob.running.reports import Report, logged
from django_singlejob.worker.ahead import Ahead
from django_singlejob.worker.batches import Batches, Claimed
from django_singlejob.worker.lock import WorkerLock
from django_singlejob.worker.pool import Inline, Pool

logger = logging.getLogger("django_singlejob")


class Tasks:
    """The tasks that run under one lease.

    Attributes:
        may_be_more: whether some that are due may not have been claimed.
        begun: how many have begun, or wait for a thread.
    """

    def __init__(
        self,
        lease: Lease,
        pool: "Pool | Inline",
        queues: Sequence[str] = (),
        *,
        until: datetime | None = None,
        most: Callable[[], float] = lambda: float("inf"),
    ) -> None:
        """``until``: those that came due later are left alone. ``most``: how many may begin, altogether."""
        self.batches = Batches(lease, queues)
        self.may_be_more = False
        self.begun = 0
        self._pool = pool
        self._until = until
        self._most = most
        self._ahead = Ahead()

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to do, as far as is known."""
        return not (self.may_be_more and self._left) and not self.batches.claimed

    @property
    def patience(self) -> float:
        """How long there is nothing to do but to wait for a thread. Seconds."""
        if self._are_enough_ahead or not (self.batches.has_news or (self._room and self.may_be_more)):
            return max(0.0, self._recall_at - local_now())
        return 0.0

    @property
    def _left(self) -> float:
        return max(0, self._most() - self.begun)

    @property
    def _room(self) -> int:
        """How many tasks have a free thread, or may wait for one."""
        return int(max(0, min(self._pool.free + self._ahead.most, self._left)))

    @property
    def _are_enough_ahead(self) -> bool:
        """Whether the threads have enough to do, so that it does not pay yet to claim a few more."""
        return self._pool.free < 0 and self._room < self._ahead.most / 2

    @property
    def _recall_at(self) -> float:
        """When to give back the tasks that wait for a thread."""
        return self._ahead.longest_wait_ends() if self._pool.free < 0 else float("inf")

    def hand_out(self) -> None:
        """Record what has ended, and have free threads run what is due. Raises ``LeaseLost``, and database errors."""
        if local_now() >= self._recall_at:
            self.recall()
        most = self._room if self.may_be_more else 0
        if self._are_enough_ahead or not (most or self.batches.has_news):
            return
        asked_at = local_now()
        free = int(max(0, min(self._pool.free, self._left)))
        claimed = self.batches.record_and_claim(most, self._until, max(0, most - free))
        if self._pool.size:
            self._ahead.add(claimed, asked_at)
        if self.batches.has_spared:
            self._ahead.most = 0  # the next ones wait until a thread is free
        else:
            self.may_be_more = self.may_be_more and len(claimed) == most
        self.begun += len(claimed)
        for task in claimed:
            self._pool.send(task)

    def recall(self) -> None:
        """Give back what no thread has begun, so that other workers can run it."""
        tasks = [task for task in self._pool.recall() if isinstance(task, Claimed)]
        self.batches.release(tasks)
        self._ahead.give_back()
        self.may_be_more = self.may_be_more or bool(tasks)
        self.begun -= len(tasks)

    def settle(self, task: Claimed, report: Report) -> Report:
        """Take note that a task has ended, and return its report."""
        self.batches.hand_in(task, report)
        return logged(report)


class TasksHere:
    """The tasks of a worker that runs everything itself.

    Attributes:
        may_be_due: whether there may be tasks that are due.
        is_final: whether a task has ended in a way that ends the pass.
    """

    status = 0
    is_idle = is_over = True  # between two calls, nothing is under way

    def __init__(self, lock: WorkerLock, queues: Sequence[str], final: tuple[type[BaseException], ...]) -> None:
        """``final``: after which errors of a task to begin no more."""
        self._lock, self._queues, self._final = lock, queues, final
        self.may_be_due = self.is_final = False
        self._lease: Lease | None = None
        self._tasks: Tasks | None = None
        self._pool = Inline()
        self._reports: list[Report] = []
        self.begun = self.ended = 0

    def run_due(self, until: datetime | None, most: float) -> bool:
        """Run the next task that is due. ``False``: there was nothing to do."""
        begun = self.begun
        self.may_be_due = False
        if self._tasks is None or self._lease is not self._lock.lease:
            self._tasks = None
            if most <= 0 or not one_offs().parallel().in_queues(self._queues).due(until).exists():
                return False
            self._lease = self._lock.hold()
            if self._lease is None:
                return False
            self._tasks = Tasks(self._lease, self._pool, self._queues, until=until)
        self._tasks.may_be_more = most > 0
        self.may_be_due = self._go_on(self._tasks)
        return self.may_be_due or self.begun > begun

    def _go_on(self, tasks: Tasks) -> bool:
        """Returns whether there may be more to do."""
        begun = tasks.begun
        try:
            tasks.hand_out()
        except LeaseLost as loss:
            self._tasks = None  # the worker gets another lock
            logger.error("%s Others retry the one-offs that were not recorded.", loss, extra=about(reason=loss))
            return True
        self.begun += tasks.begun - begun
        for task, report in self._pool.come_back():
            if isinstance(task, Claimed):
                self.is_final = self.is_final or isinstance(report.error, self._final)
                self._reports.append(tasks.settle(task, report))
                self.ended += 1
                transactions.tidy_up()
        return not tasks.is_idle

    def come_back(self) -> list[Report]:
        """The reports of the tasks that have ended."""
        reports, self._reports = self._reports, []
        return reports

    def close(self) -> bool:
        """Record what has ended. ``False`` if that is impossible."""
        try:
            return self._tasks is None or self._tasks.batches.record_all()
        except LeaseLost:
            return True
