"""Clearing a lock leaves a holder alone that gives a sign of life."""

from __future__ import annotations

import time
from datetime import timedelta
from io import StringIO
from typing import TYPE_CHECKING

import pytest
from django.core.management import call_command
from django.db import connection

from django_singlejob.management.commands import clear_stale_locks
from tests.contract.acts import expire, lock, take

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from django_singlejob import Lease
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
    monkeypatch.setattr(clear_stale_locks, "dead_locks", lambda _: watched)
    assert output_of("clear_stale_locks").startswith("Left nightly, because it has a new holder, ")
    assert lock().token == lease.token


@pytest.fixture
def writer(elsewhere: Elsewhere, breakable_connection: None) -> Iterator[Callable[[Lease], None]]:
    """Begins a fenced transaction of a lease. Our own connection does not wait long for its end."""
    writers = []

    def write(lease: Lease) -> None:
        with lease.atomic():
            time.sleep(3 * BEAT.total_seconds())

    def begin(lease: Lease) -> None:
        with connection.cursor() as cursor:
            cursor.execute("PRAGMA busy_timeout = 1")
        writers.append(elsewhere(write, lease))
        while not lease.is_only_writer:
            time.sleep(0.01)

    yield begin
    for writer in writers:
        writer.result(10)


@pytest.mark.slow
@committed
@pytest.mark.on_database("sqlite")
def test_somebody_at_the_gate_is_somebody_alive(writer: Callable[[Lease], None]) -> None:
    lease = take(heartbeat_interval=BEAT)
    expire()
    writer(lease)
    assert output_of("clear_stale_locks").startswith("Left nightly, ")
    assert lock().token == lease.token


@pytest.mark.slow
@committed
@pytest.mark.on_database("sqlite")
def test_force_waits_for_somebody_in_the_way(writer: Callable[[Lease], None]) -> None:
    writer(take())
    assert output_of("clear_stale_locks", "--force", "nightly").startswith("Cleared nightly (")
