"""One pass over what is due, step by step; `contract/test_passes.py` has what it promises."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any

import pytest
from django.db import transaction

from django_singlejob import current_run, singleton_job
from django_singlejob.exceptions import DatabaseUnreachable, UnsafeTransaction
from django_singlejob.interrupt import deferred_signals
from django_singlejob.locking import acquire
from django_singlejob.locking.acquire import Reason
from django_singlejob.locking.clear import clear
from django_singlejob.querysets.jobs import gates
from django_singlejob.reports import Report, run_due
from django_singlejob.worker.tick import due_jobs, keep_up
from tests.contract.acts import (
    HOUR,
    MINUTE,
    about_hourly,
    coming_slot,
    die_running,
    fall_behind,
    gate,
    hourly,
    last_run,
    lock,
    newest_slot,
    scheduled,
    slots_run,
    take,
    tick,
    ticked,
)

if TYPE_CHECKING:
    from pytest_django import DjangoAssertNumQueries, Settings

    from tests.fixtures import Away

pytest_plugins = "tests.fixtures"
pytestmark = [pytest.mark.usefixtures("fresh_process"), pytest.mark.django_db]
committed = pytest.mark.django_db(transaction=True, available_apps=["django_singlejob"])


def due(name: str = "nightly", slots: int = 1, **settings: Any) -> Any:
    job = scheduled(name, **settings)
    fall_behind(job, slots)
    return job


def reasons(reports: list[Report]) -> list[Reason | None]:
    return [report.outcome.reason for report in reports if report.outcome]


# --- who is due


def test_due_are_those_whose_slot_has_come_the_oldest_first() -> None:
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


def test_but_none_whose_schedule_or_code_is_gone() -> None:
    due("gone")
    die_running(due("dead"))
    singleton_job("gone")(current_run)
    singleton_job("dead")(current_run)
    assert due_jobs() == []


# --- what is run


def test_one_report_at_least() -> None:
    job = due(slots=0)
    assert reasons(list(run_due(job))) == [Reason.NOT_DUE]


def test_one_run_unless_all_are_caught_up() -> None:
    assert len(list(run_due(due("latest", 3)))) == 1
    assert len(list(run_due(due("none", 3, catch_up="none", misfire_grace=HOUR)))) == 1
    assert len(list(run_due(due("all", 3, catch_up="all")))) == 3


@pytest.mark.parametrize(("most", "runs"), [(1, 1), (3, 3), (5, 5), (6, 5)])
def test_as_many_as_may_be_caught_up(settings: Settings, most: int, runs: int) -> None:
    settings.SINGLEJOB = {"MAX_CATCH_UP": most}
    job = due(slots=5, catch_up="all")
    assert reasons(list(run_due(job))) == [None] * runs
    assert [slot for slot, *_ in slots_run()] == [newest_slot(job, back=back) for back in reversed(range(runs))]


def test_its_arguments_are_handed_to_each_run() -> None:
    calls: list[object] = []
    job: Any = singleton_job("nightly", schedule=hourly(ago=MINUTE), catch_up="all")(
        lambda *args, **kwargs: calls.append((args, kwargs))
    )
    fall_behind(job, 2)
    list(run_due(job, [1], {"a": 2}))
    assert calls == [((1,), {"a": 2})] * 2


def test_a_cron_daemon_may_be_early() -> None:
    job = scheduled(schedule=about_hourly(due_in=MINUTE / 3))
    keep_up()
    assert reasons(list(run_due(job))) == [Reason.NOT_DUE]
    slot = coming_slot(job)
    (report,) = run_due(job, early=MINUTE)
    assert report.outcome
    assert report.outcome.slot == slot


def test_no_run_while_others_have_the_lock() -> None:
    job = due(slots=3, catch_up="all", lock="shop")
    take("shop")
    assert reasons(list(run_due(job))) == [Reason.HELD]


def test_to_leave_by_sys_exit_ends_no_more_than_the_run() -> None:
    def leave() -> None:
        raise SystemExit(3)

    job: Any = singleton_job("leaves", schedule=hourly(ago=30 * MINUTE), catch_up="all")(leave)
    fall_behind(job, 3)
    due(schedule=hourly(ago=10 * MINUTE))
    assert [(report.name, type(report.error)) for report in tick()] == [
        *[("leaves", SystemExit)] * 3,
        ("nightly", type(None)),
    ]
    assert gate("leaves").next_slot == coming_slot(job)


def test_an_exception_of_the_job_is_in_its_report() -> None:
    error = ZeroDivisionError("five")

    def fail() -> None:
        raise error

    job: Any = singleton_job("fails", schedule=hourly(ago=30 * MINUTE))(fail)
    fall_behind(job)
    (report,) = run_due(job)
    assert (report.name, report.outcome, report.error) == (job.name, None, error)


def test_a_keyboard_interrupt_ends_the_pass() -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    job: Any = singleton_job("interrupted", schedule=hourly(ago=30 * MINUTE))(interrupt)
    fall_behind(job)
    due(schedule=hourly(ago=10 * MINUTE))
    with pytest.raises(KeyboardInterrupt):
        ticked()
    assert last_run("interrupted").status == "interrupted"
    assert slots_run("nightly") == []


@pytest.mark.parametrize("error", [KeyboardInterrupt, GeneratorExit])
def test_but_not_one_that_the_job_of_a_command_raises_by_itself(error: type[BaseException]) -> None:
    """The command handles the signals: a Ctrl-C would be a `JobInterrupted`."""

    def interrupt() -> None:
        raise error

    job: Any = singleton_job("broken", schedule=hourly(ago=30 * MINUTE))(interrupt)
    fall_behind(job)
    due(schedule=hourly(ago=10 * MINUTE))
    with deferred_signals():
        first, second = tick()
    assert (first.name, type(first.error), second.name, second.error) == ("broken", error, "nightly", None)
    assert last_run("broken").status == ("failed" if error is KeyboardInterrupt else "interrupted")


@committed
def test_a_child_that_a_job_forks_does_not_go_on_with_the_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes back from the job's function too, with an exception: the rest is the parent's."""

    def leave_as_a_child() -> None:
        monkeypatch.setattr(os, "getpid", lambda: 0)
        raise SystemExit(0)

    job: Any = singleton_job("forks", schedule=hourly(ago=30 * MINUTE), heartbeat=False)(leave_as_a_child)
    fall_behind(job)
    due(schedule=hourly(ago=10 * MINUTE))
    with pytest.raises(SystemExit):
        ticked()
    assert slots_run("nightly") == []


