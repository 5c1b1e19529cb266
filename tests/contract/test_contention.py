"""Many processes at once: no two run together, and a conflict with others never raises an error."""

from __future__ import annotations

import fcntl
import json
from typing import TYPE_CHECKING

import pytest

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


def test_an_unguarded_counter_is_exact_under_the_lock(spawn: Spawn, tmp_path: Path) -> None:
    check_the_counter(spawn, tmp_path, {})


@pytest.mark.on_database("sqlite")
def test_an_unguarded_counter_is_exact_with_djangos_defaults(
    spawn: Spawn, tmp_path: Path, plain_sqlite: dict[str, str]
) -> None:
    check_the_counter(spawn, tmp_path, plain_sqlite)


def check_the_counter(spawn: Spawn, folder: Path, env: dict[str, str]) -> None:
    child = spawn.code(
        "import sys; from tests.contract.crowd import count; count(sys.argv[1], 8, 200)", str(folder), **env
    )
    assert child.finish(200) == 0
    assert json.loads(child.output.splitlines()[-1]) == 8 * 200


@pytest.mark.on_database("postgresql", "mysql")
def test_fifty_processes_at_once_never_overlap_and_never_fail(spawn: Spawn, tmp_path: Path) -> None:
    child = spawn.code("import sys; from tests.contract.crowd import fight; fight(sys.argv[1], 50, 5)", str(tmp_path))
    assert child.finish(200) == 0
    grants = [tuple(grant) for grant in json.loads(child.output.splitlines()[-1])]
    assert len(grants) > 5
    assert len(set(grants)) == len(grants), "a fence was given twice"
