"""Many processes at once: no two run together, and a conflict with others never raises an error."""

from __future__ import annotations

import fcntl
import json
from typing import TYPE_CHECKING

import pytest
from django.db import connection

from tests.databases import APPS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.children import Spawn

pytestmark = [pytest.mark.django_db(transaction=True, available_apps=APPS), pytest.mark.timeout(240)]


@pytest.fixture(autouse=True)
def one_after_the_other(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Each of these tests uses the whole machine. Not `xdist_group`: xdist 3.8 does not group under pytest 9.2."""
    with (tmp_path_factory.getbasetemp().parent / "crowd").open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        yield


#: How many processes count, and how far each of them.
COUNTS = [pytest.param(3, 20, id="short"), pytest.param(8, 200, id="long", marks=pytest.mark.long)]


@pytest.mark.parametrize(("size", "times"), COUNTS)
def test_an_unguarded_counter_is_exact_under_the_lock(spawn: Spawn, tmp_path: Path, size: int, times: int) -> None:
    check_the_counter(spawn, tmp_path, {}, size, times)


@pytest.mark.parametrize(("size", "times"), COUNTS)
@pytest.mark.on_database("sqlite")
def test_an_unguarded_counter_is_exact_with_djangos_defaults(
    spawn: Spawn, tmp_path: Path, plain_sqlite: dict[str, str], size: int, times: int
) -> None:
    check_the_counter(spawn, tmp_path, plain_sqlite, size, times)


def check_the_counter(spawn: Spawn, folder: Path, env: dict[str, str], size: int, times: int) -> None:
    code = f"import sys; from tests.contract.crowd import count; count(sys.argv[1], {size}, {times})"
    child = spawn.code(code, str(folder), **env)
    assert child.finish(200) == 0
    assert json.loads(child.output.splitlines()[-1]) == size * times


#: How many processes fight, and how often each asks.
FIGHTS = [pytest.param(8, 10, id="short"), pytest.param(50, 30, id="long", marks=pytest.mark.long)]


@pytest.mark.parametrize(("size", "turns"), FIGHTS)
@pytest.mark.on_database("postgresql", "mysql")
def test_processes_that_all_want_it_never_overlap_and_never_fail(
    spawn: Spawn, tmp_path: Path, size: int, turns: int
) -> None:
    code = f"import sys; from tests.contract.crowd import fight; fight(sys.argv[1], {size}, {turns})"
    child = spawn.code(code, str(tmp_path))
    assert child.finish(200) == 0
    grants = [tuple(grant) for grant in json.loads(child.output.splitlines()[-1])]
    assert grants
    assert len(set(grants)) == len(grants), "a fence was given twice"


RACES = [pytest.param(20, id="short"), pytest.param(1000, id="long", marks=pytest.mark.long)]


@pytest.mark.parametrize("races", RACES)
@pytest.mark.parametrize("what", ["runs", "tasks"])
def test_a_stop_hits_what_it_names_or_nothing(spawn: Spawn, what: str, races: int) -> None:
    child = spawn.code(f"from tests.contract.stop_races import of_{what}; of_{what}({races})")
    assert child.finish(200) == 0, child.output
    outcomes = json.loads(child.output.splitlines()[-1])
    print(f"{connection.vendor}: {races} {what}: {outcomes}")
    assert races < 1000 or len(outcomes) > 1, "All races ended in the same way."
