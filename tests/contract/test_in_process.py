"""A job that is called runs in its caller's process: it asks whether its time is over or its lock is lost. Coroutines
are jobs like any other."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.db import connections

from django_singlejob import SKIPPED, JobTimeout, Lease, LeaseLost, current_run, job_lock, singleton_job
from django_singlejob.models.jobs import gates
from django_singlejob.models.locks import locks
from django_singlejob.signals import lease_lost
from tests.contract.acts import check_for_ever, gate, is_free, last_run, nth_fence
from tests.databases import APPS
from tests.waiting import eventually, work_for

pytestmark = pytest.mark.django_db(transaction=True, available_apps=APPS)


def be_robbed() -> None:
    locks().update(token=uuid4())


def be_robbed_and_check() -> None:
    be_robbed()
    check_for_ever()


@pytest.mark.slow
def test_a_job_past_its_time_is_told_by_check() -> None:
    job = singleton_job("nightly", max_runtime=timedelta(seconds=0.2))(check_for_ever)
    with pytest.raises(JobTimeout):
        job()
    assert last_run().status == "interrupted"
    assert gate().consecutive_failures == 1
    assert is_free()


def test_one_that_never_asks_ends_by_itself() -> None:
    job: Any = singleton_job("nightly", max_runtime=timedelta(seconds=0.01))(lambda: work_for(0.1))
    job()
    assert last_run().status == "successful"


def test_a_coroutine_is_a_job_too() -> None:
    @singleton_job
    async def nightly(amount: int) -> list[object]:
        run = current_run()
        assert run is not None
        return [amount, run.lease.fence, await nightly(amount)]

    assert async_to_sync(nightly)(5) == [5, nth_fence(1), SKIPPED]
    assert last_run().status == "successful"
    assert is_free()


def test_a_coroutine_in_a_loop_of_the_callers() -> None:
    @singleton_job
    async def nightly() -> None:
        await asyncio.sleep(0)
        raise ZeroDivisionError

    async def main() -> None:
        try:
            with pytest.raises(ZeroDivisionError):
                await nightly()
        finally:
            await sync_to_async(connections.close_all)()

    asyncio.run(main())
    assert last_run().status == "failed"
    assert is_free()


def test_a_coroutine_past_its_time_is_told_by_check() -> None:
    @singleton_job(max_runtime=timedelta(seconds=0.2))
    async def nightly() -> None:
        await asyncio.to_thread(check_for_ever)

    with pytest.raises(JobTimeout):
        async_to_sync(nightly)()
    assert last_run().status == "interrupted"


@pytest.mark.slow
def test_a_job_that_lost_its_lock_is_told_before_its_lease_ends() -> None:
    job = singleton_job("nightly", lease=timedelta(seconds=6))(be_robbed_and_check)
    with pytest.raises(LeaseLost, match="taken over"):
        job()
    assert last_run().status == "failed"


def be_robbed_and_wait(lease: Lease, told: list[Lease]) -> None:
    be_robbed()
    gates().update(token=uuid4())  # as a takeover does
    eventually(lambda: lease.lost and told)
    with pytest.raises(LeaseLost), lease.atomic():
        pytest.fail("it began")


def test_so_is_a_block_and_its_fenced_transaction_writes_nothing() -> None:
    told: list[Lease] = []

    def note(lease: Lease, **_: Any) -> None:
        told.append(lease)

    lease_lost.connect(note)
    try:
        with pytest.raises(LeaseLost), job_lock("nightly", lease=timedelta(seconds=0.6)) as lease:
            be_robbed_and_wait(lease, told)
        assert told == [lease]
    finally:
        lease_lost.disconnect(note)


def test_who_never_asks_hears_of_the_loss_at_the_end() -> None:
    job: Any = singleton_job("nightly")(be_robbed)
    with pytest.raises(LeaseLost):
        job()
    assert last_run().status == "failed"


def test_nothing_is_raised_in_the_body() -> None:
    @singleton_job(lease=timedelta(seconds=0.6), max_runtime=timedelta(seconds=0.1))
    def nightly() -> None:
        run = current_run()
        assert run is not None
        be_robbed()
        eventually(lambda: run.lease.lost)
        sum(range(100_000))
        finished.append(True)

    finished: list[bool] = []
    with pytest.raises(LeaseLost):
        nightly()
    assert finished
