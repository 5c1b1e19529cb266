"""What the history records of a run: every run ends there, whatever happened in it."""

from __future__ import annotations

import os
from datetime import timedelta

import pytest

from django_singlejob import current_run, job_lock, singleton_job
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
