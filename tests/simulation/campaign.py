"""One schedule after another, until a number or a time is reached, and what came of them all."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import combinations, count
from typing import TYPE_CHECKING

from tests.simulation.schedule import Result, Schedule, Theatre
from tests.simulation.servers import storage_on_server
from tests.simulation.shrink import shrunk
from tests.simulation.stage import folder_in_memory, set_up
from tests.simulation.storage import SQLite, Storage
from tests.simulation.world import SERVERS

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, kw_only=True)
class Task:
    """Which schedules to simulate.

    Attributes:
        seed: that of the first schedule.
        stride: how far the seeds are apart: several processes share them.
        scenario: the only scenario; empty: each schedule draws one.
        profile: the only profile; empty: each schedule draws one.
        schedules: how many; ``None``: as many as there is time for.
        seconds: for how long.
        most_violations: after how many violations to give up.
        database: the kind of database: ``"sqlite"``, ``"postgresql"`` or ``"mysql"``.
        isolation: the isolation level on a server; empty: Django's usual one.
    """

    seed: int = 1
    stride: int = 1
    scenario: str = ""
    profile: str = ""
    schedules: int | None = None
    seconds: float = 60.0
    most_violations: int = 1
    database: str = "sqlite"
    isolation: str = ""

    @property
    def all(self) -> Iterator[Schedule]:
        """The schedules. If there is no limit, they never end."""
        for number in count() if self.schedules is None else range(self.schedules):
            profile = self.profile if self.database == "sqlite" else SERVERS
            yield Schedule.of(self.seed + number * self.stride, self.scenario, profile)


@dataclass
class Summary:
    """What came of many schedules."""

    schedules: int = 0
    steps: int = 0
    #: Seconds: of the processor, and simulated.
    cpu: float = 0.0
    simulated: float = 0.0
    scenarios: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    pairs: Counter[tuple[str, str]] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    violations: list[tuple[Schedule, str]] = field(default_factory=list)

    def add(self, schedule: Schedule, result: Result) -> None:
        """Count one schedule."""
        self.schedules += 1
        self.steps += result.steps
        self.simulated += result.seconds
        self.scenarios[f"{schedule.scenario} on {schedule.profile}"] += 1
        kinds = sorted(fault.kind for fault in result.fired)
        self.faults.update(kinds or ["none"])
        self.pairs.update(combinations(kinds, 2))
        self.counts.update(result.counts)
        if result.violation:
            self.violations.append((schedule, result.violation))

    def merge(self, other: Summary) -> None:
        """Add what another process has found."""
        for name in ("schedules", "steps", "cpu", "simulated", "scenarios", "faults", "pairs", "counts", "violations"):
            setattr(self, name, getattr(self, name) + getattr(other, name))


@contextmanager
def theatre(database: str = "sqlite", isolation: str = "") -> Iterator[Theatre]:
    """A theatre for schedules, on a database that is deleted afterwards."""
    stored = storage_in_file() if database == "sqlite" else storage_on_server(database, isolation)
    with stored as storage, set_up(storage.settings):
        yield Theatre(storage)


@contextmanager
def storage_in_file() -> Iterator[Storage]:
    """A file of SQLite's."""
    with folder_in_memory() as folder:
        storage = SQLite(folder)
        try:
            yield storage
        finally:
            storage.close()


def carried_out(task: Task) -> Summary:
    """Simulate the schedules of the task."""
    summary, end = Summary(), time.monotonic() + task.seconds
    cpu = time.process_time()
    with theatre(task.database, task.isolation) as stage:
        for schedule in task.all:
            if time.monotonic() >= end or len(summary.violations) >= task.most_violations:
                break
            summary.add(schedule, stage.play(schedule))
    summary.cpu = time.process_time() - cpu
    return summary


def explained(schedule: Schedule, task: Task) -> tuple[Result, Result]:
    """A schedule that breaks a promise, and the smallest one that was found: both with their histories."""
    with theatre(task.database, task.isolation) as stage:
        whole = stage.play(schedule, is_kept=True)
        small = shrunk(whole, stage.play)
        return whole, stage.play(small.schedule, is_kept=True)
