from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from django.db import Error, connection

from django_singlejob.database.time_limits import limited

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

pytest_plugins = "tests.fixtures"
pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("breakable_connection")]

SLOW = {
    "sqlite": "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT COUNT(*) FROM n",
    "mysql": "SELECT COUNT(*) FROM seq_1_to_1000000 AS a, seq_1_to_1000000 AS b WHERE a.seq + b.seq < 0",
}


def ask(sql: str) -> Any:
    with connection.cursor() as cursor:
        cursor.execute(sql)
        return cursor.fetchone()[0]


def within(seconds: float) -> AbstractContextManager[object]:
    return limited("default", timedelta(seconds=seconds))


@pytest.mark.on_database("sqlite", "mysql")
def test_a_statement_that_takes_longer_fails() -> None:
    if not getattr(connection, "mysql_is_mariadb", True):
        pytest.skip("MySQL limits only how long it waits for a change of the table: see contract/test_record.py")
    with within(0.1), pytest.raises(Error):
        ask(SLOW[connection.vendor])


@pytest.mark.on_database("sqlite")
def test_after_the_block_there_is_no_limit() -> None:
    with within(0):
        pass
    assert ask(SLOW["sqlite"].replace("FROM n)", "FROM n LIMIT 500000)")) == 500_000


def test_one_that_is_fast_enough_is_answered() -> None:
    with within(60):
        assert ask("SELECT 1") == 1
