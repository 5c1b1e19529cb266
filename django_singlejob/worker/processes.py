"""Runs of jobs, each in a child process. The main thread takes each of them a step further when it is time for that."""

import logging
from collections.abc import Generator
from typing import NamedTuple, Protocol

from django_singlejob.locking.request import Reason
from django_singlejob.process.clock import local_now
from django_singlejob.process.logs import about
from django_singlejob.running.reports import Report
from django_singlejob.running.runner import not_begun
from django_singlejob.running.supervisor import Steps, Supervisor
from django_singlejob.running.watch import DAY, Child

logger = logging.getLogger("django_singlejob")

# How long no run begins after many that have not begun, at most. Seconds.
LONGEST_PAUSE = 60.0
# How many in a row are worth an alarm.
MANY = 3


class Supervised(Protocol):
    """A run that takes several steps."""

    @property
    def name(self) -> str:
        """The name of the job, for the report."""

    def steps(self, supervisor: Supervisor) -> Steps[Report]: ...


class _UnderWay(NamedTuple):
    """A run, and what it waits for: its child, or an instant, a value of ``local_now()``."""

    steps: Generator[Child | float, None, Report]
    awaited: Child | float

    @property
    def is_ready(self) -> bool:
        if isinstance(self.awaited, Child):
            return self.awaited.process.is_over()
        return local_now() >= self.awaited


class Processes:
    """At most ``size`` runs, each in a process of its own.

    Attributes:
        not_begun: how many runs in a row have not begun, because there is no process for them. After each, none begins
            for a while: longer and longer.
        is_outdated: whether the code has changed, so that a new process would not be this program any more, and another
            one is needed.
    """

    def __init__(self, size: int, supervisor: Supervisor) -> None:
        self.size = size
        self.not_begun = 0
        self.is_outdated = False
        self._supervisor = supervisor
        self._under_way: dict[Supervised, _UnderWay] = {}
        self._returns: list[tuple[Supervised, Report]] = []
        self._begin_at = local_now()

    @property
    def free(self) -> int:
        """How many runs may begin."""
        if self.is_outdated or self.is_pausing:
            return 0
        return self.size - len(self._under_way) - len(self._returns)

    @property
    def is_idle(self) -> bool:
        """Whether all runs have come back."""
        return not (self._under_way or self._returns)

    @property
    def is_pausing(self) -> bool:
        """Whether no run may begin for a while, because the last one has not begun."""
        return local_now() < self._begin_at

    def send(self, run: Supervised) -> None:
        """Begin the run."""
        if self._supervisor.is_outdated:
            self.is_outdated = True
            detail = "the code has changed since this program was started"
            self._returns.append((run, Report(run.name, not_begun(detail))))
        else:
            self._go_on(run, run.steps(self._supervisor))

    def come_back(self) -> list[tuple[Supervised, Report]]:
        """The runs that have ended by now, with their reports."""
        for run, under_way in list(self._under_way.items()):
            if under_way.is_ready:
                self._go_on(run, under_way.steps)
        returns, self._returns = self._returns, []
        return returns

    def wait(self, seconds: float) -> bool:
        """Wait until something happens. Returns ``False`` if nothing has."""
        if self._returns:
            self.beat()
            return True
        resumes = [each.awaited - local_now() for each in self._under_way.values() if isinstance(each.awaited, float)]
        if not self.is_pausing:
            return self._supervisor.keep(min([seconds, DAY, *resumes]))
        return self._supervisor.keep(min([seconds, self._begin_at - local_now(), *resumes])) or not self.is_pausing

    def recall(self) -> None:
        """Give up the runs that still wait for their locks."""
        for run, (steps, awaited) in list(self._under_way.items()):
            if isinstance(awaited, float):
                steps.close()
                del self._under_way[run]

    def beat(self) -> None:
        """Send the heartbeats that are due."""
        self._supervisor.pause(0)

    def _go_on(self, run: Supervised, steps: Steps[Report]) -> None:
        try:
            step = next(steps)
        except StopIteration as end:
            self._under_way.pop(run, None)
            self._settle(run, end.value)
        except Exception as error:  # whatever goes wrong, the run must not stay under way for ever
            self._under_way.pop(run, None)
            self._settle(run, Report(run.name, error=error))
        else:
            self._under_way[run] = _UnderWay(steps, local_now() + step if isinstance(step, float) else step)

    def _settle(self, run: Supervised, report: Report) -> None:
        self._returns.append((run, report))
        if report.reason == Reason.NOT_BEGUN:
            self._pause(report)
        elif report.reason is None:
            self.not_begun = 0

    def _pause(self, report: Report) -> None:
        self._begin_at = local_now() + min(2.0**self.not_begun, LONGEST_PAUSE)
        self.not_begun += 1
        if self.not_begun == MANY:
            message = (
                "%d runs in a row have not begun, because no process for them begins to work. Nothing is lost, but "
                "nothing runs on this server: %s (A process that runs jobs starts as this one did. What only one "
                "process can do must not be done if django_singlejob.is_executor().)"
            )
            logger.critical(
                message, MANY, report.outcome.detail if report.outcome else "", extra=about(job=report.name)
            )
