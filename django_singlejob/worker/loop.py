"""The worker's loop: look for what is due, have it run, and report the outcomes; all day, or once."""

import logging
import os
from collections.abc import Callable, Generator, Iterator
from datetime import timedelta

from django.db import Error

from django_singlejob import database
from django_singlejob.clock import backoff, local_now
from django_singlejob.conf import ZERO
from django_singlejob.exceptions import DatabaseUnreachable, JobInterrupted
from django_singlejob.logs import about
from django_singlejob.received_signals import (
    gave_up_since,
    is_database_given_up,
    is_second_signal_received,
    is_shutdown_requested,
)
from django_singlejob.reports import Report
from django_singlejob.worker.due import PRUNING
from django_singlejob.worker.pool import Inline, Pool
from django_singlejob.worker.tick import Plan, Tick

logger = logging.getLogger("django_singlejob")

# How long an interrupted run may take to clean up. After that the process exits even if the run goes on.
CLEAN_UP = timedelta(seconds=5)
# How long to retry the release of the worker's own lock if the database was already unreachable when the worker began
# to shut down. All that the lock protects is recorded by then, so nothing waits for it if it is left to expire.
_PATIENCE_WHEN_AWAY = timedelta(seconds=2)
# How often a waiting worker checks whether a signal has come. Seconds.
_NAP = 0.1


class Worker:
    """Runs what is due until a signal ends this process or, depending on the plan, until nothing more is due."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._pool = Inline() if plan.once else Pool(plan.threads)
        self._tick = Tick(plan, self._pool)
        self._batches = self._tick.batches
        self._pid = os.getpid()
        self._is_database_away = False

    @property
    def is_left_under_way(self) -> bool:
        """Whether a run went on after it was interrupted. Only the end of the process ends its thread. The locks that
        it holds are left to expire."""
        return not self._pool.is_idle

    def work(self) -> Generator[Report]:
        """Look every ``plan.interval``, or a bit sooner or later so that servers spread out. A look that finds nothing
        due takes one query.

        An endless worker survives an outage of the database. With ``once`` or ``drain``, database errors are raised.
        """
        try:
            yield from self._work()
        except BaseException as error:
            if os.getpid() == self._pid:  # otherwise a forked child exits, and all this belongs to its parent
                # An error that ends the worker does not cut off its runs.
                for _ in self._wind_up(self._plan.grace if isinstance(error, Error) else ZERO):
                    pass
                self._batches.leave_to_expire()
            raise
        yield from self._wind_up(self._plan.grace)
        if self.is_left_under_way:
            names = ", ".join(sorted(self._tick.ours)) or "a task"
            message = "The worker exits although %s did not react to the interrupt."
            logger.error(message, names, extra=about())
        self._batches.leave_to_expire()

    def _work(self) -> Iterator[Report]:
        troubles = self._pauses()
        while not (is_shutdown_requested() or self._tick.is_over or self._plan.is_outdated()):
            try:
                database.forget_queries()
                self._tick.recall_if_stuck()
                self._tick.look()
                self._tick.hand_out()
                self._is_database_away = False
                yield from self._settle(self._tick.patience)
                troubles = self._pauses()
            except Error as error:
                if not (_is_temporary(error) and self._plan.is_endless):
                    raise
                message = "The database does not answer. The worker retries until it does: %s"
                logger.warning(message, database.words_of(error), extra=about(reason=error))
                self._is_database_away = True
                database.drop(database.alias())
                self._tick.look_again()
                yield from self._settle(next(troubles) or self._plan.interval.total_seconds())

    def _pauses(self) -> Iterator[float]:
        return backoff(self._plan.interval.total_seconds())

    # --- what comes back

    def _settle(self, seconds: float) -> Iterator[Report]:
        """Wait this long for tasks to come back, and yield their reports."""
        end = local_now() + seconds
        while True:
            # A signal is only remembered, it does not end the wait: so the waits are short.
            reports = self._come_back(min(end - local_now(), _NAP))
            yield from _news(reports)
            if reports or local_now() >= end or is_shutdown_requested():
                return

    def _come_back(self, seconds: float) -> list[Report]:
        return [self._tick.settle(task, report) for task, report in self._pool.come_back(seconds)]

    # --- the end

    def _wind_up(self, grace: timedelta) -> Iterator[Report]:
        """Begin nothing new. Runs that are under way may go on for the grace period, then they are interrupted."""
        self._tick.recall()
        yield from self._settle_all(grace, lambda: not is_second_signal_received())
        yield from self._settle_all(CLEAN_UP, self._interrupt)
        if self._pool.is_idle and not is_database_given_up():
            self._batches.close(_PATIENCE_WHEN_AWAY if self._is_database_away else None)

    def _settle_all(self, patience: timedelta, goes_on: Callable[[], bool]) -> Iterator[Report]:
        end = local_now() + patience.total_seconds()
        while not self._pool.is_idle and local_now() < end and goes_on():
            yield from _news(self._come_back(_NAP))
            self._record()

    def _record(self) -> None:
        if gave_up_since(0):
            return  # the process might be ended during another query, and the runs that clean up with it
        try:
            if self._batches.has_news:
                self._batches.record_and_claim(0)
        except Error as error:
            message = "The results of one-offs could not be recorded and will be retried: %s"
            logger.warning(message, database.words_of(error), extra=about(reason=error))
            database.drop(database.alias())

    def _interrupt(self) -> bool:
        """Interrupt all runs. ``False`` if the interrupt cannot reach any of them."""
        # Called repeatedly: a run that was about to begin may have begun only now.
        self._pool.fire(JobInterrupted)
        return not self._pool.is_stuck


def _news(reports: list[Report]) -> Iterator[Report]:
    """Leave out the report of pruning, which no one requested, unless it ends the worker."""
    return (report for report in reports if report.name != PRUNING.name or report.is_hopeless)


def _is_temporary(error: Error) -> bool:
    is_unreachable = isinstance(error, DatabaseUnreachable)
    return is_unreachable or database.is_connection_lost(error) or database.is_transient(error)
