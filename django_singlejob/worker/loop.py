"""What a server does all day: look for what is due, and have it run by a few threads."""

import logging
import os
import random
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

from django.db import Error

from django_singlejob import database, registry, runner
from django_singlejob.clock import backoff, local_now
from django_singlejob.conf import ZERO, options
from django_singlejob.exceptions import JobInterrupted
from django_singlejob.interrupt import Window
from django_singlejob.locking.at_exit import release_and_exit
from django_singlejob.locking.clear import Watchman
from django_singlejob.querysets.jobs import gates
from django_singlejob.querysets.locks import locks
from django_singlejob.querysets.one_offs import one_offs
from django_singlejob.querysets.runs import runs
from django_singlejob.received_signals import gave_up_since, is_database_given_up, is_told_again, is_told_to_end
from django_singlejob.recording import alone, catch_up
from django_singlejob.registry import Job
from django_singlejob.worker.batches import Batches, Claimed, Performance
from django_singlejob.worker.pool import Pool
from django_singlejob.worker.tick import (
    Report,
    clear_dead,
    due_jobs,
    exclusive,
    is_anything_due,
    job_of,
    keep_up,
    logged,
    of_performance,
    report_of,
    run_one_off,
    waitless,
)

logger = logging.getLogger("django_singlejob")

# What a release of the code changes need not be looked at each second.
KEEP_UP_EVERY = timedelta(minutes=1)
PRUNE_EVERY = timedelta(hours=1)
WATCH_EVERY = timedelta(seconds=1)
# What was interrupted has so long to clean up; after that the process ends around it.
CLEAN_UP = timedelta(seconds=5)
# How often one that waits looks whether it is told to end. Seconds.
_NAP = 0.1
# Tasks are claimed ahead of the threads that will be free so soon, up to so many for each: then one transaction
# is for many of them. If it comes otherwise, others get them. Seconds.
_AHEAD = 0.02
_MOST_AHEAD = 4
_RECALL_AFTER = 1.0


def prune() -> str:
    """Delete the runs and one-offs that are older than the settings want. Whatever the gates keep is recorded first."""
    alone(runs().exists)  # a thread that waits for a locked table runs no jobs
    catch_up(gates().kept_ends())
    age = timedelta(days=options().history_days)
    return f"{runs().surplus(age, options().history_keep).prune()} runs, {one_offs().surplus(age).prune()} one-offs"


# On all servers together once a day; it is not registered, so that nobody asks for it where there is no worker.
PRUNING = Job(name="django_singlejob.prune", func=prune, min_interval=timedelta(days=1))


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How a worker works.

    Attributes:
        interval: how often it looks for what is due.
        queues: of which it runs one-offs; none named: of all.
        threads: how many runs may be under way at the same time.
        grace: how long runs that are under way may go on when it is told to end.
        max_jobs: it ends after so many runs; ``None``: never.
        is_outdated: whether it is to end since its code has changed.
    """

    interval: timedelta = timedelta(seconds=1)
    queues: Sequence[str] = ()
    threads: int = 4
    grace: timedelta = timedelta(seconds=25)
    max_jobs: int | None = None
    is_outdated: Callable[[], bool] = lambda: False


def work(plan: Plan) -> Generator[Report]:
    """Run what is due until this process is told to end, looking each ``plan.interval``, or a bit sooner or later so
    that servers spread out. While nothing is due that takes one query. It goes on when the database comes back."""
    yield from _Worker(plan).work()


@dataclass(frozen=True)
class _Return:
    """What a thread comes back with. ``job``: the one that it ran; ``None``: a task without a lock."""

    job: Job | None
    done: Report | Performance


@dataclass(frozen=True)
class _Performing:
    """The task of a thread that performs one of Django's."""

    task: Claimed

    def __call__(self, window: Window) -> _Return:
        return _Return(None, self.task(window))


