"""The gate: the other conditions for a job to run, decided in the same moment as the grant of the lock."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from django_singlejob import SKIPPED, LockHeld, job_lock, singleton_job
from django_singlejob.locking.request import Reason, Refusal
from django_singlejob.models.jobs import database_now, gates
from django_singlejob.models.runs import runs
from django_singlejob.process.clock import DBNow
from tests.contract.acts import (
    ask,
    everything,
    expire,
    gate,
    is_free,
    last_run,
    lock,
    nth_fence,
    start_run,
    take,
)
from tests.databases import APPS

if TYPE_CHECKING:
    from pytest_django import Settings

    from tests.contract.conftest import Ahead

pytestmark = pytest.mark.django_db(transaction=True, available_apps=APPS)

HOUR = timedelta(hours=1)


def started(ago: timedelta, name: str = "nightly") -> None:
    assert gates().filter(name=name).update(last_started_at=DBNow() - ago) == 1


def pause(name: str = "nightly") -> None:
    assert gates().filter(name=name).update(paused=True) == 1


def test_not_sooner_than_the_interval_after_the_last_start() -> None:
    job = singleton_job("nightly", min_interval=HOUR)(lambda: "ran")
    assert job() == "ran"
    before = everything()
    assert job.run().reason == Reason.ALREADY_RAN
    assert job() is SKIPPED
    assert everything() == before
    started(ago=HOUR - timedelta(minutes=1))
    assert job() is SKIPPED
    started(ago=HOUR + timedelta(minutes=1))
    assert job() == "ran"


@pytest.mark.slow
def test_a_start_in_the_same_moment_counts(ahead: Ahead) -> None:
    start_run().release()
    started(ago=2 * HOUR)
    ahead(lambda: started(ago=timedelta()))
    answer = ask(job_name="nightly", trigger="call", min_interval=HOUR)
    assert isinstance(answer, Refusal)
    assert answer.reason == Reason.ALREADY_RAN


def test_the_interval_does_not_keep_a_dead_run_from_being_run_again() -> None:
    start_run()
    expire()
    assert start_run(min_interval=HOUR, max_attempts=2).grant.attempt == 2


def test_unless_it_shall_not_be_run_again() -> None:
    start_run()
    expire()
    answer = ask(job_name="nightly", trigger="call", min_interval=HOUR, max_attempts=1)
    assert isinstance(answer, Refusal)
    assert answer.reason == Reason.ALREADY_RAN


def test_a_paused_job_does_not_run() -> None:
    job = singleton_job("nightly", on_held="raise")(lambda: "ran")
    assert job() == "ran"
    pause()
    before = everything()
    assert job() is SKIPPED
    assert job.run().reason == Reason.PAUSED
    assert everything() == before
    gates().update(paused=False)
    assert job() == "ran"


def test_it_runs_again_once_its_pause_has_ended_by_itself() -> None:
    job = singleton_job("nightly")(lambda: "ran")
    assert job() == "ran"
    assert gates().pause("nightly", until=database_now() + HOUR, reason="upgrade")
    before = everything()
    assert job.run().reason == Reason.PAUSED
    assert job.run().detail == f"until {gate().paused_until:%Y-%m-%d %H:%M:%S} UTC (upgrade)"
    assert everything() == before
    gates().update(paused_until=DBNow())
    assert job() == "ran"


def test_where_nothing_is_enabled_no_job_runs_and_nothing_is_touched(settings: Settings) -> None:
    calls: list[str] = []
    job = singleton_job("nightly", on_held="raise", schedule=HOUR)(lambda: calls.append("ran"))
    settings.SINGLEJOB = {**settings.SINGLEJOB, "ENABLED": False}
    before = everything()
    with CaptureQueriesContext(connection) as queries, transaction.atomic():
        assert job() is SKIPPED
        assert job.run().reason == Reason.DISABLED
    assert everything() == before
    assert not [query for query in queries if "singlejob" in query["sql"]]
    assert calls == []
    assert job.enqueue().status == "waiting"
    with job_lock("nightly"):  # what is in the block has not asked to be left out
        calls.append("block")
    assert calls == ["block"]


@pytest.mark.slow
def test_a_pause_in_the_same_moment_counts(ahead: Ahead) -> None:
    start_run().release()
    ahead(pause)
    answer = ask(job_name="nightly", trigger="call")
    assert isinstance(answer, Refusal)
    assert answer.reason == Reason.PAUSED


def test_a_paused_job_does_not_keep_others_from_its_shared_lock() -> None:
    start_run("orders", name="shop").release()
    pause("orders")
    assert start_run("stock", name="shop").release()


def test_jobs_that_share_a_lock_exclude_each_other() -> None:
    @singleton_job(lock="shop")
    def orders() -> object:
        assert lock("shop").job_name == "orders"
        return stock()

    @singleton_job(lock="shop")
    def stock() -> str:
        return "counted"

    assert orders() is SKIPPED
    assert stock() == "counted"
    assert is_free("shop")


def test_each_of_them_has_a_history_of_its_own() -> None:
    orders = singleton_job("orders", lock="shop")(lambda: None)
    stock = singleton_job("stock", lock="shop")(lambda: None)
    for job in orders, orders, stock:
        job()
    assert [gate(name).run_count for name in ("orders", "stock", "shop")] == [2, 1, 0]
    assert [gate(name).last_status for name in ("orders", "stock", "shop")] == ["successful", "successful", ""]
    assert list(runs().order_by("pk").values_list("job_name", "fence")) == [
        ("orders", nth_fence(1)),
        ("orders", nth_fence(2)),
        ("stock", nth_fence(3)),
    ]


def test_a_dead_run_of_another_job_is_buried_and_not_run_again() -> None:
    start_run("orders", name="shop")
    expire("shop")
    assert start_run("stock", name="shop", max_attempts=3).grant.attempt == 1
    assert last_run("orders").status == "abandoned"
    assert (gate("orders").last_status, gate("stock").last_status) == ("abandoned", "")


def test_a_job_that_calls_itself_is_told_skipped() -> None:
    @singleton_job
    def nightly() -> list[object]:
        return [nightly(), nightly.run().reason]

    assert nightly() == [SKIPPED, Reason.HELD]
    assert is_free()
    assert runs().count() == 1


def test_a_job_may_call_another() -> None:
    @singleton_job
    def nightly() -> object:
        return hourly()

    @singleton_job
    def hourly() -> bool:
        return lock("nightly").token != lock("hourly").token

    assert nightly() is True
    assert is_free("nightly")
    assert is_free("hourly")


def test_a_held_lock_may_be_an_exception() -> None:
    @singleton_job(on_held="raise")
    def nightly() -> None:
        with pytest.raises(LockHeld, match=r"'nightly' has been held by .*, pid \d+ since"):
            nightly()

    nightly()


@pytest.mark.slow
def test_a_job_that_waits_in_vain_is_skipped() -> None:
    take()
    assert singleton_job("nightly", wait=timedelta(seconds=0.2))(lambda: "ran")() is SKIPPED
