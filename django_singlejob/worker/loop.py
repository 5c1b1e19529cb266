"""The worker's loop: look for what is due, have it run, and report the outcomes; all day, or once."""

import logging
import os
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import nullcontext, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from django.db import Error

from django_singlejob.conf import ZERO, options
from django_singlejob.database import errors, transactions
from django_singlejob.database.unusable import is_temporary
from django_singlejob.exceptions import DatabaseUnreachable
from django_singlejob.locking.heartbeat import renewing
from django_singlejob.locking.position import MissedSlots
from django_singlejob.process import rooms
from django_singlejob.process.clock import backoff, local_now
from django_singlejob.process.logs import about
from django_singlejob.process.received_signals import is_ctrl_c, is_shutdown_requested
from django_singlejob.running.outcomes import Outcome, logged
from django_singlejob.running.output import Printer
from django_singlejob.running.runner import FINAL
from django_singlejob.running.supervisor import Supervisor, can_supervise
from django_singlejob.running.watch import DAY
from django_singlejob.worker.due import follow_code
from django_singlejob.worker.due_run import DueRun, Inline
from django_singlejob.worker.lane import lane
from django_singlejob.worker.lock import WorkerLock
from django_singlejob.worker.processes import Processes
from django_singlejob.worker.pruning import PRUNING, anything_to_prune
from django_singlejob.worker.starts import Starts
from django_singlejob.worker.tick import Plan, Tick

if TYPE_CHECKING:
    from django.db.models import QuerySet

logger = logging.getLogger("django_singlejob")

# Schedules change only with a new release of the code, so they need not be compared every second.
FOLLOW_CODE_EVERY = timedelta(minutes=1)
# How long a pass of --once or --drain waits to see whether the holders of stale locks are dead. A holder may be inside
# a long fenced transaction: then others see only that it is alive. Seconds.
LONGEST_TICK = 300.0
# How long to retry the release of the worker's own lock if the database was already unreachable when the worker began
# to shut down. All that the lock protects is recorded by then, so nothing waits for it if it is left to expire.
_PATIENCE_WHEN_AWAY = timedelta(seconds=2)


_SILENT = (f"{__name__}.silent", None)
# Records that this server asks for what is due in these queues. Returns whether any of the query sets has a row.
Mark: TypeAlias = Callable[..., bool]


