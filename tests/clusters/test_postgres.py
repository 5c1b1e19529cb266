"""Failovers of PostgreSQL, in short: on clusters of the tests' own, whatever DATABASE_URL says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.clusters.postgres_scenarios import SCENARIOS
from tests.clusters.report import table

if TYPE_CHECKING:
    from pathlib import Path

    from tests.clusters.scenario import Scenario

pytestmark = [pytest.mark.on_database("postgresql"), pytest.mark.timeout(240)]

# `make clusters` plays them all, `make long` more than these.
SHORT = ["asynchronous-split", "synchronous-split-off"]
LONGER = [*SHORT, "asynchronous-lag", "synchronous-hosts", "standby-lost"]


def scenarios() -> list[Any]:
    return [
        pytest.param(one, id=one.name, marks=[] if one.name in SHORT else pytest.mark.long)
        for one in SCENARIOS
        if one.name in LONGER
    ]


@pytest.mark.parametrize("scenario", scenarios())
def test_the_promises_hold(scenario: Scenario, tmp_path: Path) -> None:
    seen = scenario.play(tmp_path, seconds=1)
    broken = scenario.broken(seen)
    print(*table({scenario.name: (seen, broken)}), sep="\n")
    assert not broken
    # There was something to judge.
    assert seen.grants > 20
    assert seen.one_offs > 2
    assert seen.slots > 5
    if scenario.name == "synchronous-hosts":
        assert {0, 69} <= set(seen.lines)
