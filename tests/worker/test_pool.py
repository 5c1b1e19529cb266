from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from textwrap import dedent
from typing import TYPE_CHECKING, Any

import pytest
from django.db import Error, connection, connections, transaction

from django_singlejob.worker import pool
from django_singlejob.worker.pool import Pool
from tests.databases import APPS
from tests.processes.witness import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from django_singlejob.interrupt import Window


class Stop(BaseException):
    pass


@pytest.fixture
def go() -> Iterator[threading.Event]:
    """Whoever waits goes on when it is set, at the end of the test at the latest."""
    go = threading.Event()
    yield go
    go.set()


def wait_for(go: threading.Event, value: Any = None) -> Callable[[Window], Any]:
    def task(window: Window) -> Any:
        assert go.wait(60)
        return value

    return task


def bring(value: int, window: Window) -> int:
    return value


def all_back(pool: Pool[Any]) -> list[Any]:
    """What they have brought, in their order."""
    results: list[Any] = []
    deadline = time.monotonic() + 30
    while not pool.is_idle:
        assert time.monotonic() < deadline
        results += pool.come_back(1)
    return results


def done(pool: Pool[Any], task: Callable[[Window], Any]) -> Any:
    pool.send(task)
    (result,) = all_back(pool)
    return result


# --- who is free


def test_so_many_work_at_the_same_time_and_the_others_wait_for_one_of_them(go: threading.Event) -> None:
    pool, begun = Pool[int](2), threading.Semaphore(0)

    def task(window: Window) -> int:
        begun.release()
        go.wait(60)
        return threading.get_ident()

    assert (pool.free, pool.is_idle) == (2, True)
    for free in 1, 0, -1, -2:
        pool.send(task)
        assert (pool.free, pool.is_idle) == (free, False)
    assert begun.acquire(timeout=30)
    assert begun.acquire(timeout=30)
    assert not begun.acquire(timeout=0.1)
    go.set()
    threads = all_back(pool)
    assert len(threads) == 4
    assert len(set(threads)) == 2
    assert (pool.free, pool.is_idle) == (2, True)


def test_a_thread_is_started_when_it_is_needed() -> None:
    pool = Pool[int](5)
    assert len({done(pool, lambda window: threading.get_ident()) for _ in range(3)}) == 1


def test_what_nobody_has_begun_can_be_recalled(go: threading.Event) -> None:
    pool = Pool[str](1)
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
    assert pool.come_back(0) == []


# --- who comes back


def test_nobody_is_waited_for_longer_than_that(go: threading.Event) -> None:
    pool = Pool[None](1)
    pool.send(wait_for(go))
    begun_at = time.monotonic()
    assert pool.come_back(0) == []
    assert pool.come_back(-1) == []
    assert time.monotonic() - begun_at < 1
    assert pool.come_back(0.2) == []
    assert time.monotonic() - begun_at > 0.15


def test_they_bring_what_they_have_got_all_at_once() -> None:
    pool = Pool[int](1)
    for number in range(3):
        pool.send(partial(bring, number))
    eventually(lambda: pool._returns.qsize() == 3)
    assert pool.come_back(30) == [0, 1, 2]


COMES_BACK = """
    for _ in range(1000):
        signal.setitimer(signal.ITIMER_REAL, 0.001)
        one.come_back(0.001)
"""
IS_IDLE = """
    idle = threading.Event()
    pool.IDLE, pool.connections = 0.001, SimpleNamespace(close_all=idle.set)
    for number in range(1000):
        one.send(lambda window: threading.get_ident())
        (thread,) = one.come_back(20)
        time.sleep(number % 20 / 10_000)
        signal.pthread_kill(thread, signal.SIGALRM)
        idle.wait()
        idle.clear()
"""


