"""What `singleton_migrate` says of a migration that was begun and not finished, and when it says nothing."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest
from django.db import DatabaseError, OperationalError, connection
from django.db.migrations import Migration

from django_singlejob.jobs.names import MIGRATE_LOCK
from django_singlejob.management.unfinished import explanation
from django_singlejob.models.runs import runs
from django_singlejob.process.clock import DBNow

pytestmark = pytest.mark.django_db

EXISTS = OperationalError(1050, "Table 'goods' already exists")
GOODS = Migration("0002_goods", "shop")


def has_run(status: str, hostname: str = "web-1") -> None:
    facts = {"fence": 1, "token": uuid4(), "trigger": "command", "hostname": hostname, "pid": 1}
    runs().create(job_name=MIGRATE_LOCK, status=status, started_at=DBNow(), **facts)


def said(error: DatabaseError = EXISTS) -> str:
    return explanation(error, GOODS, "default")


@pytest.mark.on_database("mysql")
@pytest.mark.parametrize(
    ("status", "how"),
    [("abandoned", "its process died"), ("interrupted", "it was interrupted"), ("failed", "it failed")],
)
def test_it_names_the_migration_and_the_attempt_that_did_not_finish_it(status: str, how: str) -> None:
    has_run(status)
    words = said()
    assert words.startswith(
        "shop.0002_goods cannot be applied: 1050: Table 'goods' already exists. An earlier attempt did not finish it: "
        "run "
    )
    assert f" on web-1, which began at {runs().get().started_at:%Y-%m-%d %H:%M:%S} UTC ({how}). " in words
    assert "run manage.py singleton_migrate shop 0002_goods --fake." in words


@pytest.mark.on_database("mysql")
def test_it_names_the_attempt_that_was_cut_off_rather_than_those_that_failed_because_of_it() -> None:
    for status, hostname in ("failed", "web-1"), ("abandoned", "web-2"), ("failed", "web-3"):
        has_run(status, hostname)
    assert " on web-2, " in said()


@pytest.mark.on_database("mysql")
def test_or_the_first_that_failed() -> None:
    for status, hostname in ("abandoned", "web-1"), ("successful", "web-2"), ("failed", "web-3"), ("failed", "web-4"):
        has_run(status, hostname)
    assert " on web-3, " in said()


@pytest.mark.on_database("mysql")
@pytest.mark.parametrize("before", [[], ["abandoned", "successful"], ["running"]])
def test_it_says_nothing_if_no_earlier_attempt_was_cut_off(before: list[str]) -> None:
    for status in before:
        has_run(status)
    assert said() == ""


@pytest.mark.on_database("mysql")
@pytest.mark.parametrize("error", [OperationalError(1205, "Lock wait timeout"), DatabaseError("no code")])
def test_nor_about_another_error(error: Any) -> None:
    has_run("abandoned")
    assert said(error) == ""


@pytest.mark.on_database("sqlite", "postgresql")
def test_nor_on_a_database_that_rolls_back() -> None:
    has_run("abandoned")
    assert connection.features.can_rollback_ddl
    assert said() == ""
