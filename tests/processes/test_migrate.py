"""`singleton_migrate` in real processes, on databases that are empty or lack some migrations.

`SINGLEJOB_MIGRATE_ROUNDS` says how many databases each race takes; the default is one.
"""

from __future__ import annotations

import json
import os
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from django.db import connection, connections

from django_singlejob.models import JobLock, JobRun
from tests.children import Child, Spawn
from tests.processes.set_ups import execute, no_tables
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytest_plugins = "tests.fixtures"
pytestmark = pytest.mark.django_db(transaction=True, available_apps=["django_singlejob"])

ROUNDS = range(int(os.environ.get("SINGLEJOB_MIGRATE_ROUNDS", "1")))
RACERS = 6
#: With such a lease, a dead process is found out within seconds, and a busy machine keeps a live one's.
QUICKLY = ("--lease", "6")


@pytest.fixture
def middle(tmp_path: Path) -> Path:
    """Exists once a process is in the middle of a migration. It waits there until the file `go` exists."""
    return tmp_path / "middle"


@pytest.fixture
def empty(database_url: str, tmp_path: Path) -> Iterator[str]:
    """The URL of a database without tables."""
    with no_tables(database_url, tmp_path) as url:
        yield url


@pytest.fixture
def child_env(child_env: dict[str, str], empty: str) -> dict[str, str]:
    return child_env | {"DATABASE_URL": empty, "DJANGO_SETTINGS_MODULE": "tests.processes.migrate_settings"}


@pytest.fixture
def first(spawn: Spawn, middle: Path) -> Child:
    """A server in the middle of a migration."""
    first = spawn.command("singleton_migrate", *QUICKLY, MIDDLE=str(middle))
    eventually(middle.exists)
    return first


@contextmanager
def inside(url: str) -> Iterator[None]:
    """Inside, this thread works in that database."""
    connection.close()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(connections["default"].settings_dict, "NAME", name_of(url))
        try:
            yield
        finally:
            connection.close()


def name_of(url: str) -> str:
    return url.removeprefix("sqlite:///") if url.startswith("sqlite") else url.rpartition("/")[2]


def race(spawn: Spawn, *words: str) -> list[tuple[int, str]]:
    racers = spawn("-m", "tests.processes.racers", str(RACERS), "singleton_migrate", *words)
    assert racers.finish() == 0, racers.output
    return [(status, output) for status, output in json.loads(racers.output.splitlines()[-1])]


def all_went_well(ended: list[tuple[int, str]]) -> None:
    told = "".join(output for _, output in ended)
    assert [status for status, _ in ended] == [0] * RACERS, told
    assert "Traceback" not in told
    applied = re.findall(r"Applying (\S+)\.\.\. OK", told)
    assert applied
    assert len(applied) == len({*applied}), told
    assert told.count("Nothing to migrate.") == RACERS - 1, told


def everything_is_there(url: str) -> None:
    """Each migration is recorded once."""
    with inside(url), connection.cursor() as cursor:
        cursor.execute("SELECT app, name FROM django_migrations")
        recorded = cursor.fetchall()
        tables = connection.introspection.table_names(cursor)
    assert len(recorded) == len({*recorded})
    assert ("migrated", "0002_prices") in recorded
    assert ("django_singlejob", "0001_initial") in recorded
    assert {"migrated_discount", "auth_user", "django_singlejob_joblock"} <= {*tables}


# --- races


@pytest.mark.parametrize("number", ROUNDS)
def test_one_of_many_migrates_an_empty_database(spawn: Spawn, empty: str, number: int) -> None:
    all_went_well(race(spawn))
    everything_is_there(empty)


@pytest.mark.parametrize("number", ROUNDS)
def test_one_of_many_applies_what_is_pending(spawn: Spawn, empty: str, number: int) -> None:
    for app, *name in ("django_singlejob",), ("auth", "0005"), ("migrated", "0001"):
        migrate = spawn.command("migrate", app, *name)
        assert migrate.finish() == 0, migrate.output
    all_went_well(race(spawn))
    everything_is_there(empty)


# --- deaths