class Worker:
    """Runs what is due until a signal ends this process or, depending on the plan, until nothing more is due."""

    def __init__(self, plan: Plan, reporter: tuple[str, Any] = _SILENT) -> None:
        """``reporter``: the dotted path of a function, and its argument. It returns what is called with the outcome of
        each task, in another process, and returns an exit status.
        """
        self._plan = plan
        self._supervisor = _supervisor(plan) if plan.in_children and can_supervise() else None
        self._starts: Starts | None = None
        #: Whether the worker has ended because no process for its runs begins to work.
        self.has_given_up = False
        self._pool: Processes | Inline
        if self._supervisor:
            self._lock = WorkerLock(plan.queues, self._supervisor.renewing, self._supervisor.pause)
            self._starts = Starts(self._supervisor)
            self._pool = Processes(1 if plan.once else plan.processes, self._supervisor, self._starts)
        else:
            self._lock = WorkerLock(plan.queues, renewing)
            self._pool = Inline()
        self._lane = lane(plan, self._lock, self._supervisor, self._starts, reporter)
        self._tick = Tick(plan, self._pool, self._lane)
        self._pid = os.getpid()
        self._follow_code_at = self._look_at = self._settled_at = local_now()
        self._is_final = self._is_database_away = self._is_marked = False
        self._missed = MissedSlots()

    @property
    def is_supervisor(self) -> bool:
        """Whether the jobs and tasks run in other processes."""
        return self._supervisor is not None

    @property
    def is_outdated(self) -> bool:
        """Whether it has ended because its code has changed, and another process was needed."""
        return self._starts is not None and self._starts.is_outdated

    @property
    def status_of_tasks(self) -> int:
        """The first exit status other than 0 that tasks in another process call for."""
        return self._lane.status

    def work(self) -> Generator[Outcome]:
        """Look every ``plan.interval``, or a bit sooner or later so that servers spread out. A look that finds nothing
        due takes one query. Yields the outcomes of jobs, and of the tasks that run in this process.

        An endless worker survives an outage of the database. With ``once`` or ``drain``, database errors are raised.
        If the project is not ``enabled``, it does nothing, and an endless worker waits for its signal.
        """
        with self._supervisor or nullcontext(), self._missed:
            if not options().enabled:
                self._idle()
                return
            try:
                yield from self._work()
                yield from self._wind_up(self._plan.grace)
            except BaseException as error:
                if os.getpid() == self._pid:  # otherwise a forked child exits, and all this belongs to its parent
                    # An error that ends the worker does not cut off its runs.
                    for _ in self._wind_up(self._plan.grace if isinstance(error, Error) else ZERO):
                        pass
                raise

    def _idle(self) -> None:
        self._mark()
        # If it ended, a supervisor such as systemd would start it again and again.
        while self._plan.is_endless and not (is_shutdown_requested() or self._plan.is_outdated()):
            self._pool.wait(self._plan.interval.total_seconds())
            if local_now() >= self._follow_code_at:
                self._mark()

    def _work(self) -> Iterator[Outcome]:
        pauses = self._pauses()
        while not (is_shutdown_requested() or self._is_final or self._lane.is_final or self._is_outdated):
            try:
                has_acted = self._act()
                self._is_database_away = False
                if not has_acted and self._is_over:
                    return
                yield from self._settle(0.0 if has_acted else self._patience)
                pauses = self._pauses()
            except Error as error:
                self._endure(error)
                yield from self._settle_all_the_same(next(pauses) or self._plan.interval.total_seconds())

    @property
    def _is_outdated(self) -> bool:
        return self._plan.is_outdated() or self.is_outdated

    @property
    def _is_pausing(self) -> bool:
        """Whether nothing begins for a while because the last run has not begun."""
        return self._starts is not None and self._starts.pause > 0

    def _act(self) -> bool:
        """Look, if it is time for that, and begin the next thing. ``False``: there is nothing to do but to wait."""
        transactions.forget_queries()
        if local_now() >= self._look_at and not self._is_busy_with_slots:
            self._look()
        # A pass prunes after all that is due. For a worker that stays, there is no such time.
        return (
            (self._plan.is_endless and self._tick.prune())
            or self._tick.take_turns()
            or self._look_again()
            or self._tick.prune()
        )

    def _look(self) -> None:
        if self._plan.is_endless:
            self._missed.log()
        if local_now() >= self._follow_code_at:
            follow_code(self._pool.beat)
            self._mark()
        if self._lock.lease or not self._plan.once:
            self._lock.hold()
        pause = self._tick.look()
        self._look_at = local_now() + pause  # counted from now: a slow look must leave time for what it has found

    def _mark(self) -> None:
        self._follow_code_at = local_now() + FOLLOW_CODE_EVERY.total_seconds()
        mark: Mark = rooms.find("mark") or _only_ask
        how = {"is_once": not self._plan.is_endless, "is_first": not self._is_marked}
        self._is_marked = True
        self._tick.may_prune = mark(self._plan.queues, anything_to_prune(), **how)

    def _look_again(self) -> bool:
        """``False``: nothing has ended since the last look, or the worker looks again anyway."""
        if not self._tick.is_stale:
            return False
        self._look()
        return True

    @property
    def _is_busy_with_slots(self) -> bool:
        """Whether a pass has slots to run that it has already seen. They come first, however long that takes."""
        return self._plan.once and self._tick.knows_a_slot

    @property
    def _patience(self) -> float:
        """How long there is nothing to do except wait for runs to end. Seconds."""
        return DAY if self._is_busy_with_slots else self._look_at - local_now()

    @property
    def _is_over(self) -> bool:
        """Whether to end instead of waiting."""
        is_watched = self._tick.is_watching and local_now() < self._settled_at + LONGEST_TICK
        is_done = self._tick.left == 0 or not (self._plan.is_endless or is_watched)
        return is_done and self._tick.is_idle and not self._is_pausing

    def _endure(self, error: Error) -> None:
        """Go on after the error, or raise it."""
        if not (is_temporary(error) and self._plan.is_endless):
            raise error
        message = "The database does not answer. The worker retries until it does: %s"
        logger.warning(message, errors.words_of(error), extra=about(reason=error))
        self._is_database_away = True
        transactions.drop(transactions.alias())
        self._look_at = local_now()

    def _settle_all_the_same(self, seconds: float) -> Iterator[Outcome]:
        try:
            yield from self._settle(seconds)
        except Error as error:
            self._endure(error)

    def _pauses(self) -> Iterator[float]:
        return backoff(self._plan.interval.total_seconds())

    # --- what comes back

    def _settle(self, seconds: float) -> Iterator[Outcome]:
        """Wait this long for something to happen, and yield the outcomes of what has ended."""
        end = local_now() + seconds
        while True:
            has_happened = self._pool.wait(end - local_now())
            outcomes = self._come_back()
            yield from _news(outcomes)
            if has_happened or outcomes or local_now() >= end or is_shutdown_requested():
                return

    def _come_back(self) -> list[Outcome]:
        outcomes = list(self._lane.come_back())  # first, because it may raise
        for outcome in outcomes:
            _raise_ctrl_c(outcome)
        for run, outcome in self._pool.come_back():
            self._tick.settle(cast("DueRun", run), outcome)
            _raise_ctrl_c(outcome)
            self._is_final = self._is_final or _is_final(self._plan, cast("DueRun", run), outcome)
            outcomes.append(logged(outcome, is_printed=self._plan.is_quiet))
        if self._starts and self._starts.not_begun > 1 and not self._plan.is_endless:
            self.has_given_up = self._is_final = True
        if outcomes:
            self._settled_at = local_now()
        return outcomes

    # --- the end

    def _wind_up(self, grace: timedelta) -> Iterator[Outcome]:
        """Begin nothing new. Runs that are under way may go on for the grace period, then they are interrupted."""
        self._pool.recall()
        if self._supervisor and not is_shutdown_requested():
            self._supervisor.end_within(grace)
        while not (self._pool.is_idle and self._lane.is_over):
            self._pool.wait(DAY)
            try:
                yield from _news(self._come_back())
            except Error as error:
                message = "Tasks could not be put back: %s"
                logger.warning(message, errors.words_of(error), extra=about(reason=error))
                transactions.drop(transactions.alias())
        if self._lane.close():
            self._lock.release(_PATIENCE_WHEN_AWAY if self._is_database_away else None)
        else:
            self._lock.leave_to_expire()


