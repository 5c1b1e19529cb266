"""Clearing a lock leaves a holder alone that gives a sign of life."""

from __future__ import annotations

import threading
from datetime import timedelta
from io import StringIO
from typing import TYPE_CHECKING

import pytest
from django.core.management import call_command
from django.db import OperationalError, connection, transaction

from django_singlejob import UnsafeTransaction
from django_singlejob.database import timeline
from django_singlejob.locking.clear import Watchman, clear, dead_locks
from django_singlejob.process import clock
from django_singlejob.signals import lock_taken_over
from tests.contract.acts import expire, lock, stop_the_clock, take
from tests.database.test_errors import an_error
from tests.waiting import PATIENCE, eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future

    from django_singlejob import Lease
    from django_singlejob.models import JobLock
    from tests.fixtures import Elsewhere

pytest_plugins = "tests.fixtures"
pytestmark = [pytest.mark.usefixtures("fresh_process"), pytest.mark.django_db]
committed = pytest.mark.django_db(transaction=True, available_apps=["django_singlejob"])

BEAT = timedelta(seconds=0.1)


def output_of(*command: str) -> str:
    """The output of the command."""
    output = StringIO()
    call_command(*command, stdout=output, stderr=output, no_color=True)
    return output.getvalue()


# --- clear_stale_locks


def test_a_sign_of_life_in_the_last_moment_saves_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    lease = take()
    expire()
    watched = [lock()]
    lease.renew()
    monkeypatch.setattr("django_singlejob.management.commands.clear_stale_locks.dead_locks", lambda _: watched)
    assert output_of("clear_stale_locks").startswith("Left nightly, because it has a new holder, ")
    assert lock().token == lease.token


@committed
def test_nothing_is_cleared_inside_a_transaction() -> None:
    take()
    seen = lock()
    with transaction.atomic(), pytest.raises(UnsafeTransaction):
        clear(seen, force=True)
    assert clear(seen, force=True)


def test_a_lock_that_is_cleared_is_reported_as_one_that_has_no_successor() -> None:
    heard: list[tuple[str, object, JobLock]] = []

    def hear(name: str, lease: object, lock: JobLock, **_: object) -> None:
        heard.append((name, lease, lock))

    take()
    seen = lock()
    lock_taken_over.connect(hear)
    try:
        assert not clear(seen)
        assert clear(seen, force=True)
    finally:
        lock_taken_over.disconnect(hear)
    assert heard == [("nightly", None, seen)]


def test_only_a_conflict_with_others_leaves_it_for_later(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    take()
    seen = lock()
    monkeypatch.setattr("django_singlejob.locking.clear.take_from", fail)
    error = an_error("40001")
    assert not clear(seen)
    error = an_error("08006")
    with pytest.raises(OperationalError):
        clear(seen)
    assert lock().token == seen.token


@pytest.fixture
def writer(elsewhere: Elsewhere, breakable_connection: None) -> Iterator[Callable[..., None]]:
    """Begins a fenced transaction of a lease, which ends with the test, or when `over` is set. Our own connection does
    not wait long for its end."""
    writers: list[Future[None]] = []
    ends: list[threading.Event] = []

    def write(lease: Lease, over: threading.Event) -> None:
        with lease.atomic():
            over.wait(PATIENCE)

    def begin(lease: Lease, over: threading.Event | None = None) -> None:
        ends.append(over or threading.Event())
        with connection.cursor() as cursor:
            cursor.execute("PRAGMA busy_timeout = 1")
        writers.append(elsewhere(write, lease, ends[-1]))
        eventually(lambda: lease.is_only_writer)

    yield begin
    for over in ends:
        over.set()
    for writer in writers:
        writer.result(PATIENCE)


@pytest.mark.slow
@committed
@pytest.mark.on_database("sqlite")
def test_somebody_at_the_gate_is_somebody_alive(writer: Callable[..., None]) -> None:
    lease = take(heartbeat_interval=BEAT)
    expire()
    writer(lease)
    assert output_of("clear_stale_locks").startswith("Left nightly, ")
    assert lock().token == lease.token


@pytest.mark.slow
@committed
@pytest.mark.on_database("sqlite")
def test_force_waits_for_somebody_in_the_way(writer: Callable[..., None]) -> None:
    over = threading.Event()
    writer(take(), over)
    threading.Timer(3 * BEAT.total_seconds(), over.set).start()
    assert output_of("clear_stale_locks", "--force", "nightly").startswith("Cleared nightly (")


def test_a_command_looks_again_and_again_until_it_knows_but_not_all_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    take(heartbeat_interval=BEAT)
    expire()
    looks, usual = [], Watchman.dead

    def counting(watchman: Watchman) -> list[JobLock]:
        looks.append(watchman)
        return usual(watchman)

    monkeypatch.setattr(Watchman, "dead", counting)
    stop_the_clock(monkeypatch)
    begun_at = clock.local_now()
    assert [lock.name for lock in dead_locks()] == ["nightly"]
    assert clock.since(begun_at) >= 2 * BEAT
    assert len(looks) < 30


# --- the watch of a worker


@pytest.mark.on_database("postgresql")
def test_after_a_failover_a_watch_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """The failover may have lost a later grant, whose holder finds out by a heartbeat. Once the lock is cleared, its
    gate does not show that it was last granted before the failover, so the next caller would not wait."""
    monkeypatch.setattr(timeline, "_silent", set())
    let_it_pass = stop_the_clock(monkeypatch)
    take(heartbeat_interval=2 * BEAT)
    expire()
    watchman = Watchman()
    for number in (1, 7):
        monkeypatch.setattr(timeline, "SQL", str(number))
        for _ in range(4):
            assert not watchman.dead()
            let_it_pass(BEAT)
    assert watchman.dead()


@pytest.mark.on_database("postgresql")
def test_what_was_seen_before_a_failover_is_not_cleared_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline, "_silent", set())
    take()
    expire()
    seen = lock()
    with monkeypatch.context() as promoted:
        promoted.setattr(timeline, "SQL", "7")
        assert not clear(seen)
        assert lock().token == seen.token
    assert clear(seen)


@pytest.mark.parametrize("interval", [timedelta(microseconds=1), timedelta(milliseconds=2), timedelta(milliseconds=49)])
def test_an_interval_that_no_holder_keeps_does_not_make_observers_ask_all_the_time(
    interval: timedelta, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each look takes statements, and it must not be too late at once."""
    stop_the_clock(monkeypatch)
    take(heartbeat_interval=interval)
    expire()
    looks, usual = [], Watchman.dead

    def counting(watchman: Watchman) -> list[JobLock]:
        looks.append(clock.local_now())
        return usual(watchman)

    monkeypatch.setattr(Watchman, "dead", counting)
    assert [lock.name for lock in dead_locks()] == ["nightly"]
    assert len(looks) < 20
    assert looks[-1] - looks[0] >= 2
