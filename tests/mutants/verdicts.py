"""What the named tests say: that they pass on the unchanged tree, and that they notice a mutant."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.mutants.copies import DoesNotApply, copied
from tests.mutants.mutant import SIMULATION, Simulation
from tests.mutants.trials import CannotBeTried, Result, check_soundness, results_in, violation_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from tests.mutants.mutant import Mutant


@dataclass(frozen=True)
class Verdict:
    """What the tests on one database, or the simulation, found. `problem`: why it does not count; empty if it does."""

    mutant: Mutant
    place: str
    noticed_by: Sequence[str]
    problem: str
    seconds: float

    def __str__(self) -> str:
        lines = [f"{self.mutant.name}  ({self.place}, {self.seconds:.0f} s)"]
        lines += [f"    noticed by {test}" for test in self.noticed_by]
        return "\n".join([*lines, *([f"    {self.problem}"] if self.problem else [])])


def problems_of_the_unchanged(mutants: Sequence[Mutant], tree: Path, place: str) -> list[str]:
    """What is wrong in an unchanged copy: the named tests that do not pass there, each run once, or a schedule that
    breaks a promise."""
    begun_at = time.monotonic()
    try:
        with copied(tree=tree) as folder:
            problems = _broken_in(folder, mutants) if place == SIMULATION else _red_in(folder, mutants, place)
    except CannotBeTried as error:
        problems = [f"{place}: {error}"]
    print(f"unchanged  ({place}, {time.monotonic() - begun_at:.0f} s)", flush=True)
    return problems


def _red_in(folder: Path, mutants: Iterable[Mutant], database: str) -> list[str]:
    tests = sorted({test for mutant in mutants for test in mutant.tests_on(database)})
    found = results_in(folder, tests, database) if tests else {}
    return [f"{test} ({database}): {in_words(results)}" for test, results in found.items() if not is_green(results)]


def _broken_in(folder: Path, mutants: Iterable[Mutant]) -> list[str]:
    most: dict[tuple[str, str], Simulation] = {}
    for simulation in (mutant.simulation for mutant in mutants):
        if isinstance(simulation, Simulation):
            known = most.setdefault(simulation[:2], simulation)
            most[simulation[:2]] = max(known, simulation)
    found = {simulation: violation_in(folder, simulation) for simulation in most.values()}
    return [f"{in_words_of(*violation, simulation)}" for simulation, violation in found.items() if violation]


def is_green(results: set[Result]) -> bool:
    """Whether the test ran and passed, with all of the parameters that this database has."""
    return Result.PASSED in results and results <= {Result.PASSED, Result.SKIPPED}


def judge(mutant: Mutant, place: str, tree: Path) -> Verdict:
    """Break a copy, and see which of the named tests notice, or whether the simulation finds it."""
    begun_at = time.monotonic()
    try:
        with copied(mutant.edits, tree) as folder:
            check_soundness(folder, mutant.edits)
            noticed_by, problem = _simulated(mutant, folder) if place == SIMULATION else _tested(mutant, folder, place)
    except (CannotBeTried, DoesNotApply) as error:
        noticed_by, problem = [], f"CANNOT BE TRIED: {error}"
    return Verdict(mutant, place, noticed_by, problem, time.monotonic() - begun_at)


def _tested(mutant: Mutant, folder: Path, database: str) -> tuple[list[str], str]:
    tests = mutant.tests_on(database)
    found = results_in(folder, tests, database)
    noticed_by = [test for test in tests if is_noticed(found[test], mutant)]
    missed = [f"{test} ({in_words(found[test])})" for test in tests if test not in noticed_by]
    problem = f"{'NOT NOTICED by' if noticed_by else 'SURVIVED'} {', '.join(missed)}" if missed else ""
    return noticed_by, problem


def _simulated(mutant: Mutant, folder: Path) -> tuple[list[str], str]:
    if not isinstance(mutant.simulation, Simulation):
        raise CannotBeTried(mutant.simulation)
    violation = violation_in(folder, mutant.simulation)
    if violation is None:
        return [], f"SURVIVED {mutant.simulation.schedules} schedules"
    return [in_words_of(*violation, mutant.simulation)], ""


def in_words_of(seed: int, sentence: str, simulation: Simulation) -> str:
    """What a schedule breaks."""
    return f"schedule {seed} of {simulation.schedules} ({simulation.scenario} on {simulation.profile}): {sentence}"


def is_noticed(results: set[Result], mutant: Mutant) -> bool:
    """Whether the test failed, with any of its parameters. That it could not be run does not count."""
    return Result.FAILED in results or (mutant.may_hang and Result.HUNG in results)


def in_words(results: set[Result]) -> str:
    return ", ".join(sorted(result.value for result in results))
