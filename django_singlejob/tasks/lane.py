"""The lane for tasks in a worker: a process that runs them, or the worker itself, one after the other."""

import logging
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django_singlejob.conf import ZERO
from django_singlejob.exceptions import LeaseLost
from django_singlejob.locking.lease import Lease
from django_singlejob.models.one_offs import one_offs
from django_singlejob.process.logs import about
from django_singlejob.running.outcomes import Outcome, logged
from django_singlejob.running.supervisor import Supervisor

# Loaded with the lane: later, the package may have been replaced by another release.
from django_singlejob.tasks import one_offs as _one_offs  # noqa: F401
from django_singlejob.tasks.batches import Batches, Claimed
from django_singlejob.tasks.pool import tidy_up
from django_singlejob.tasks.process import TaskPlan, TaskProcess
from django_singlejob.worker.due_run import carried_out
from django_singlejob.worker.lane import Lane
from django_singlejob.worker.lock import WorkerLock
from django_singlejob.worker.starts import Starts
from django_singlejob.worker.tick import Plan

logger = logging.getLogger("django_singlejob")


def lane(
    plan: Plan, lock: WorkerLock, supervisor: Supervisor | None, starts: Starts | None, reporter: tuple[str, Any]
) -> Lane:
    """The lane of a worker, which has a supervisor if it can have a process run tasks."""
    if supervisor is None or starts is None:
        return TasksHere(lock, plan.queues, plan.final)
    task_plan = TaskPlan(
        threads=1 if plan.once else plan.threads,
        queues=list(plan.queues),
        is_endless=plan.is_endless,
        final=plan.final,
        patience=ZERO if plan.once else plan.grace,
        reporter=reporter,
    )
    return TaskProcess(supervisor, lock, starts, task_plan)


class TasksHere(Lane):
    """The tasks of a worker that runs everything itself. Between two calls, nothing is under way."""

    begun = ended = 0
    is_final = False

    def __init__(self, lock: WorkerLock, queues: Sequence[str], final: tuple[type[BaseException], ...]) -> None:
        """``final``: after which errors of a task to begin no more."""
        self._lock, self._queues, self._final = lock, queues, final
        self._lease: Lease | None = None
        self._batches: Batches | None = None
        self._outcomes: list[Outcome] = []

    def run_due(self, until: datetime | None, most: float) -> bool:
        """Run the next task that is due, and record the last one. ``False``: there was nothing to do."""
        self.may_be_due = False
        if self._batches is None or self._lease is not self._lock.lease:
            self._batches = None
            if most <= 0 or not one_offs().parallel().in_queues(self._queues).due(until).exists():
                return False
            self._lease = self._lock.hold()
            if self._lease is None:
                return False
            self._batches = Batches(self._lease, self._queues)
        if most > 0 or self._batches.has_news:
            self.may_be_due = self._go_on(self._batches, until, int(most > 0))
        return self.may_be_due

    def _go_on(self, batches: Batches, until: datetime | None, most: int) -> bool:
        """Returns whether there may be more to do."""
        try:
            claimed = batches.record_and_claim(most, until)
        except LeaseLost as loss:
            self._batches = None  # the worker gets another lock
            logger.error("%s Others retry the one-offs that were not recorded.", loss, extra=about(reason=loss))
            return True
        for task in claimed:
            self._carry_out(task, batches)
        return bool(batches.claimed or batches.has_spared)

    def _carry_out(self, task: Claimed, batches: Batches) -> None:
        self.begun += 1
        outcome = carried_out(task)
        batches.hand_in(task, outcome)
        self._outcomes.append(logged(outcome))
        self.is_final = self.is_final or isinstance(outcome.error, self._final)
        self.ended += 1
        tidy_up()

    def come_back(self) -> list[Outcome]:
        outcomes, self._outcomes = self._outcomes, []
        return outcomes

    def close(self) -> bool:
        try:
            return self._batches is None or self._batches.record_all()
        except LeaseLost:
            return True
