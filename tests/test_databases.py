from __future__ import annotations

import pytest
from django.db import connection

from tests.children import Spawn

pytestmark = pytest.mark.django_db(transaction=True)


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
