from __future__ import annotations

from urllib.parse import urlsplit

import pytest
from django.db import connection

from tests.app.models import Counter
from tests.children import Spawn

pytestmark = pytest.mark.django_db(transaction=True)


def test_the_database_is_the_one_that_was_asked_for(pytestconfig: pytest.Config) -> None:
    assert connection.vendor == pytestconfig.getoption("--database")


@pytest.mark.on_database("sqlite")
def test_on_database_skips_the_others(pytestconfig: pytest.Config) -> None:
    assert pytestconfig.getoption("--database") == "sqlite"


@pytest.mark.on_database("sqlite")
def test_sqlite_is_a_file_that_others_can_open(database_url: str) -> None:
    assert database_url == f"sqlite:///{connection.settings_dict['NAME']}"
    assert ":memory:" not in database_url


def test_a_child_works_on_the_same_test_database(spawn: Spawn) -> None:
    Counter.objects.create(name="visits", value=1)
    child = spawn.code("""
        from tests.app.models import Counter
        Counter.objects.filter(name="visits").update(value=2)
    """)
    assert child.finish() == 0, child.output
    assert Counter.objects.get().value == 2


def test_the_tables_are_empty_again_after_each_test() -> None:
    assert not Counter.objects.exists()


def test_a_child_takes_arguments_and_environment(spawn: Spawn) -> None:
    child = spawn.code("import os, sys; print(os.environ['COLOUR'], sys.argv[1])", "sky", COLOUR="blue")
    assert child.finish() == 0
    assert child.output == "blue sky\n"


def test_a_child_can_be_a_management_command(spawn: Spawn) -> None:
    child = spawn.command("check", "--database", "default")
    assert child.finish() == 0, child.output
    assert "no issues" in child.output


def test_waiting_for_words_that_never_come_fails_with_the_words_that_came(spawn: Spawn) -> None:
    child = spawn("-c", "print('something else')")
    with pytest.raises(AssertionError, match="something else"):
        child.wait_for("ready")


def test_survivors_are_killed_with_their_own_children(spawn: Spawn) -> None:
    child = spawn(
        "-c",
        "import subprocess; subprocess.Popen(['sleep', '600']); print('ready'); import time; time.sleep(600)",
    )
    child.wait_for("ready")
    spawn.end()
    assert child.returncode == -9


@pytest.mark.on_database("postgresql", "mysql")
def test_the_url_names_this_workers_database(database_url: str) -> None:
    assert urlsplit(database_url).path == f"/{connection.settings_dict['NAME']}"


REORDERED = """
import sys
import pytest

class Stolen:
    @pytest.hookimpl(wrapper=True)
    def pytest_collection_modifyitems(self, items):
        yield
        items.sort(key=lambda item: item.name != sys.argv[1])

sys.exit(pytest.main(["--database=postgresql", *sys.argv[2:]], plugins=[Stolen()]))
"""


@pytest.mark.on_database("postgresql")
def test_it_is_dropped_whichever_test_of_a_worker_is_the_last(spawn: Spawn) -> None:
    """pytest-xdist may steal a test that leaves its connection open from another worker. Django closes only the
    wrapper that there was before the first test, so this package must not replace it."""
    drops = "test_a_connection_that_never_was_can_be_dropped"
    files = [f"tests/database/test_leftovers.py::{drops}", "tests/models/test_runs.py::test_old_runs_are_surplus"]
    own_name = f"{connection.settings_dict['NAME']}_again"
    child = spawn("-c", REORDERED, drops, *files, SINGLEJOB_TEST_NAME=own_name)
    assert child.finish() == 0, child.output
    assert "2 passed" in child.output
