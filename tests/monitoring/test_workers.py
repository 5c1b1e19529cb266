"""The workers that monitoring lists."""

from __future__ import annotations

import pytest

from django_singlejob.models.locks import locks
from django_singlejob.models.passes import passes
from django_singlejob.monitoring.health import survey
from django_singlejob.monitoring.workers import serves, workers
from django_singlejob.process.holder import this_process
from tests.contract.acts import expire, take

pytest_plugins = "tests.fixtures"
pytestmark = [pytest.mark.usefixtures("fresh_process"), pytest.mark.django_db]

FIRST, SECOND = "django_singlejob.worker.1", "django_singlejob.worker.2"


def test_a_lock_that_is_taken_over_has_the_queues_of_its_new_holder() -> None:
    take(FIRST, queues=["mail"])
    expire(FIRST)
    take(FIRST)
    assert [worker.queues for worker in workers()] == [()]


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
