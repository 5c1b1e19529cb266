"""Runs of jobs, each in an executor. The main thread takes each of them a step further when it is time for that."""

from collections.abc import Generator
from typing import NamedTuple, Protocol

from django_singlejob.locking.request import Reason
from django_singlejob.process.clock import local_now
from django_singlejob.running.outcomes import Outcome, raised, skipped
from django_singlejob.running.supervisor import Steps, Supervisor
from django_singlejob.running.watch import DAY, Child
from django_singlejob.worker.starts import OUTDATED, Starts


class Supervised(Protocol):
    """A run that takes several steps."""

    @property
    def name(self) -> str:
        """The name of the job, for the outcome."""

    def steps(self, supervisor: Supervisor) -> Steps[Outcome]: ...


class _UnderWay(NamedTuple):
    """A run, and what it waits for: its child, or an instant, a value of ``local_now()``. ``was_begun``: whether the
    child's body had begun before the last step."""

    steps: Generator[Child | float, None, Outcome]
    awaited: Child | float
    was_begun: bool = False

    @property
    def is_ready(self) -> bool:
        if isinstance(self.awaited, Child):
            return self.awaited.process.is_over() or self.has_begun != self.was_begun
        return local_now() >= self.awaited

    @property
    def has_begun(self) -> bool:
        return isinstance(self.awaited, Child) and self.awaited.memory.begun_at > 0


class Processes:
    """At most ``size`` runs, each in an executor."""

    def __init__(self, size: int, supervisor: Supervisor, starts: Starts) -> None:
        self.size = size
        self._supervisor, self._starts = supervisor, starts
        self._under_way: dict[Supervised, _UnderWay] = {}
        self._returns: list[tuple[Supervised, Outcome]] = []

    @property
    def free(self) -> int:
        """How many runs may begin."""
        return self.size - len(self._under_way) - len(self._returns) if self._starts.may_begin else 0

    @property
    def is_idle(self) -> bool:
        """Whether all runs have come back."""
        return not (self._under_way or self._returns)

    def send(self, run: Supervised) -> None:
        """Begin the run."""
        if self._starts.has_executor():
            self._go_on(run, run.steps(self._supervisor))
        else:
            self._returns.append((run, skipped(Reason.NOT_BEGUN, OUTDATED, name=run.name)))

    def come_back(self) -> list[tuple[Supervised, Outcome]]:
        """The runs that have ended by now, with their outcomes."""
        for run, under_way in list(self._under_way.items()):
            if under_way.is_ready:
                self._go_on(run, under_way.steps, was_begun=under_way.has_begun)
        returns, self._returns = self._returns, []
        return returns

    def wait(self, seconds: float) -> bool:
        """Wait until something happens. Returns ``False`` if nothing has."""
        if self._returns:
            self.beat()
            return True
        resumes = [each.awaited - local_now() for each in self._under_way.values() if isinstance(each.awaited, float)]
        pause = self._starts.pause
        has_happened = self._supervisor.wait(min([seconds, DAY, *resumes, *([pause] if pause > 0 else [])]))
        return has_happened or pause > 0 >= self._starts.pause

    def recall(self) -> None:
        """Give up the runs that still wait for their locks."""
        for run, under_way in list(self._under_way.items()):
            if isinstance(under_way.awaited, float):
                under_way.steps.close()
                del self._under_way[run]

    def beat(self) -> None:
        """Send the heartbeats that are due."""
        self._supervisor.pause(0)

    def _go_on(self, run: Supervised, steps: Steps[Outcome], *, was_begun: bool = False) -> None:
        try:
            step = next(steps)
        except StopIteration as end:
            self._under_way.pop(run, None)
            self._take_back(run, end.value)
        except Exception as error:  # whatever goes wrong, the run must not stay under way for ever
            self._under_way.pop(run, None)
            self._take_back(run, raised(run.name, error))
        else:
            awaited = local_now() + step if isinstance(step, float) else step
            self._under_way[run] = _UnderWay(steps, awaited, was_begun)

    def _take_back(self, run: Supervised, outcome: Outcome) -> None:
        self._returns.append((run, outcome))
        if outcome.refusal is None:
            self._starts.note_begun()
        elif outcome.reason == Reason.NOT_BEGUN:
            self._starts.note_not_begun(outcome.name, outcome.detail)