@committed
@pytest.mark.usefixtures("breakable_connection")
def test_without_a_database_it_is_said_once(monkeypatch: pytest.MonkeyPatch, database_away: Away) -> None:
    monkeypatch.setattr(acquire, "PERSEVERANCE", 0.05)
    job = due(slots=3, catch_up="all")
    with database_away():
        (report,) = run_due(job)
    assert isinstance(report.error, DatabaseUnreachable)
    assert gate().next_slot == newest_slot(job, back=2)


@committed
def test_so_it_is_inside_a_transaction() -> None:
    job = due(slots=3, catch_up="all")
    with transaction.atomic():
        (report,) = run_due(job)
    assert isinstance(report.error, UnsafeTransaction)


# --- keeping up with the code


def test_a_tick_tells_the_database_of_new_jobs(django_assert_num_queries: DjangoAssertNumQueries) -> None:
    job = scheduled()
    keep_up()
    assert (gate().schedule, gate().time_zone, gate().next_slot) == (job.schedule, "UTC", coming_slot(job))
    with django_assert_num_queries(2):
        keep_up()


def test_a_new_schedule_is_told_to_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    job = scheduled()
    keep_up()
    keep_up()
    (record,) = caplog.records
    assert "'nightly'" in record.getMessage()
    assert f"due next at {coming_slot(job):%F %T} UTC" in record.getMessage()
