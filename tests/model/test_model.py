"""The short form of the model: what must hold does, mutants are caught, and traces of the real code are followed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.children import ROOT
from tests.model.checker import Configuration, check, lacks
from tests.model.configurations import ALL
from tests.model.traces import Follower, Undecided, read

pytestmark = [
    pytest.mark.slow,
    pytest.mark.on_database("sqlite"),
    pytest.mark.skipif(bool(lacks()), reason=f"The model cannot be checked: {lacks()}."),
]

TRACES = Path(__file__).parent / "traces"
SHORT = [configuration for configuration in ALL if configuration.is_short]


@pytest.mark.parametrize("configuration", SHORT, ids=lambda configuration: configuration.name)
@pytest.mark.timeout(400)
def test_the_model_is_as_expected(configuration: Configuration, tmp_path: Path) -> None:
    verdict = check(configuration, tmp_path)
    assert verdict.is_as_expected, f"{verdict.line}\n{verdict.trail}"


@pytest.fixture(scope="module")
def follower(tmp_path_factory: pytest.TempPathFactory) -> Follower:
    return Follower(tmp_path_factory.mktemp("follower"))


def test_the_model_follows_what_the_real_code_did(follower: Follower) -> None:
    scripts = [script for path in sorted(TRACES.glob("*.jsonl")) for script in read(path.read_text())]
    assert len(scripts) >= 3
    assert [script.title for script in scripts if not follower.follows(script)] == []


#: How many schedules of each scenario and profile are recorded anew. It takes about 15 seconds to follow them all.
FRESH = 8


@pytest.mark.parametrize("profile", ["one_host", "servers"])
@pytest.mark.parametrize("scenario", ["lock", "job"])
def test_the_model_follows_what_the_real_code_does_now(
    follower: Follower, scenario: str, profile: str, tmp_path: Path
) -> None:
    path = tmp_path / "trace.jsonl"
    record(path, "--scenario", scenario, "--profile", profile, "--schedules", str(FRESH), "--seconds", "200")
    scripts = list(read(path.read_text()))
    assert len(scripts) == FRESH
    assert [script.title for script in scripts if not follower.follows(script)] == []


def record(path: Path, *arguments: str) -> None:
    """Simulate the real code, in a program of its own, and write down what it does."""
    command = [sys.executable, "-m", "tests.simulation", "--trace", str(path), *arguments]
    env = os.environ | {"PYTHONPATH": str(ROOT), "DJANGO_SETTINGS_MODULE": "tests.settings"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_trace_that_is_too_long_is_undecided(follower: Follower) -> None:
    (script,) = read("\n".join([HEAD, *[said(0, "P1", "look", token=0)] * 2001]))
    with pytest.raises(Undecided):
        follower.follows(script)


HEAD = (
    '{"t": 0.0, "actor": "", "thread": "", "event": "schedule", "seed": 0, "scenario": "forged", '
    '"profile": "one_host", "processes": 2, "locks": ["l"], "lease": 60.0, "interval": 10.0}'
)


def said(t: float, actor: str, event: str, **facts: object) -> str:
    return json.dumps({"t": t, "actor": actor, "thread": "main", "event": event, "lock": "l", **facts})


def granted(t: float, actor: str, token: int, statement: str = "insert", fence: int = 0) -> list[str]:
    return [
        said(t, actor, "begin"),
        said(t, actor, "gate", token=token, fence=fence or token, rows=1),
        said(t, actor, statement, token=token, rows=1),
        said(t, actor, "commit", outcome="ok"),
    ]


def suspected(t: float, *, beats: bool = True) -> str:
    return said(t, "P2", "look", token=1, suspected=True, beats=beats)


FIRST = [HEAD, said(0, "P1", "look", token=0), *granted(0, "P1", 1)]
WATCHED = [*FIRST, *(suspected(float(t)) for t in range(70, 100, 5))]


def test_the_model_follows_a_takeover_after_a_watch(follower: Follower) -> None:
    (script,) = read("\n".join([*WATCHED, *granted(96, "P2", 2, "take_over")]))
    assert follower.follows(script)


def test_the_model_follows_a_takeover_of_a_lock_without_heartbeats_at_once(follower: Follower) -> None:
    (script,) = read("\n".join([*FIRST, suspected(60, beats=False), *granted(60, "P2", 2, "take_over")]))
    assert follower.follows(script)


FORGED = {
    "two grants without a release": [HEAD, said(0, "P2", "look", token=0), *FIRST[1:], *granted(1, "P2", 2)],
    "a takeover without a watch": [*FIRST, suspected(90), *granted(90, "P2", 2, "take_over")],
    "a takeover of a young lease without heartbeats": [
        *FIRST,
        suspected(28, beats=False),
        *granted(28, "P2", 2, "take_over"),
    ],
    "a takeover of a young lease": [*FIRST, *map(suspected, (1, 9, 18, 27)), *granted(28, "P2", 2, "take_over")],
    "a takeover across a gap": [*FIRST, suspected(70), suspected(110), *granted(110, "P2", 2, "take_over")],
    "a fence that does not grow": [*WATCHED, *granted(96, "P2", 2, "take_over", fence=1)],
}


@pytest.mark.parametrize("lines", FORGED.values(), ids=FORGED)
def test_the_model_refuses_a_forged_trace(follower: Follower, lines: list[str]) -> None:
    (script,) = read("\n".join(lines))
    assert not follower.follows(script)
