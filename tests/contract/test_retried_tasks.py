"""Tasks with `@retried`: after a failure, the row waits for the next attempt."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from importlib import import_module
from io import StringIO
from typing import TYPE_CHECKING, Any

import pytest
from django.core.management import call_command
from django.utils import timezone

from django_singlejob import LeaseLost, SkipRun, status
from django_singlejob.models import JobLock, OneOffJob
from tests.app.tasks_api import PACKAGE, SIGNALS
from tests.contract.acts import HOUR, MINUTE, expire, is_free, take, ticked
from tests.databases import APPS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_django import Settings

pytestmark = pytest.mark.django_db(transaction=True, available_apps=APPS)

FIRST = "django_singlejob.worker.1"
in_both_worlds = pytest.mark.parametrize("name", ["delivered", "delivered_asynchronous"])


@pytest.fixture
def tasks(fresh_process: None, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The tests' tasks. `tasks.body` is what they do: they fail."""
    tasks = import_module("tests.app.django_tasks")
    monkeypatch.setattr(tasks, "body", failing(ConnectionError("down")))
    return tasks


@pytest.fixture
def heard() -> Iterator[list[str]]:
    """The name of each signal that was sent."""
    heard: list[str] = []
    listeners = [(each, lambda name=name, **_: heard.append(name[5:])) for name, each in SIGNALS.items()]
    for each, listen in listeners:
        each.connect(listen)
    yield heard
    for each, listen in listeners:
        each.disconnect(listen)


def failing(error: BaseException) -> Any:
    def fail(*_: Any) -> None:
        raise error

    return fail


def the_row() -> OneOffJob:
    return OneOffJob.objects.get()


def left() -> tuple[str, int]:
    return the_row().status, the_row().attempt


def retry_in() -> timedelta:
    """How long after its last attempt it is due, in whole minutes: the attempt itself takes less."""
    row = the_row()
    assert row.started_at
    return (row.run_after - row.started_at) // MINUTE * MINUTE


def come_due() -> None:
    """The time of its retry has come."""
    assert OneOffJob.objects.filter(status="waiting").update(run_after=timezone.now()) == 1


@in_both_worlds
def test_it_waits_for_each_retry_twice_as_long_and_then_has_failed(tasks: Any, name: str, heard: list[str]) -> None:
    result = getattr(tasks, name).enqueue()
    for number, wait in (1, MINUTE), (2, 2 * MINUTE):
        (report,) = ticked()
        assert (report.status, report.retry_in) == ("failed", wait)
        assert (left(), the_row().max_attempts, retry_in()) == (("waiting", number), 3, wait)
        assert not JobLock.objects.exists()
        assert ticked() == []
        result.refresh()
        assert (result.status, result.is_finished, result.finished_at) == ("READY", False, None)
        assert [each.exception_class for each in result.errors] == [ConnectionError] * number
        assert (result.attempts, len(result.worker_ids)) == (number, number)
        assert getattr(tasks, name).get_result(result.id).task.run_after == the_row().run_after
        come_due()
    (report,) = ticked()
    assert report.retry_in is None
    assert left() == ("failed", 3)
    result.refresh()
    assert (result.status, len(result.errors), len(result.worker_ids)) == ("FAILED", 3, 3)
    assert heard == ["enqueued", "started", "started", "started", "finished"]


@in_both_worlds
def test_it_may_succeed_in_the_end(tasks: Any, name: str, heard: list[str]) -> None:
    result = getattr(tasks, name).using(priority=7, queue_name="mail").enqueue("hello")
    ticked()
    tasks.body = tasks.echo
    come_due()
    ticked()
    result.refresh()
    assert (result.status, result.return_value, result.attempts) == ("SUCCESSFUL", [["hello"], {}], 2)
    assert [each.exception_class for each in result.errors] == [ConnectionError]
    assert (result.task.priority, result.task.queue_name) == (7, "mail")
    assert the_row().error == ""
    assert heard == ["enqueued", "started", "started", "finished"]


def test_a_pass_begins_it_once_however_soon_it_is_due_and_its_context_counts(tasks: Any) -> None:
    attempts = []

    def fail(context: Any) -> None:
        attempts.append(context.attempt)
        raise ConnectionError

    tasks.body = fail
    tasks.delivered_with_context.enqueue()
    for number in 1, 2, 3:
        assert len(ticked()) == 1
        assert attempts == [*range(1, number + 1)]
    assert left() == ("failed", 3)


def test_the_wait_is_a_day_at_most(tasks: Any) -> None:
    tasks.fetched.enqueue()
    ticked()
    assert retry_in() == 20 * HOUR
    come_due()
    ticked()
    assert retry_in() == 24 * HOUR


# --- what is not retried


@pytest.mark.parametrize("error", [ValueError(), OSError(), SystemExit(1), LeaseLost()], ids=repr)
def test_another_exception_than_those_named_is_the_end(tasks: Any, error: BaseException, heard: list[str]) -> None:
    tasks.body = failing(error)
    tasks.fetched.enqueue()
    OneOffJob.objects.update(max_attempts=1)  # before the last attempt, a lost lease is not a failure
    ticked()
    assert left() == ("failed", 1)
    assert heard[-1] == "finished"


@in_both_worlds
@pytest.mark.parametrize(
    "error", [SystemExit(1), GeneratorExit(), asyncio.CancelledError()], ids=lambda error: type(error).__name__
)
def test_by_default_only_an_exception_is_retried(tasks: Any, name: str, error: BaseException) -> None:
    tasks.body = failing(error)
    getattr(tasks, name).enqueue()
    ticked()
    assert left() == ("failed", 1)


