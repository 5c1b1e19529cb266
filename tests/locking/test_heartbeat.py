from __future__ import annotations

import threading
import time
from datetime import timedelta
from threading import Event
from typing import TYPE_CHECKING, Any

import pytest
from django.db import OperationalError, connection

from django_singlejob import JobTimeout, Lease, LeaseLost
from django_singlejob.interrupt import Window
from django_singlejob.locking import heartbeat
from django_singlejob.locking.heartbeat import kept_alive
from django_singlejob.querysets.locks import locks
from django_singlejob.signals import lease_lost
from tests.contract.acts import lock, take

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytest_plugins = "tests.fixtures"
pytestmark = [
    pytest.mark.usefixtures("fresh_process"),
    pytest.mark.django_db(transaction=True, available_apps=["django_singlejob"]),
]

BEAT = timedelta(seconds=0.05)
PATIENCE = 10


@pytest.fixture
def losses() -> Iterator[list[Any]]:
    """The leases that were reported as lost."""
    heard: list[Any] = []

    def hear(name: str, lease: Lease, **kwargs: object) -> None:
        assert (kwargs["sender"], name) == (Lease, lease.name)
        heard.append(lease)

    lease_lost.connect(hear)
    yield heard
    lease_lost.disconnect(hear)


def keep(lease: Lease, body: Callable[[], object], max_runtime: timedelta | None = None) -> None:
    with Window() as window, kept_alive(lease, window, max_runtime):
        window.run(body)


def wait_until(see: Callable[[], object]) -> None:
    """In short steps, so that an interrupt gets in."""
    deadline = time.monotonic() + PATIENCE
    while not see():
        assert time.monotonic() < deadline, "It was never seen."
        time.sleep(0.01)


def never() -> bool:
    return False


def threads(name: str) -> list[str]:
    return [thread.name for thread in threading.enumerate() if name in thread.name]


@pytest.mark.slow
def test_heartbeats_go_on_while_the_body_runs_and_end_with_it() -> None:
    lease = take(heartbeat_interval=BEAT)
    keep(lease, lambda: wait_until(lambda: lock().heartbeats >= 2))
    wait_until(lambda: not threads("nightly"))
    beats = lock().heartbeats
    time.sleep(3 * BEAT.total_seconds())
    assert lock().heartbeats == beats
    assert lock().heartbeat_at > lock().acquired_at


def test_a_body_shorter_than_an_interval_opens_no_other_connection() -> None:
    lease = take(heartbeat_interval=timedelta(minutes=1))
    keep(lease, lambda: time.sleep(0.1))
    assert lock().heartbeats == 0


def test_without_an_interval_there_are_no_heartbeats() -> None:
    lease = take(heartbeat_interval=None)
    keep(lease, lambda: time.sleep(0.1))
    assert lock().heartbeats == 0


def test_the_threads_are_daemons_with_names() -> None:
    lease = take(heartbeat_interval=BEAT)
    keep(lease, lambda: wait_until(lambda: threads("keeper of nightly")))
    assert all(thread.daemon for thread in threading.enumerate() if "nightly" in thread.name)


@pytest.mark.django_db
def test_in_a_transaction_of_the_tests_there_is_no_thread() -> None:
    keep(take(heartbeat_interval=BEAT), lambda: pytest.fail("it runs") if threads("nightly") else None)


@pytest.mark.django_db
def test_but_max_runtime_counts_there_too() -> None:
    with pytest.raises(JobTimeout):
        keep(take(heartbeat_interval=BEAT), lambda: wait_until(never), max_runtime=2 * BEAT)
    assert lock().heartbeats == 0


@pytest.mark.slow
def test_a_body_past_its_time_is_interrupted_once() -> None:
    lease = take(heartbeat_interval=BEAT)

    def body() -> None:
        with pytest.raises(JobTimeout):
            wait_until(never)
        beats = lock().heartbeats
        wait_until(lambda: lock().heartbeats > beats + 1)

    keep(lease, body, max_runtime=2 * BEAT)
    lease.check()


