"""The process that runs a worker's tasks: an executor with threads, which claims and records by itself, under the
worker's lock. It is started when a task is due."""

import logging
import signal
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID

from django.db import Error
from django.utils.module_loading import import_string

from django_singlejob.conf import ZERO
from django_singlejob.database import errors, transactions
from django_singlejob.database.unusable import is_temporary
from django_singlejob.exceptions import JobDied, LeaseLost
from django_singlejob.locking.endings import Ending, ending
from django_singlejob.locking.lease import Lease
from django_singlejob.models.one_offs import LAST, one_offs
from django_singlejob.process.clock import backoff, local_now
from django_singlejob.process.logs import about
from django_singlejob.process.received_signals import is_second_signal_received, is_shutdown_requested
from django_singlejob.running.body_end import reported
from django_singlejob.running.executor import NotBegun
from django_singlejob.running.order import Order, Work
from django_singlejob.running.outcomes import Outcome
from django_singlejob.running.process import how_it_ended
from django_singlejob.running.shared import NUMBERS, SharedMemory, flush_streams, number
from django_singlejob.running.supervisor import Supervisor
from django_singlejob.running.waker import Waker, wait_for
from django_singlejob.running.watch import DAY, LAST_GRACE, Child
from django_singlejob.tasks.batches import Claimed, task_rows
from django_singlejob.tasks.hand_out import Tasks
from django_singlejob.tasks.pool import Pool
from django_singlejob.worker.lane import Lane
from django_singlejob.worker.lock import WorkerLock
from django_singlejob.worker.starts import Starts

logger = logging.getLogger("django_singlejob")


# How often the process looks whether its lease was renewed, and how soon it tries again after trouble. Seconds.
_NAP, _SOON = 0.1, 1.0


class TaskPlan(NamedTuple):
    """How the process works.

    Attributes:
        threads: how many tasks run at once.
        queues: see ``Plan``.
        is_endless: whether to survive an outage of the database.
        final: after which errors of a task to begin no more.
        patience: how long tasks that are under way may go on after a signal.
        reporter: the dotted path of a function, and its argument. It returns what is called with the outcome of each
            task, in that process, and returns an exit status.
        until: those that came due later are left alone; ``None``: none are.
    """

    threads: int
    queues: Sequence[str]
    is_endless: bool
    final: tuple[type[BaseException], ...]
    patience: timedelta
    reporter: tuple[str, Any]
    until: datetime | None = None


class _Shared:
    """What the worker and the process of its tasks both see, in the memory of its lease.

    Attributes:
        asked: how often the worker has said that tasks may be due.
        answered: the last ``asked`` after which all that were due have ended.
        begun: how many tasks have begun, or wait for a thread.
        ended: how many have ended.
        most: how many may begin, altogether.
        status: the exit status that the command should have because of them.
        is_winding_up: whether the process was asked to end, and begins nothing more.
        is_unrecorded: whether the result of a task could not be recorded.
        is_final: whether a task has ended in a way that ends the pass.
    """

    asked = number(7, int)
    answered = number(8, int)
    begun = number(9, int)
    ended = number(10, int)
    most = number(11, float)
    status = number(12, int)
    is_winding_up = number(13, bool)
    is_unrecorded = number(14, bool)
    is_final = number(15, bool)

    def __init__(self, numbers: Any) -> None:
        self.numbers = numbers

    @classmethod
    def by_nobody(cls) -> "_Shared":
        """While there is no process."""
        return cls([0.0] * NUMBERS)


class _Left(NamedTuple):
    """Why tasks have ended without a result, and whether one of them may have crashed their process."""

    error: str
    is_crash: bool


