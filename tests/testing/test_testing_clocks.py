"""The clocks move: the database's, those of the package, and Django's."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from threading import Semaphore
from typing import TYPE_CHECKING, Any

import pytest
from django.utils import timezone

from django_singlejob import (
    JobTimeout,
    LeaseLost,
    LockHeld,
    Reason,
    SingleJobError,
    current_run,
    job_lock,
    raise_if_stopped,
    singleton_job,
)
from django_singlejob.models import JobLock, JobRun
from django_singlejob.testing import held_elsewhere, travel
from tests.waiting import PATIENCE, eventually

if TYPE_CHECKING:
    from pytest_django import Settings

pytest_plugins = ["tests.fixtures"]
pytestmark = pytest.mark.usefixtures("fresh_process")

SPRING = datetime(2027, 3, 28, 1, 0, tzinfo=UTC)
HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)
#: The leases have a minute. A slow machine may take a part of the other half.
HALF_A_LEASE = timedelta(seconds=30)


def is_about(instant: datetime | None, expected: datetime) -> bool:
    return instant is not None and timedelta() <= instant - expected < MINUTE


@pytest.mark.parametrize("to", [SPRING, "2027-03-28T03:00+02:00"], ids=["datetime", "text"])
def test_all_clocks_show_that_instant(to: datetime | str) -> None:
    seen: list[datetime] = []
    job = singleton_job("nightly")(lambda: seen.append(timezone.now()))
    with travel(to):
        job()
        assert is_about(seen[0], SPRING)
        run = JobRun.objects.get()
        with job_lock("a-lock") as lease:
            row = JobLock.objects.get()
            assert is_about(row.heartbeat_at, SPRING)
            assert is_about(lease.acquired_at, SPRING)
            assert row.expires_at - row.heartbeat_at == timedelta(seconds=60)
    assert is_about(run.started_at, SPRING)
    assert is_about(run.finished_at, SPRING)
    assert abs(timezone.now() - datetime.now(UTC)) < MINUTE


def test_they_go_on_from_there() -> None:
    with travel(SPRING):
        first = timezone.now()
        eventually(lambda: timezone.now() > first)
        with travel(HOUR):
            assert is_about(timezone.now(), SPRING + HOUR)
        assert is_about(timezone.now(), SPRING)


def test_they_come_back_after_an_error() -> None:
    with pytest.raises(ZeroDivisionError), travel(SPRING):
        _ = 1 / 0
    singleton_job("nightly")(int)()
    assert abs(JobRun.objects.get().started_at - datetime.now(UTC)) < MINUTE


def test_the_past_is_as_good() -> None:
    job = singleton_job("nightly", min_interval=HOUR)(int)
    with travel("2001-09-09T01:46:40Z"):
        assert [job.run().status, job.run().reason] == ["successful", Reason.ALREADY_RAN]
    assert is_about(JobRun.objects.get().started_at, datetime(2001, 9, 9, 1, 46, 40, tzinfo=UTC))


def test_a_minimum_interval_passes() -> None:
    job = singleton_job("nightly", min_interval=HOUR)(int)
    assert [job.run().status, job.run().reason] == ["successful", Reason.ALREADY_RAN]
    with travel(HOUR):
        assert job.run().status == "successful"


def test_a_lease_in_hand_is_lost_by_then() -> None:
    with job_lock("a-lock") as lease:
        with travel(HALF_A_LEASE):
            lease.check()
        with travel(timedelta(seconds=61)), pytest.raises(LeaseLost, match="was not renewed for 1 minute"):
            lease.check()
        lease.check()


def test_no_thread_renews_it_meanwhile(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    passes = Semaphore(0)
    monkeypatch.setattr("django_singlejob.locking.heartbeat.forget_queries", passes.release)
    with job_lock("a-lock") as lease, travel(timedelta(seconds=61)):
        for _ in range(3):  # the thread may just be at its first passes, before the clocks are moved
            with job_lock("another"):  # which wakes it
                assert kind == "TestCase" or passes.acquire(timeout=PATIENCE)
        assert lease.lost
        assert JobLock.objects.get().heartbeats == 0


def test_its_lock_may_be_taken_over_by_then_without_a_pause() -> None:
    begun_at = time.monotonic()
    with (
        pytest.raises(LeaseLost, match="taken over"),
        job_lock("a-lock"),
        travel(HOUR),
        job_lock("a-lock") as successor,
    ):
        successor.check()
    assert time.monotonic() - begun_at < 20  # its holder is watched for 20 seconds


def test_another_server_holds_its_lock_all_the_same() -> None:
    with held_elsewhere("a-lock"), travel(1000 * HOUR), pytest.raises(LockHeld), job_lock("a-lock"):
        pytest.fail("The lock was granted twice.")


def test_to_wait_for_a_lock_takes_no_time() -> None:
    with held_elsewhere("a-lock"), travel(SPRING):
        with pytest.raises(LockHeld), job_lock("a-lock", wait=5 * MINUTE):
            pytest.fail("The lock was granted twice.")
        assert is_about(timezone.now(), SPRING + 5 * MINUTE)


@pytest.mark.parametrize("limit", [HALF_A_LEASE, 5 * HOUR], ids=["within its lease", "beyond it"])
def test_the_time_of_a_run_is_over_by_then(limit: timedelta) -> None:
    caught: list[str] = []

    @singleton_job("nightly", max_runtime=limit)
    def job() -> None:
        run = current_run()
        assert run
        run.lease.check()
        try:
            with travel(limit):
                raise_if_stopped()
        except JobTimeout as error:
            caught.append(str(error))
            raise

    with pytest.raises(JobTimeout):
        job()
    assert len(caught) == 1
    assert (JobRun.objects.get().status, JobLock.objects.count()) == ("interrupted", 0)


@pytest.mark.on_database("postgresql")
def test_a_grant_in_one_statement_travels_too(settings: Settings) -> None:
    settings.SINGLEJOB = {"SINGLE_STATEMENT": True}
    job = singleton_job("nightly")(int)
    job()  # the first one finds no gate, and takes another way
    with travel(SPRING):
        job()
    assert is_about(JobRun.objects.latest("pk").started_at, SPRING)


@pytest.mark.parametrize(
    ("to", "problem"),
    [
        (datetime(2027, 3, 28), "has no time zone: add an offset"),  # noqa: DTZ001
        ("2027-03-28T07:00", "has no time zone: add an offset"),
        ("tomorrow", "'tomorrow' is not an instant"),
        (3, "3 is not an instant"),
        ("0001-01-01T00:00Z", "is too far away"),
    ],
)
def test_what_is_no_instant_is_refused(to: Any, problem: str) -> None:
    with pytest.raises(SingleJobError, match=problem), travel(to):
        pytest.fail("It was accepted.")
