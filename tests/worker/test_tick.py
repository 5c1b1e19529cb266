"""One pass over what is due, step by step; `contract/test_passes.py` has what it promises."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any

import pytest

from django_singlejob import current_run, singleton_job
from django_singlejob.interrupt import deferred_signals
from django_singlejob.locking.clear import clear
from django_singlejob.querysets.jobs import gates
from django_singlejob.worker.tick import due_jobs, keep_up
from tests.contract.acts import (
    MINUTE,
    coming_slot,
    die_running,
    fall_behind,
    gate,
    hourly,
    last_run,
    lock,
    scheduled,
    slots_run,
    tick,
    ticked,
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
