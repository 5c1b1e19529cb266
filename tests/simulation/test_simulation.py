"""The simulation itself: it replays exactly, finds what is broken on purpose, and finds nothing else for a while."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from django_singlejob.locking import at_exit
from tests.children import ROOT
from tests.simulation.baton import Process
from tests.simulation.breakages import BREAKAGES
from tests.simulation.campaign import theatre
from tests.simulation.faults import CLOCKS, CUT, Fault
from tests.simulation.oracle import Held, Oracle, State, Write
from tests.simulation.scenarios import SCENARIOS
from tests.simulation.schedule import Schedule, Theatre
from tests.simulation.shrink import shrunk
from tests.simulation.world import ONE_HOST, SERVERS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pytest_django import DjangoDbBlocker

    from tests.simulation.schedule import Result

pytestmark = [pytest.mark.on_database("sqlite"), pytest.mark.timeout(300)]

#: For how long schedules are simulated here.
SECONDS = 60
#: Seeds whose histories depended on the program: on the name of its database, and on how soon idle heartbeats end.
TOLD_OF_THE_PROGRAM = (10, 1151)
#: How many schedules it takes at most to find each breakage, and on which scenario and profile. It took 1 and 29.
FOUND_WITHIN = {
    "takeover_without_suspicion": (5, "job", SERVERS),
    "no_fence": (200, "force", SERVERS),
}


@pytest.fixture
def stage(django_db_blocker: DjangoDbBlocker) -> Iterator[Theatre]:
    """A theatre, on a database of its own."""
    with django_db_blocker.unblock(), theatre() as opened:
        yield opened


def simulation(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A program of its own: nothing else is in its memory."""
    command = [sys.executable, "-m", "tests.simulation", *arguments]
    env = os.environ | {"PYTHONPATH": str(ROOT), "DJANGO_SETTINGS_MODULE": "tests.settings", "PYTHONHASHSEED": "1"}
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=250, check=False)


# --- the product


