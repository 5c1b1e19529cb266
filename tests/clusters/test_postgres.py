"""Failovers of PostgreSQL, in short: on clusters of the tests' own, whatever DATABASE_URL says."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.clusters.postgres_scenarios import SCENARIOS
from tests.clusters.report import table

if TYPE_CHECKING:
    from pathlib import Path

    from tests.clusters.scenario import Scenario

pytestmark = [pytest.mark.on_database("postgresql"), pytest.mark.timeout(240)]

# `make clusters` plays them all.
SHORT = [
    "asynchronous-lag",
    "asynchronous-split",
    "synchronous-hosts",
    "synchronous-split-off",
    "standby-lost",
]


@pytest.mark.parametrize("scenario", [one for one in SCENARIOS if one.name in SHORT], ids=lambda one: one.name)
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
