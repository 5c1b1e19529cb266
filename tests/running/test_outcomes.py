"""The reports about the due slots of one job."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest
from django.db import transaction

from django_singlejob import Outcome, singleton_job
from django_singlejob.exceptions import DatabaseUnreachable, JobInterrupted, JobTimeout, UnsafeTransaction
from django_singlejob.locking import acquire
from django_singlejob.running.outcomes import logged, raised
from django_singlejob.running.runner import run_due
from tests.contract.acts import (
    MINUTE,
    fall_behind,
    gate,
    hourly,
    newest_slot,
    scheduled,
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


def test_its_arguments_are_handed_to_each_run() -> None:
    calls: list[object] = []
    job: Any = singleton_job("nightly", schedule=hourly(ago=MINUTE), catch_up="all")(
        lambda *args, **kwargs: calls.append((args, kwargs))
    )
    fall_behind(job, 2)
    list(run_due(job, [1], {"a": 2}))
    assert calls == [((1,), {"a": 2})] * 2


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
            raised("nightly", JobTimeout("It ran for too long.")),
            logging.ERROR,
            "The job 'nightly' was interrupted",
        ),
        (raised("nightly", JobInterrupted(15)), logging.WARNING, "The job 'nightly' was interrupted"),
        (raised("nightly", ValueError("x")), logging.ERROR, "The job 'nightly' failed."),
        (raised("shop.mail", ValueError("x"), is_task=True), logging.ERROR, "The task 'shop.mail' failed."),
        (
            raised("shop.mail", ValueError("x"), is_task=True, is_logged=True),
            logging.WARNING,
            "The task 'shop.mail' failed: ValueError: x",
        ),
    ],
    ids=lambda value: value.name if isinstance(value, Outcome) else str(value),
)
def test_how_an_error_is_logged(report: Outcome, level: int, words: str, caplog: pytest.LogCaptureFixture) -> None:
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