@pytest.mark.slow
def test_no_promise_is_broken_in_a_minute() -> None:
    done = simulation(f"--seconds={SECONDS}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Violations: 0" in done.stdout


@pytest.mark.parametrize("profile", [ONE_HOST, SERVERS])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_each_scenario_comes_to_its_end(stage: Theatre, scenario: str, profile: str) -> None:
    result = stage.play(Schedule.of(5, scenario, profile), is_kept=True)
    assert result.violation == "", str(result.history)
    assert result.counts["leases"] > 0


def test_what_the_processes_remember_is_forgotten_after_the_last_schedule(
    django_db_blocker: DjangoDbBlocker, monkeypatch: pytest.MonkeyPatch
) -> None:
    own: dict[Any, Any] = {}
    monkeypatch.setattr(at_exit, "_granted", own)
    with django_db_blocker.unblock(), theatre() as opened:
        opened.play(Schedule.of(5, "lock", ONE_HOST))
        assert at_exit._granted is not own
    assert at_exit._granted is own


# --- replay


@pytest.mark.parametrize("seed", TOLD_OF_THE_PROGRAM)
def test_another_program_sees_the_same_history(stage: Theatre, seed: int) -> None:
    result = stage.play(Schedule.of(seed), is_kept=True)
    done = simulation(f"--seed={seed}", "--schedules=1", "--history")
    assert str(result.history) in done.stdout


@pytest.mark.slow
def test_what_was_recorded_replays(stage: Theatre) -> None:
    drawn = stage.play(Schedule.of(19), is_kept=True)
    assert drawn.schedule.choices
    replayed = stage.play(Schedule.from_json(drawn.schedule.as_json()), is_kept=True)
    faultless = [line.text for line in replayed.history.lines if "FAULT" not in line.text]
    assert faultless == [line.text for line in drawn.history.lines if "FAULT" not in line.text]


# --- what is broken on purpose


def first_violation(stage: Theatre, most: int, scenario: str, profile: str) -> Result | None:
    played = (stage.play(Schedule.of(seed, scenario, profile)) for seed in range(1, most + 1))
    return next((result for result in played if result.violation), None)


@pytest.mark.slow
@pytest.mark.parametrize("breakage", FOUND_WITHIN)
def test_a_breakage_is_found(stage: Theatre, breakage: str) -> None:
    with BREAKAGES[breakage]():
        assert first_violation(stage, *FOUND_WITHIN[breakage]) is not None


@pytest.mark.slow
def test_what_breaks_a_promise_is_made_smaller(stage: Theatre) -> None:
    with BREAKAGES["takeover_without_suspicion"]():
        found = first_violation(stage, *FOUND_WITHIN["takeover_without_suspicion"])
        assert found is not None
        small = shrunk(found, stage.play, most_tries=60)
        assert small.violation
        assert small.steps <= found.steps
        assert len(small.schedule.choices or ()) <= len(found.schedule.choices or ())
    assert stage.play(small.schedule).violation == ""


# --- faults


def test_a_cut_after_a_commit_is_one_that_was_carried_out(stage: Theatre) -> None:
    cut = Fault(CUT, 1, on="COMMIT", at=1, is_after=True)
    schedule = replace(Schedule.of(3, "lock", SERVERS), processes=1, faults=(cut,), choices={})
    result = stage.play(schedule, is_kept=True)
    assert "It was carried out. The connection was cut." in str(result.history)
    assert result.violation == ""


def test_at_most_one_of_the_two_clocks_is_wrong() -> None:
    kinds = [{fault.kind for fault in Schedule.of(seed).faults} for seed in range(500)]
    assert not any(each.issuperset(CLOCKS) for each in kinds)
    assert any(CLOCKS[0] in each for each in kinds)


# --- the oracle's judgements, on histories that are made by hand


def held_by(number: int, fence: int, deadline: float) -> Held:
    lease: Any = SimpleNamespace(
        name="made", token=SimpleNamespace(hex=f"{fence:032}"), fence=fence, deadline=deadline,
        _state=SimpleNamespace(is_lost=False, is_over=False, is_ending=False),
    )  # fmt: skip
    return Held(Process(number), lease)


def judge(*states: State, now: float = 0.0) -> Oracle:
    """An oracle that sees these states, one after each commit."""
    left = list(states)
    oracle = Oracle(lambda _: left.pop(0))
    history = SimpleNamespace(note=lambda *_: None)
    oracle.world = SimpleNamespace(now=now, history=history, scheduler=SimpleNamespace(steps=0), fired=[])  # type: ignore[assignment]
    for _ in states:
        oracle.committed(None, "ok")
    return oracle


def state(fence: int, token: str | None, *writes: Write) -> State:
    return State({"made": (fence, token)}, {}, writes)


def test_a_write_under_an_older_fence_is_a_violation() -> None:
    oracle = judge(state(1, "a"), state(2, "b"), state(2, "b", Write(1, "made", 1)))
    assert oracle.violations == ["A write with fence 1 of 'made' was committed after fence 2."]


def test_a_write_under_the_newest_fence_is_none() -> None:
    assert judge(state(1, "a"), state(1, "a", Write(1, "made", 1)), state(2, "b")).violations == []


@pytest.mark.parametrize(("fence", "words"), [(1, "given out twice"), (0, "went back")])
def test_a_fence_must_grow(fence: int, words: str) -> None:
    (violation, *_) = judge(state(1, "a"), state(fence, "b")).violations
    assert words in violation


def test_a_slot_must_not_start_twice_as_the_same_attempt() -> None:
    oracle, held = judge(), held_by(1, 1, 60.0)
    for attempt in (1, 2, 2):
        oracle.body_started(held.process, held.lease, "made", "12:00", attempt, 3)
    assert oracle.violations == ["made 12:00 was started twice as attempt 2."]


def test_a_check_must_not_pass_without_trust() -> None:
    oracle, held = judge(now=61.0), held_by(1, 1, 60.0)
    oracle.checked(held.process, held.lease)
    assert oracle.violations == ["A check in P1 passed, although it does not trust its lease."]


# --- traces


@pytest.mark.slow
def test_a_trace_has_the_events_of_the_protocol(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    done = simulation("--seed=1", "--schedules=2", "--scenario=job", f"--trace={path}")
    assert done.returncode == 0, done.stdout + done.stderr
    events = [json.loads(line) for line in path.read_text().splitlines()]
    assert [event["event"] for event in events].count("end") == 2
    assert {"look", "gate", "insert", "commit", "trust", "start", "finish", "release", "distrust"} <= {
        event["event"] for event in events
    }
    assert all(event.keys() >= {"t", "actor", "thread"} for event in events)
