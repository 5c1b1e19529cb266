from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass
from textwrap import dedent
from typing import TYPE_CHECKING, Any

import pytest
from django.db import Error, connection, connections, transaction

from django_singlejob import Outcome
from django_singlejob.running.reports import Report
from django_singlejob.worker import pool
from django_singlejob.worker.pool import Inline, Pool
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
    """A task that reports what its function returns."""

    act: Callable[[], Any]
    name: str = "errand"

    def __call__(self) -> Report:
        return Report(self.name, Outcome(status="successful", value=self.act()))


def wait_for(go: threading.Event, value: Any = None) -> Errand:
    def act() -> Any:
        assert go.wait(PATIENCE)
        return value

    return Errand(act)


def brought(pool: Pool | Inline) -> list[Any]:
    """What the tasks that came back have returned or raised, in their order."""
    return [report.outcome.value if report.outcome else report.error for _, report in pool.come_back()]


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


def test_results_come_back_all_at_once() -> None:
    pool = Pool(1)
    numbers = iter(range(3))
    for _ in range(3):
        pool.send(Errand(lambda: next(numbers)))
    eventually(lambda: pool._returns.qsize() == 3)
    assert brought(pool) == [0, 1, 2]


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
        from django_singlejob.worker import pool
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


def break_it() -> None:
    with contextlib.suppress(Error), connection.cursor() as cursor:
        connection.connection.close()
        cursor.execute("SELECT 1")
    assert connection.errors_occurred


def leave_a_transaction() -> None:
    transaction.atomic().__enter__()
    connect()


def turn_autocommit_off() -> None:
    transaction.set_autocommit(False)


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_a_connection_serves_one_errand_after_the_other_and_is_closed_when_there_are_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pool, "IDLE", 0.3)
    one = Pool(1)
    first = done(one, lambda: connect().connection)
    second = done(one, connect)
    assert second.connection is first or second.connection is None  # it was idle, on a busy machine
    eventually(lambda: second.connection is None)
    assert done(one, lambda: connect().connection is not None)
    eventually(lambda: second.connection is None)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("leave", [break_it, leave_a_transaction, turn_autocommit_off])
def test_what_an_errand_leaves_of_its_connection_does_not_touch_the_next_one(leave: Callable[[], None]) -> None:
    one = Pool(1)
    done(one, leave)
    assert done(one, lambda: (connect().in_atomic_block, connection.get_autocommit())) == (False, True)


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

    monkeypatch.setattr(pool, "tidy_up", tidy_up)
    one = Pool(1)
    pid = done(one, fork)
    left, status = os.waitpid(pid, 0)
    assert (left, os.waitstatus_to_exitcode(status)) == (pid, 0)
    assert one.is_idle
    assert done(one, lambda: 5) == 5
    assert {*tidy.read_text().split()} == {str(os.getpid())}, "A child's connections are the parent's."


# --- without threads


def test_inline_it_is_done_at_once_in_this_thread_one_at_a_time() -> None:
    inline = Inline()
    assert (inline.free, inline.is_idle, brought(inline)) == (1, True, [])
    inline.send(Errand(threading.get_ident))
    assert (inline.free, inline.is_idle) == (0, False)
    assert brought(inline) == [threading.get_ident()]
    assert (inline.free, inline.is_idle, inline.recall()) == (1, True, [])


@pytest.mark.parametrize("error", [ZeroDivisionError, SystemExit, KeyboardInterrupt, Stop])
def test_inline_too_what_an_errand_raises_is_in_its_report(error: type[BaseException]) -> None:
    def fail() -> None:
        raise error

    inline = Inline()
    inline.send(Errand(fail))
    (raised,) = brought(inline)
    assert isinstance(raised, error)


def test_but_not_what_a_forked_child_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    def leave_as_a_child() -> None:
        monkeypatch.setattr(os, "getpid", lambda: 0)
        raise Stop

    with pytest.raises(Stop):
        Inline().send(Errand(leave_as_a_child))


@pytest.mark.parametrize("error", [None, Stop()], ids=["it returned", "it raised"])
def test_nor_does_a_forked_child_that_comes_back_with_a_report_go_on(
    monkeypatch: pytest.MonkeyPatch, error: BaseException | None
) -> None:
    """A task's child does, because what it raises is already in its report."""

    class Fork:
        name = "forks"

        def __call__(self) -> Report:
            monkeypatch.setattr(os, "getpid", lambda: 0)
            return Report(self.name, error=error)

    with pytest.raises(type(error) if error else SystemExit):
        Inline().send(Fork())
