"""One pass over what is due: what may begin. Any number of servers may make one concurrently."""

import logging
import random
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence, Set as AbstractSet
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast

from asgiref.sync import sync_to_async
from django.core.exceptions import ObjectDoesNotExist
from django.db import Error

from django_singlejob.database import errors
from django_singlejob.exceptions import DatabaseUnreachable, InvalidOrder, JobInterrupted
from django_singlejob.jobs import registry
from django_singlejob.jobs.registry import Job
from django_singlejob.locking.clear import Watchman
from django_singlejob.locking.request import Reason
from django_singlejob.models.jobs import gates
from django_singlejob.models.locks import locks
from django_singlejob.models.one_offs import one_offs
from django_singlejob.process.clock import local_now
from django_singlejob.process.received_signals import is_ctrl_c
from django_singlejob.running import django_tasks
from django_singlejob.running.enqueue import arguments_of
from django_singlejob.running.reports import FINAL, Report, logged, most_slots, report_steps, waitless
from django_singlejob.running.runner import RunRequest
from django_singlejob.running.supervisor import Steps, Supervisor
from django_singlejob.worker.due import (
    PRUNING,
    anything_due,
    clear_dead,
    due_jobs,
    keep_up,
    next_exclusive,
    report_unknown,
    unknown_jobs,
)
from django_singlejob.worker.lock import WorkerLock
from django_singlejob.worker.marks import mark_pass
from django_singlejob.worker.pool import Inline
from django_singlejob.worker.processes import Processes
from django_singlejob.worker.task_process import TaskProcess
from django_singlejob.worker.tasks import TasksHere
from django_singlejob.worker.timetable import timetable

if TYPE_CHECKING:
    from django.tasks import Task

    from django_singlejob.models import OneOffJob

logger = logging.getLogger("django_singlejob")

T = TypeVar("T")