def test_a_lock_that_is_gone_is_noticed_at_the_next_heartbeat(losses: list[Lease]) -> None:
    lease = take(heartbeat_interval=BEAT)

    def body() -> None:
        locks()._raw_delete("default")
        wait_until(never)

    with pytest.raises(LeaseLost):
        keep(lease, body)
    wait_until(lambda: losses == [lease])
    with pytest.raises(LeaseLost, match="taken over, cleared, or its row was deleted"):
        lease.check()


# --- heartbeats that do not get through


@pytest.mark.slow
def test_a_failed_heartbeat_is_not_a_loss_and_soon_followed_by_another(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    lease = take(heartbeat_interval=timedelta(seconds=2))
    failed_at: list[float] = []
    renew = lease.renew

    def fail_first() -> None:
        failed_at.append(time.monotonic())
        if len(failed_at) == 1:
            raise OperationalError("the network is away")
        renew()

    monkeypatch.setattr(lease, "renew", fail_first)
    keep(lease, lambda: wait_until(lambda: lock().heartbeats))
    assert failed_at[1] - failed_at[0] < 1.5
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "A heartbeat of 'nightly' failed and will be retried soon: the network is away" in caplog.text


def test_a_thread_that_cannot_be_started_is_not_a_loss(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    lease = take(heartbeat_interval=BEAT)
    refused: list[str] = []
    start = heartbeat._start_thread

    def refuse_first(target: Callable[[], None], name: str) -> None:
        if "heartbeat" in name and not refused:
            refused.append(name)
            raise RuntimeError("can't start new thread")
        start(target, name)

    monkeypatch.setattr(heartbeat, "_start_thread", refuse_first)
    keep(lease, lambda: wait_until(lambda: lock().heartbeats))
    assert refused == ["heartbeat of nightly"]
    assert "can't start new thread" in caplog.text


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Lease], Event]]:
    """Holds up the heartbeats of a lease until the event is set, like a driver that waits for the network."""
    moved = Event()

    def hold_up(lease: Lease) -> Event:
        renew = lease.renew

        def renew_late() -> None:
            moved.wait(PATIENCE)
            renew()

        monkeypatch.setattr(lease, "renew", renew_late)
        return moved

    yield hold_up
    moved.set()
    wait_until(lambda: not threads("nightly"))


@pytest.mark.slow
def test_a_heartbeat_that_is_stuck_hides_no_loss(stuck: Callable[[Lease], Event], losses: list[Lease]) -> None:
    lease = take(lease=4 * BEAT, heartbeat_interval=BEAT)
    stuck(lease)
    begun_at = time.monotonic()
    with pytest.raises(LeaseLost):
        keep(lease, lambda: wait_until(never))
    assert time.monotonic() - begun_at < 5
    wait_until(lambda: losses == [lease])
    with pytest.raises(LeaseLost, match="was not renewed for"):
        lease.check()


@pytest.mark.slow
def test_heartbeats_that_are_stuck_do_not_pile_up(stuck: Callable[[Lease], Event]) -> None:
    lease = take(heartbeat_interval=BEAT / 2)
    moved = stuck(lease)
    keep(lease, lambda: time.sleep(5 * BEAT.total_seconds()))
    assert len(threads("heartbeat of nightly")) == heartbeat.MOST_BEATS
    moved.set()


@pytest.mark.slow
def test_a_lease_can_be_unproven_for_a_while_and_then_proven_again(
    stuck: Callable[[Lease], Event], losses: list[Lease]
) -> None:
    lease = take(lease=4 * BEAT, heartbeat_interval=BEAT)
    moved = stuck(lease)

    def body() -> None:
        with pytest.raises(LeaseLost):
            wait_until(never)
        moved.set()
        wait_until(lambda: not lease.lost)
        time.sleep(4 * BEAT.total_seconds())
        lease.check()

    keep(lease, body)
    wait_until(lambda: losses == [lease])


def test_a_heartbeat_that_fails_after_the_body_is_nobodys_business(
    stuck: Callable[[Lease], Event], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = take(heartbeat_interval=BEAT)
    begun, go_on = Event(), Event()

    def fail_late() -> None:
        begun.set()
        go_on.wait(PATIENCE)
        raise OperationalError("the network is away")

    monkeypatch.setattr(lease, "renew", fail_late)
    keep(lease, lambda: begun.wait(PATIENCE))
    go_on.set()
    wait_until(lambda: not threads("nightly"))
    assert caplog.records == []
    assert connection.is_usable()
