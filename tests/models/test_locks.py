"""Which locks are live, stale or overrunning, and whose row a write changes."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from django.db import connections

from django_singlejob.database.transactions import durable, sent_now
from django_singlejob.models.jobs import gates
from django_singlejob.models.locks import locks
from django_singlejob.process.clock import DBNow
from tests.contract.acts import everything, expire, lock, set_the_databases_clock, start_run, take

if TYPE_CHECKING:
    from pytest_django import Settings

pytest_plugins = "tests.fixtures"
pytestmark = [pytest.mark.usefixtures("fresh_process"), pytest.mark.django_db]

HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)
SECOND = timedelta(seconds=1)


# --- late locks


def means(mean: timedelta | None, *, count: int = 5) -> dict[str, timedelta]:
    gates().update(mean_duration=mean, run_count=count)
    return gates().means()


@pytest.mark.parametrize(("factor", "held_for", "is_overrunning"), [(3, 2.9, False), (3, 3.1, True), (1.5, 1.6, True)])
def test_a_live_holder_is_overrunning_past_a_multiple_of_the_mean(
    settings: Settings, factor: float, held_for: float, is_overrunning: bool
) -> None:
    settings.SINGLEJOB = {"OVERRUN_FACTOR": factor}
    start_run()
    locks().update(acquired_at=DBNow() - MINUTE * held_for)
    assert locks().overrunning(means(MINUTE)).exists() is is_overrunning


def test_no_other_is_overrunning() -> None:
    start_run("nightly")
    start_run("hourly")
    take("block")
    locks().update(acquired_at=DBNow() - 10 * MINUTE)
    gates().filter(name="nightly").update(mean_duration=MINUTE, run_count=5)
    gates().filter(name="hourly").update(mean_duration=4 * MINUTE, run_count=5)
    assert [late.name for late in locks().overrunning(gates().means())] == ["nightly"]
    expire("nightly")
    assert not locks().overrunning(gates().means()).exists()
    assert not locks().overrunning({}).exists()


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


def test_those_whose_holders_may_be_dead_come_first() -> None:
    start_run("older")
    start_run("newer")
    for name in "block", "impossible", "stale":
        take(name)
    locks().filter(name="older").update(acquired_at=DBNow() - MINUTE)
    locks().filter(name="block").update(acquired_at=DBNow() - HOUR)
    expire("stale")
    set_the_databases_clock(-HOUR, "impossible")
    assert [lock.name for lock in locks().worst_first()] == ["impossible", "stale", "older", "newer", "block"]
    assert [lock.name for lock in locks().worst_first().survey(2)] == ["impossible", "stale"]


# --- writes: name, token and what was seen


def test_a_heartbeat_renews_the_lease() -> None:
    lease, sent_at = take(), sent_now()
    expire()
    assert locks().renew("nightly", lease.token, HOUR, sent_at)
    renewed = lock()
    assert (renewed.heartbeats, renewed.sent_at, renewed.is_stale) == (1, sent_at, False)
    assert abs(renewed.expires_at - renewed.heartbeat_at - HOUR) < SECOND


def test_a_heartbeat_that_arrives_late_does_not_hide_that_a_newer_one_was_sent() -> None:
    lease, sent_at = take(), sent_now() + SECOND
    assert locks().renew("nightly", lease.token, MINUTE, sent_at)
    assert locks().renew("nightly", lease.token, MINUTE, sent_at - SECOND)
    assert (lock().heartbeats, lock().sent_at) == (2, sent_at)


def test_heartbeats_together_renew_each_lease() -> None:
    leases, sent_at = [take(name) for name in ("first", "second")], sent_now()
    bystander = take("bystander")
    with durable(locks().db):
        assert locks().renew_together(leases, HOUR, sent_at) == {lease.token for lease in leases}
    for lease in leases:
        renewed = lock(lease.name)
        assert (renewed.token, renewed.heartbeats, renewed.sent_at) == (lease.token, 1, sent_at)
        assert abs(renewed.expires_at - renewed.heartbeat_at - HOUR) < SECOND
    assert lock(bystander.name).heartbeats == 0


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


def test_a_token_changes_no_row_but_its_own() -> None:
    """Neither that of another lock, nor that of a later holder of the same one."""
    token = take("nightly").token
    take("hourly")
    before = everything()
    for name, stranger in ("hourly", token), ("nightly", uuid4()):
        assert not locks().renew(name, stranger, HOUR, sent_now())
        assert not locks().release(name, stranger)
    assert everything() == before
    assert locks().release("nightly", token)
    assert [lock.name for lock in locks()] == ["hourly"]


@pytest.mark.parametrize("change", ["name", "token", "heartbeats"])
def test_a_row_that_is_not_the_one_that_was_seen_is_neither_taken_over_nor_cleared(change: str) -> None:
    take("nightly")
    take("hourly")
    expire("nightly")
    expire("hourly")
    seen = lock("nightly")
    setattr(seen, change, {"name": "hourly", "token": uuid4(), "heartbeats": seen.heartbeats + 1}[change])
    before = everything()
    assert not locks().take_over(seen, {"hostname": "web-2"})
    assert not locks().clear(seen, force=False)
    # A command that clears by force means this holder, however lively it is.
    assert locks().clear(seen, force=True) is (change == "heartbeats")
    assert (everything() == before) is (change != "heartbeats")


def test_a_live_holder_is_neither_replaced_nor_cleared() -> None:
    take()
    assert not locks().take_over(lock(), {"hostname": "web-2"})
    assert not locks().clear(lock(), force=False)
    seen = lock()
    expire()
    assert locks().take_over(seen, {"hostname": "web-2"})
    assert lock().hostname == "web-2"
    assert locks().clear(lock(), force=False)
    assert not locks().exists()
