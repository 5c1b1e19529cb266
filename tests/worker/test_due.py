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
from django_singlejob.locking.clear import clear
from django_singlejob.models.jobs import gates
from django_singlejob.process.clock import DBNow, local_now
from django_singlejob.process.received_signals import deferred_signals
from django_singlejob.running.enqueue import Order
from django_singlejob.worker import loop, timetable
from django_singlejob.worker.due import DueOneOffs, anything_due, due_jobs, follow_code
from tests.contract.acts import (
    HOUR,
    MINUTE,
    closing,
    coming_slot,
    die_running,
    fall_behind,
    gate,
    hourly,
    lock,
    scheduled,
    ticked,
)
from tests.waiting import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_django import DjangoAssertNumQueries, Settings


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
    follow_code()
    assert (gate().schedule, gate().time_zone, gate().next_slot) == (job.schedule, "UTC", coming_slot(job))
    with django_assert_num_queries(3):
        follow_code()


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


# --- with many jobs, a tick does not read them all


@pytest.fixture
def many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Six jobs, whose rows follow them. Turn 0 looks closely at one of them, which is not the nightly one."""
    monkeypatch.setattr(timetable, "AT_ONCE", 1)
    for name in ["nightly", *(f"a-{number}" for number in range(5))]:
        scheduled(name)
    follow_code()


def edit(name: str = "nightly", **columns: Any) -> None:
    assert gates().filter(name=name).update(**columns) == 1


@pytest.mark.parametrize("count", [10, 1_000])
def test_it_takes_three_queries_whatever_the_number_of_jobs(
    django_assert_num_queries: DjangoAssertNumQueries, count: int
) -> None:
    rows = []
    for number in range(count):
        job = scheduled(f"job-{number}")
        row = {"schedule": job.schedule, "time_zone": "UTC", "next_slot": coming_slot(job)}
        rows.append(gates().model(name=job.name, **row))
    gates().bulk_create(rows)
    with django_assert_num_queries(3):
        follow_code()
    with django_assert_num_queries(1):
        assert not anything_due()


@pytest.mark.parametrize("count", [1, 12])
def test_and_reads_few_rows_in_full(many: None, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    for number in range(count):
        scheduled(f"b-{number}")
    follow_code()
    read: list[str] = []
    usual = gates().model.from_db

    def from_db(model: Any, *row: Any, **options: Any) -> Any:
        found = usual(*row, **options)
        read.append(found.name)
        return found

    monkeypatch.setattr(gates().model, "from_db", classmethod(from_db))
    follow_code()
    assert read == ["a-0"]


def test_a_schedule_that_changed_in_the_code_is_noticed_at_once(many: None) -> None:
    job = scheduled("nightly", schedule="17 3 * * *")
    follow_code()
    assert (gate().schedule, gate().next_slot) == ("17 3 * * *", coming_slot(job))


def test_and_a_time_zone(many: None, settings: Settings) -> None:
    settings.TIME_ZONE = "Asia/Kolkata"
    follow_code()
    assert {status.time_zone for status in gates().scheduled()} == {"Asia/Kolkata"}


def test_and_what_another_release_has_written_meanwhile(many: None) -> None:
    edit(schedule="17 3 * * *", next_slot=DBNow() + HOUR)
    follow_code()
    assert gate().schedule == registry.get("nightly").schedule
    edit(time_zone="Europe/Rome")
    follow_code()
    assert gate().time_zone == "UTC"


def test_and_a_new_job(many: None) -> None:
    job = scheduled("new")
    follow_code()
    assert gate("new").next_slot == coming_slot(job)


def test_and_a_job_that_has_no_schedule_any_more(many: None) -> None:
    singleton_job("nightly")(current_run)
    follow_code()
    assert (gate().schedule, gate().time_zone, gate().next_slot) == ("", "", None)


def test_and_a_row_that_was_deleted_by_hand(many: None) -> None:
    gates().filter(name="nightly").delete()
    follow_code()
    assert gate().next_slot == coming_slot(registry.get("nightly"))


def test_also_beside_one_whose_name_only_begins_like_its_own(many: None) -> None:
    """It was written by hand: no name has a new line."""
    gates().filter(name="nightly").delete()
    gates().create(name="nightly\nly", schedule="@daily", time_zone="UTC")
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


def test_a_slot_that_was_put_far_ahead_by_hand_is_noticed_when_its_turn_comes(
    many: None, caplog: pytest.LogCaptureFixture
) -> None:
    edit(next_slot=DBNow() + 49 * HOUR)
    follow_code()
    assert not caplog.records
    for turn in range(1, 6):
        follow_code(turn)
    assert [record.getMessage()[:21] for record in caplog.records] == ["The job 'nightly' wai"]


def test_a_row_of_another_release_is_left_alone(many: None) -> None:
    del registry._jobs["nightly"]
    before = gate().__dict__ | {"_state": None}
    follow_code()
    assert gate().__dict__ | {"_state": None} == before


def test_each_minute_has_another_turn(many: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if each has a pass of its own, as with cron."""
    turns: list[int] = []
    now = local_now()
    monkeypatch.setattr(loop, "follow_code", lambda turn, _: turns.append(turn))
    for minute in range(3):
        monkeypatch.setattr(loop, "local_now", lambda minute=minute: now + 60 * minute)
        ticked()
    assert turns == [turns[0], turns[0] + 1, turns[0] + 2]


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
