"""The lock of a worker, by which others see it, and under which its tasks are in progress."""

from __future__ import annotations

import signal
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_singlejob.locking import acquire
from django_singlejob.locking.clear import clear
from django_singlejob.locking.request import Reason, Refusal
from django_singlejob.models.locks import locks
from django_singlejob.process.received_signals import deferred_signals
from django_singlejob.worker.lock import WorkerLock
from tests.contract.acts import is_free, lock, take

if TYPE_CHECKING:
    from django_singlejob import Lease

pytest_plugins = "tests.fixtures"
pytestmark = [pytest.mark.usefixtures("fresh_process"), pytest.mark.django_db]

FIRST, SECOND = "django_singlejob.worker.1", "django_singlejob.worker.2"


@pytest.fixture
def ours() -> WorkerLock:
    return WorkerLock(["mail"], nullcontext)


def held(ours: WorkerLock) -> Lease:
    lease = ours.hold()
    assert lease
    return lease


# --- held


def test_it_is_held_without_another_question_until_it_is_released(ours: WorkerLock) -> None:
    lease = held(ours)
    with CaptureQueriesContext(connection) as queries:
        assert ours.hold() is lease
    assert len(queries) == 0
    assert lock(FIRST).queues == ["mail"]
    ours.release()
    assert (ours.lease, is_free(FIRST)) == (None, True)


def test_each_worker_has_the_lowest_number_that_is_free(ours: WorkerLock) -> None:
    other = WorkerLock([], nullcontext)
    assert [held(ours).name, held(other).name] == [FIRST, SECOND]
    ours.release()
    assert held(ours).name == FIRST


def test_if_another_worker_is_faster_it_takes_the_next_one(ours: WorkerLock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a worker with --drain would exit although something is due."""
    usual = acquire.acquire

    def be_slow(request: Any, *_: Any) -> Any:
        if request.name == FIRST:
            take(request.name)
        return usual(request)

    monkeypatch.setattr("django_singlejob.worker.lock.acquire", be_slow)
    assert held(ours).name == SECOND


def test_it_keeps_nothing_waiting(ours: WorkerLock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each try may take five seconds if something is in the way each time, and jobs may be due meanwhile."""
    asked: list[str] = []

    def be_undecided(request: Any, *_: Any) -> Refusal:
        asked.append(request.name)
        return Refusal(Reason.UNDECIDED)

    with monkeypatch.context() as patch:
        patch.setattr("django_singlejob.worker.lock.acquire", be_undecided)
        assert ours.hold() is None
    assert asked == [FIRST]
    assert held(ours).name == FIRST  # at the next look


def test_one_that_is_to_end_asks_for_no_other(ours: WorkerLock, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = acquire.acquire

    def be_slow(request: Any, *_: Any) -> Any:
        take(request.name)
        signal.raise_signal(signal.SIGTERM)
        return usual(request)

    monkeypatch.setattr("django_singlejob.worker.lock.acquire", be_slow)
    with deferred_signals():
        assert ours.hold() is None
    assert locks().get().name == FIRST


def lose_trust(lease: Lease, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after an outage that was longer than the lease."""
    monkeypatch.setattr(lease, "is_private", False)
    monkeypatch.setattr(lease._state, "proven_at", float("-inf"))


def test_one_that_was_lost_is_replaced(ours: WorkerLock) -> None:
    former = held(ours)
    assert clear(lock(FIRST), force=True)
    former.distrust()
    assert held(ours).token != former.token
    assert lock(FIRST).token == held(ours).token


def test_one_that_is_still_its_own_is_kept(ours: WorkerLock, monkeypatch: pytest.MonkeyPatch) -> None:
    lease = held(ours)
    lose_trust(lease, monkeypatch)
    assert ours.hold() is lease
    assert lock(FIRST).heartbeats == 1
