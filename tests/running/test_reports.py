"""The reports about the due slots of one job."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest
from django.db import transaction

from django_singlejob import Reason, singleton_job
from django_singlejob.exceptions import DatabaseUnreachable, JobInterrupted, JobTimeout, UnsafeTransaction
from django_singlejob.locking import acquire
from django_singlejob.running.reports import Report, logged, run_due
from django_singlejob.worker.due import follow_code
from tests.contract.acts import (
    HOUR,
    MINUTE,
    about_hourly,
    coming_slot,
    fall_behind,
    gate,
    hourly,
    newest_slot,
    scheduled,
    slots_run,
    take,
)

if TYPE_CHECKING:
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


def test_one_report_at_least() -> None:
    job = due(slots=0)
    assert reasons(list(run_due(job))) == [Reason.NOT_DUE]


def test_one_run_unless_all_are_caught_up() -> None:
    assert len(list(run_due(due("latest", 3)))) == 1
    assert len(list(run_due(due("none", 3, catch_up="none", misfire_grace=HOUR)))) == 1
    assert len(list(run_due(due("all", 3, catch_up="all")))) == 3


@pytest.mark.parametrize(("most", "runs"), [(1, 1), (3, 3), (5, 5), (6, 5)])
def test_as_many_as_may_be_caught_up(monkeypatch: pytest.MonkeyPatch, most: int, runs: int) -> None:
    monkeypatch.setattr("django_singlejob.jobs.slots.MAX_CATCH_UP", most)
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
    follow_code()
    assert reasons(list(run_due(job))) == [Reason.NOT_DUE]
    slot = coming_slot(job)
    (report,) = run_due(job, early=MINUTE)
    assert report.outcome
    assert report.outcome.slot == slot


def test_no_run_while_others_have_the_lock() -> None:
    job = due(slots=3, catch_up="all", lock="shop")
    take("shop")
    assert reasons(list(run_due(job))) == [Reason.HELD]


def test_an_exception_of_the_job_is_in_its_report() -> None:
    error = ZeroDivisionError("five")

    def fail() -> None:
        raise error

    job: Any = singleton_job("fails", schedule=hourly(ago=30 * MINUTE))(fail)
    fall_behind(job)
    (report,) = run_due(job)
    assert (report.name, report.outcome, report.error) == (job.name, None, error)


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


@pytest.mark.parametrize(
    ("report", "level", "words"),
    [
        (
            Report("nightly", error=JobTimeout("It ran for too long.")),
            logging.ERROR,
            "The job 'nightly' was interrupted",
        ),
        (Report("nightly", error=JobInterrupted(15)), logging.WARNING, "The job 'nightly' was interrupted"),
        (Report("nightly", error=ValueError("x")), logging.ERROR, "The job 'nightly' failed."),
        (Report("shop.mail", error=ValueError("x"), is_task=True), logging.ERROR, "The task 'shop.mail' failed."),
        (
            Report("shop.mail", error=ValueError("x"), is_task=True, is_logged=True),
            logging.WARNING,
            "The task 'shop.mail' failed: ValueError: x",
        ),
    ],
    ids=lambda value: value.name if isinstance(value, Report) else str(value),
)
def test_how_an_error_is_logged(report: Report, level: int, words: str, caplog: pytest.LogCaptureFixture) -> None:
    assert logged(report) is report
    (record,) = caplog.records
    assert (record.levelno, record.getMessage().startswith(words)) == (level, True)


@pytest.mark.parametrize(("most", "level"), [(1, "ERROR"), (2, "WARNING")])
def test_that_a_signal_ended_the_run_of_a_slot_is_an_error_if_it_is_not_run_again(
    most: int, level: str, caplog: pytest.LogCaptureFixture
) -> None:
    def end() -> None:
        raise JobInterrupted(15)

    job: Any = singleton_job("nightly", schedule=hourly(ago=30 * MINUTE), max_attempts=most)(end)
    fall_behind(job)
    (report,) = run_due(job)
    logged(report)
    message = "The job 'nightly' was interrupted: JobInterrupted: The job was interrupted by signal 15."
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [(level, message)]
