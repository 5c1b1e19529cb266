"""What each command prints, and its exit status, if the database or the settings are not set up for it."""

from __future__ import annotations

import json
import re
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connection

from tests.databases import APPS
from tests.processes.every_command import COMMANDS
from tests.processes.set_ups import GRANT, SET_UPS, SetUp, revoke, role
from tests.processes.workers import all_are_done, enqueue
from tests.waiting import eventually

if TYPE_CHECKING:
    from pathlib import Path

    from tests.children import Spawn

pytestmark = pytest.mark.django_db(transaction=True, available_apps=APPS)

CHECK = "singleton_status --check"
ENDLESS = "singleton_worker"
LISTING = "run_singleton --list"
READING = ["singleton_status", "clear_stale_locks", "prune_singletons"]


def said(spawn: Spawn, set_up: SetUp, url: str) -> dict[str, tuple[int | None, str]]:
    """The exit status and the output of each command."""
    settings = "tests.processes.set_up_settings"
    child = spawn(
        "-m",
        "tests.processes.every_command",
        "goes on" if set_up.endless is None else "ends",
        DATABASE_URL=url,
        SINGLEJOB_TEST_SQLITE_DEFAULTS="yes",
        DJANGO_SETTINGS_MODULE=settings,
        SET_UP=json.dumps(set_up.settings),
    )
    assert child.finish() == 0
    return {command: (status, text) for command, (status, text) in json.loads(child.output).items()}


def on_one_database(set_up: SetUp) -> Any:
    """What a command says does not depend on the database, unless the set-up is that of one."""
    database = next(name for name in ("postgresql", "sqlite", "mysql") if name in set_up.databases)
    return pytest.param(set_up, id=str(set_up), marks=pytest.mark.on_database(database))


@pytest.mark.parametrize("set_up", [*map(on_one_database, SET_UPS)])
def test_each_command_says_in_one_line_what_is_wrong_and_what_to_do(
    spawn: Spawn, database_url: str, tmp_path: Path, set_up: SetUp
) -> None:
    enqueue("quick")
    change = set_up.url(database_url, tmp_path) if set_up.url else nullcontext(database_url)
    with change as url:
        found = said(spawn, set_up, url)
    for command, (status, text) in found.items():
        print(f"{connection.vendor}|{set_up}|{command}|{status}|{text.strip() if text.count(chr(10)) == 1 else '...'}")
    assert len(found) == len(COMMANDS)
    for command, (status, text) in found.items():
        assert "Traceback" not in text, command
        assert ": failed," not in text, command
        assert status == expected(set_up, command, status), command
        if status in (set_up.status, 3):
            lines = [line for line in text.splitlines() if not line.startswith("django-singlejob ")]  # a worker's first
            # A worker that goes on may have begun several runs, in its threads.
            assert len(lines) == 1 or command == ENDLESS, command
            for line in lines:
                assert re.search(set_up.says, line), command


@pytest.mark.on_database("postgresql", "mysql")
def test_a_lock_that_may_not_be_deleted_is_left_to_expire(spawn: Spawn, database_url: str, tmp_path: Path) -> None:
    with role("SELECT, INSERT, UPDATE ON {all}")(database_url, tmp_path) as url:
        child = spawn.command("run_singleton", "backup", "--", "true", DATABASE_URL=url)
        assert child.finish() == 75
    begin = "backup: The lock 'backup' could not be released, and is left to expire. The database 'default' ("
    assert child.output.startswith(begin)
    assert re.search(GRANT, child.output)
    assert child.output.count("\n") == 1


# In MariaDB, open sessions keep their grants.
@pytest.mark.on_database("postgresql")
def test_a_worker_that_loses_a_grant_ends_after_its_grace(spawn: Spawn, database_url: str, tmp_path: Path) -> None:
    """Its supervisor starts it again, and the restarts are visible."""
    with role("SELECT, INSERT, UPDATE, DELETE ON {all}")(database_url, tmp_path) as url:
        child = spawn.command("singleton_worker", "--interval", "0.05", DATABASE_URL=url)
        enqueue("quick")
        eventually(all_are_done)
        revoke("SELECT, INSERT, UPDATE, DELETE ON {all}", url)
        assert child.finish() == 77
    assert re.search(GRANT, child.output.splitlines()[-1])


def expected(set_up: SetUp, command: str, status: int | None) -> int | None:
    if command == LISTING:
        return set_up.listing
    if command == ENDLESS:
        return set_up.status if set_up.endless == -1 else set_up.endless
    if command == CHECK:
        return status if set_up.reading is None else 3
    if command in READING and set_up.reading is None:
        return status
    return set_up.status
