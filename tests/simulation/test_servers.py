"""The simulation on real servers: statements wait for row locks there, and sessions outlive their clients."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from django.db import OperationalError, connections, transaction

from django_singlejob.models.jobs import gates
from django_singlejob.process import clock
from tests.simulation.backend import server
from tests.simulation.campaign import theatre
from tests.simulation.faults import DIE, LATE, PAUSE, Fault
from tests.simulation.scenarios import SCENARIOS, Scenario
from tests.simulation.schedule import Schedule
from tests.simulation.stage import ALIAS
from tests.simulation.world import SERVERS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_django import DjangoDbBlocker

    from tests.simulation.schedule import Theatre

pytestmark = [pytest.mark.on_database("postgresql", "mysql"), pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def stage(django_db_blocker: DjangoDbBlocker) -> Iterator[Theatre]:
    """A theatre on a database of its own."""
    with django_db_blocker.unblock(), theatre(connections["default"].vendor) as opened:
        yield opened


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_no_promise_is_broken(stage: Theatre, single_statement: bool, scenario: str) -> None:
    result = stage.play(Schedule.of(2, scenario, SERVERS), is_kept=True)
    assert result.violation == "", str(result.history)


def contended(seed: int, *faults: Fault) -> Schedule:
    """Two processes that want one lock, and go on alternately."""
    return Schedule(seed=seed, scenario="shared", profile=SERVERS, processes=2, faults=faults, switches=0.7)


def test_a_seed_always_has_the_same_history(stage: Theatre) -> None:
    first, second = (stage.play(contended(8), is_kept=True) for _ in range(2))
    assert str(first.history) == str(second.history)


# --- single statements


@pytest.mark.on_database("postgresql")
@pytest.mark.parametrize("seconds", [0.005, 2.0, 61.0])
@pytest.mark.parametrize("number", [1, 2])
def test_a_statement_that_the_server_gets_late_breaks_no_promise(
    stage: Theatre, single_statement: bool, number: int, seconds: float
) -> None:
    late = Fault(LATE, 0, on="COMMIT", at=number, seconds=seconds)
    schedule = Schedule(seed=3, scenario="job", profile=SERVERS, processes=3, faults=(late,), switches=0.5)
    result = stage.play(schedule, is_kept=True)
    history = str(result.history)
    assert "FAULT late" in history
    assert ("SET LOCAL synchronous_commit = 'on'; SET LOCAL lock_timeout" in history) is single_statement
    assert result.violation == "", history


# --- row locks


def test_a_statement_that_waits_lets_others_go_on(stage: Theatre) -> None:
    result = stage.play(contended(8), is_kept=True)
    assert result.counts["waits for locks"] > 1, str(result.history)
    assert result.violation == ""


@pytest.mark.on_database("postgresql")
def test_a_wait_ends_by_the_time_out_of_simulated_time(stage: Theatre) -> None:
    is_inside = Fault(PAUSE, 1, on="UPDATE", is_after=True, seconds=200)
    result = stage.play(contended(1, is_inside), is_kept=True)
    assert "lock_timeout" in str(result.history)
    assert result.violation == ""


def test_a_deadlock_has_one_victim(stage: Theatre, monkeypatch: pytest.MonkeyPatch) -> None:
    ends: list[str] = []

    def change(*names: str) -> None:
        try:
            with transaction.atomic(using=ALIAS):
                for name in names:
                    gates().filter(name=name).update(misfire_count=0)
                    clock.sleep(1)
        except OperationalError:
            ends.append("victim")
        else:
            ends.append("done")

    def prepare() -> None:
        gates().bulk_create([gates().model(name=name) for name in "ab"])

    acts = [lambda _: change("a", "b"), lambda _: change("b", "a")]
    monkeypatch.setitem(SCENARIOS, "crossing", Scenario("crossing", acts, names=(), prepare=prepare))
    result = stage.play(Schedule(seed=1, scenario="crossing", profile=SERVERS, processes=2), is_kept=True)
    assert sorted(ends) == ["done", "victim"], str(result.history)


# --- sessions


@pytest.mark.parametrize("seconds", [0.0, 5.0])
def test_the_session_of_a_dead_process_ends_at_once_or_later(
    stage: Theatre, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    monkeypatch.setattr(server, "LINGERING", [seconds])
    result = stage.play(contended(2, Fault(DIE, 1, on="UPDATE", is_after=True)), is_kept=True)
    history = str(result.history)
    assert ("waits for a lock" in history) is bool(seconds), history
    assert ("leaves its session behind" in history) is bool(seconds), history
    assert result.violation == ""


@pytest.mark.on_database("postgresql")
def test_a_session_that_is_idle_in_its_transaction_ends(stage: Theatre) -> None:
    result = stage.play(contended(1, Fault(PAUSE, 1, on="UPDATE", is_after=True, seconds=200)), is_kept=True)
    assert result.counts["sessions that were idle too long"] == 1, str(result.history)
