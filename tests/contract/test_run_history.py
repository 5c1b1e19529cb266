"""What the history records of a run: every run ends there, whatever happened in it."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import pytest

from django_singlejob import SKIPPED, LeaseLost, Reason, SkipRun, current_run, job_lock, singleton_job
from django_singlejob.models import JobLock, OneOffJob
from django_singlejob.models.jobs import gates
from django_singlejob.models.runs import runs
from tests.contract.acts import gate, is_free, last_run, lock, nth_fence, start_run
from tests.databases import APPS
from tests.waiting import seconds_of, work_for

pytestmark = pytest.mark.django_db(transaction=True, available_apps=APPS)


class Unprintable(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


def test_a_run_from_inside_and_from_outside() -> None:
    @singleton_job
    def nightly(*, amount: int) -> int:
        inside = current_run()
        assert inside is not None
        assert (inside.job, inside.attempt, inside.slot) == (nightly, 1, None)
        assert inside.lease.token == lock().token
        assert inside.run is not None
        assert (inside.run.status, inside.run.trigger, inside.run.pid) == ("running", "call", os.getpid())
        return amount

    assert current_run() is None
    outcome = nightly.run(amount=5)
    assert current_run() is None
    assert (outcome.status, outcome.value, outcome.reason) == ("successful", 5, None)
    assert outcome.run == last_run()
    assert outcome.run.status == "successful"


def test_what_a_run_leaves() -> None:
    job = singleton_job("nightly")(lambda: work_for(0.05))
    whole = timedelta(seconds=seconds_of(job))
    run = last_run()
    assert (run.status, run.fence, run.attempt, run.error, run.traceback) == ("successful", nth_fence(1), 1, "", "")
    assert run.token == gate().token
    assert timedelta(seconds=0.05) <= run.duration < whole  # type: ignore[operator]
    assert timedelta() < run.acquire_duration < whole  # type: ignore[operator]
    assert run.started_at <= run.finished_at  # type: ignore[operator]
    assert is_free()


def test_a_block_leaves_no_run() -> None:
    with job_lock("nightly"):
        pass
    assert not runs().exists()
    assert gate().run_count == 0


@pytest.mark.parametrize(
    ("error", "status", "is_failure"),
    [
        (ZeroDivisionError("five\0\ud800\n"), "failed", True),
        (Unprintable(), "failed", True),
        (SystemExit(3), "failed", True),
        (SystemExit(0), "successful", False),
        (SystemExit(), "successful", False),
        (KeyboardInterrupt(), "interrupted", False),
        (GeneratorExit(), "interrupted", False),
    ],
    ids=repr,
)
def test_however_a_job_ends_its_exception_is_the_callers_and_its_lock_is_free(
    error: BaseException, status: str, is_failure: bool
) -> None:
    @singleton_job
    def nightly() -> None:
        raise error

    with pytest.raises(type(error)) as raised:
        nightly()
    assert raised.value is error
    assert is_free()
    assert last_run().status == gate().last_status == status
    assert gate().consecutive_failures == is_failure
    assert gate().run_count == 1
    if is_failure:
        assert type(error).__name__ in last_run().error
        assert "in nightly" in last_run().traceback


def skip(*reason: object) -> None:
    raise SkipRun(*reason)


async def skip_async(*reason: object) -> None:
    raise SkipRun(*reason)


@pytest.mark.parametrize("func", [skip, skip_async])
def test_a_run_may_skip_itself_which_is_neither_a_success_nor_a_failure(func: Any) -> None:
    job: Any = singleton_job("nightly")(func)
    gates().remember("nightly")
    gates().update(consecutive_failures=2, mean_duration=timedelta(seconds=9), run_count=7)
    outcome = job.run("holiday\n\0")
    assert (outcome.status, outcome.value, outcome.reason) == ("skipped", SKIPPED, Reason.ITSELF)
    run = last_run()
    assert (outcome.run, outcome.duration, outcome.detail) == (run, run.duration, r"holiday\n\x00")
    assert (run.status, run.error, run.traceback, run.origin) == ("skipped", outcome.detail, "", "")
    assert is_free()
    assert (gate().last_status, gate().consecutive_failures, gate().run_count) == ("skipped", 2, 8)
    assert gate().mean_duration == timedelta(seconds=9)


def test_it_need_not_give_a_reason() -> None:
    outcome = singleton_job("nightly")(skip).run()
    assert (outcome.reason, outcome.detail, last_run().error) == (Reason.ITSELF, "", "")


def test_a_call_that_skips_itself_returns_that_and_counts_as_a_start() -> None:
    job = singleton_job("nightly", min_interval=timedelta(hours=1))(skip)
    assert job("holiday") is SKIPPED
    refused = job.run("holiday")
    assert (refused.reason, refused.run_id) == (Reason.ALREADY_RAN, None)
    assert refused.detail.startswith("its last run skipped itself ")


def test_it_is_not_retried() -> None:
    assert singleton_job("nightly", retries=3)(skip).run().reason == Reason.ITSELF
    assert not OneOffJob.objects.exists()


def test_a_run_that_skips_itself_after_its_lock_is_gone_has_lost_it() -> None:
    @singleton_job
    def nightly() -> None:
        JobLock.objects.all().delete()
        raise SkipRun("holiday")

    with pytest.raises(LeaseLost):
        nightly()
    assert last_run().status == "failed"


def test_in_a_block_it_is_an_exception_like_any_other() -> None:
    with pytest.raises(SkipRun), job_lock("nightly"):
        raise SkipRun("holiday")
    assert is_free()


def divide(number: int) -> float:
    return 1 / number


def test_failures_are_counted_until_a_success() -> None:
    job = singleton_job("nightly")(divide)
    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            job(0)
    assert gate().consecutive_failures == 3
    job(1)
    assert (gate().consecutive_failures, gate().run_count) == (0, 4)


def test_the_mean_is_that_of_about_the_last_twenty_successes() -> None:
    job = singleton_job("nightly")(divide)
    with pytest.raises(ZeroDivisionError):
        job(0)
    assert gate().mean_duration is None
    job(1)
    assert gate().mean_duration == last_run().duration
    gates().update(mean_duration=timedelta(seconds=100), run_count=200)
    job(1)
    expected = (19 * timedelta(seconds=100) + last_run().duration) / 20  # type: ignore[operator]
    assert abs(gate().mean_duration - expected) < timedelta(milliseconds=1)  # type: ignore[operator]


def test_a_job_that_released_its_lease_itself_has_ended_well() -> None:
    @singleton_job
    def nightly() -> str:
        run = current_run()
        assert run is not None
        assert run.lease.release()
        assert is_free()
        assert start_run().release()
        return "done"

    assert nightly() == "done"
    assert runs().earliest("pk").status == "successful"
