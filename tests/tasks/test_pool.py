from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass
from textwrap import dedent
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connection, connections

from django_singlejob import Outcome
from django_singlejob.tasks.pool import Pool
from tests.children import ROOT
from tests.waiting import PATIENCE, a_moment, eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


class Stop(BaseException):
    pass


@pytest.fixture
def go() -> Iterator[threading.Event]:
    """Setting it lets waiting tasks go on; the end of the test sets it, too."""
    go = threading.Event()
    yield go
    go.set()


@dataclass(frozen=True)
class Errand:
    """A task that returns what its function returns."""

    act: Callable[[], Any]
    name: str = "errand"

    def __call__(self) -> Outcome:
        return Outcome(status="successful", value=self.act(), name=self.name)


def wait_for(go: threading.Event, value: Any = None) -> Errand:
    def act() -> Any:
        assert go.wait(PATIENCE)
        return value

    return Errand(act)


def brought(pool: Pool) -> list[Any]:
    """What the tasks that came back have returned or raised, in their order."""
    return [outcome.error or outcome.value for _, outcome in pool.come_back()]


def all_back(pool: Pool) -> list[Any]:
    """What all tasks have returned or raised, in their order."""
    results: list[Any] = []

    def are_back() -> bool:
        results.extend(brought(pool))
        return pool.is_idle

    eventually(are_back)
    return results


def done(pool: Pool, act: Callable[[], Any]) -> Any:
    pool.send(Errand(act))
    (result,) = all_back(pool)
    return result


# --- free threads


def test_as_many_errands_as_threads_run_at_once_and_the_others_wait(go: threading.Event) -> None:
    pool, begun = Pool(2), threading.Semaphore(0)

    def task() -> int:
        begun.release()
        assert go.wait(PATIENCE)
        return threading.get_ident()

    assert (pool.free, pool.is_idle) == (2, True)
    for free in 1, 0, -1, -2:
        pool.send(Errand(task))
        assert (pool.free, pool.is_idle) == (free, False)
    assert begun.acquire(timeout=PATIENCE)
    assert begun.acquire(timeout=PATIENCE)
    a_moment()
    assert not begun.acquire(blocking=False)
    go.set()
    threads = all_back(pool)
    assert len(threads) == 4
    assert len(set(threads)) == 2
    assert (pool.free, pool.is_idle) == (2, True)


def test_a_thread_is_started_when_it_is_needed() -> None:
    pool = Pool(5)
    assert len({done(pool, threading.get_ident) for _ in range(3)}) == 1


def test_what_nobody_has_begun_can_be_recalled(go: threading.Event) -> None:
    pool = Pool(1)
    pool.send(wait_for(go, "begun"))
    eventually(pool._tasks.empty)
    waiting = [wait_for(go), wait_for(go)]
    for task in waiting:
        pool.send(task)
    assert pool.recall() == waiting
    assert pool.free == 0
    assert pool.recall() == []
    go.set()
    assert all_back(pool) == ["begun"]
    assert pool.come_back() == []


# --- tasks that come back


def test_it_says_when_something_has_come_back() -> None:
    woken = threading.Event()
    pool = Pool(1, woken.set)
    pool.send(Errand(lambda: 5))
    assert woken.wait(PATIENCE)
    assert brought(pool) == [5]


@pytest.mark.slow
def test_a_signal_that_arrives_as_a_time_out_elapses_keeps_no_thread_waiting_for_ever() -> None:
    """In a process of its own, because it may hang."""
    code = """
        import faulthandler, signal, threading
        from types import SimpleNamespace
        import django
        from django.conf import settings
        settings.configure(INSTALLED_APPS=["django_singlejob"])
        django.setup()
        from django_singlejob.tasks import pool
        from tests.waiting import PATIENCE, work_for

        class Errand:
            name = "errand"

            def __call__(self):
                return threading.get_ident()

        idle, back = threading.Event(), threading.Event()
        one = pool.Pool(1, back.set)
        pool.IDLE, pool.connections = 0.001, SimpleNamespace(close_all=idle.set)
        pool.drop_dead = pool.forget_queries = pool.tidy_up = lambda: None
        signal.signal(signal.SIGALRM, lambda *arguments: None)
        faulthandler.dump_traceback_later(PATIENCE, exit=True)
        for number in range(1000):
            one.send(Errand())
            assert back.wait(PATIENCE)
            back.clear()
            ((_, thread),) = one.come_back()
            work_for(number % 20 / 10_000)
            signal.pthread_kill(thread, signal.SIGALRM)
            idle.wait()
            idle.clear()
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
    """
    command = [sys.executable, "-c", dedent(code)]
    done = subprocess.run(command, env={}, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("error", [ZeroDivisionError, SystemExit, KeyboardInterrupt, Stop])
def test_what_an_errand_raises_is_in_its_report(error: type[BaseException]) -> None:
    def fail() -> None:
        raise error

    pool = Pool(1)
    assert isinstance(done(pool, fail), error)
    # The thread goes on.
    assert done(pool, lambda: "next") == "next"


def test_its_threads_are_not_started_with_signals_blocked() -> None:
    """The processes that a job starts would inherit that."""
    assert not done(Pool(1), lambda: signal.pthread_sigmask(signal.SIG_BLOCK, []))


# --- their connections


def connect() -> Any:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
    return connections["default"]


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_a_connection_serves_one_errand_after_the_other_and_is_closed_when_there_are_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("django_singlejob.tasks.pool.IDLE", 0.3)
    one = Pool(1)
    first = done(one, lambda: connect().connection)
    second = done(one, connect)
    assert second.connection is first or second.connection is None  # it was idle, on a busy machine
    eventually(lambda: second.connection is None)
    assert done(one, lambda: connect().connection is not None)
    eventually(lambda: second.connection is None)


# --- forks


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
@pytest.mark.parametrize("how", ["returns", "raises"])
def test_a_forked_child_that_comes_back_from_its_errand_ends(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tidy = tmp_path / "tidy"

    def tidy_up() -> None:
        with tidy.open("a") as pids:
            pids.write(f"{os.getpid()}\n")

    def fork() -> int:
        if pid := os.fork():
            return pid
        if how == "raises":
            raise Stop
        return 0

    monkeypatch.setattr("django_singlejob.tasks.pool.tidy_up", tidy_up)
    one = Pool(1)
    pid = done(one, fork)
    left, status = os.waitpid(pid, 0)
    assert (left, os.waitstatus_to_exitcode(status)) == (pid, int(how == "raises"))
    assert one.is_idle
    assert done(one, lambda: 5) == 5
    assert {*tidy.read_text().split()} == {str(os.getpid())}, "A child's connections are the parent's."
