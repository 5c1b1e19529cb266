"""Heartbeats that one statement sends: what another transaction holds up is one lease, and all count from before."""

from __future__ import annotations

from datetime import timedelta
from threading import Event
from typing import TYPE_CHECKING, Any

import pytest
from django.db import transaction

from django_singlejob import job_lock
from django_singlejob.locking.heartbeat import Heartbeats
from django_singlejob.models.locks import JobLockQuerySet, locks
from django_singlejob.process.clock import local_now
from tests.contract.acts import take
from tests.databases import APPS
from tests.waiting import work_for

if TYPE_CHECKING:
    from tests.fixtures import Elsewhere

pytest_plugins = "tests.fixtures"
pytestmark = [
    pytest.mark.django_db(transaction=True, available_apps=APPS),
    pytest.mark.usefixtures("fresh_process"),
]


def test_leases_count_from_before_their_heartbeats_were_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    renew, asked_at = JobLockQuerySet.renew_together, list[float]()

    def answer_late(self: JobLockQuerySet, *arguments: Any) -> Any:
        asked_at.append(local_now())
        answer = renew(self, *arguments)
        work_for(0.05)
        return answer

    monkeypatch.setattr(JobLockQuerySet, "renew_together", answer_late)
    heartbeats = Heartbeats()
    leases = [take(name, heartbeat_interval=timedelta(microseconds=1)) for name in ("first", "second")]
    for lease in leases:
        heartbeats.add(lease)
    heartbeats.beat()
    assert all(lease.grant.asked_at < lease._state.proven_at <= asked_at[0] for lease in leases)


@pytest.mark.slow
@pytest.mark.on_database("postgresql", "mysql")  # SQLite locks no rows
def test_a_row_that_is_locked_lets_no_other_lease_expire(elsewhere: Elsewhere) -> None:
    begun, over = Event(), Event()

    def lock_the_row() -> None:
        with transaction.atomic():
            locks().select_for_update().get(name="locked")
            begun.set()
            over.wait(20)

    lease = timedelta(seconds=6)
    with (
        job_lock("first", lease=lease) as first,
        job_lock("third", lease=lease) as third,
        job_lock("locked", lease=lease),
    ):
        busy = elsewhere(lock_the_row)
        begun.wait(10)
        try:
            until = local_now() + 8
            while local_now() < until:
                first.check()
                third.check()
                work_for(0.02)
            assert [first.lost, third.lost] == [False, False]
        finally:
            over.set()
            busy.result(20)
