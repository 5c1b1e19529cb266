from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from django.db import connection
from django.db.models import F

from django_singlejob import LockHeld, current_run, job_lock, singleton_job
from django_singlejob.clock import DBNow
from django_singlejob.querysets.jobs import FORGOTTEN, gates
from tests.contract.acts import everything, gate, lock, nth_fence, take

if TYPE_CHECKING:
    from pytest_django import DjangoAssertNumQueries, Settings

pytest_plugins = "tests.fixtures"
pytestmark = [pytest.mark.usefixtures("fresh_process"), pytest.mark.django_db]

DAY = timedelta(days=1)
MINUTE = timedelta(minutes=1)


# --- late jobs


def means(mean: timedelta | None, *, count: int = 5) -> dict[str, timedelta]:
    gates().filter(name="nightly").update(mean_duration=mean, run_count=count)
    return gates().means()


def test_a_mean_says_something_after_enough_runs(settings: Settings) -> None:
    gates().remember("nightly")
    assert means(MINUTE, count=4) == {}
    assert means(MINUTE, count=5) == {"nightly": MINUTE}
    assert means(None) == {}
    assert means(timedelta()) == {}
    settings.SINGLEJOB = {"OVERRUN_MIN_RUNS": 6}
    assert means(MINUTE, count=5) == {}


# --- the gate


def test_what_is_remembered_already_stays_as_it_is() -> None:
    take()
    before = everything()
    gates().remember("nightly", "hourly")
    assert gate("hourly").fence == 0
    gates().filter(name="hourly").delete()
    gates().filter(name=FORGOTTEN).update(hold_count=F("hold_count") - 1)
    assert everything() == before


def test_a_touch_changes_nothing() -> None:
    take()
    before = everything()
    gates().touch("nightly")
    gates().touch("hourly")
    assert everything() == before


def test_a_gate_that_is_revoked_is_nobodys() -> None:
    lease = take()
    gates().revoke("nightly")
    assert (gate().fence, gate().token) == (nth_fence(2), None)
    assert not gates().hold("nightly", lease.token)
    assert not gates().finish("nightly", lease.token, {"last_status": "successful"})
    assert lock().token == lease.token


def test_a_job_is_ready_unless_it_is_paused_or_started_a_moment_ago() -> None:
    gates().remember("never", "paused", "earlier", "just now", "in the future")
    gates().filter(name="paused").update(paused=True)
    gates().filter(name="earlier").update(last_started_at=DBNow() - 2 * MINUTE)
    gates().filter(name="just now").update(last_started_at=DBNow())
    gates().filter(name="in the future").update(last_started_at=DBNow() + DAY)  # the clock was set back since
    ready = gates().exclude(name=FORGOTTEN)
    assert {gate.name for gate in ready.ready(MINUTE)} == {"never", "earlier", "in the future"}
    assert {gate.name for gate in ready.ready(0 * MINUTE)} == {"never", "earlier", "in the future", "just now"}
    earlier = gates().get(name="earlier")
    assert gates().unchanged(earlier).start(MINUTE, {})
    assert not gates().unchanged(earlier).start(MINUTE, {})


def test_only_what_is_not_paused_can_be_paused_and_only_that_resumed() -> None:
    gates().remember("nightly", "hourly")
    before = gates().get(name="hourly")
    assert not gates().resume("nightly")
    assert gates().pause("nightly")
    assert not gates().pause("nightly")
    assert gate().paused
    assert not gates().ready(0 * MINUTE).filter(name="nightly").exists()
    assert gates().resume("nightly")
    assert not gates().resume("nightly")
    assert not gate().paused
    assert (gate().fence, gate("hourly").paused) == (0, before.paused)


def test_a_job_without_a_row_can_be_neither_paused_nor_resumed() -> None:
    assert not gates().pause("never")
    assert not gates().resume("never")
    assert not gates().exists()


# --- the number of statements


COUNTS = {
    # a block, a job, a call that is skipped, a heartbeat, a fenced transaction
    "sqlite": (14, 16, 1, 3, 6),
    "postgresql": (16, 18, 1, 4, 5),
    # Plus two on the driver's own cursor, which set the session's time-out and reset it.
    "mysql": (14, 16, 1, 3, 5),
}


@pytest.mark.django_db(transaction=True, available_apps=["django_singlejob"])
def test_it_takes_this_many_statements(django_assert_num_queries: DjangoAssertNumQueries) -> None:
    block, call, skipped, beat, fenced = COUNTS[connection.vendor]
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