# How long a pass of --once or --drain waits to see whether the holders of stale locks are dead. A holder may be inside
# a long fenced transaction: then others see only that it is alive. Seconds.
LONGEST_TICK = 300.0
# Schedules change only with a new release of the code, so there is no need to compare them every second.
KEEP_UP_EVERY = timedelta(minutes=1)
PRUNE_EVERY = timedelta(hours=1)
WATCH_EVERY = timedelta(seconds=1)
_OTHERS_TURN = (Reason.HELD, Reason.UNDECIDED)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How a worker works.

    Attributes:
        once: whether it ends after one pass, and runs everything one after the other.
        drain: whether it ends when nothing more is due.
        interval: how often it looks for what is due.
        queues: the queues whose one-offs it runs; empty: all queues.
        processes: how many runs of jobs may be under way at the same time.
        threads: how many tasks may be under way at the same time.
        grace: how long runs that are under way may go on after a signal.
        max_jobs: after about how many runs it ends; ``None``: there is no limit.
        is_outdated: whether its code has changed, so that it has to end.
        in_children: whether it runs jobs and tasks in child processes, if it can. Otherwise it runs everything itself,
            one after the other.
    """

    once: bool = False
    drain: bool = False
    interval: timedelta = timedelta(seconds=1)
    queues: Sequence[str] = ()
    processes: int = 4
    threads: int = 4
    grace: timedelta = timedelta(seconds=25)
    max_jobs: int | None = None
    is_outdated: Callable[[], bool] = lambda: False
    in_children: bool = False

    @property
    def is_endless(self) -> bool:
        """Whether it goes on until a signal ends it."""
        return not (self.once or self.drain)

    @property
    def final(self) -> tuple[type[BaseException], ...]:
        """After which errors of a task to begin no more. One that interrupts itself is put back, so it would never let
        a pass end."""
        return FINAL if self.once else (JobInterrupted,) if self.drain else ()


@dataclass(frozen=True, eq=False)
class Run:
    """A run of a job, in this process or in a child. ``is_slot``: whether a slot of its schedule is due."""

    job: Job
    steps: Callable[[Supervisor | None], Steps[Report]]
    is_slot: bool = False

    @property
    def name(self) -> str:
        return self.job.name

    def __call__(self) -> Report:
        return _at_once(self.steps(None))


class Tick:
    """What was due at the last look, and which of it this worker runs."""

    def __init__(self, plan: Plan, pool: Processes | Inline, tasks: TaskProcess | TasksHere, lock: WorkerLock) -> None:
        #: The names and locks of the jobs that this worker runs.
        self.ours: set[str] = set()
        self._plan = plan
        self._pool = pool
        self._tasks = tasks
        self._lock = lock
        self._watchman = Watchman()
        self._started = 0
        #: Jobs that other processes run, or that are paused. They are not tried before the next look; with ``once``,
        #: not in this pass unless a dead holder's lock was cleared.
        self._passed: set[str] = set()
        #: Jobs that may not run although their lock is free. They are not tried before the next look; with ``once`` or
        #: ``drain``, not in this pass, unless a dead holder's lock was cleared.
        self._refused: set[str] = set()
        #: Jobs that wait for a lock which one of our own runs uses, as of the last look.
        self._behind: set[str] = set()
        #: Jobs that this release of the code does not know, and which have been logged. Now and then there may be more.
        self._unknown: set[str] = set()
        self._may_be_unknown = True
        #: One-offs of a job that only MySQL finds: it ignores case when it compares names.
        self._misnamed: set[int] = set()
        self._due: deque[Job] = deque()
        #: How many slots of each job have begun.
        self._slots: Counter[str] = Counter()
        #: Whether there may be one-offs of jobs that were not fetched since the last look, or tasks.
        self._may_be_one_offs = False
        self._may_be_tasks = False
        #: With ``once``, what comes due later is left to the next pass: this one may have old code by then, and a job
        #: that enqueues itself would never let it end.
        self._until: datetime | None = None
        #: How many tasks had ended at the last look.
        self._tasks_seen = 0
        #: Jobs that have finished since they were last looked at: they may be due again.
        self._ended: set[str] = set()
        #: Whether other things may have come due since the last look.
        self._is_stale = True
        #: Whether to begin nothing more, whatever is due.
        self._is_hopeless = False
        self._settled_at = self._look_at = self._keep_up_at = self._prune_at = local_now()
        #: Which part of the rows is looked at closely. Random, because a pass by cron is the only one of its process.
        self._turn = random.randrange(1_000_000)  # noqa: S311
        # What runs next: they take turns, so that none keeps the others waiting for ever.
        self._turns = deque([self._hand_out_slots, self._hand_out_one_offs, self._hand_out_tasks])

    @property
    def is_over(self) -> bool:
        """Whether to begin nothing more, because everything due has been run, or ``max_jobs`` is reached."""
        if self._left == 0:
            return self._is_idle  # until then, a run may turn out to be skipped, which does not count
        is_watched = self._watchman.pause is not None and local_now() < self._settled_at + LONGEST_TICK
        is_done = not self._plan.is_endless and self._is_exhausted and not (self._is_stale_now or is_watched)
        return is_done or self._is_hopeless or self._tasks.is_final

    @property
    def patience(self) -> float:
        """How long there is nothing to do except wait for runs to end. Seconds."""
        may_be_more = self._free and (self._due or self._may_be_one_offs or self._may_be_tasks)
        if may_be_more or self._is_to_look or self.is_over:
            return 0.0
        return self._look_at - local_now()

    @property
    def _is_idle(self) -> bool:
        return self._pool.is_idle and self._tasks.is_idle

    @property
    def _is_exhausted(self) -> bool:
        is_more_known = self._due or self._ended or self._may_be_one_offs or self._may_be_tasks
        return self._is_idle and not is_more_known

    @property
    def _is_stale_now(self) -> bool:
        """Whether other things may have come due since the last look."""
        return self._is_stale or (self._plan.drain and self._tasks.ended != self._tasks_seen)

    @property
    def _left(self) -> float:
        """How many more runs may begin."""
        most = float("inf") if self._plan.max_jobs is None else self._plan.max_jobs
        return max(0, most - self._started - self._tasks.begun)

    @property
    def _free(self) -> int:
        if self._plan.once and not self._tasks.is_idle:
            return 0
        return int(max(0, min(self._pool.free, self._left)))

    # --- what is due

    @property
    def _is_to_look(self) -> bool:
        if self._plan.once and self._due:
            return False  # the slots that this pass has already seen come first, one job after the other
        is_last_look = not self._plan.is_endless and self._is_exhausted and self._is_stale_now
        return is_last_look or local_now() >= self._look_at

    def look(self) -> None:
        """Look for what is due, if it is time for that."""
        if not self._is_to_look:
            return
        self._is_stale, self._tasks_seen = False, self._tasks.ended
        if local_now() >= self._keep_up_at:
            keep_up(self._turn, self._pool.beat)
            self._turn += 1
            self._may_be_unknown = True
            self._be_seen()
            self._keep_up_at = local_now() + KEEP_UP_EVERY.total_seconds()
        if self._lock.lease or not self._plan.once:
            self._lock.hold()
        now = anything_due(self._plan.queues)
        if self._plan.once and self._until is None:
            self._until = now
        if now or self._watchman.undecided:
            self._begin_anew(is_cleared=clear_dead(self._watchman))
            self._due = deque(self._due_jobs())
            self._may_be_one_offs = self._may_be_tasks = True
            self._ended.clear()
            self._report_unknown()
        # Locks that are being watched need frequent looks.
        pauses = [self._plan.interval, *([WATCH_EVERY] if self._watchman.undecided else [])]
        longest = float("inf") if self._watchman.pause is None else self._watchman.pause
        pause = min(pauses).total_seconds() * random.uniform(0.8, 1.2)  # noqa: S311
        self._look_at = local_now() + min(pause, longest)

    def _be_seen(self) -> None:
        # A worker is seen by its lock; one that ends by itself has to be remembered until it comes back.
        if not self._plan.is_endless:
            mark_pass(self._plan.queues)

    def look_again(self) -> None:
        """Have the next ``look`` look."""
        self._look_at = local_now()

    def _report_unknown(self) -> None:
        if self._may_be_unknown:
            self._may_be_unknown = False
            self._unknown |= unknown_jobs(self._plan.queues, self._unknown)

    def _begin_anew(self, *, is_cleared: bool) -> None:
        self._behind.clear()
        if not self._plan.once:
            self._passed = self._taken()
        elif is_cleared:
            self._passed.clear()
        if self._plan.is_endless or is_cleared:
            self._refused.clear()
            self._slots.clear()

    def _taken(self) -> set[str]:
        """The locks that other processes hold, and the jobs that are paused."""
        held = set(locks().live().values_list("name", flat=True)) - self.ours
        return held | set(gates().filter(paused=True).values_list("name", flat=True))

    def _due_jobs(self, names: AbstractSet[str] | None = None) -> list[Job]:
        # A job that is always due would never let a pass end.
        return [
            job
            for job in due_jobs(self._busy, names, self._until)
            if self._plan.is_endless or self._slots[job.name] < most_slots(job)
        ]

    @property
    def _busy(self) -> set[str]:
        return self.ours | self._passed | self._refused | self._behind | self._watchman.watched

    # --- what runs next

    @property
    def _is_to_prune(self) -> bool:
        return self._plan.is_endless and local_now() >= self._prune_at

    def hand_out(self) -> None:
        """Have as much of what is due run as may."""
        if self._free and self._is_to_prune:
            self._prune_at = local_now() + PRUNE_EVERY.total_seconds()
            self._run(Run(PRUNING, _pruning_steps))
        for hand_out in self._turns:
            hand_out()
        if not self._plan.once:
            self._turns.rotate()

    def _hand_out_slots(self) -> None:
        if self._ended and self._free:
            # A job that has just finished may be due again, which does not have to wait for the next look.
            known = {job.name for job in self._due}
            again = [job for job in self._due_jobs(self._ended) if job.name not in known]
            self._due = deque([*self._due, *again] if self._plan.is_endless else [*again, *self._due])
        while self._due and self._free:
            job = self._due.popleft()
            if self._busy.isdisjoint({job.name, job.lock}):
                self._slots[job.name] += 1
                self._run(Run(job, partial(_slot_steps, job), is_slot=True))

    def _hand_out_one_offs(self) -> None:
        while self._free and (self._may_be_one_offs or self._ended):
            row = self._next_one_off()
            if row is None:
                self._may_be_one_offs = False
                self._ended.clear()
                return
            if not registry.is_known(row.job_name):
                report_unknown(row.job_name)
                self._misnamed.add(row.pk)
                continue
            job = registry.get(row.job_name)
            if not self._busy.isdisjoint({job.name, job.lock}):
                self._behind.add(row.job_name)
            else:
                self._run(Run(job, partial(one_off_steps, job, row)))

    def _next_one_off(self) -> "OneOffJob | None":
        return next_exclusive(
            self._plan.queues,
            self._busy,
            # A job may have many one-offs, and the database would read past them all each time that one finishes.
            names=None if self._may_be_one_offs else self._ended,
            unknown=self._unknown,
            misnamed=self._misnamed,
            until=self._until,
        )

    def _run(self, run: Run) -> None:
        self._started += 1
        self.ours |= {run.job.name, run.job.lock}
        self._pool.send(run)

    def _hand_out_tasks(self) -> None:
        if self._may_be_tasks and not (self._plan.once and not (self._free and self._pool.is_idle)):
            self._may_be_tasks = self._tasks.look(self._until, self._left)

    # --- what comes back

    def settle(self, run: Run, report: Report) -> Report:
        """Take note that a run has ended, and return its report. Raises a Ctrl-C that came in this very thread."""
        self._settled_at = local_now()
        # If another process holds the lock, it goes on with what is due under it.
        self._is_stale = self._is_stale or (self._plan.drain and report.reason not in _OTHERS_TURN)
        self._settle_run(run, report)
        self._raise_ctrl_c(report)
        self._is_hopeless = self._is_hopeless or self._is_final(run, report)
        return logged(report)

    def note_task(self, report: Report) -> None:
        """Take note that a task has ended in this process."""
        self._settled_at = local_now()
        self._raise_ctrl_c(report)

    def _raise_ctrl_c(self, report: Report) -> None:
        if report.error and is_ctrl_c(report.error):
            raise report.error

    def _settle_run(self, run: Run, report: Report) -> None:
        self.ours -= {run.job.name, run.job.lock}
        self._started -= run.job is PRUNING or report.reason is not None
        # Jobs that waited for the same lock have the same chance to get it now.
        siblings = timetable().sharing(run.job.lock)
        if report.reason or isinstance(report.error, FINAL):
            self._pass_over(run, report)
            self._ended |= self._behind & siblings
        else:
            self._ended |= siblings
            self._passed -= siblings
            self._refused -= siblings
        self._behind -= siblings

    def _pass_over(self, run: Run, report: Report) -> None:
        job, reason = run.job, report.reason
        if reason in _OTHERS_TURN:
            self._passed |= {job.name, job.lock}
        elif reason == Reason.NOT_DUE or (reason == Reason.ALREADY_RAN and (run.is_slot or not job.min_interval)):
            pass  # this concerns only that slot or one-off: another process ran or cancelled it, or it was too late
        else:
            self._refused.add(job.name)  # other jobs may still use its lock

    def _is_final(self, run: Run, report: Report) -> bool:
        """Whether this pass cannot achieve anything more."""
        # An error of one job's slot does not stop the other jobs, and the slot is not retried.
        kinds = DatabaseUnreachable if run.is_slot else FINAL
        return report.is_hopeless or (self._plan.once and isinstance(report.error, kinds))


def _at_once(steps: Steps[T]) -> T:
    """The value of steps that wait for nothing."""
    try:
        next(steps)
    except StopIteration as end:
        return cast("T", end.value)
    raise AssertionError("There is no supervisor to wait for.")


def _pruning_steps(supervisor: Supervisor | None) -> Steps[Report]:
    return report_steps(RunRequest(PRUNING, local_now()), supervisor, logged)


def _slot_steps(job: Job, supervisor: Supervisor | None) -> Steps[Report]:
    return report_steps(RunRequest(waitless(job), local_now(), trigger="schedule"), supervisor, logged)


def one_off_steps(job: Job, row: "OneOffJob", supervisor: Supervisor | None) -> Steps[Report]:
    """Run the one-off of the job, if its lock can be acquired."""
    asked = waitless(job)
    if task := django_tasks.find(row):
        asked = replace(asked, func=_of_task(job, row, task))
    asked, args, kwargs = _with_arguments(asked, row)
    request = RunRequest(asked, local_now(), args, kwargs, trigger=row.trigger, one_off=row)
    report = yield from report_steps(request, supervisor, logged)
    return _send_finished(row, task, report) if task and not report.reason else report


def _with_arguments(job: Job, row: "OneOffJob") -> tuple[Job, Sequence[Any], Mapping[str, Any]]:
    """The job, and what its function is passed. If the row's arguments cannot be used, a job that fails once."""
    try:
        return job, *arguments_of(row)
    except InvalidOrder as mistake:
        return replace(job, func=partial(_raise, mistake), retries=0), (), {}


