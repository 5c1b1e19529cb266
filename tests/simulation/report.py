"""What a simulation prints."""

from __future__ import annotations

import shlex
from itertools import combinations_with_replacement
from typing import TYPE_CHECKING

from tests.simulation.faults import OF_ONE_HOST, OF_SERVERS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.simulation.campaign import Summary, Task
    from tests.simulation.schedule import Result, Schedule


def summary_lines(summary: Summary, seconds: float) -> Iterator[str]:
    """The summary, line by line."""
    per_minute = summary.schedules / seconds * 60
    per_minute_of_cpu = summary.schedules / summary.cpu * 60 if summary.cpu else 0
    yield f"{summary.schedules} schedules, {summary.steps} steps, {summary.simulated / 3600:.1f} simulated hours"
    yield f"{seconds:.0f} s, {per_minute:.0f} schedules a minute; {per_minute_of_cpu:.0f} in a minute of one processor"
    yield from section("Scenarios", summary.scenarios)
    yield from section("Seen", summary.counts)
    yield from section("Faults", summary.faults)
    yield from _pairs(summary)
    yield f"Violations: {len(summary.violations)}"
    for schedule, violation in summary.violations:
        yield f"  seed {schedule.seed} ({schedule.scenario} on {schedule.profile}): {violation}"


def section(title: str, counts: Mapping[str, int]) -> Iterator[str]:
    yield title
    for name, count in sorted(counts.items()):
        yield f"{count:10}  {name}"


def _pairs(summary: Summary) -> Iterator[str]:
    kinds = sorted({*OF_ONE_HOST, *OF_SERVERS})
    possible = [pair for pair in combinations_with_replacement(kinds, 2) if pair != ("database clock", "utc clock")]
    missing = [f"{one} + {other}" for one, other in possible if not summary.pairs[one, other]]
    yield f"Pairs of faults in one schedule: {len(possible) - len(missing)} of {len(possible)}"
    for one, other in possible:
        if summary.pairs[one, other]:
            yield f"{summary.pairs[one, other]:10}  {one} + {other}"
    if missing:
        yield f"Not seen: {', '.join(missing)}"


def explanation_lines(schedule: Schedule, task: Task, whole: Result, small: Result) -> Iterator[str]:
    """A violation, and the smallest history that was found for it."""
    options = _options(task)
    yield f"Seed {schedule.seed} breaks a promise: {whole.violation}"
    yield f"In {whole.steps} steps. Replay it with: {options}--seed {schedule.seed} --schedules 1 --history"
    yield f"The smallest history that was found has {small.steps} steps: {small.violation}"
    yield str(small.history)
    yield f"Replay it with: {options}--history --replay '{small.schedule.as_json()}'"


def _options(task: Task) -> str:
    """The options on which the schedule of a seed depends, each with a space after it."""
    given = {"--scenario": task.scenario, "--profile": task.profile, "--isolation": task.isolation}
    given |= {"--database": task.database} if task.database != "sqlite" else {}
    return "".join(f"{shlex.join((name, value))} " for name, value in given.items() if value)
