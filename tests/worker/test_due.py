"""What is due, and how the database keeps up with the code."""

from __future__ import annotations

import logging
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_singlejob import current_run, singleton_job
from django_singlejob.database import transactions
from django_singlejob.jobs import registry
from django_singlejob.models.jobs import gates
from django_singlejob.process.clock import DBNow
from django_singlejob.process.received_signals import deferred_signals
from django_singlejob.running.enqueue import Order
from django_singlejob.worker.due import DueOneOffs, due_jobs, follow_code
from tests.contract.acts import (
    HOUR,
    closing,
    coming_slot,
    die_running,
    fall_behind,
    gate,
    scheduled,
)
from tests.waiting import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_django import Settings


pytest_plugins = "tests.fixtures"
pytestmark = [pytest.mark.usefixtures("fresh_process"), pytest.mark.django_db]
committed = pytest.mark.django_db(transaction=True, available_apps=["django_singlejob"])


def due(name: str = "nightly", slots: int = 1, **settings: Any) -> Any:
    job = scheduled(name, **settings)
    fall_behind(job, slots)
    return job


# --- due jobs


def test_but_no_job_whose_schedule_or_code_is_gone() -> None:
    due("gone")
    die_running(due("dead"))
    singleton_job("gone")(current_run)
    singleton_job("dead")(current_run)
    assert due_jobs() == []


# --- keeping up with the code


def test_a_new_schedule_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    job = scheduled()
    follow_code()
    follow_code()
    (record,) = caplog.records
    assert "'nightly'" in record.getMessage()
    assert f"next due at {coming_slot(job):%F %T} UTC" in record.getMessage()


@committed
@pytest.mark.slow
@pytest.mark.on_database("postgresql")
def test_a_new_job_is_left_for_the_next_tick_while_others_begin_theirs() -> None:
    scheduled("nightly")
    with ThreadPoolExecutor() as pool, transactions.durable(transactions.alias()):
        gates().create(name="nightly")
        assert pool.submit(closing, follow_code).result(PATIENCE) is None
        transactions.roll_back(transactions.alias())
    assert not gates().filter(name="nightly").exists()
    follow_code()
    assert gate("nightly").schedule


# --- with many jobs


@pytest.fixture
def many() -> None:
    """Six jobs, whose rows follow them."""
    for name in ["nightly", *(f"a-{number}" for number in range(5))]:
        scheduled(name)
    follow_code()


def edit(name: str = "nightly", **columns: Any) -> None:
    assert gates().filter(name=name).update(**columns) == 1


def test_and_what_another_release_has_written_meanwhile(many: None) -> None:
    edit(schedule="17 3 * * *", next_slot=DBNow() + HOUR)
    follow_code()
    assert gate().schedule == registry.get("nightly").schedule
    edit(time_zone="Europe/Rome")
    follow_code()
    assert gate().time_zone == "UTC"


def test_and_a_row_that_was_deleted_by_hand(many: None) -> None:
    gates().filter(name="nightly").delete()
    follow_code()
    assert gate().next_slot == coming_slot(registry.get("nightly"))


def test_and_a_row_whose_schedule_or_next_slot_was_deleted_by_hand(many: None) -> None:
    for column in {"schedule": ""}, {"next_slot": None}:
        edit(**column)
        follow_code()
        assert (gate().schedule, gate().next_slot) == (
            registry.get("nightly").schedule,
            coming_slot(registry.get("nightly")),
        )


def test_and_also_of_a_paused_job(many: None) -> None:
    edit(paused=True, next_slot=None)
    follow_code()
    assert (gate().paused, gate().next_slot) == (True, coming_slot(registry.get("nightly")))


def test_and_that_the_databases_clock_was_set_back(many: None, caplog: pytest.LogCaptureFixture) -> None:
    """It was two days fast when the job last ran."""
    edit(last_started_at=DBNow() + 48 * HOUR, next_slot=DBNow() + 49 * HOUR)
    follow_code()
    assert "the database's clock was set back" in caplog.text


def test_a_signal_ends_it_though_thousands_of_schedules_have_changed(many: None, settings: Settings) -> None:
    """To move each one takes a few milliseconds. The next worker goes on where this one stopped."""
    settings.TIME_ZONE = "Asia/Kolkata"
    scheduled("new")
    with deferred_signals():
        os.kill(os.getpid(), signal.SIGTERM)
        follow_code()
    assert {status.time_zone for status in gates().scheduled()} == {"UTC"}
    assert not gates().filter(name="new").exists()
    follow_code()
    assert {status.time_zone for status in gates().scheduled()} == {"Asia/Kolkata"}
    assert gate("new").schedule


# --- one-offs, of many jobs


def next_one_off(*left_out: str, may_be_due: bool = True, ended: Sequence[str] = ()) -> str:
    """The job of the next one-off; empty if none is due."""
    due = DueOneOffs()
    due.may_be_due = may_be_due
    due.ask_again({*ended})
    row = due.next({*left_out})
    return row.job_name if row else ""


def test_the_next_one_off_is_found_without_a_list_of_all_jobs(many: None) -> None:
    registry.get("a-2").using(priority=5).enqueue()  # type: ignore[attr-defined]
    with CaptureQueriesContext(connection) as queries:
        assert next_one_off() == "a-2"
    assert not any("nightly" in query["sql"] for query in queries)


def test_also_behind_those_of_jobs_that_are_unknown_or_left_out(many: None) -> None:
    for priority, name in enumerate(["a-1", "a-2", "stranger"]):
        Order(job_name=name, priority=priority).enqueue()
    assert next_one_off("a-2") == "a-1"
    assert next_one_off("a-1", "a-2") == ""
    assert next_one_off(may_be_due=False, ended=["a-2", "stranger"]) == "a-2"
    assert next_one_off(may_be_due=False) == ""


def test_one_that_has_become_known_is_not_left_out(many: None) -> None:
    Order(job_name="late").enqueue()
    due = DueOneOffs()
    for is_known in False, True:
        if is_known:
            scheduled("late")
        due.may_be_due = True
        assert bool(due.next(set())) == is_known