def _raise(error: Exception) -> NoReturn:
    raise error


def _send_finished(row: "OneOffJob", task: "Task[..., Any]", report: Report) -> Report:
    try:
        ended = one_offs().get(pk=row.pk)
        to_log = None if report.is_logged_by_child else report.error
        _while_handled(to_log, partial(django_tasks.end, ended, task))
    except (Error, ObjectDoesNotExist) as error:
        message = "The signal that the task of %s has finished could not be sent: %s"
        logger.warning(message, row, errors.words_of(error), extra=report.about(error))
        return report
    return report._replace(is_logged=ended.status == "failed")


def _while_handled(error: BaseException | None, act: Callable[[], object]) -> None:
    """Call ``act`` while the error, if there is one, is being handled: receivers of signals log it."""
    try:
        if error:
            raise error  # noqa: TRY301
    except BaseException:
        act()
    else:
        act()


def _of_task(job: Job, row: "OneOffJob", task: "Task[..., Any]") -> Callable[..., Any]:
    """The job's function, as a Django task calls it: sends the signal that the task has begun, and passes a context."""

    def begin() -> list[Any]:
        return django_tasks.begin(one_offs().get(pk=row.pk), task)

    async def function_async(*args: Any, **kwargs: Any) -> Any:
        return await job.func(*await sync_to_async(begin)(), *args, **kwargs)

    def function(*args: Any, **kwargs: Any) -> Any:
        return job.func(*begin(), *args, **kwargs)

    return function_async if job.is_async else function
