"""The history's own queries: surplus runs and orphans."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from django.db import connection

from django_singlejob.models.jobs import gates
from django_singlejob.models.locks import locks
from django_singlejob.models.runs import runs
from django_singlejob.process.clock import DBNow
from tests.contract.acts import last_run, start_run

if TYPE_CHECKING:
    from pytest_django import DjangoAssertNumQueries

    from django_singlejob.models import JobRun

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


def surplus(keep: int = 1000) -> list[JobRun]:
    return sorted((run for rows in runs().surplus(DAY, keep) for run in rows), key=lambda run: run.pk)


def prune(keep: int = 1000, **how: int) -> int:
    return sum(rows.prune(**how) for rows in runs().surplus(DAY, keep))


# --- the history


def test_old_runs_are_surplus() -> None:
    has_run(status="successful", ago=2 * DAY)
    has_run(status="failed", ago=2 * DAY)
    has_run(status="running", ago=2 * DAY)
    has_run(status="successful", ago=DAY / 2)
    assert {run.status for run in surplus()} == {"successful", "failed"}


def test_of_each_job_those_beyond_the_newest_are_surplus() -> None:
    has_run(1, job_name="hourly")
    has_run(4, job_name="nightly")
    has_run(1, job_name="nightly", status="running")
    nightly = list(runs().filter(job_name="nightly").order_by("pk"))
    assert surplus(keep=3) == nightly[:2]
    assert [run.status for run in surplus(keep=0)] == ["successful"] * 5


def test_each_is_surplus_once_whatever_the_reason() -> None:
    has_run(3, ago=2 * DAY)
    has_run(3)
    assert surplus(keep=2) == list(runs().order_by("pk"))[:4]
    assert prune(keep=2) == 4


@pytest.mark.slow
def test_any_number_of_jobs_may_have_some() -> None:
    """SQLite refuses an expression that is too deep."""
    facts = {"fence": 1, "trigger": "call", "hostname": "web-1", "pid": 1, "status": "successful"}
    names = [f"job {number}" for number in range(1500) for _ in range(2)]
    runs().bulk_create(runs().model(job_name=name, token=uuid4(), started_at=DBNow(), **facts) for name in names)
    assert prune(keep=1) == runs().count() == 1500


def test_an_attempts_row_is_found_by_its_token() -> None:
    has_run(2)
    for run in runs():
        assert runs().key_of(run.token) == run.pk
    assert runs().key_of(uuid4()) is None


def test_nothing_is_surplus_where_nothing_ran() -> None:
    assert not surplus(keep=0)


def test_pruning_goes_in_batches_and_deletes_nothing_else(django_assert_num_queries: DjangoAssertNumQueries) -> None:
    has_run(5, ago=2 * DAY)
    has_run(2)
    # Three batches, each read and deleted; none left; the jobs that have run, and the newest surplus run of the job.
    with django_assert_num_queries(3 * 2 + 1 + 2):
        assert prune(batch=2) == 5
    assert runs().count() == 2
    assert prune() == 0


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
