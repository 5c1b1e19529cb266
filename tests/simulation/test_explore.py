"""Exhaustive simulation: it leaves nothing out that matters, and finds what only one order of the steps shows."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest

from django_singlejob.models.locks import JobLockQuerySet
from tests.simulation import faults
from tests.simulation.explore.findings import Bounds, Findings
from tests.simulation.explore.places import DEATHS, OF_SERVERS, Kind
from tests.simulation.explore.scenarios import EXPLORED
from tests.simulation.explore.search import explore, history_of
from tests.simulation.world import ONE_HOST, SERVERS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_django import DjangoDbBlocker

pytestmark = [pytest.mark.on_database("sqlite"), pytest.mark.timeout(300)]

WITHOUT_FAULTS = Bounds(faults=0, seconds=250)
#: At each step, before it and after it.
EVERYWHERE = {kind: [Kind(kind), Kind(kind, is_after=True)] for kind in (faults.DIE, faults.CUT)}


@pytest.fixture(autouse=True)
def may_use_the_database(django_db_blocker: DjangoDbBlocker) -> Iterator[None]:
    """The searches have a database of their own."""
    with django_db_blocker.unblock():
        yield


def summary(found: Findings) -> tuple[Any, ...]:
    """What must be the same each time."""
    return found.executed, found.pruned, found.states, found.steps, found.outcomes


# --- the product


@pytest.mark.slow
def test_every_order_of_a_clear_and_a_release_keeps_the_promises() -> None:
    found = explore("clear", ONE_HOST, WITHOUT_FAULTS)

    assert found.is_whole
    assert not found.violations
    assert len(found.outcomes) > 1


@pytest.mark.slow
@pytest.mark.parametrize("profile", [ONE_HOST, SERVERS])
def test_two_contenders_with_one_preemption_keep_the_promises(profile: str) -> None:
    found = explore("contend", profile, replace(WITHOUT_FAULTS, preemptions=1))

    assert found.is_whole
    assert not found.violations
    assert len(found.outcomes) > 1


@pytest.mark.slow
def test_a_holder_may_die_at_any_place() -> None:
    found = explore("fenced_wait", ONE_HOST, Bounds(preemptions=0, kinds=DEATHS, seconds=250))

    assert found.is_whole
    assert not found.violations
    assert found.levels[0, 1] > 10


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPLORED)
def test_each_scenario_does_what_it_is_for(name: str) -> None:
    found = explore(name, ONE_HOST, replace(WITHOUT_FAULTS, preemptions=0))

    assert found.is_whole
    assert not found.violations
    assert found.executed


# --- the search


@pytest.mark.slow
@pytest.mark.parametrize(
    ("profile", "bounds"),
    [
        (ONE_HOST, replace(WITHOUT_FAULTS, preemptions=1)),
        (ONE_HOST, Bounds(preemptions=0, kinds=EVERYWHERE[faults.DIE], seconds=250)),
        (SERVERS, Bounds(preemptions=0, kinds=EVERYWHERE[faults.CUT], seconds=250)),
    ],
)
def test_pruning_loses_no_outcome(profile: str, bounds: Bounds) -> None:
    places = OF_SERVERS if bounds.faults else ()
    kinds = [kind for kind in places if bounds.kinds and kind.kind == bounds.kinds[0].kind]

    pruned = explore("clear", profile, replace(bounds, kinds=kinds))
    whole = explore("clear", profile, replace(bounds, is_pruned=False))

    assert pruned.is_whole
    assert whole.is_whole
    assert pruned.outcomes == whole.outcomes
    assert pruned.executed < whole.executed
    assert whole.pruned == 0


@pytest.mark.slow
def test_a_search_finds_the_same_each_time() -> None:
    first, second = (explore("clear", SERVERS, WITHOUT_FAULTS) for _ in range(2))

    assert summary(first) == summary(second)


@pytest.mark.slow
def test_a_stalled_holder_finds_its_lock_taken_over() -> None:
    found = explore("stall", ONE_HOST, replace(WITHOUT_FAULTS, preemptions=0))

    reports = {(first, second) for _, (first, second, _), _ in found.outcomes}
    assert any("LeaseLost" in first and "fence 2" in second for first, second in reports)


@pytest.mark.slow
def test_finds_what_a_single_order_shows() -> None:
    def take_over(self: Any, seen: Any, columns: Any) -> bool:
        return bool(self.filter(name=seen.name).update(**columns) == 1)

    # It relies on the watch alone. So a heartbeat between the last look and the write goes unnoticed.
    with patch.object(JobLockQuerySet, "take_over", take_over):
        without = explore("stall", ONE_HOST, replace(WITHOUT_FAULTS, preemptions=0))
        found = explore("stall", ONE_HOST, replace(WITHOUT_FAULTS, preemptions=1))
        ((schedule, violation),) = found.violations
        again = history_of(schedule)

    assert not without.violations
    assert "trust themselves at once" in violation
    assert again.violation == violation
    assert "VIOLATION" in str(again.history)
    assert not history_of(schedule).violation
