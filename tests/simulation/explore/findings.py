"""What a search is asked for, what came of it, and what it prints."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.simulation.explore.places import Kind
    from tests.simulation.schedule import Schedule


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """How much to search.

    Attributes:
        preemptions: the most preemptions in a schedule; ``None``: any number.
        faults: the most faults in a schedule.
        kinds: which faults; ``None``: all of the profile's.
        is_pruned: whether to give up schedules that reach a known state.
        most_violations: after how many violations to end.
    """

    preemptions: int | None = None
    faults: int = 1
    kinds: Sequence[Kind] | None = None
    seconds: float = 60.0
    is_pruned: bool = True
    most_violations: int = 1


@dataclass
class Findings:
    """What came of a search.

    Attributes:
        complete: the number of preemptions and faults together up to which every schedule is known.
        is_whole: whether every schedule within the bounds is known.
        executed: schedules that were carried out to the end, and ``pruned``: those that reached a known state.
        depth: the most choices that there were in a schedule, and ``switches``: the most that were not the default.
    """

    scenario: str
    profile: str
    bounds: Bounds
    complete: int = -1
    is_whole: bool = False
    executed: int = 0
    pruned: int = 0
    states: int = 0
    steps: int = 0
    depth: int = 0
    branched: int = 0
    switches: int = 0
    left: int = 0
    seconds: float = 0.0
    cpu: float = 0.0
    levels: Counter[tuple[int, int]] = field(default_factory=Counter)
    outcomes: set[tuple[Any, ...]] = field(default_factory=set)
    violations: list[tuple[Schedule, str]] = field(default_factory=list)


def lines_of(found: Findings) -> Iterator[str]:
    """What came of a search, line by line."""
    yield f"{found.scenario} on {found.profile}: {_completeness(found)}"
    yield (
        f"  {found.executed} schedules carried out, {found.pruned} given up at a known state, {found.left} left; "
        f"{found.states} states, {found.steps} steps, {found.seconds:.0f} s ({found.cpu:.0f} s of a processor)"
    )
    yield (
        f"  at most {found.depth} choices in a schedule, {found.branched} of them open, {found.switches} unusual; "
        f"{len(found.outcomes)} outcomes"
    )
    levels = (f"{preemptions}+{faults}: {count}" for (preemptions, faults), count in sorted(found.levels.items()))
    yield f"  schedules by preemptions + faults: {', '.join(levels)}"
    for schedule, violation in found.violations:
        yield f"  VIOLATION {violation}"
        yield f"  {schedule.as_json()}"


def _completeness(found: Findings) -> str:
    """Which schedules are known."""
    bounds = found.bounds
    if found.is_whole:
        most = "any number of" if bounds.preemptions is None else f"up to {bounds.preemptions}"
        return f"complete with {most} preemptions and up to {bounds.faults} fault(s)"
    if found.complete < 0:
        return "not complete even without preemptions and faults"
    parts = [
        f"up to {found.complete - faults} preemptions and {faults} fault(s)"
        for faults in range(min(bounds.faults, found.complete) + 1)
    ]
    return f"complete with {', and '.join(parts)}"
