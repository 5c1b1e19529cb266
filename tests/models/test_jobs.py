from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from django.db import connection

from django_singlejob import LockHeld, current_run, job_lock, singleton_job
from django_singlejob.database import transactions
from django_singlejob.database.timeline import GRANT_BITS
from django_singlejob.jobs import registry
from django_singlejob.models.jobs import database_now, gates
from django_singlejob.process.clock import DBNow
from tests.contract.acts import (
    die_running,
    everything,
    fall_behind,
    gate,
    in_thread,
    lock,
    scheduled,
    take,
)
from tests.databases import APPS

if TYPE_CHECKING:
    from pytest_django import DjangoAssertNumQueries

pytest_plugins = "tests.fixtures"
pytestmark = [pytest.mark.usefixtures("fresh_process"), pytest.mark.django_db]

DAY = timedelta(days=1)
HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)


# --- the gate


def edit(columns: dict[str, dict[str, Any]]) -> None:
    """Write these columns into the gates of these names."""
    gates().remember(*columns)
    for name, changes in columns.items():
        gates().filter(name=name).update(**changes)


def test_what_is_remembered_already_stays_as_it_is() -> None:
    take()
    before = everything()
    gates().remember("nightly", "hourly")
    assert gate("hourly").fence == 0
    gates().filter(name="hourly").delete()
    assert everything() == before


def test_a_touch_changes_nothing() -> None:
    take()
    before = everything()
    gates().touch("nightly")
    gates().touch("hourly")
    assert everything() == before


def test_a_job_is_ready_unless_it_is_paused_or_started_a_moment_ago() -> None:
    gates().remember("never", "paused", "paused for now", "earlier", "just now", "in the future")
    gates().filter(name="paused").update(paused=True)
    gates().filter(name="paused for now").update(paused=True, paused_until=DBNow() + MINUTE)
    gates().filter(name="earlier").update(last_started_at=DBNow() - 2 * MINUTE)
    gates().filter(name="just now").update(last_started_at=DBNow())
    gates().filter(name="in the future").update(last_started_at=DBNow() + DAY)  # the clock was set back since
    assert {gate.name for gate in gates().ready(MINUTE)} == {"never", "earlier", "in the future"}
    assert {gate.name for gate in gates().ready(0 * MINUTE)} == {"never", "earlier", "in the future", "just now"}
    earlier = gates().get(name="earlier")
    assert gates().unchanged(earlier).start(MINUTE, {})
    assert not gates().unchanged(earlier).start(MINUTE, {})


def test_a_gate_is_due_at_its_slot_or_at_once_if_its_holder_died_but_never_while_it_is_paused() -> None:
    edit(
        {
            "due": {"next_slot": DBNow() - MINUTE},
            "long due": {"next_slot": DBNow() - HOUR},
            "coming": {"next_slot": DBNow() + MINUTE},
            "died": {"next_slot": DBNow() + HOUR, "abandoned": True},
            "paused": {"next_slot": DBNow() - MINUTE, "paused": True},
            "died, paused": {"next_slot": DBNow() + HOUR, "abandoned": True, "paused": True},
            "paused for now": {"next_slot": DBNow() - MINUTE, "paused": True, "paused_until": DBNow() + MINUTE},
            "no longer paused": {"next_slot": DBNow() - DAY, "paused": True, "paused_until": DBNow() - MINUTE},
            "without a schedule": {},
        }
    )
    gates().filter(next_slot__isnull=False).update(schedule="@hourly")
    assert [gate.name for gate in gates().due()] == ["no longer paused", "long due", "due", "died"]


def test_a_pause_has_an_end_a_reason_and_a_user_and_can_be_changed() -> None:
    gates().remember("nightly")
    end = database_now() + HOUR
    assert gates().pause("nightly", until=end, reason="upgrade", by="anna")
    assert pause_of("nightly") == (True, end, "upgrade", "anna")
    assert not gates().pause("nightly", until=end, reason="upgrade", by="bruno")
    assert gates().pause("nightly", until=end + HOUR, reason="upgrade", by="bruno")
    assert gates().pause("nightly", until=end + HOUR, reason="takes longer", by="carla")
    assert pause_of("nightly") == (True, end + HOUR, "takes longer", "carla")
    assert gates().pause("nightly")
    assert pause_of("nightly") == (True, None, "", "")
    assert gates().pause("nightly", until=end)
    assert pause_of("nightly") == (True, end, "", "")
    assert gates().resume("nightly")
    assert pause_of("nightly") == (False, None, "", "")


def pause_of(name: str) -> tuple[object, ...]:
    return gates().values_list("paused", "paused_until", "pause_reason", "paused_by").get(name=name)