@pytest.mark.parametrize(("name", "status"), [("delivered", "failed"), ("fetched", "waiting")])
def test_a_result_that_cannot_be_stored_is_retried_only_if_it_is_named(tasks: Any, name: str, status: str) -> None:
    tasks.body = object
    getattr(tasks, name).enqueue()
    ticked()
    assert left() == (status, 1)
    assert the_row().error_class == "builtins.TypeError"


def test_one_that_skips_itself_has_not_failed(tasks: Any) -> None:
    tasks.body = failing(SkipRun("holiday"))
    tasks.delivered.enqueue()
    ticked()
    assert left() == ("done", 1)


def test_one_whose_row_has_no_arguments_never_can_run(tasks: Any) -> None:
    tasks.delivered.enqueue()
    OneOffJob.objects.update(args="ab")
    ticked()
    assert left() == ("failed", 1)


def test_a_release_that_does_not_retry_it_runs_it_to_its_end(tasks: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks.delivered.enqueue("hello")
    ticked()
    (attribute,) = vars(tasks.delivered.func)
    monkeypatch.delitem(vars(tasks.delivered.func), attribute)
    come_due()
    ticked()
    assert left() == ("failed", 2)
    assert (the_row().args, len(the_row().errors.splitlines())) == (["hello"], 2)


# --- users


def test_one_that_waits_can_be_cancelled_and_taken_up_again(tasks: Any) -> None:
    result = tasks.delivered.enqueue()
    ticked()
    assert OneOffJob.objects.cancel() == 1
    OneOffJob.objects.update(run_after=timezone.now())
    assert ticked() == []
    result.refresh()
    assert (result.status, result.attempts, len(result.errors)) == ("FAILED", 1, 1)
    assert OneOffJob.objects.retry() == 1
    ticked()
    assert left() == ("waiting", 2)


def test_one_that_a_user_has_stopped_has_failed_whatever_it_raises(tasks: Any, heard: list[str]) -> None:
    def stopped(*_: Any) -> None:
        assert OneOffJob.objects.stop("ada") == 1
        raise ConnectionError

    tasks.body = stopped
    tasks.delivered.enqueue()
    (report,) = ticked()
    assert (left(), report.retry_in) == (("failed", 1), None)
    assert heard == ["enqueued", "started", "finished"]


def test_one_that_is_stopped_just_before_its_end_is_recorded_does_not_begin_again(
    tasks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look(row: OneOffJob) -> str:
        assert OneOffJob.objects.stop("ada") == 1
        return ""

    monkeypatch.setattr("django_singlejob.tasks.batches.stopped_by", look)
    tasks.delivered.enqueue()
    ticked()
    assert left() == ("cancelled", 1)
    assert the_row().finished_at


# --- deaths


def die() -> None:
    """A worker started it, and died, and its lock was cleared."""
    lease = take(FIRST)
    assert OneOffJob.objects.claim(the_row(), lease.token, lease.grant.request.holder)
    expire(FIRST)
    call_command("clear_stale_locks", stdout=StringIO())
    assert is_free(FIRST)


def test_a_death_uses_up_an_attempt_and_so_a_retry(tasks: Any) -> None:
    tasks.delivered.enqueue()
    die()
    assert left() == ("waiting", 1)
    ticked()
    assert (left(), retry_in()) == (("waiting", 2), 2 * MINUTE)
    come_due()
    die()
    assert left() == ("failed", 3)
    assert "LeaseLost" in the_row().error_class


@pytest.mark.parametrize(("most", "expected"), [(1, 3), (3, 3), (5, 5)])
def test_it_begins_as_often_as_deaths_or_retries_allow(
    tasks: Any, settings: Settings, most: int, expected: int
) -> None:
    settings.TASKS = {"default": {**settings.TASKS["default"], "OPTIONS": {"max_attempts": most}}}
    tasks.delivered.enqueue()
    assert the_row().max_attempts == expected
    for _ in range(2):
        die()
    ticked()
    assert left() == ("failed", 3)


# --- how it is heard


def test_until_it_has_failed_it_makes_warnings_and_no_error(tasks: Any, caplog: pytest.LogCaptureFixture) -> None:
    tasks.delivered.enqueue()
    for seconds in 60, 120:
        caplog.clear()
        ticked()
        (record,) = [each for each in caplog.records if each.levelname != "INFO"]
        path = "tests.app.django_tasks.delivered"
        said = f"The task '{path}' failed and will be retried in {seconds} s: ConnectionError: down"
        assert (record.levelname, record.getMessage()) == ("WARNING", said)
        assert getattr(record, "singlejob_job", "") == path
        assert getattr(record, "singlejob_reason", "") == "ConnectionError"
        assert [queue.failed for queue in status().queues] == []
        come_due()
    caplog.clear()
    ticked()
    assert [each.name for each in caplog.records if each.levelname == "ERROR"] == [PACKAGE]
    assert [queue.failed for queue in status().queues] == [1]


def test_only_the_last_failure_counts_for_the_exit_status(tasks: Any) -> None:
    tasks.delivered.enqueue()
    for seconds in 60, 120:
        out, problems = StringIO(), StringIO()
        call_command("singleton_worker", once=True, verbosity=2, stdout=out, stderr=problems)
        assert f"delivered: failed and will be retried in {seconds} s, ConnectionError: down" in out.getvalue()
        assert problems.getvalue() == ""
        come_due()
    with pytest.raises(SystemExit):
        call_command("singleton_worker", once=True, stdout=StringIO(), stderr=StringIO())
