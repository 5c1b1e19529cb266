"""The chaos itself, for a moment: it runs on every database, and leaves nothing behind."""

from __future__ import annotations

import re
import signal
from typing import TYPE_CHECKING

import pytest
from django.db import connection

from tests.chaos.history import read
from tests.waiting import eventually

if TYPE_CHECKING:
    from tests.children import Child, Spawn

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(180)]


def chaos(spawn: Spawn, database_url: str, *arguments: str) -> Child:
    """On a database that does not exist yet."""
    env = {"DATABASE_URL": f"{database_url}_chaos", "TMPDIR": str(spawn.folder)}
    return spawn("-m", "tests.chaos", "--servers=3", *arguments, **env)


def what_is_there(spawn: Spawn) -> set[str]:
    """What there is on the disk and on the server: databases and roles."""
    # An executor that is killed leaves the directory that tests/app/jobs.py makes.
    files = {path.name for path in spawn.folder.iterdir() if not path.name.startswith(("child-", "tmp"))}
    names = {
        "postgresql": "SELECT datname FROM pg_database UNION SELECT rolname FROM pg_roles",
        "mysql": "SELECT schema_name FROM information_schema.schemata",
    }
    if connection.vendor not in names:
        return files
    with connection.cursor() as cursor:
        cursor.execute(names[connection.vendor])
        return files | {name for (name,) in cursor.fetchall() if "chaos" in name}


def what_happened(spawn: Spawn) -> set[str]:
    """The kinds of events, the faults, and the statuses of the runs that ended."""
    events = [event for path in spawn.folder.glob("singlejob-chaos-*/history.jsonl") for event in read(path)]
    return {event["event"] for event in events} | {event.get("status", event.get("name", "")) for event in events}


def test_if_nothing_goes_wrong_nothing_is_found_and_nothing_is_left(
    spawn: Spawn, database_url: str, single_statement: bool
) -> None:
    way = ["--single-statement"] * single_statement
    child = chaos(spawn, database_url, "--seconds=1000", "--faults=history pruned", *way)
    eventually(lambda: {"trust", "alive", "successful", "history pruned"} <= what_happened(spawn))
    child.send_signal(signal.SIGINT)
    assert child.finish(120) == 0, child.output
    assert re.search(r"Violations\n +0  none", child.output)
    assert re.search(r"[1-9]\d*  successful", child.output)
    assert what_is_there(spawn) == set()


def test_ctrl_c_ends_it_early_and_it_judges_what_there_is(spawn: Spawn, database_url: str) -> None:
    child = chaos(spawn, database_url, "--seconds=1000", "--faults=killed,stopped")
    eventually(lambda: {"trust", "alive"} <= what_happened(spawn))
    child.send_signal(signal.SIGINT)
    assert child.finish(120) == 0, child.output
    assert "Violations" in child.output


def test_empties_only_a_database_that_is_meant_for_it(spawn: Spawn, database_url: str) -> None:
    child = spawn("-m", "tests.chaos", DATABASE_URL=database_url)
    assert child.finish() == 2
    assert 'whose name contains "chaos"' in child.output