def test_a_pause_ends_by_the_databases_clock_and_nobody_has_to_write() -> None:
    gates().remember("nightly")
    assert not gates().pause("nightly", until=database_now() - MINUTE)
    assert gates().pause("nightly", until=database_now() + HOUR, reason="upgrade")
    assert gates().paused().exists()
    assert gates().survey()["nightly"].is_paused
    gates().update(paused_until=DBNow() - MINUTE)
    assert not gates().paused().exists()
    assert gates().paused(lately=2 * MINUTE).exists()
    assert not gates().paused(lately=MINUTE / 2).exists()
    assert not gates().survey()["nightly"].is_paused
    assert gates().ready(0 * MINUTE).exists()
    assert not gates().resume("nightly")
    assert gates().pause("nightly", by="anna")
    assert pause_of("nightly") == (True, None, "", "anna")


def test_a_reason_is_cut_and_cannot_forge_a_line() -> None:
    gates().remember("nightly")
    assert gates().pause("nightly", reason="two\nlines" * 100, by="an\nna" * 100)
    status = gate()
    assert "\n" not in status.pause_reason + status.paused_by
    assert len(status.pause_reason) <= 200
    assert len(status.paused_by) <= 255


def test_only_what_is_shown_can_be_hidden_and_only_that_shown_again() -> None:
    gates().remember("nightly", "hourly")
    before = gates().filter(name="hourly").values().get()
    assert not gates().show("nightly")
    assert gates().hide("nightly")
    assert not gates().hide("nightly")
    assert (gate().hidden, gate().fence) == (True, 0)
    assert gates().show("nightly")
    assert (gate().hidden, gate().fence) == (False, 0)
    assert not gates().hide("never")
    assert not gates().show("never")
    assert gates().filter(name="hourly").values().get() == before
    assert gates().count() == 2


@pytest.mark.parametrize("since", [{}, {"last_slot": DBNow()}, {"last_attempt": 2}, {"last_slot": None}], ids=str)
def test_the_slot_of_a_dead_run_is_run_again_unless_a_later_run_has_begun(since: dict[str, Any]) -> None:
    scheduled()
    job = registry.get("nightly")
    fall_behind(job)
    die_running(job)
    gates().remember("hourly")
    gates().filter(name="nightly").update(**since)
    before = gates().filter(name="hourly").values().get()
    gates().abandon(lock())
    dead = gate()
    assert (dead.abandoned, dead.last_status, dead.run_count, dead.consecutive_failures) == (
        not since,
        "abandoned",
        1,
        1,
    )
    assert gates().filter(name="hourly").values().get() == before


def test_a_start_shows_how_old_its_timeline_is() -> None:
    gates().remember("nightly")
    assert not gates().have_started_on(0, timedelta())
    gates().update(fence=(3 << GRANT_BITS) + 7, last_started_at=DBNow() - HOUR)
    assert [gates().have_started_on(timeline, MINUTE) for timeline in (2, 3, 4)] == [True, True, False]
    assert not gates().have_started_on(3, 2 * HOUR)


@pytest.mark.on_database("postgresql", "mysql")
@pytest.mark.django_db(transaction=True, available_apps=APPS)
def test_a_gate_is_at_hand_unless_another_process_is_changing_it() -> None:
    gates().remember("nightly", "hourly")

    def are_at_hand() -> list[bool]:
        with transactions.durable(transactions.alias()):
            return [gates().is_at_hand(name) for name in ("nightly", "hourly", "never")]

    with transactions.durable(transactions.alias()):
        gates().touch("nightly")
        assert in_thread(are_at_hand) == [False, True, False]
    assert are_at_hand() == [True, True, False]


# --- the number of statements


# A block, a job, a call that is skipped, a heartbeat, a fenced transaction. On MySQL plus two for each transaction, on
# the driver's own cursor: they set the session's limits and reset them.
COUNTS = 14, 16, 1, 3, 4


@pytest.mark.django_db(transaction=True, available_apps=["django_singlejob"])
def test_it_takes_this_many_statements(django_assert_num_queries: DjangoAssertNumQueries) -> None:
    block, call, skipped, beat, fenced = COUNTS
    if not connection.features.can_return_columns_from_insert:  # as on MySQL
        call += 1
    job = singleton_job("nightly")(current_run)
    job()

    with django_assert_num_queries(block), job_lock("nightly"):
        pass
    with django_assert_num_queries(call):
        job()
    lease = take()
    with django_assert_num_queries(skipped):
        job()
    with django_assert_num_queries(skipped), pytest.raises(LockHeld), job_lock("nightly"):
        pytest.fail("both are in")
    with django_assert_num_queries(beat):
        lease.renew()
    with django_assert_num_queries(fenced), lease.atomic():
        pass


@pytest.mark.django_db
@pytest.mark.parametrize("change", [{"next_slot": DBNow()}, {"schedule": "@daily"}, {"time_zone": "UTC"}, {"fence": 5}])
def test_a_row_that_was_edited_is_not_unchanged(change: dict[str, Any]) -> None:
    gates().remember("nightly")
    seen = gates().look_up({"nightly"}, timedelta())["nightly"]
    assert gates().unchanged(seen).exists()
    gates().update(**change)
    assert not gates().unchanged(seen).exists()
    assert not gates().pass_through(seen, uuid4())
    assert gates().unchanged(gates().get(name="nightly")).exists()