class _Worker:
    """What is due, which threads do it, and what comes back of them."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._pool: Pool[_Return] = Pool(plan.threads)
        self._batches = Batches(plan.queues)
        self._watchman = Watchman()
        self._started = 0
        #: The names and locks of the jobs that our own threads run.
        self._ours: set[str] = set()
        #: Those that others run, or that are paused, as of the last look; and those that did not begin since.
        self._others: set[str] = set()
        #: Those that this release of the code does not know.
        self._unknown: set[str] = set()
        self._due: deque[Job] = deque()
        #: Whether there may be one-offs of jobs, and of tasks, that nobody here has seen since the last look.
        self._may_be_one_offs = False
        self._may_be_tasks = False
        #: Of the last few tasks. Seconds.
        self._mean_duration = 2 * _AHEAD
        self._settled_at = local_now()
        #: The jobs that have ended since they were last looked at: they may be due again.
        self._ended: set[str] = set()
        self._look_at = self._keep_up_at = self._prune_at = local_now()
        # Whoever is next when a thread is free: none keeps the others waiting for ever.
        self._turns = deque([self._hand_out_slots, self._hand_out_one_offs, self._hand_out_tasks])

    def work(self) -> Iterator[Report]:
        try:
            yield from self._work()
        except BaseException:
            # Whatever ends the worker ends no run in its middle.
            for _ in self._wind_up(ZERO):
                pass
            self._batches.leave_to_expire()
            raise
        yield from self._wind_up(self._plan.grace)
        if not self._pool.is_idle:
            self._end_around()
        self._batches.leave_to_expire()

    def _work(self) -> Iterator[Report]:
        troubles = self._pauses()
        while not self._is_to_end:
            try:
                yield from self._settle(self._patience)
                if self._pool.free < 0 and local_now() >= self._settled_at + _RECALL_AFTER:
                    self._recall()
                if local_now() >= self._look_at:
                    self._look()
                self._hand_out()
                troubles = self._pauses()
            except Error as error:
                if not (database.is_connection_lost(error) or database.is_transient(error)):
                    raise
                logger.warning("The database does not answer, which is tried again: %s", error)
                database.drop(database.alias())
                self._look_at = local_now()
                yield from self._settle(next(troubles) or self._plan.interval.total_seconds())

    def _pauses(self) -> Iterator[float]:
        return backoff(self._plan.interval.total_seconds())

    @property
    def _is_to_end(self) -> bool:
        # One that turns out to be skipped does not count.
        is_enough = self._left == 0 and self._pool.is_idle
        return is_told_to_end() or is_enough or self._plan.is_outdated()

    @property
    def _left(self) -> int | None:
        """How many runs may yet be begun; ``None``: any number."""
        return None if self._plan.max_jobs is None else max(0, self._plan.max_jobs - self._started)

    @property
    def _free(self) -> int:
        return max(0, self._pool.free if self._left is None else min(self._pool.free, self._left))

    @property
    def _room(self) -> int:
        """For how many tasks there is, or soon will be, a thread."""
        room = self._pool.free + self._ahead
        return max(0, room if self._left is None else min(room, self._left))

    @property
    def _ahead(self) -> int:
        """How many tasks may be claimed though no thread is free: none while others wait for one."""
        if self._due or self._ended or self._may_be_one_offs or local_now() >= self._prune_at:
            return 0
        return self._pool.size * min(_MOST_AHEAD, int(_AHEAD / self._mean_duration))

    @property
    def _are_enough_ahead(self) -> bool:
        """Whether the threads have enough for the next moment: a transaction for a few of them is not worth it."""
        return self._pool.free < 0 and self._room < self._ahead / 2

    @property
    def _patience(self) -> float:
        """For how long there is nothing to do but to wait for threads to come back. Seconds."""
        if self._are_enough_ahead:
            return min(_AHEAD, self._look_at - local_now())
        may_be_more = (self._free and (self._due or self._may_be_one_offs)) or (self._room and self._may_be_tasks)
        if self._batches.has_news or may_be_more:
            return 0.0
        return self._look_at - local_now()

    # --- what comes back

    def _settle(self, seconds: float) -> Iterator[Report]:
        """Wait so long for threads to come back, and tell of what they did."""
        end = local_now() + seconds
        while True:
            # A signal is remembered, and ends no waiting.
            returns = self._pool.come_back(min(end - local_now(), _NAP))
            for back in returns:
                yield from self._told(back)
            if returns or local_now() >= end or is_told_to_end():
                return

    def _told(self, back: _Return) -> Iterator[Report]:
        report = self._settled(back)
        if back.job is not PRUNING:
            yield report

    def _settled(self, back: _Return) -> Report:
        self._settled_at = local_now()
        if isinstance(back.done, Performance):
            duration = max(back.done.duration.total_seconds(), _AHEAD / _MOST_AHEAD)
            self._mean_duration += (duration - self._mean_duration) / 5
            return of_performance(back.done, is_ours=self._batches.hand_in(back.done))
        assert back.job  # noqa: S101  (what is no task is a job)
        self._ours -= {back.job.name, back.job.lock}
        if back.done.outcome and back.done.outcome.reason:
            # It is the others' turn until the next look.
            self._others |= {back.job.name, back.job.lock}
            self._started -= 1
        else:
            self._has_ended(back.job)
        return back.done

    def _has_ended(self, job: Job) -> None:
        self._started -= job is PRUNING
        # Those that have waited for the same lock are as near to it as this one.
        siblings = {other.name for other in registry.all_jobs() if other.lock == job.lock}
        self._ended |= siblings
        self._others -= siblings

    # --- what is due

    def _look(self) -> None:
        if local_now() >= self._keep_up_at:
            keep_up()
            self._keep_up_at = local_now() + KEEP_UP_EVERY.total_seconds()
        if is_anything_due(self._plan.queues):
            clear_dead(self._watchman)
            self._others = self._taken()
            self._due = deque(due_jobs(self._busy))
            self._may_be_one_offs = self._may_be_tasks = True
            self._ended.clear()
        else:
            self._batches.close()  # no heartbeats for nothing
        # Those that are watched have to be looked at often.
        pauses = [self._plan.interval, *([WATCH_EVERY] if self._watchman.undecided else [])]
        longest = float("inf") if self._watchman.pause is None else self._watchman.pause
        pause = min(pauses).total_seconds() * random.uniform(0.8, 1.2)  # noqa: S311
        self._look_at = local_now() + min(pause, longest)

    def _taken(self) -> set[str]:
        """The locks that somebody else holds, or whose holder may be dead, and the jobs that are paused."""
        held = set(locks().live().values_list("name", flat=True)) - self._ours
        return held | self._watchman.watched | set(gates().filter(paused=True).values_list("name", flat=True))

    @property
    def _busy(self) -> set[str]:
        return self._ours | self._others | self._unknown

    # --- who does it

    def _hand_out(self) -> None:
        if self._free and local_now() >= self._prune_at:
            self._prune_at = local_now() + PRUNE_EVERY.total_seconds()
            self._run(PRUNING, lambda: logged(report_of(PRUNING, lambda: runner.run(PRUNING))))
        for hand_out in self._turns:
            hand_out()
        self._turns.rotate()

    def _hand_out_slots(self) -> None:
        if self._ended and self._free:
            # What has just ended may be due once more: that is not left to the next look.
            known = {job.name for job in self._due}
            self._due.extend(job for job in due_jobs(self._busy, self._ended) if job.name not in known)
        while self._due and self._free:
            self._run_slot(self._due.popleft())

    def _run_slot(self, job: Job) -> None:
        if self._busy.isdisjoint({job.name, job.lock}):
            asked = waitless(job)
            self._run(job, lambda: logged(report_of(asked, partial(runner.run, asked, trigger="schedule"))))

    def _hand_out_one_offs(self) -> None:
        while self._free and (self._may_be_one_offs or self._ended):
            rows = exclusive(self._plan.queues, self._busy)
            # Of one job there may be many, and each time that one of them ends the database would read past them all.
            row = (rows if self._may_be_one_offs else rows.filter(job_name__in=self._ended)).next_due()
            if row is None:
                self._may_be_one_offs = False
                self._ended.clear()
                return
            job = job_of(row)
            if job is None:
                self._unknown.add(row.job_name)
            elif not self._busy.isdisjoint({job.name, job.lock}):
                self._others.add(row.job_name)
            else:
                self._run(job, partial(run_one_off, job, row))

    def _run(self, job: Job, run: Callable[[], Report]) -> None:
        self._started += 1
        self._ours |= {job.name, job.lock}
        self._pool.send(lambda window: _Return(job, _reported(job, run)))

    def _hand_out_tasks(self) -> None:
        most = self._room if self._may_be_tasks else 0
        if self._are_enough_ahead or not (most or self._batches.has_news):
            return
        claimed = self._batches.record_and_claim(most)
        self._may_be_tasks = self._may_be_tasks and len(claimed) == most
        self._started += len(claimed)
        for task in claimed:
            self._pool.send(_Performing(task))

    def _recall(self) -> None:
        """Leave to others what no thread has begun."""
        recalled = self._pool.recall()
        tasks = [call.task for call in recalled if isinstance(call, _Performing)]
        self._batches.release(tasks)
        self._mean_duration = 2 * _AHEAD
        self._started -= len(tasks)
        for call in recalled:
            if not isinstance(call, _Performing):
                self._pool.send(call)  # a thread was about to begin it

    # --- the end

    def _wind_up(self, grace: timedelta) -> Iterator[Report]:
        """Nothing new is begun. What is under way has its grace, then it is interrupted."""
        self._recall()
        yield from self._settle_all(grace, lambda: not is_told_again())
        yield from self._settle_all(CLEAN_UP, self._interrupt)
        if self._pool.is_idle and not is_database_given_up():
            self._batches.close()

    def _end_around(self) -> None:
        """Nobody can end a thread, but for the process."""
        logger.error("The worker ends around %s, which took no notice.", ", ".join(sorted(self._ours)) or "a task")
        if self._pool.is_blocked():
            release_and_exit()
        # Who may go on for a moment keeps his locks, until they expire.

    def _settle_all(self, patience: timedelta, goes_on: Callable[[], bool]) -> Iterator[Report]:
        end = local_now() + patience.total_seconds()
        while not self._pool.is_idle and local_now() < end and goes_on():
            for back in self._pool.come_back(_NAP):
                yield from self._told(back)
            self._record()

    def _record(self) -> None:
        if gave_up_since(0):
            return  # the process may end while we ask again, and what cleans up would with it
        try:
            if self._batches.has_news:
                self._batches.record_and_claim(0)
        except Error as error:
            logger.warning("What one-offs have done cannot be recorded, which is tried again: %s", error)
            database.drop(database.alias())

    def _interrupt(self) -> bool:
        """``False``: there is nobody whom it could still reach."""
        # Again and again: what was about to begin may only now have begun.
        self._pool.fire(JobInterrupted)
        return not self._pool.is_stuck


def _reported(job: Job, run: Callable[[], Report]) -> Report:
    """Whatever else goes wrong, the job does not stay under way for ever."""
    pid = os.getpid()
    try:
        return run()
    except BaseException as error:
        if os.getpid() != pid:
            raise  # a forked child that leaves
        return logged(Report(job.name, error=error))
