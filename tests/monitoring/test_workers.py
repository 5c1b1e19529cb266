"""The workers that monitoring lists."""

from __future__ import annotations

from datetime import UTC, timedelta

import pytest
from django.db import connections
from django.test.utils import CaptureQueriesContext

from django_singlejob.database.transactions import alias
from django_singlejob.models.holder import this_process
from django_singlejob.models.locks import locks
from django_singlejob.models.passes import passes
from django_singlejob.monitoring.health import survey
from django_singlejob.monitoring.workers import REMEMBERED, SeenWorker, serves, workers
from django_singlejob.process.clock import DBNow
from tests.contract.acts import expire, lock, set_the_databases_clock, take

pytest_plugins = "tests.fixtures"
pytestmark = [pytest.mark.usefixtures("fresh_process"), pytest.mark.django_db]

FIRST, SECOND = "django_singlejob.worker.1", "django_singlejob.worker.2"


def test_workers_are_seen_by_their_locks() -> None:
    take("nightly")
    take(FIRST)
    take(SECOND, queues=["mail", "media"])
    first, second = workers()
    assert first == SeenWorker(
        holder=lock(FIRST).holder, queues=(), seen_at=lock(FIRST).heartbeat_at, is_once=False, is_live=True
    )
    assert (second.queues, second.is_once, second.is_live) == (("mail", "media"), False, True)
    assert first.seen_at.tzinfo is UTC


def test_a_worker_whose_lease_has_expired_is_not_live() -> None:
    take(FIRST)
    take(SECOND)
    expire(FIRST)
    set_the_databases_clock(-timedelta(hours=1), SECOND)
    assert [worker.is_live for worker in workers()] == [False, False]


def test_a_lock_that_is_taken_over_has_the_queues_of_its_new_holder() -> None:
    take(FIRST, queues=["mail"])
    expire(FIRST)
    take(FIRST)
    assert [worker.queues for worker in workers()] == [()]


def test_a_pass_is_remembered_for_a_while() -> None:
    passes().mark(["mail"], this_process())
    (worker,) = workers()
    assert (worker.holder, worker.queues) == (passes().get().holder, ("mail",))
    assert (worker.is_once, worker.is_live) == (True, True)
    assert worker.seen_at.tzinfo is UTC
    passes().update(seen_at=DBNow() - REMEMBERED)
    assert workers() == []


def test_it_takes_two_queries() -> None:
    for number in range(3):
        take(f"django_singlejob.worker.{number}")
        passes().mark([str(number)], this_process())
    with CaptureQueriesContext(connections[alias()]) as statements:
        assert len(workers()) == 6
    assert len(statements) == 2


def test_neither_a_worker_nor_a_pass_is_a_job() -> None:
    lease = take(FIRST)
    passes().mark([], this_process())
    assert [(health.name, health.is_job) for health in survey().healths] == [(FIRST, False)]
    assert lease.release()
    assert survey().healths == []


def test_queues_that_somebody_edited_fail_nothing() -> None:
    take(FIRST)
    locks().update(queues=7)
    assert [worker.queues for worker in workers()] == [()]


@pytest.mark.parametrize(("queues", "is_served"), [((), True), (("mail", "media"), True), (("media",), False)])
def test_a_worker_without_queues_serves_all(queues: tuple[str, ...], is_served: bool) -> None:
    take(FIRST, queues=queues)
    (worker,) = workers()
    assert serves(worker, "mail") is is_served
