"""The repairs of the cases in which two faults met: when one is reverted, the simulation finds the case again, within
the number of schedules that the table of mutants states."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.mutants.copies import copied
from tests.mutants.mutant import Simulation
from tests.mutants.mutants import REVERTED_REPAIRS
from tests.mutants.trials import violation_in
from tests.simulation.campaign import theatre
from tests.simulation.faults import ISOLATION, Fault
from tests.simulation.scenarios import SCENARIOS
from tests.simulation.schedule import Schedule
from tests.simulation.world import SERVERS

if TYPE_CHECKING:
    from pytest_django import DjangoDbBlocker

    from tests.mutants.mutant import Mutant

pytestmark = [pytest.mark.on_database("sqlite"), pytest.mark.timeout(300)]

#: What is said of each case when it is found.
WORDS = {
    "infinite-deadline-inside-a-fenced-block": "trust themselves at once",
    "no-lease-has-to-pass": "trust themselves at once",
    "impossible-row-is-not-suspected": "is not free",
    "gap-does-not-restart-the-watch": "not watched without a gap",
    "no-check-before-the-body": "does not trust its lease",
    "undecided-is-reported-as-held": "it was free all the time",
    "no-renewal-at-the-end-of-a-block": "does not trust its lease after a fenced block",
    "deadline-suspended-beyond-the-block": "trust themselves at once",
}
AIMED = [(name, profile) for name, scenario in SCENARIOS.items() for profile in scenario.aims]
#: How many schedules of each aimed scenario the unchanged product has to survive here.
SCHEDULES = 8


@pytest.mark.slow
@pytest.mark.parametrize("mutant", REVERTED_REPAIRS, ids=lambda mutant: mutant.name)
def test_a_reverted_repair_is_found(mutant: Mutant) -> None:
    assert isinstance(mutant.simulation, Simulation)
    with copied(mutant.edits) as folder:
        violation = violation_in(folder, mutant.simulation)
    assert violation is not None, f"not found in {mutant.simulation.schedules} schedules"
    assert WORDS[mutant.name] in violation[1]


@pytest.mark.slow
@pytest.mark.parametrize(("scenario", "profile"), AIMED)
def test_what_is_not_broken_survives_where_it_is_aimed_at(
    django_db_blocker: DjangoDbBlocker, scenario: str, profile: str
) -> None:
    with django_db_blocker.unblock(), theatre() as stage:
        results = [stage.play(Schedule.of(seed, scenario, profile)) for seed in range(1, SCHEDULES + 1)]
    assert [result.violation for result in results] == [""] * SCHEDULES
    assert any(result.fired for result in results)


def test_an_isolated_process_loses_its_transaction_while_it_sleeps(django_db_blocker: DjangoDbBlocker) -> None:
    isolation = Fault(ISOLATION, 1, on="sleep", at=2, seconds=200.0)
    schedule = replace(Schedule.of(3, "long_blocks", SERVERS), processes=1, faults=(isolation,), choices={})
    with django_db_blocker.unblock(), theatre() as stage:
        result = stage.play(schedule, is_kept=True)
    assert "FAULT isolation (+200 s) before sleep 2 of P1" in str(result.history)
    assert result.counts["writes"] == 0
    assert result.violation == ""


def test_a_schedule_that_draws_its_scenario_draws_none_that_is_aimed() -> None:
    assert not any(SCENARIOS[Schedule.of(seed).scenario].aims for seed in range(200))