def silent(_: Any) -> Callable[[Outcome], int]:
    """Says nothing of the tasks."""
    return lambda outcome: 0


def _supervisor(plan: Plan) -> Supervisor:
    # Jobs that run beside each other cannot share a terminal, and a worker decides when they get a signal.
    if plan.once:
        patience, printer = None, Printer(has_lines=True, has_titles=True, is_quiet=plan.is_quiet)
    else:
        patience, printer = plan.grace, Printer(has_lines=True)
    terms: dict[str, Any] = {"printer": printer, "touch": plan.touch, "last": plan.last}
    return Supervisor(patience, has_one_run=False, has_terminal=False, **terms)


def _raise_ctrl_c(outcome: Outcome) -> None:
    """Raise a Ctrl-C that came in this very thread."""
    if outcome.error and is_ctrl_c(outcome.error):
        raise outcome.error


def _is_final(plan: Plan, run: DueRun, outcome: Outcome) -> bool:
    """Whether the worker cannot achieve anything more."""
    # An error of one job's slot does not stop the other jobs, and the slot is not retried.
    kinds = DatabaseUnreachable if run.is_slot else FINAL
    return outcome.is_hopeless or (plan.once and isinstance(outcome.error, kinds))


def _news(outcomes: list[Outcome]) -> Iterator[Outcome]:
    """Leave out the outcome of pruning, which no one requested, unless it failed."""
    return (outcome for outcome in outcomes if outcome.name != PRUNING.name or outcome.error)


def _only_ask(queues: Sequence[str], others: Sequence["QuerySet[Any]"], **_: bool) -> bool:
    """What to do if no room makes marks."""
    with suppress(Error):  # it is asked again
        return any(rows.exists() for rows in others)
    return False