@pytest.mark.parametrize("number", ROUNDS)
def test_if_the_one_that_migrates_is_killed_another_goes_on(
    spawn: Spawn, empty: str, first: Child, number: int
) -> None:
    others = [spawn.command("singleton_migrate", *QUICKLY) for _ in range(RACERS - 1)]
    for other in others:
        other.wait_for("Another server migrates (")
    first.kill_all()
    statuses = [other.finish() for other in others]
    told = "".join(other.output for other in others)
    if connection.vendor == "mysql":
        assert statuses == [1] * len(others), told
        for other in others:
            says_what_to_repair(other, "its process died")
        repair(empty)
        others = [spawn.command("singleton_migrate")]
        assert others[0].finish() == 0, others[0].output
        told = others[0].output
    else:
        assert statuses == [0] * len(others), told
    assert told.count("Applying migrated.0002_prices... OK") == 1
    everything_is_there(empty)


def test_a_signal_ends_the_migration_and_leaves_no_lock(spawn: Spawn, empty: str, first: Child) -> None:
    first.terminate()
    assert first.finish() == 143
    assert first.output.endswith("django_singlejob.migrate: interrupted by signal 15.\n")
    with inside(empty):
        assert not JobLock.objects.exists()
        assert JobRun.objects.get().status == "interrupted"
    again = spawn.command("singleton_migrate")
    if connection.vendor == "mysql":
        assert again.finish() == 1
        says_what_to_repair(again, "it was interrupted")
    else:
        assert again.finish() == 0, again.output
        everything_is_there(empty)


def test_a_signal_ends_the_wait(spawn: Spawn, first: Child) -> None:
    other = spawn.command("singleton_migrate")
    other.wait_for("Another server migrates (")
    other.terminate()
    assert other.finish() == 143
    assert first.poll() is None


@pytest.mark.on_database("postgresql", "mysql")
def test_a_migration_whose_lease_is_lost_is_ended(spawn: Spawn, empty: str, first: Child) -> None:
    with inside(empty):
        JobLock.objects.all().delete()
    assert first.finish() == 75
    assert "The lease on 'django_singlejob.migrate' was lost" in first.output


@pytest.mark.on_database("sqlite")
def test_a_migration_that_keeps_its_own_heartbeats_out_goes_on(
    spawn: Spawn, empty: str, first: Child, go: Path
) -> None:
    other = spawn.command("singleton_migrate", *QUICKLY)
    other.wait_for("Another server migrates (")
    with inside(empty):
        eventually(lambda: JobLock.objects.stale().exists())
    go.touch()
    assert [first.finish(), other.finish()] == [0, 0], first.output + other.output
    assert "Applying sessions.0001_initial... OK" in first.output
    assert other.output.endswith("waiting.\nNothing to migrate.\n")
    everything_is_there(empty)


def test_a_failed_migration_prints_its_traceback_as_migrate_does(spawn: Spawn, empty: str) -> None:
    with_tables = spawn.command("migrate", "migrated", "0001")
    assert with_tables.finish() == 0, with_tables.output
    with inside(empty):
        execute("CREATE TABLE migrated_discount (id integer)")
    child = spawn.command("singleton_migrate")
    assert child.finish() == 1
    assert "Traceback" in child.output
    assert re.search("migrated_discount.* already exists", child.output)
    with inside(empty):
        assert JobRun.objects.get().status == "failed"


def test_if_our_own_tables_are_half_there_it_says_what_to_do(spawn: Spawn, empty: str) -> None:
    with inside(empty):
        execute("CREATE TABLE django_singlejob_joblock (id integer)")
    child = spawn.command("singleton_migrate", "--wait", "1")
    assert child.finish() == 78
    assert re.search(
        r"CommandError: The tables of django_singlejob cannot be created in the database 'default' \(.+\): .+ already "
        r"exists\. ",
        child.output,
    )
    remedy = "run manage.py migrate django_singlejob 0001_initial --fake."
    assert (remedy in child.output) == (connection.vendor == "mysql")


def repair(url: str) -> None:
    """Undo what is there of the migration, as the message says."""
    with inside(url):
        execute("DROP TABLE migrated_price")


def says_what_to_repair(child: Child, how: str) -> None:
    assert re.search(
        r"CommandError: migrated\.0002_prices cannot be applied: .*'migrated_price' already exists\. An earlier "
        rf"attempt did not finish it: run \d+ on \S+, which began at [-\d]+ [:\d]+ UTC \({how}\)\. "
        r"(MariaDB|MySQL) does not roll back DDL, so a part of migrated\.0002_prices may be in the database\. Compare "
        r"it with what manage\.py sqlmigrate migrated 0002_prices prints\. Then either undo that part by hand and run "
        r"manage\.py singleton_migrate again, or carry out the rest by hand and run manage\.py singleton_migrate "
        r"migrated 0002_prices --fake\.$",
        child.output,
        re.MULTILINE,
    ), child.output
