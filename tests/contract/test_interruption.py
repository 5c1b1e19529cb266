"""A job is interrupted when its time is over or its lock is lost. Coroutines are jobs like any other."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from uuid import uuid4

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.db import connections

from django_singlejob import SKIPPED, JobTimeout, LeaseLost, current_run, job_lock, singleton_job
from django_singlejob.querysets.locks import locks
from tests.contract.acts import gate, is_free, last_run, nth_fence
from tests.databases import APPS

pytestmark = pytest.mark.django_db(transaction=True, available_apps=APPS)


def work_for_ever() -> None:
    for _ in range(1000):
        time.sleep(0.01)
    pytest.fail("nobody interrupted it")


def be_robbed() -> None:
    locks().update(token=uuid4())


def be_robbed_and_work_for_ever() -> None:
    be_robbed()
    work_for_ever()


@pytest.mark.slow
def test_a_job_past_its_time_is_interrupted() -> None:
    job = singleton_job("nightly", max_runtime=timedelta(seconds=0.2))(work_for_ever)
    with pytest.raises(JobTimeout):
        job()
    assert last_run().status == "interrupted"
    assert gate().consecutive_failures == 1
    assert is_free()


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


@pytest.mark.slow
def test_a_coroutine_past_its_time_is_cancelled() -> None:
    cancelled = []

    @singleton_job(max_runtime=timedelta(seconds=0.2))
    async def nightly() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    with pytest.raises(JobTimeout):
        async_to_sync(nightly)()
    assert cancelled
    assert last_run().status == "interrupted"


@pytest.mark.slow
def test_a_job_that_lost_its_lock_is_interrupted_within_the_lease() -> None:
    job = singleton_job("nightly", lease=timedelta(seconds=6))(be_robbed_and_work_for_ever)
    begun_at = time.monotonic()
    with pytest.raises(LeaseLost):
        job()
    assert time.monotonic() - begun_at < 6
    assert last_run().status == "failed"


def test_a_coroutine_that_lost_its_lock_is_interrupted_too() -> None:
    @singleton_job(lease=timedelta(seconds=0.6))
    async def nightly() -> None:
        await sync_to_async(be_robbed)()
        await asyncio.sleep(60)

    with pytest.raises(LeaseLost):
        async_to_sync(nightly)()
    assert last_run().status == "failed"


def test_a_block_that_lost_its_lock_is_interrupted_too() -> None:
    with pytest.raises(LeaseLost), job_lock("nightly", lease=timedelta(seconds=0.6)):
        be_robbed_and_work_for_ever()


def test_who_ignores_the_interrupt_hears_of_the_loss_at_the_end() -> None:
    @singleton_job(lease=timedelta(seconds=0.6))
    def nightly() -> str:
        be_robbed()
        with pytest.raises(LeaseLost):
            work_for_ever()
        return "done"

    with pytest.raises(LeaseLost):
        nightly()
    assert last_run().status == "failed"
