from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from django.db import connection

from django_singlejob import LockHeld, current_run, job_lock, singleton_job
from django_singlejob.clock import DBNow
from django_singlejob.querysets import gates, locks, runs
from tests.contract.acts import everything, expire, gate, last_run, lock, start_run, take

if TYPE_CHECKING:
    from pytest_django import DjangoAssertNumQueries, Settings

pytest_plugins = "tests.fixtures"
pytestmark = [pytest.mark.usefixtures("fresh_process"), pytest.mark.django_db]

DAY = timedelta(days=1)
MINUTE = timedelta(minutes=1)


def has_run(count: int = 1, *, job_name: str = "nightly", status: str = "successful", ago: timedelta = MINUTE) -> None:
    """There is a history of the job."""
    facts = {"fence": 1, "trigger": "call", "hostname": "web-1", "pid": 1}
    gates().remember(job_name)
    for _ in range(count):
        runs().create(job_name=job_name, status=status, token=uuid4(), started_at=DBNow() - ago, **facts)


# --- the history


def test_old_runs_are_surplus() -> None:
    has_run(status="successful", ago=2 * DAY)
    has_run(status="failed", ago=2 * DAY)
    has_run(status="running", ago=2 * DAY)
    has_run(status="successful", ago=DAY / 2)
    assert {*runs().surplus(DAY, keep=1000).values_list("status", flat=True)} == {"successful", "failed"}


def test_of_each_job_those_beyond_the_newest_are_surplus() -> None:
    has_run(4, job_name="nightly")
    has_run(1, job_name="hourly")
    has_run(1, job_name="nightly", status="running")
    nightly = list(runs().filter(job_name="nightly").order_by("pk"))
    assert list(runs().surplus(DAY, keep=3).order_by("pk")) == nightly[:2]
    assert list(runs().surplus(DAY, keep=0).order_by("pk").values_list("status", flat=True)) == ["successful"] * 5


def test_nothing_is_surplus_where_nothing_ran() -> None:
    assert not runs().surplus(DAY, keep=0).exists()


def test_pruning_goes_in_batches_and_deletes_nothing_else(django_assert_num_queries: DjangoAssertNumQueries) -> None:
    has_run(5, ago=2 * DAY)
    has_run(2)
    # Which jobs have run, what is the job's newest surplus run; three batches: look, delete; there are no more.
    with django_assert_num_queries(2 + 3 * 2 + 1):
        assert runs().surplus(DAY, keep=1000).prune(batch=2) == 5
    assert runs().count() == 2
    assert runs().surplus(DAY, keep=1000).prune() == 0


def test_a_run_whose_lock_is_gone_is_abandoned() -> None:
    start_run("nightly")
    start_run("hourly")
    has_run(job_name="weekly")
    locks().filter(name="nightly")._raw_delete("default")
    assert runs().abandon_orphans("It is gone.") == 1
    orphan = last_run("nightly")
    assert (orphan.status, orphan.error) == ("abandoned", "It is gone.")
    assert orphan.finished_at >= orphan.started_at  # type: ignore[operator]
    assert (last_run("hourly").status, last_run("weekly").status) == ("running", "successful")
    assert runs().abandon_orphans("It is gone.") == 0


def test_the_newest_run_is_the_last_that_began() -> None:
    assert runs().newest("nightly") is None
    has_run(status="failed", ago=DAY)
    has_run(status="successful")
    has_run(job_name="hourly", status="running")
    newest = runs().newest("nightly")
    assert newest is not None
    assert newest.status == "successful"


# --- who is late


def means(mean: timedelta | None, *, count: int = 5) -> dict[str, timedelta]:
    gates().update(mean_duration=mean, run_count=count)
    return gates().means()


def test_a_mean_says_something_after_enough_runs(settings: Settings) -> None:
    gates().remember("nightly")
    assert means(MINUTE, count=4) == {}
    assert means(MINUTE, count=5) == {"nightly": MINUTE}
    assert means(None) == {}
    assert means(timedelta()) == {}
    settings.SINGLEJOB = {"OVERRUN_MIN_RUNS": 6}
    assert means(MINUTE, count=5) == {}


@pytest.mark.parametrize(("factor", "held_for", "is_overrunning"), [(3, 2.9, False), (3, 3.1, True), (1.5, 1.6, True)])
def test_a_live_holder_is_overrunning_past_so_many_times_the_mean(
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


# --- the gate


def test_what_is_remembered_already_stays_as_it_is() -> None:
    take()
    before = everything()
    gates().remember("nightly", "hourly")
    assert gate("hourly").fence == 0
    gates().filter(name="hourly").delete()
    assert everything() == before


def test_a_knock_changes_nothing() -> None:
    take()
    before = everything()
    gates().knock("nightly")
    gates().knock("hourly")
    assert everything() == before


def test_a_gate_that_is_shut_is_nobodys() -> None:
    lease = take()
    gates().shut("nightly")
    assert (gate().fence, gate().token) == (2, None)
    assert not gates().hold("nightly", lease.token)
    assert not gates().finish("nightly", lease.token, {"last_status": "successful"})
    assert lock().token == lease.token


def test_a_job_is_ready_unless_it_is_paused_or_started_a_moment_ago() -> None:
    gates().remember("never", "paused", "earlier", "just now", "in the future")
    gates().filter(name="paused").update(paused=True)
    gates().filter(name="earlier").update(last_started_at=DBNow() - 2 * MINUTE)
    gates().filter(name="just now").update(last_started_at=DBNow())
    gates().filter(name="in the future").update(last_started_at=DBNow() + DAY)  # the clock was set back since
    assert {gate.name for gate in gates().ready(MINUTE)} == {"never", "earlier", "in the future"}
    assert {gate.name for gate in gates().ready(0 * MINUTE)} == {"never", "earlier", "in the future", "just now"}
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


def test_what_nobody_has_asked_for_can_be_neither_paused_nor_resumed() -> None:
    assert not gates().pause("never")
    assert not gates().resume("never")
    assert not gates().exists()


# --- how many statements it takes


COUNTS = {
    # a block, a job, a call that is skipped, a fenced transaction
    "sqlite": (14, 16, 1, 6),
    "postgresql": (16, 18, 1, 5),
    # And two that set the session's time-out and set it back, on the driver's own cursor.
    "mysql": (14, 16, 1, 5),
}


@pytest.mark.django_db(transaction=True, available_apps=["django_singlejob"])
def test_it_takes_so_many_statements(django_assert_num_queries: DjangoAssertNumQueries) -> None:
    block, call, skipped, fenced = COUNTS[connection.vendor]
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
    with django_assert_num_queries(1):
        lease.renew()
    with django_assert_num_queries(fenced), lease.atomic():
        pass


@pytest.mark.django_db
@pytest.mark.parametrize("change", [{"next_slot": DBNow()}, {"schedule": "@daily"}, {"time_zone": "UTC"}, {"fence": 5}])
def test_a_row_that_was_edited_is_not_unchanged(change: dict[str, Any]) -> None:
    gates().remember("nightly")
    seen = gates().get()
    assert gates().unchanged(seen).exists()
    gates().update(**change)
    assert not gates().unchanged(seen).exists()
    assert not gates().pass_through(seen, uuid4())
    assert gates().unchanged(gates().get()).exists()
