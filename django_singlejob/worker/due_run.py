"""A run of a job that is due: of a slot, of a one-off, or of pruning. Its steps are carried out here or in a child."""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar, cast

from django_singlejob.exceptions import InvalidOrder
from django_singlejob.jobs.registry import Job
from django_singlejob.locking.lease import Lease
from django_singlejob.process import rooms
from django_singlejob.process.clock import sleep
from django_singlejob.running.enqueue import arguments_of
from django_singlejob.running.order import Order, Work
from django_singlejob.running.outcomes import Outcome, raised
from django_singlejob.running.runner import Run, outcome_steps, waitless, work_of
from django_singlejob.running.shared import SharedMemory
from django_singlejob.running.supervisor import Steps, Supervisor
from django_singlejob.worker.pruning import PRUNING

if TYPE_CHECKING:
    from django_singlejob.models import OneOffJob

T = TypeVar("T")

# How often a waiting worker looks whether a signal has come. Seconds.
NAP = 0.1


@dataclass(frozen=True, eq=False)
class DueRun:
    """A run of a job, in this process or in a child. ``is_slot``: whether a slot of its schedule is due.
    ``one_off``: its one-off, if it is the run of one."""

    job: Job
    steps: Callable[[Supervisor | None], Steps[Outcome]]
    is_slot: bool = False
    one_off: "OneOffJob | None" = None

    @property
    def name(self) -> str:
        return self.job.name

    def __call__(self) -> Outcome:
        return _at_once(self.steps(None))


def _at_once(steps: Steps[T]) -> T:
    """The value of steps that wait for nothing."""
    try:
        next(steps)
    except StopIteration as end:
        return cast("T", end.value)
    raise AssertionError("Without a supervisor, no step waits.")


def pruning() -> DueRun:
    """A run that deletes what is old."""
    kind = f"{__name__}.work_of_pruning"
    return DueRun(PRUNING, lambda supervisor: outcome_steps(Run(PRUNING, kind=kind), supervisor))


def work_of_pruning(order: Order, lease: Lease, memory: SharedMemory) -> Work:
    """What an executor does for that."""
    return work_of(PRUNING, order, lease)


def slot_of(job: Job) -> DueRun:
    """A run of the job's next slot."""
    return DueRun(job, partial(_slot_steps, job), is_slot=True)


def _slot_steps(job: Job, supervisor: Supervisor | None) -> Steps[Outcome]:
    return outcome_steps(Run(waitless(job), trigger="schedule"), supervisor)


def one_off_of(job: Job, row: "OneOffJob") -> DueRun:
    """A run of the job's one-off."""
    return DueRun(job, partial(_one_off_steps, job, row), one_off=row)


def _one_off_steps(job: Job, row: "OneOffJob", supervisor: Supervisor | None) -> Steps[Outcome]:
    """Run the one-off, if the lock of its job can be acquired."""
    run = Run(waitless(job), trigger=row.trigger, one_off=row)
    try:
        run.args, run.kwargs = arguments_of(row)
    except InvalidOrder as mistake:
        run.job, run.mistake = replace(run.job, retries=0), mistake
    steps: Callable[..., Steps[Outcome]] | None = rooms.find("one_off_steps") if row.backend else None
    return (yield from steps(run, row, supervisor) if steps else outcome_steps(run, supervisor))


# --- without executors


class Runnable(Protocol):
    """What a worker can carry out itself."""

    @property
    def name(self) -> str:
        """The name of the job or task, for the outcome."""

    def __call__(self) -> Outcome: ...


def carried_out(run: Runnable) -> Outcome:
    """Carry it out, and return its outcome."""
    pid = os.getpid()
    try:
        outcome = run()
    except BaseException as error:
        outcome = raised(run.name, error)
    if os.getpid() != pid:
        raise outcome.error or SystemExit(0)  # a forked child that returned: the rest is its parent's
    return outcome


class Inline:
    """Carries out each run as soon as it is sent, as ``Processes`` does in executors."""

    def __init__(self) -> None:
        self._returns: list[tuple[Runnable, Outcome]] = []

    @property
    def free(self) -> int:
        return 1 - len(self._returns)

    @property
    def is_idle(self) -> bool:
        return not self._returns

    def send(self, run: Runnable) -> None:
        self._returns.append((run, carried_out(run)))

    def recall(self) -> None:
        """Do nothing: no run waits for its lock."""

    def come_back(self) -> list[tuple[Runnable, Outcome]]:
        returns, self._returns = self._returns, []
        return returns

    def beat(self) -> None:
        """Do nothing: another thread sends heartbeats."""

    def wait(self, seconds: float) -> bool:
        """Wait. Returns ``False``: nothing can have happened. A signal is only remembered, so each wait is short."""
        if seconds > 0 and not self._returns:
            sleep(min(seconds, NAP))
        return False
