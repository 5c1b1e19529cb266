"""The history's own queries: surplus runs and orphans."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from django.db import connection

from django_singlejob.clock import DBNow
from django_singlejob.querysets.jobs import gates
from django_singlejob.querysets.locks import locks
from django_singlejob.querysets.runs import runs
from tests.contract.acts import last_run, start_run

if TYPE_CHECKING:
    from pytest_django import DjangoAssertNumQueries

pytest_plugins = "tests.fixtures"
pytestmark = [pytest.mark.usefixtures("fresh_process"), pytest.mark.django_db]

DAY = timedelta(days=1)
MINUTE = timedelta(minutes=1)


def has_run(count: int = 1, *, job_name: str = "nightly", status: str = "successful", ago: timedelta = MINUTE) -> None:
    """Give the job a history."""
    facts = {"fence": 1, "trigger": "call", "hostname": "web-1", "pid": 1}
    gates().remember(job_name)
    for _ in range(count):
        runs().create(job_name=job_name, status=status, token=uuid4(), started_at=DBNow() - ago, **facts)


# --- the history


def test_old_runs_are_surplus() -> None:
    has_run(status="successful", ago=2 * DAY)
    has_run(status="failed", ago=2 * DAY)
    has_run(status="running", ago=2 * DAY)
    has_run(status="successful", ago=DAY / 2)
    assert {*runs().surplus(DAY, keep=1000).values_list("status", flat=True)} == {"successful", "failed"}


def test_of_each_job_those_beyond_the_newest_are_surplus() -> None:
    has_run(1, job_name="hourly")
    has_run(4, job_name="nightly")
    has_run(1, job_name="nightly", status="running")
    nightly = list(runs().filter(job_name="nightly").order_by("pk"))
    assert list(runs().surplus(DAY, keep=3).order_by("pk")) == nightly[:2]
    assert list(runs().surplus(DAY, keep=0).order_by("pk").values_list("status", flat=True)) == ["successful"] * 5


def test_an_attempts_row_is_found_by_its_token() -> None:
    has_run(2)
    for run in runs():
        assert runs().key_of(run.token) == run.pk
    assert runs().key_of(uuid4()) is None


def test_nothing_is_surplus_where_nothing_ran() -> None:
    assert not runs().surplus(DAY, keep=0).exists()


def test_pruning_goes_in_batches_and_deletes_nothing_else(django_assert_num_queries: DjangoAssertNumQueries) -> None:
    has_run(5, ago=2 * DAY)
    has_run(2)
    # The jobs that have run, and the newest surplus run of the job; three batches, each read and deleted; none left.
    with django_assert_num_queries(2 + 3 * 2 + 1):
        assert runs().surplus(DAY, keep=1000).prune(batch=2) == 5
    assert runs().count() == 2
    assert runs().surplus(DAY, keep=1000).prune() == 0


def test_a_run_whose_lock_is_gone_is_abandoned() -> None:
    start_run("nightly")
    start_run("hourly")
    has_run(job_name="weekly")
    locks().filter(name="nightly")._raw_delete("default")
    assert runs().abandon_orphans("It is gone.") == 1
    orphan = last_run("nightly")
    assert (orphan.status, orphan.error) == ("abandoned", "It is gone.")
    assert orphan.finished_at >= orphan.started_at  # type: ignore[operator]
    assert (last_run("hourly").status, last_run("weekly").status) == ("running", "successful")
    assert runs().abandon_orphans("It is gone.") == 0


def test_a_run_that_begins_meanwhile_is_no_orphan() -> None:
    """It begins between the two reads, so its lock or its run is missing from one of them."""
    start_run("nightly")
    reads: list[str] = []

    def begin_another(execute: Any, sql: str, *statement: Any) -> Any:
        if sql.startswith("SELECT") and len(reads) < 2:
            reads.append(sql)
            if len(reads) == 2:
                start_run("hourly")
        return execute(sql, *statement)

    with connection.execute_wrapper(begin_another):
        assert runs().abandon_orphans("It is gone.") == 0
    assert last_run("hourly").status == "running"