@pytest.mark.slow
@pytest.mark.parametrize("waits", [COMES_BACK, IS_IDLE], ids=["main thread", "thread of its own"])
def test_a_signal_that_arrives_as_a_time_out_elapses_keeps_nobody_waiting_for_ever(waits: str) -> None:
    """In a process of its own, since it may hang."""
    code = """
        import faulthandler, signal, threading, time
        from types import SimpleNamespace
        from django_singlejob.worker import pool

        one = pool.Pool(1)
        pool.tidy_up = lambda: None
        signal.signal(signal.SIGALRM, lambda *arguments: None)
        faulthandler.dump_traceback_later(30, exit=True)
    """
    command = [sys.executable, "-c", dedent(code) + dedent(waits) + "signal.signal(signal.SIGALRM, signal.SIG_IGN)"]
    done = subprocess.run(command, env={}, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("error", [ZeroDivisionError, SystemExit, KeyboardInterrupt, Stop])
def test_what_an_errand_raises_is_raised_where_it_was_sent_from(error: type[BaseException]) -> None:
    def fail(window: Window) -> None:
        raise error

    pool = Pool[Any](1)
    pool.send(fail)
    with pytest.raises(error):
        pool.come_back(30)
    assert pool.is_idle
    # And the thread goes on.
    assert done(pool, lambda window: "next") == "next"


# --- who is interrupted


def test_what_is_under_way_is_interrupted_and_nothing_else(go: threading.Event) -> None:
    pool, begun = Pool[str](2), threading.Semaphore(0)

    def stay() -> str:
        begun.release()
        while not go.is_set():
            time.sleep(0.001)
        return "stayed"

    def task(window: Window) -> str:
        try:
            return window.run(stay)
        except Stop:
            return "stopped"

    for _ in range(2):
        pool.send(task)
    for _ in range(2):
        assert begun.acquire(timeout=30)
    pool.fire(Stop)
    assert all_back(pool) == ["stopped", "stopped"]
    pool.fire(Stop)
    go.set()
    assert done(pool, task) == "stayed"


def test_an_errand_that_has_not_opened_its_window_is_interrupted_when_it_does(go: threading.Event) -> None:
    pool, begun = Pool[str](1), threading.Event()

    def task(window: Window) -> str:
        begun.set()
        go.wait(60)
        with pytest.raises(Stop):
            window.run(lambda: pytest.fail("it began"))
        return "stopped"

    pool.send(task)
    assert begun.wait(30)
    pool.fire(Stop)
    go.set()
    assert all_back(pool) == ["stopped"]


def test_its_threads_are_not_started_with_signals_blocked() -> None:
    """What a job starts would inherit that."""
    assert not done(Pool[Any](1), lambda window: signal.pthread_sigmask(signal.SIG_BLOCK, []))


# --- their connections


def connect(window: Window) -> Any:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
    return connections["default"]


def break_it(window: Window) -> None:
    with contextlib.suppress(Error), connection.cursor() as cursor:
        connection.connection.close()
        cursor.execute("SELECT 1")
    assert connection.errors_occurred


def leave_a_transaction(window: Window) -> None:
    transaction.atomic().__enter__()
    connect(window)


def turn_autocommit_off(window: Window) -> None:
    transaction.set_autocommit(False)


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_a_connection_serves_one_errand_after_the_other_and_is_closed_when_there_are_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pool, "IDLE", 0.3)
    one = Pool[Any](1)
    first = done(one, lambda window: connect(window).connection)
    second = done(one, connect)
    assert second.connection is first or second.connection is None  # on a busy machine it was idle
    eventually(lambda: second.connection is None)
    assert done(one, lambda window: connect(window).connection is not None)
    eventually(lambda: second.connection is None)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("leave", [break_it, leave_a_transaction, turn_autocommit_off])
def test_what_an_errand_leaves_of_its_connection_does_not_touch_the_next_one(leave: Callable[[Window], None]) -> None:
    one = Pool[Any](1)
    done(one, leave)
    assert done(one, lambda window: (connect(window).in_atomic_block, connection.get_autocommit())) == (False, True)


# --- who forks


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

    def fork(window: Window) -> int:
        if pid := os.fork():
            return pid
        if how == "raises":
            raise Stop
        return 0

    monkeypatch.setattr(pool, "tidy_up", tidy_up)
    one = Pool[int](1)
    pid = done(one, fork)
    left, status = os.waitpid(pid, 0)
    assert (left, os.waitstatus_to_exitcode(status)) == (pid, 0)
    assert one.is_idle
    assert done(one, lambda window: 5) == 5
    assert {*tidy.read_text().split()} == {str(os.getpid())}, "A child's connections are the parent's."


# --- who is blocked


@pytest.mark.slow
def test_who_waits_in_c_is_blocked(go: threading.Event) -> None:
    pool: Pool[Any] = Pool(2)
    for _ in range(2):
        pool.send(lambda window: time.sleep(2))
    time.sleep(0.2)
    assert pool.is_blocked()
    all_back(pool)


@pytest.mark.slow
def test_who_goes_on_in_python_is_not(go: threading.Event) -> None:
    def count(window: Window) -> int:
        number = 0
        while not go.is_set():
            number += sum(range(number % 100))
        return number

    pool: Pool[Any] = Pool(1)
    pool.send(count)
    time.sleep(0.2)
    assert not pool.is_blocked()
    go.set()
    all_back(pool)


@pytest.mark.on_database("postgresql", "mysql")
@pytest.mark.django_db(transaction=True, available_apps=APPS)
def test_nor_is_who_waits_for_a_statement_which_the_server_would_carry_out_without_him() -> None:
    def sleep(window: Window) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_sleep(2)" if connection.vendor == "postgresql" else "SELECT SLEEP(2)")

    pool: Pool[Any] = Pool(1)
    pool.send(sleep)
    time.sleep(1)
    assert not pool.is_blocked()
    all_back(pool)
