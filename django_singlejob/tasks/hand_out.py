"""Hands out the tasks that are due to threads: claims them, and has their results recorded."""

import logging
from collections.abc import Callable, Sequence
from datetime import datetime

from django_singlejob.locking.lease import Lease
from django_singlejob.process.clock import local_now
from django_singlejob.running.outcomes import Outcome, logged
from django_singlejob.tasks.ahead import Ahead
from django_singlejob.tasks.batches import Batches, Claimed
from django_singlejob.tasks.pool import Pool

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
        pool: Pool,
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
        if self.batches.runs_suspect:
            return 0
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
        self.may_be_more = self.may_be_more or (self.batches.passes_suspects and self.batches.is_free)
        most = self._room if self.may_be_more else 0
        if self._are_enough_ahead or not (most or self.batches.has_news):
            return
        asked_at = local_now()
        free = int(max(0, min(self._pool.free, self._left)))
        claimed = self.batches.record_and_claim(most, self._until, max(0, most - free))
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

    def settle(self, task: Claimed, outcome: Outcome) -> Outcome:
        """Take note that a task has ended, and return its outcome."""
        self.batches.hand_in(task, outcome)
        return logged(outcome)
