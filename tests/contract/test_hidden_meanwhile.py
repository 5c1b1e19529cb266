"""Hiding names while others acquire: processes, at every isolation level. Fences never go back, and nothing hangs."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import TYPE_CHECKING

import pytest

from tests.contract.test_takeover import ISOLATION_LEVELS
from tests.databases import APPS

if TYPE_CHECKING:
    from pathlib import Path

    from tests.children import Child, Spawn

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True, available_apps=APPS)]


each_length = pytest.mark.parametrize(
    "seconds", [pytest.param(1, id="short"), pytest.param(5, id="long", marks=pytest.mark.long)]
)


@each_length
@pytest.mark.parametrize("isolation", ISOLATION_LEVELS)
def test_fences_only_grow_while_names_are_hidden(
    spawn: Spawn, tmp_path: Path, isolation: dict[str, str], seconds: int
) -> None:
    check_that_fences_only_grow(spawn, tmp_path, isolation, seconds)


@each_length
@pytest.mark.on_database("sqlite")
def test_so_they_do_with_djangos_defaults(
    spawn: Spawn, tmp_path: Path, plain_sqlite: dict[str, str], seconds: int
) -> None:
    check_that_fences_only_grow(spawn, tmp_path, plain_sqlite, seconds)


def check_that_fences_only_grow(spawn: Spawn, tmp_path: Path, env: dict[str, str], seconds: int) -> None:
    ledger = tmp_path / "ledger"
    assert start(spawn, "use_each()", env).finish() == 0
    users = [start(spawn, f"use_and_note({str(ledger)!r}, {seconds})", env) for _ in range(3)]
    hiders = [start(spawn, f"hide_all_the_time({seconds})", env) for _ in range(2)]
    children = [*users, *hiders]
    assert [child.finish() for child in children] == [0] * len(children)
    hidden = sum(json.loads(child.output.splitlines()[-1])["count"] for child in hiders)
    granted = defaultdict(list)
    for line in ledger.read_text().splitlines():
        name, fence = line.split()
        granted[name].append(int(fence))
    assert hidden > 0
    assert granted
    for fences in granted.values():
        assert fences == sorted({*fences})


def start(spawn: Spawn, act: str, env: dict[str, str]) -> Child:
    return spawn.code(f"from tests.contract.hiding import *; {act}", **env)
