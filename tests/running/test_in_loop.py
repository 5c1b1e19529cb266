"""Jobs in an event loop whose task is cancelled during a database call."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from asgiref.sync import async_to_sync

from django_singlejob import Lease, job_lock, singleton_job
from django_singlejob.locking import at_exit
from django_singlejob.locking.acquire import Acquisition
from django_singlejob.running.in_loop import finished
from tests.contract.acts import gate, is_free, last_run
from tests.databases import APPS
from tests.waiting import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

pytest_plugins = "tests.fixtures"
pytestmark = [
    pytest.mark.usefixtures("fresh_process"),
    pytest.mark.django_db(transaction=True, available_apps=APPS),
]


class Task:
    """Awaits something, until it is cancelled from the thread that makes the database calls."""

    def __init__(self) -> None:
        self._task: asyncio.Future[Any] | None = None

    def run(self, act: Callable[[], Awaitable[Any]]) -> None:
        async def begin() -> None:
            self._task = asyncio.ensure_future(act())
            await self._task

        with pytest.raises(asyncio.CancelledError):
            async_to_sync(begin)()

    def cancel(self) -> None:
        assert self._task
        asyncio.run_coroutine_threadsafe(self._cancel(), self._task.get_loop()).result(PATIENCE)

    async def _cancel(self) -> None:
        assert self._task
        self._task.cancel()
        for _ in range(10):  # more turns of the loop than the task takes to notice it
            await asyncio.sleep(0)


@pytest.fixture
def task() -> Task:
    return Task()


def cancel_behind(task: Task, owner: type, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = getattr(owner, method)

    def cancelled(*args: Any, **kwargs: Any) -> Any:
        value = usual(*args, **kwargs)
        task.cancel()
        return value

    monkeypatch.setattr(owner, method, cancelled)


async def never() -> None:
    pytest.fail("it ran")


def test_a_lock_that_was_granted_meanwhile_is_released(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    cancel_behind(task, Acquisition, "ask", monkeypatch)
    task.run(singleton_job("nightly")(never))
    assert is_free()
    assert gate().last_status == last_run().status == "interrupted"
    assert at_exit._granted == {}


def test_who_waits_for_a_lock_waits_no_longer(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    with job_lock("nightly"):
        cancel_behind(task, Acquisition, "ask", monkeypatch)
        task.run(singleton_job("nightly", wait=timedelta(hours=1))(never))
        assert len(at_exit._granted) == 1
    assert is_free()


def test_so_does_who_sleeps_between_two_looks(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    async def sleep(seconds: float) -> None:
        asyncio.get_running_loop().call_soon(task._task.cancel)  # type: ignore[union-attr]
        await asyncio.Event().wait()

    monkeypatch.setattr("django_singlejob.running.in_loop.sleep_in_loop", sleep)
    with job_lock("nightly"):
        task.run(singleton_job("nightly", wait=timedelta(hours=1))(never))
        assert len(at_exit._granted) == 1


def test_what_has_run_is_released_and_recorded_first(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    @singleton_job
    async def nightly() -> None: ...

    cancel_behind(task, Lease, "finish", monkeypatch)
    task.run(nightly)
    assert is_free()
    assert last_run().status == "successful"


def test_a_cancellation_is_raised_once_the_database_has_answered(task: Task) -> None:
    def ask() -> None:
        task.cancel()
        answered.append(True)

    answered: list[bool] = []
    task.run(lambda: finished(ask))
    assert answered


def test_what_is_raised_there_is_raised_here() -> None:
    with pytest.raises(ZeroDivisionError):
        async_to_sync(finished)(lambda: 1 // 0)
