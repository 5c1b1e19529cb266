"""What a call or a block does with its lock, and what it returns."""

from __future__ import annotations

import gc
import inspect
import weakref
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from asgiref.sync import async_to_sync

from django_singlejob import SingleJobError, job_lock, singleton_job
from django_singlejob.models.jobs import gates
from tests.contract.acts import gate, is_free, last_run, lock

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_django import Settings

pytest_plugins = "tests.fixtures"
pytestmark = pytest.mark.usefixtures("fresh_process")

MINUTE = timedelta(minutes=1)


@pytest.mark.django_db
class TestCalls:
    """Inside the test's transaction. No heartbeats are sent, and no other connection sees the lock."""

    def test_a_call_hands_over_arguments_and_returns_the_value(self) -> None:
        @singleton_job
        def nightly(*args: int, **kwargs: int) -> tuple[object, ...]:
            return args, kwargs, lock().job_name

        assert nightly(1, 2, three=3) == ((1, 2), {"three": 3}, "nightly")
        assert is_free()

    def test_a_coroutine_function_stays_one(self) -> None:
        @singleton_job
        async def nightly(amount: int) -> int:
            return amount

        assert inspect.iscoroutinefunction(nightly.__call__)
        assert nightly.is_async
        assert async_to_sync(nightly)(5) == 5
        assert nightly.run(6).value == 6

    def test_the_settings_of_the_job_are_those_of_the_lock(self) -> None:
        @singleton_job(lock="reports", lease=6 * MINUTE)
        def nightly() -> timedelta | None:
            assert lock("reports").expires_at - lock("reports").heartbeat_at == 6 * MINUTE
            return lock("reports").heartbeat_interval

        assert nightly() == MINUTE
        assert last_run().status == "successful"

    def test_without_heartbeats_there_is_no_interval(self) -> None:
        assert singleton_job("nightly", heartbeat=False)(lambda: lock().heartbeat_interval)() is None
        with job_lock("nightly", heartbeat=False):
            assert lock().heartbeat_interval is None

    def test_the_projects_settings_count_where_a_job_has_none(self, settings: Settings) -> None:
        settings.SINGLEJOB = {"LEASE": 10 * MINUTE, "HEARTBEATS_PER_LEASE": 10}
        assert singleton_job("nightly")(lambda: lock().heartbeat_interval)() == MINUTE
        with job_lock("nightly") as lease:
            assert lease.expires_at - lease.acquired_at == 10 * MINUTE
            assert lock().heartbeat_interval == MINUTE

    def test_what_a_failed_job_had_in_hand_is_not_kept_alive(self) -> None:
        @singleton_job
        def nightly() -> None:
            thing = Thing()
            things.append(weakref.ref(thing))
            raise ValueError

        class Thing: ...

        things: list[weakref.ref[Thing]] = []
        gc.disable()
        try:
            with suppress(ValueError):
                nightly()
            assert things[0]() is None
        finally:
            gc.enable()

    def test_a_block_has_a_lease_of_its_own_length_and_belongs_to_no_job(self) -> None:
        with job_lock("nightly", lease=6 * MINUTE) as lease:
            assert lease.expires_at - lease.acquired_at == 6 * MINUTE
            assert (lock().job_name, lock().heartbeat_interval) == ("", MINUTE)
        assert gate().run_count == 0

    @pytest.mark.parametrize("setting", ["lease", "wait"])
    @pytest.mark.parametrize("value", [5, -MINUTE, timedelta(), "1h", timedelta.max], ids=str)
    def test_a_block_is_refused_what_a_job_is_refused_in_the_same_words(self, setting: str, value: Any) -> None:
        """No refusal takes a lock or leaves a gate."""
        words = complaint_of(lambda: singleton_job("nightly", **{setting: value})(print))
        assert complaint_of(lambda: hold("nightly", **{setting: value})) == words.replace("Job", "Lock")
        assert gates().exists() == (words == "")


def complaint_of(act: Callable[[], object]) -> str:
    """The error message; empty if there is no error."""
    try:
        act()
    except SingleJobError as error:
        return str(error)
    return ""


def hold(name: str, **terms: Any) -> None:
    with job_lock(name, **terms):
        pass
