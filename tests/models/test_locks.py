"""Which locks are live or stale, and whose row a write changes."""

from __future__ import annotations

from datetime import timedelta
from uuid import uuid4

import pytest
from django.db import connections

from django_singlejob.database.transactions import durable, sent_now
from django_singlejob.models.locks import locks
from tests.contract.acts import expire, lock, set_the_databases_clock, take

pytest_plugins = "tests.fixtures"
pytestmark = [pytest.mark.usefixtures("fresh_process"), pytest.mark.django_db]

HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)
SECOND = timedelta(seconds=1)


def test_a_lock_is_either_live_or_stale() -> None:
    take("nightly")
    take("hourly")
    expire("hourly")
    assert [lock.name for lock in locks().live()] == ["nightly"]
    assert [lock.name for lock in locks().stale()] == ["hourly"]
    assert {lock.name: lock.is_stale for lock in locks().judged()} == {"nightly": False, "hourly": True}


def test_a_lock_whose_heartbeat_lies_in_the_future_is_not_live() -> None:
    for name in "live", "stale", "impossible":
        take(name)
    expire("stale")
    set_the_databases_clock(-HOUR, "impossible")
    assert [lock.name for lock in locks().live()] == ["live"]
    assert [lock.name for lock in locks().impossible()] == ["impossible"]
    assert {lock.name for lock in locks().suspected()} == {"stale", "impossible"}
    assert {lock.name for lock in locks().judged() if lock.is_impossible} == {"impossible"}


def test_a_heartbeat_that_is_a_moment_ahead_is_possible() -> None:
    """While others write, a statement may read rows that are a few milliseconds younger than itself."""
    take()
    set_the_databases_clock(-SECOND / 2)
    assert locks().live().exists()
    set_the_databases_clock(-MINUTE / 2)
    assert locks().impossible().exists()


# --- writes: name, token and what was seen


def test_a_heartbeat_that_arrives_late_does_not_hide_that_a_newer_one_was_sent() -> None:
    lease, sent_at = take(), sent_now() + SECOND
    assert locks().renew("nightly", lease.token, MINUTE, sent_at)
    assert locks().renew("nightly", lease.token, MINUTE, sent_at - SECOND)
    assert (lock().heartbeats, lock().sent_at) == (2, sent_at)


def test_heartbeats_together_change_no_row_of_another_holder() -> None:
    kept, robbed, gone = (take(name) for name in ("kept", "robbed", "gone"))
    locks().filter(name="robbed").update(token=uuid4())
    locks().filter(name="gone").delete()
    before = locks().filter(name="robbed").values().get()
    with durable(locks().db):
        assert locks().renew_together([kept, robbed, gone], HOUR, sent_now()) <= {kept.token}
    assert locks().filter(name="robbed").values().get() == before
    assert not locks().filter(name="gone").exists()


def test_without_any_row_of_its_own_nothing_is_renewed() -> None:
    gone = [take(name) for name in ("first", "second")]
    locks().all().delete()
    with durable(locks().db):
        assert locks().renew_together(gone, HOUR, sent_now()) == set()


def test_a_server_that_cannot_pass_over_a_locked_row_renews_none_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections[locks().db].features, "has_select_for_update", True)
    monkeypatch.setattr(connections[locks().db].features, "has_select_for_update_skip_locked", False)
    leases = [take(name) for name in ("first", "second")]
    assert locks().renew_together(leases, HOUR, sent_now()) == set()
