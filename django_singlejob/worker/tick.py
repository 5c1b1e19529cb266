"""What is due, and which of it may begin. Any number of workers may ask concurrently."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import inf

from django_singlejob.exceptions import JobInterrupted
from django_singlejob.jobs import registry
from django_singlejob.locking.clear import Watchman
from django_singlejob.locking.request import Reason
from django_singlejob.models.jobs import gates
from django_singlejob.models.locks import locks
from django_singlejob.running.outcomes import Outcome
from django_singlejob.running.runner import FINAL
from django_singlejob.worker.due import DueOneOffs, DueSlots, anything_due, clear_dead
from django_singlejob.worker.due_run import DueRun, Inline, one_off_of, pruning, slot_of
from django_singlejob.worker.lane import Lane
from django_singlejob.worker.left_out import LeftOut, Why
from django_singlejob.worker.processes import Processes
from django_singlejob.worker.pruning import PRUNING

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
        touch: shows that it is alive, and returns by when to call it again, a value of ``local_now()``. Nothing calls
            it while jobs and tasks run in the worker itself.
        last: is called if the worker hangs, and ends itself.
        in_children: whether it has executors run jobs and tasks, if it can. Otherwise it runs everything itself,
            one after the other.
        is_quiet: with ``once``, whether what jobs print is passed on only if they fail.
    """

    once: bool = False
    drain: bool = False
    interval: timedelta = timedelta(seconds=1)
    queues: Sequence[str] = ()
    processes: int = 2
    threads: int = 4
    grace: timedelta = timedelta(seconds=25)
    max_jobs: int | None = None
    is_outdated: Callable[[], bool] = lambda: False
    touch: Callable[[], float] = lambda: inf
    last: Callable[[], object] = lambda: None
    in_children: bool = False
    is_quiet: bool = False

    @property
    def is_endless(self) -> bool:
        """Whether it goes on until a signal ends it."""
        return not (self.once or self.drain)

    @property
    def final(self) -> tuple[type[BaseException], ...]:
        """After which errors of a task to begin no more. One that interrupts itself is put back, so it would never let
        a pass end."""
        return FINAL if self.once else (JobInterrupted,) if self.drain else ()


