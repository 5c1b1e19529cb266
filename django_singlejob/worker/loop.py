"""What a server does all day, or once: look for what is due, have it run, and tell what became of it."""

import logging
import os
from collections.abc import Callable, Generator, Iterator
from datetime import timedelta

from django.db import Error

from django_singlejob import database
from django_singlejob.clock import backoff, local_now
from django_singlejob.conf import ZERO
from django_singlejob.exceptions import JobInterrupted
from django_singlejob.logs import about
from django_singlejob.received_signals import gave_up_since, is_database_given_up, is_told_again, is_told_to_end
from django_singlejob.reports import Report
from django_singlejob.worker.due import PRUNING
from django_singlejob.worker.pool import Inline, Pool
from django_singlejob.worker.tick import Plan, Tick

logger = logging.getLogger("django_singlejob")

# What was interrupted has so long to clean up; after that the process ends around it.
CLEAN_UP = timedelta(seconds=5)
# How often one that waits looks whether it is told to end. Seconds.
_NAP = 0.1


class Worker:
    """Runs what is due until this process is told to end, or, if the plan says so, until nothing is due any more."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._pool = Inline() if plan.once else Pool(plan.threads)
        self._tick = Tick(plan, self._pool)
        self._batches = self._tick.batches
        self._pid = os.getpid()

    @property
    def is_left_under_way(self) -> bool:
        """Whether some run has taken no notice of the end: nobody can end a thread, but for the process. What it holds
        is left to expire."""
        return not self._pool.is_idle

    def work(self) -> Generator[Report]:
        """Look each ``plan.interval``, or a bit sooner or later so that servers spread out. While nothing is due that
        takes one query.

        One that is to go on does so when the database comes back; one that is to end raises the database's errors.
        """
        try:
            yield from self._work()
        except BaseException as error:
            if os.getpid() == self._pid:  # else it is a forked child that leaves, and all this is its parent's
                # Whatever ends the worker ends no run in its middle.
                for _ in self._wind_up(self._plan.grace if isinstance(error, Error) else ZERO):
                    pass
                self._batches.leave_to_expire()
            raise
        yield from self._wind_up(self._plan.grace)
        if self.is_left_under_way:
            names = ", ".join(sorted(self._tick.ours)) or "a task"
            logger.error("The worker ends around %s, which took no notice.", names, extra=about())
        self._batches.leave_to_expire()

    def _work(self) -> Iterator[Report]:
        troubles = self._pauses()
        while not (is_told_to_end() or self._tick.is_over or self._plan.is_outdated()):
            try:
                self._tick.recall_if_stuck()
                self._tick.look()
                self._tick.hand_out()
                yield from self._settle(self._tick.patience)
                troubles = self._pauses()
            except Error as error:
                is_temporary = database.is_connection_lost(error) or database.is_transient(error)
                if not (is_temporary and self._plan.is_endless):
                    raise
                message = "The database does not answer, which is tried again: %s"
                logger.warning(message, error, extra=about(reason=error))
                database.drop(database.alias())
                self._tick.look_again()
                yield from self._settle(next(troubles) or self._plan.interval.total_seconds())

    def _pauses(self) -> Iterator[float]:
        return backoff(self._plan.interval.total_seconds())

    # --- what comes back

    def _settle(self, seconds: float) -> Iterator[Report]:
        """Wait so long for threads to come back, and tell of what they did."""
        end = local_now() + seconds
        while True:
            # A signal is remembered, and ends no waiting.
            reports = self._come_back(min(end - local_now(), _NAP))
            yield from _news(reports)
            if reports or local_now() >= end or is_told_to_end():
                return

    def _come_back(self, seconds: float) -> list[Report]:
        return [self._tick.settle(task, report) for task, report in self._pool.come_back(seconds)]

    # --- the end

    def _wind_up(self, grace: timedelta) -> Iterator[Report]:
        """Nothing new is begun. What is under way has its grace, then it is interrupted."""
        self._tick.recall()
        yield from self._settle_all(grace, lambda: not is_told_again())
        yield from self._settle_all(CLEAN_UP, self._interrupt)
        if self._pool.is_idle and not is_database_given_up():
            self._batches.close()

    def _settle_all(self, patience: timedelta, goes_on: Callable[[], bool]) -> Iterator[Report]:
        end = local_now() + patience.total_seconds()
        while not self._pool.is_idle and local_now() < end and goes_on():
            yield from _news(self._come_back(_NAP))
            self._record()

    def _record(self) -> None:
        if gave_up_since(0):
            return  # the process may end while we ask again, and what cleans up would with it
        try:
            if self._batches.has_news:
                self._batches.record_and_claim(0)
        except Error as error:
            message = "What one-offs have done cannot be recorded, which is tried again: %s"
            logger.warning(message, error, extra=about(reason=error))
            database.drop(database.alias())

    def _interrupt(self) -> bool:
        """``False``: there is nobody whom it could still reach."""
        # Again and again: what was about to begin may only now have begun.
        self._pool.fire(JobInterrupted)
        return not self._pool.is_stuck


def _news(reports: list[Report]) -> Iterator[Report]:
    """Those of what somebody asked for."""
    return (report for report in reports if report.name != PRUNING.name)