class TaskProcess(Lane):
    """The process, if there is one, as the worker sees it.

    Attributes:
        may_be_due: whether there may be tasks that the process does not know about.
    """

    def __init__(self, supervisor: Supervisor, lock: WorkerLock, starts: Starts, plan: TaskPlan) -> None:
        self._supervisor, self._lock, self._starts, self._plan = supervisor, lock, starts, plan
        self.may_be_due = False
        self._child: Child | None = None
        self._shared = _Shared.by_nobody()
        self._waker = Waker()
        #: The same, of processes that are over.
        self._begun = self._ended = self._status = 0
        self._is_final = False
        #: How tasks ended whose process is over, by their tokens, until that is recorded.
        self._left: dict[UUID, _Left] = {}

    @property
    def begun(self) -> int:
        """How many tasks have begun, or wait for a thread, since the worker began."""
        return int(self._begun + self._shared.begun)

    @property
    def ended(self) -> int:
        """How many tasks have ended since the worker began."""
        return int(self._ended + self._shared.ended)

    @property
    def status(self) -> int:
        """The first exit status other than 0 that the tasks call for."""
        return self._status or self._shared.status

    @property
    def is_final(self) -> bool:
        """Whether a task has ended in a way that ends the pass."""
        return bool(self._is_final or self._shared.is_final)

    @property
    def is_idle(self) -> bool:
        """Whether all tasks that were due have ended."""
        return self._child is None or self._shared.answered == self._shared.asked

    @property
    def is_over(self) -> bool:
        """Whether there is no process."""
        return self._child is None

    def run_due(self, until: datetime | None, most: float) -> bool:
        """Have the tasks run that are due. There is a process only once there are some. ``most``: how many more may
        begin. ``False``: none may begin, or none is due."""
        if self._child is None and not self._starts.may_begin:
            return False
        self.may_be_due = False
        if self._child is None:
            self._put_back()  # first, because the next process has the same token
            if most <= 0 or not one_offs().parallel().in_queues(self._plan.queues).due(until).exists():
                return False
            lease = self._lock.hold() if self._starts.has_executor() else None
            if lease is None or not self._start(lease, until):
                return False
        self._shared.most = self._shared.begun + most
        if most <= 0:
            return False
        self._shared.asked += 1
        self._waker.wake()
        return True

    def come_back(self) -> list[Outcome]:
        """Take note of it if the process is over, and put back what it was running. Raises what has ended it, and
        database errors: then the next call puts back the rest. Its tasks have been reported there."""
        if self._child and self._child.memory.begun_at:
            self._starts.note_begun()
        failure = self._attend()
        self._put_back()
        if failure and not isinstance(failure, LeaseLost):
            raise failure
        return []

    def _put_back(self) -> None:
        for token, left in list(self._left.items()):
            rows = task_rows().in_progress().filter(token=token)
            with transactions.durable(transactions.alias()):
                count, failed = rows.count(), 0
                if left.is_crash and count > 1:
                    rows.suspect(f"{left.error} Other tasks ran there too, so it runs alone next.")
                else:
                    failed = rows.filter(LAST).count()
                    rows.put_back(left.error, JobDied, suspect=left.is_crash)
            del self._left[token]
            self._ended += count  # so that a drain looks again
            for changed, fate in (count - failed, "been put back"), (failed, "failed: they do not begin again"):
                if changed:
                    message = "%d tasks that this worker was running have %s. %s"
                    logger.warning(message, changed, fate, left.error, extra=about())

    def close(self) -> bool:
        """Put back what is left. ``False`` if that is impossible."""
        try:
            self.come_back()
        except Error as error:
            message = "Tasks could not be put back. Others do that once the lock of this worker has expired: %s"
            logger.warning(message, errors.words_of(error), extra=about(reason=error))
        return not self._left

    def _start(self, lease: Lease, until: datetime | None) -> bool:
        """``False`` if the system has no process for it."""
        wakers = self._waker.descriptor, self._waker.writer, self._supervisor.waker.writer
        order = Order.of(
            f"{__name__}.work_of_tasks",
            {"plan": self._plan._replace(until=until)},
            lease,
            heeds_any_signal=True,
            is_last=True,
            wakers=wakers,
        )
        try:
            memory = SharedMemory()
            self._child = self._supervisor.order(lease, order, memory, child=_TaskChild)
        except (OSError, NotBegun) as why:
            self._note_not_begun(lease, f"No process could be started for tasks: {why}.")
            return False
        self._shared = _Shared(memory.numbers)
        return True

    def _attend(self) -> BaseException | None:
        """Returns what has ended the process, if it is news."""
        child = self._child
        if child is None or not (child.process.is_over() or child.lease is not self._lock.lease):
            return None
        self._child = None
        code = self._supervisor.collect(child)
        self._supervisor.let_go(child)
        if not child.memory.begun_at:
            self._note_not_begun(child.lease, f"The process of the tasks {how_it_ended(code)} before it had begun.")
            return None
        end = reported(child.memory)
        failure = end.failure if end else None
        error, is_crash = f"The process that ran it {how_it_ended(code)}.", False
        if self._shared.is_winding_up and (end or child.has_killed):
            is_unrecorded = self._shared.is_unrecorded
            error = "Its result could not be recorded." if is_unrecorded else "It did not end within the grace."
        elif isinstance(failure, LeaseLost):
            error = str(failure)
        else:
            is_crash = not (child.has_killed or child.memory.reason or child.lease.lost)
            logger.error("The process of the tasks %s.", how_it_ended(code), extra=child.lease.grant.facts())
        self._begun, self._ended, self._status = self.begun, self.ended, self.status
        self._is_final = self.is_final
        self._shared = _Shared.by_nobody()
        # Even if the lock is lost: their process is over, and nobody else has this token.
        self._left[child.lease.token] = _Left(error, is_crash)
        return failure

    def _note_not_begun(self, lease: Lease, why: str) -> None:
        self._shared, self.may_be_due = _Shared.by_nobody(), True
        logger.warning("%s", why, extra=lease.grant.facts())
        self._starts.note_not_begun("tasks", why)


