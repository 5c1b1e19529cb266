"""What is due in each queue, and what has failed lately."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from django_singlejob.conf import ZERO
from django_singlejob.models import OneOffJob
from django_singlejob.models.one_offs import one_offs
from django_singlejob.monitoring.queues import Queue, queues
from django_singlejob.process.clock import DBNow

if TYPE_CHECKING:
    from pytest_django import DjangoAssertNumQueries

pytestmark = pytest.mark.django_db

HOUR, MINUTE, SECOND = timedelta(hours=1), timedelta(minutes=1), timedelta(seconds=1)


def place(queue: str = "default", *, due: timedelta = ZERO, count: int = 1, **columns: Any) -> None:
    """One-offs that have been due for that long."""
    facts: dict[str, Any] = {"queue_name": queue, "run_after": DBNow() - due, "created_at": DBNow()}
    one_offs().bulk_create(OneOffJob(**facts | columns) for _ in range(count))


def finish(status: str, queue: str = "default", *, count: int = 1, ago: timedelta = MINUTE) -> None:
    place(queue, count=count, status=status, finished_at=DBNow() - ago)


def by_name(**given: Any) -> dict[str, Queue]:
    return {queue.name: queue for queue in queues(**given)}


def test_a_long_queue_does_not_hide_others(
    monkeypatch: pytest.MonkeyPatch, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    monkeypatch.setattr("django_singlejob.monitoring.queues.MOST", 3)
    place("long", due=2 * HOUR, count=4)
    for number in range(2):
        place(f"dead-{number}", due=HOUR + number * MINUTE, count=1 + number)
    place("other", due=MINUTE, count=5)
    with django_assert_num_queries(2):
        found = by_name()
    assert {name: (queue.due, queue.is_cut) for name, queue in found.items()} == {
        "long": (3, True),
        "dead-0": (1, False),
        "dead-1": (2, False),
        "other": (3, True),
    }
    assert [found[name].oldest // MINUTE for name in ("long", "dead-0", "dead-1", "other")] == [120, 60, 61, 1]


def test_of_very_many_that_finished_the_newest_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_singlejob.monitoring.queues.MOST", 4)
    finish("failed", ago=HOUR / 2, count=4)
    assert (by_name()["default"].failed, by_name()["default"].failed_share) == (4, 1)
    finish("done", count=9)
    (queue,) = queues()
    assert (queue.failed, queue.finished, queue.failed_share) == (4, None, 0)