class Tick:
    """The steps of a worker. Each begins at most one thing, and returns whether it did."""

    def __init__(self, plan: Plan, pool: Processes | Inline, lane: Lane) -> None:
        self._plan = plan
        self._pool = pool
        self._lane = lane
        self._slots = DueSlots(is_endless=plan.is_endless)
        self._one_offs = DueOneOffs(plan.queues)
        self._left_out = LeftOut()
        self._watchman = Watchman()
        self._turns = [self.run_a_slot, self.run_a_one_off, self.run_tasks]
        #: With ``once``, what comes due later is left to the next pass: this one may have old code by then, and a job
        #: that enqueues itself would never let it end.
        self._pass_began_at: datetime | None = None
        # Runs that were skipped do not count.
        self._begun = 0
        #: How many runs, and tasks, have ended after which more may be due, and how many had at the last look.
        self._ended = self._ended_at_look = 0
        #: Whether there was anything to prune when this was last asked, and no pruning has begun since.
        self.may_prune = False

    @property
    def left(self) -> float:
        """How many more runs may begin."""
        most = float("inf") if self._plan.max_jobs is None else self._plan.max_jobs
        return max(0, most - self._begun - self._lane.begun)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way."""
        return self._pool.is_idle and self._lane.is_idle

    @property
    def is_stale(self) -> bool:
        """Whether a worker that ends when nothing is due has to look once more: what has ended since the last look may
        have enqueued something."""
        return self._plan.drain and self.is_idle and self._ended_at_look != self._ended + self._lane.ended

    @property
    def is_watching(self) -> bool:
        """Whether a look may soon find out that the holder of a stale lock is dead."""
        return self._watchman.pause is not None

    @property
    def knows_a_slot(self) -> bool:
        """Whether the last look has found a slot that may still begin."""
        return self._slots.first(self._left_out) is not None

    @property
    def _free(self) -> int:
        """How many runs of jobs may begin now."""
        if self._plan.once and not self._lane.is_idle:
            return 0
        return int(max(0, min(self._pool.free, self.left)))

    # --- what is due

    def look(self) -> float:
        """Clear the locks of dead holders, and look for what is due. Returns after how many seconds to look again."""
        self._ended_at_look = self._ended + self._lane.ended
        now = anything_due(self._plan.queues)
        if self._plan.once:
            self._pass_began_at = self._pass_began_at or now
        if now or self._watchman.undecided:
            is_cleared = clear_dead(self._watchman)
            self._leave_out_anew(is_cleared=is_cleared)
            self._slots.look(self._pass_began_at, is_cleared=is_cleared)
            self._one_offs.look()
            self._lane.may_be_due = True
        return self._pause()

    def _leave_out_anew(self, *, is_cleared: bool) -> None:
        """Try again what was left out. Unless a lock was cleared, a worker that ends by itself tries no job again that
        may not run, and with ``once`` none that was held either."""
        self._left_out.drop(Why.BEHIND, Why.WATCHED)
        if is_cleared or not self._plan.once:
            self._left_out.drop(Why.HELD, Why.PAUSED)
        if is_cleared or self._plan.is_endless:
            self._left_out.drop(Why.REFUSED)
        # If a job's lock was renamed, the one that is watched has the job's name.
        self._left_out.add(Why.WATCHED, jobs=self._watchman.watched, locks=self._watchman.watched)
        if not self._plan.once:
            self._left_out.add(Why.HELD, locks=locks().live().values_list("name", flat=True))
            self._left_out.add(Why.PAUSED, jobs=gates().paused().values_list("name", flat=True))

    def _pause(self) -> float:
        pauses = [self._plan.interval, *([WATCH_EVERY] if self._watchman.undecided else [])]
        pause = min(pauses).total_seconds() * random.uniform(0.8, 1.2)  # noqa: S311
        return pause if self._watchman.pause is None else min(pause, self._watchman.pause)

    # --- the steps

    def prune(self) -> bool:
        """Begin to delete what is old. ``False``: as far as is known, nothing is, or no process is free."""
        is_alone = self._lane.is_idle or not self._plan.once
        if not (self.may_prune and is_alone and self._pool.free > 0) or self._left_out.blocks(PRUNING):
            return False
        self.may_prune = False
        return self._begin(pruning())

    def take_turns(self) -> bool:
        """Begin a slot, a one-off or tasks. They take turns, so that none keeps the others waiting for ever; with
        ``once``, slots come first. ``False``: none is due, as far as is known, or none may begin now."""
        for step in self._turns:
            if step():
                if not self._plan.once:
                    self._turns.remove(step)
                    self._turns.append(step)
                return True
        return False

    def run_a_slot(self) -> bool:
        """``False``: no slot is due whose job may begin, or no process is free."""
        job = self._slots.next(self._left_out, self._pass_began_at) if self._free else None
        return job is not None and self._begin(slot_of(job))

    def run_a_one_off(self) -> bool:
        """``False``: no one-off is due whose job may begin, or no process is free."""
        while self._free and (row := self._one_offs.next(self._left_out.names, self._pass_began_at)):
            job = registry.get(row.job_name)
            if not self._left_out.blocks(job):
                return self._begin(one_off_of(job, row))
            self._left_out.add(Why.BEHIND, jobs=[job.name])
        return False

    def run_tasks(self) -> bool:
        """Have the tasks run that are due. ``False``: none is due, as far as is known, or none may begin now."""
        may_begin = not self._plan.once or (self._free and self._pool.is_idle)
        if not (self._lane.may_be_due and may_begin):
            return False
        return self._lane.run_due(self._pass_began_at, self.left)

    def _begin(self, run: DueRun) -> bool:
        self._begun += 1
        self._left_out.begin(run.job)
        self._pool.send(run)
        return True

    # --- what comes back

    def settle(self, run: DueRun, outcome: Outcome) -> None:
        """Take note that a run has ended."""
        job, reason = run.job, outcome.refusal
        may_be_due = self._left_out.end(job)
        self._begun -= job is PRUNING or reason is not None
        # If another process holds the lock, it goes on with what is due under it.
        is_passed_by = run.one_off is not None and reason == Reason.NOT_DUE
        self._ended += reason not in _OTHERS_TURN and not is_passed_by
        if is_passed_by:
            self._one_offs.pass_locked()
        elif reason in _OTHERS_TURN:
            self._left_out.add(Why.HELD, jobs=[job.name], locks=[job.lock])
        elif reason == Reason.NOT_BEGUN:
            may_be_due.add(job.name)
            if run.is_slot:
                self._slots.give_back(job.name)
        elif reason is None and not isinstance(outcome.error, FINAL):
            may_be_due.add(job.name)
            self._slots.ask_again(job.name)
        elif not _concerns_only_this(run, reason):
            self._left_out.add(Why.REFUSED, jobs=[job.name])  # other jobs may still use its lock
        self._one_offs.ask_again(may_be_due)


def _concerns_only_this(run: DueRun, reason: Reason | None) -> bool:
    """Whether only this slot or one-off may not run: another process ran or cancelled it, or it was too late."""
    has_run = reason == Reason.ALREADY_RAN and (run.is_slot or not run.job.min_interval)
    return has_run or reason == Reason.NOT_DUE
