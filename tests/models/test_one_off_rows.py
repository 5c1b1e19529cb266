"""Whose one-offs a write changes."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from django_singlejob import singleton_job
from django_singlejob.database.transactions import alias, durable
from django_singlejob.jobs import registry
from django_singlejob.models.one_offs import errors_in, line_of, one_offs
from django_singlejob.process.clock import DBNow
from django_singlejob.process.holder import this_process
from django_singlejob.running.enqueue import Order, place
from django_singlejob.tasks.batches import task_rows
from tests.contract.acts import in_thread
from tests.databases import APPS

if TYPE_CHECKING:
    from collections.abc import Callable

    from django_singlejob.models import OneOffJob

pytest_plugins = "tests.fixtures"
pytestmark = [pytest.mark.usefixtures("fresh_process"), pytest.mark.django_db]

MINUTE = timedelta(minutes=1)


def mail(**columns: Any) -> OneOffJob:
    """A task that is due."""
    row = place(Order(task_path="shop.tasks.mail", max_attempts=3), [], {}, **columns)
    one_offs().filter(pk=row.pk).update(run_after=DBNow() - MINUTE)
    return row


def again(row: OneOffJob) -> OneOffJob:
    return one_offs().get(pk=row.pk)


def test_the_next_are_those_of_the_highest_priority_and_of_these_the_ones_that_were_due_first() -> None:
    rows = [mail(priority=priority) for priority in (0, 0, 5, 5, -1)]
    for late in rows[1], rows[3]:
        one_offs().filter(pk=late.pk).update(run_after=DBNow() - 2 * MINUTE)
    expected = [rows[number] for number in (3, 2, 1, 0, 4)]
    for most in range(1, 6):
        assert task_rows().lock_due(most) == expected[:most]
    assert one_offs().next_due() == expected[0]


# --- claims


def test_what_is_claimed_in_a_batch_is_in_hand_as_it_is_in_the_database() -> None:
    for _ in range(2):
        mail(attempt=1, version=4, worker_ids="web-2:1\n")
    rows, token = task_rows().lock_due(2), uuid4()
    assert task_rows().claim_locked(rows, token, this_process())
    for row in rows:
        stored = again(row)
        for field in "status", "version", "attempt", "token", "worker_ids":
            assert getattr(row, field) == getattr(stored, field), field
        assert abs(row.started_at - stored.started_at) < MINUTE  # type: ignore[operator]
    assert not task_rows().claim_locked(rows, uuid4(), this_process())
    assert {row.token for row in one_offs()} == {token}


@pytest.mark.on_database("postgresql", "mysql")
@pytest.mark.django_db(transaction=True, available_apps=APPS)
def test_what_another_worker_is_about_to_claim_is_not_waited_for() -> None:
    rows = [mail() for _ in range(3)]

    def lock_due() -> list[OneOffJob]:
        with durable(alias()):
            return task_rows().lock_due(3)

    with durable(alias()):
        assert task_rows().lock_due(2) == rows[:2]
        assert in_thread(lock_due) == rows[2:]
    assert lock_due() == rows


# --- ends


def test_each_change_of_a_row_raises_its_version() -> None:
    singleton_job("mail")(lambda: None)
    job, row, token = registry.get("mail"), mail(), uuid4()
    one = task_rows().filter(pk=row.pk)
    changes: list[Callable[[], object]] = [
        lambda: one.claim(again(row), token, this_process()),
        lambda: one.release(token),
        lambda: one.claim(again(row), token, this_process()),
        lambda: one.put_back("Its worker died."),
        lambda: one.claim_locked(one.lock_due(1), token, this_process()),
        lambda: one.finish(token, {"status": "failed"}),
        one.retry,
        lambda: one.make_exclusive(job),
        one.cancel,
    ]
    for version, change in enumerate(changes, start=1):
        assert change()
        assert again(row).version == version
    assert again(row).finished_at


def test_one_that_was_marked_as_in_progress_by_hand_has_no_attempt_to_take_back() -> None:
    row, token = mail(), uuid4()
    one_offs().update(status="in_progress", token=token)
    assert one_offs().release(token) == 1
    assert (again(row).status, again(row).attempt) == ("waiting", 0)


def test_a_line_that_is_no_error_of_ours_is_passed_over() -> None:
    error = {"error": "Oh no", "error_class": "builtins.ValueError", "traceback": "", "origin": ""}
    strange = ["[1]", "5", '{"error": 5}', '{"error": null}', "{", "[" * 100_000, '"error"']
    assert [*errors_in("\n".join([*strange, line_of(error)]))] == [error]


# --- a function that becomes a job


def test_waiting_tasks_of_a_function_that_has_become_a_job_wait_for_its_lock() -> None:
    waiting, running = mail(), mail()
    assert one_offs().claim(running, uuid4(), this_process())
    singleton_job("mail", max_attempts=5)(lambda: None)
    assert task_rows().make_exclusive(registry.get("mail")) == 1
    changed = again(waiting)
    assert (changed.job_name, changed.task_path, changed.max_attempts) == ("mail", "", 5)
    assert changed.version == waiting.version + 1
    assert one_offs().exclusive().get() == changed
    assert one_offs().parallel().get() == again(running)


# --- in batches


def test_each_row_is_in_one_batch_whatever_becomes_of_it() -> None:
    keys = [mail().pk for _ in range(5)]
    found = []
    for batch in one_offs().waiting().batches(2):
        found.append(list(batch.order_by("pk").values_list("pk", flat=True)))
        assert batch.cancel() == len(found[-1])
    assert found == [keys[:2], keys[2:4], keys[4:]]
    assert not list(one_offs().waiting().batches())
