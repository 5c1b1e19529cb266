"""What is due, and how the database keeps up with the code."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from django_singlejob import current_run, database, singleton_job
from django_singlejob.locking.clear import clear
from django_singlejob.querysets.jobs import gates
from django_singlejob.worker.due import due_jobs, keep_up
from tests.contract.acts import (
    MINUTE,
    closing,
    coming_slot,
    die_running,
    fall_behind,
    gate,
    hourly,
    lock,
    scheduled,
)

if TYPE_CHECKING:
    from pytest_django import DjangoAssertNumQueries


pytest_plugins = "tests.fixtures"
pytestmark = [pytest.mark.usefixtures("fresh_process"), pytest.mark.django_db]
committed = pytest.mark.django_db(transaction=True, available_apps=["django_singlejob"])


def due(name: str = "nightly", slots: int = 1, **settings: Any) -> Any:
    job = scheduled(name, **settings)
    fall_behind(job, slots)
    return job


# --- due jobs


def test_jobs_whose_slot_has_come_are_due_the_oldest_first() -> None:
    due("young", schedule=hourly(ago=10 * MINUTE))
    due("old", schedule=hourly(ago=40 * MINUTE))
    due("later", slots=0)
    due("paused")
    gates().filter(name="paused").update(paused=True)
    assert [job.name for job in due_jobs()] == ["old", "young"]


def test_not_while_their_lock_is_stale_but_once_it_is_cleared() -> None:
    die_running(due("dead"))
    assert due_jobs() == []
    assert clear(lock("dead"))
    assert [job.name for job in due_jobs()] == ["dead"]


def test_but_no_job_whose_schedule_or_code_is_gone() -> None:
    due("gone")
    die_running(due("dead"))
    singleton_job("gone")(current_run)
    singleton_job("dead")(current_run)
    assert due_jobs() == []


# --- keeping up with the code


def test_a_tick_enters_new_jobs_in_the_database(django_assert_num_queries: DjangoAssertNumQueries) -> None:
    job = scheduled()
    keep_up()
    assert (gate().schedule, gate().time_zone, gate().next_slot) == (job.schedule, "UTC", coming_slot(job))
    with django_assert_num_queries(2):
        keep_up()


def test_a_new_schedule_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    job = scheduled()
    keep_up()
    keep_up()
    (record,) = caplog.records
    assert "'nightly'" in record.getMessage()
    assert f"next due at {coming_slot(job):%F %T} UTC" in record.getMessage()


@committed
@pytest.mark.slow
@pytest.mark.on_database("postgresql")
def test_a_new_job_is_left_for_the_next_tick_while_others_begin_theirs() -> None:
    scheduled("nightly")
    gates().remember("hourly")
    with ThreadPoolExecutor() as pool, database.durable(database.alias()):
        gates().keep_fence(0)
        assert pool.submit(closing, keep_up).result(10) is None
    assert not gates().filter(name="nightly").exists()
    keep_up()
    assert gate("nightly").schedule