def work_of_tasks(order: Order, lease: Lease, memory: SharedMemory) -> Work:
    """What the process does."""
    tasks = _TasksInProcess(order.facts["plan"], _Shared(memory.numbers), order.wakers)
    return Work(partial(tasks.work, lease), _end, _log, is_interruptible=False)


class _TasksInProcess:
    """The tasks, as their process sees them."""

    def __init__(self, plan: TaskPlan, shared: _Shared, wakers: Sequence[int]) -> None:
        self._plan, self._shared = plan, shared
        self._waker, self._supervisor = Waker(*wakers[:2]), Waker(wakers[2])
        path, facts = plan.reporter
        self._report: Callable[[Outcome], int] = import_string(path)(facts)

    def work(self, lease: Lease) -> None:
        """Run tasks until a signal comes, or until the lease is lost, which is raised."""
        signal.set_wakeup_fd(self._waker.writer, warn_on_full_buffer=False)
        pool = Pool(self._plan.threads, self._waker.wake)
        tasks = Tasks(lease, pool, self._plan.queues, until=self._plan.until, most=lambda: self._shared.most)
        try:
            self._work_on(tasks, pool, lease)
        except LeaseLost:
            raise
        except BaseException:
            self._wind_up(tasks, pool)
            raise
        self._wind_up(tasks, pool)

    def _work_on(self, tasks: Tasks, pool: Pool, lease: Lease) -> None:
        troubles, seen = backoff(), 0
        while not (is_shutdown_requested() or self._shared.is_final):
            asked = self._shared.asked
            tasks.may_be_more, seen = tasks.may_be_more or asked != seen, asked
            try:
                pause = self._hand_out(tasks, lease)
                troubles = backoff()
            except Error as error:
                if not (self._plan.is_endless and is_temporary(error)):
                    raise
                message = "The database does not answer. Tasks are recorded and claimed once it does: %s"
                logger.warning(message, errors.words_of(error), extra=about(reason=error))
                transactions.drop(transactions.alias())
                pause = next(troubles) or _SOON
            self._shared.begun = tasks.begun
            if tasks.is_idle and self._shared.answered != seen:
                self._shared.answered = seen
                self._supervisor.wake()
            self._come_back(tasks, pool, pause)

    def _hand_out(self, tasks: Tasks, lease: Lease) -> float:
        """Returns how long there is nothing to do but to wait. Seconds."""
        if lease.lost:
            return _NAP  # the worker renews it, or ends this process
        tasks.hand_out()
        return tasks.patience

    def _come_back(self, tasks: Tasks, pool: Pool, seconds: float) -> None:
        wait_for([self._waker.descriptor], min(seconds, DAY))
        self._waker.taken()
        transactions.forget_queries()
        returns = pool.come_back()
        for task, outcome in returns:
            if isinstance(task, Claimed):
                self._shared.is_final = self._shared.is_final or isinstance(outcome.error, self._plan.final)
                self._shared.ended += 1
                status = self._report(tasks.settle(task, outcome))
                self._shared.status = self._shared.status or status
        if returns:
            flush_streams()  # this process may be killed

    def _wind_up(self, tasks: Tasks, pool: Pool) -> None:
        """Begin nothing more, and record what ends within the grace."""
        end = local_now() + max(self._plan.patience.total_seconds(), LAST_GRACE)
        self._shared.is_winding_up = True
        tasks.recall()
        while not pool.is_idle and local_now() < end and not is_second_signal_received():
            self._record(tasks)
            self._come_back(tasks, pool, min(end - local_now(), _NAP))
        self._shared.is_unrecorded = not tasks.batches.record_all()

    def _record(self, tasks: Tasks) -> None:
        try:
            if tasks.batches.has_news:
                tasks.batches.record_and_claim(0)
        except Error as error:
            message = "The results of one-offs could not be recorded and will be retried: %s"
            logger.warning(message, errors.words_of(error), extra=about(reason=error))
            transactions.drop(transactions.alias())


class _TaskChild(Child):
    """It gets a signal at once: it begins nothing more, and keeps to the patience itself. It is killed if it does not,
    but not while it may still record something."""

    def __init__(self, *args: Any, patience: timedelta | None, **kwargs: Any) -> None:
        super().__init__(*args, patience=ZERO, **kwargs)
        longest = (patience or ZERO) + self.lease.grant.request.lease
        self.last_grace = longest.total_seconds() + LAST_GRACE

    def end_within(self, patience: timedelta) -> None:
        super().end_within(ZERO)


def _end(value: object, failure: BaseException | None) -> Ending:
    return ending(failure, duration=ZERO, acquire_duration=ZERO)


def _log(failure: BaseException) -> None:
    """Log nothing: the worker raises the failure again."""
