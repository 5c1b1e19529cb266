"""The signal handlers of a program that calls jobs itself. Their exceptions can come at any moment."""

from __future__ import annotations

import _thread
import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from datetime import timedelta
from textwrap import dedent
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connections

from django_singlejob import Lease, handlers, job_lock, singleton_job
from django_singlejob.handlers import HeldSignals, held, signals_let_in
from django_singlejob.interrupt import Window
from django_singlejob.locking.release import Release
from tests.children import ROOT
from tests.contract.acts import is_free, last_run
from tests.databases import APPS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytest_plugins = "tests.fixtures"
pytestmark = [
    pytest.mark.usefixtures("fresh_process"),
    pytest.mark.django_db(transaction=True, available_apps=APPS),
]


class Alarm(Exception):
    pass


class OtherAlarm(Exception):
    pass


def ring(*arguments: object) -> None:
    raise Alarm


def ring_otherwise(*arguments: object) -> None:
    raise OtherAlarm


@pytest.fixture(autouse=True)
def own_handlers() -> Iterator[None]:
    before = [signal.signal(signal.SIGUSR1, ring), signal.signal(signal.SIGUSR2, ring_otherwise)]
    yield
    assert [signal.getsignal(signal.SIGUSR1), signal.getsignal(signal.SIGUSR2)] == [ring, ring_otherwise]
    for signum, handler in zip([signal.SIGUSR1, signal.SIGUSR2], before, strict=True):
        signal.signal(signum, handler)


def send(signum: int = signal.SIGUSR1) -> None:
    os.kill(os.getpid(), signum)


def send_from_elsewhere(seconds: float = 0.2) -> None:
    """Send the signal to the main thread only, as the system does most of the time."""
    main = threading.get_ident()
    threading.Timer(seconds, lambda: signal.pthread_kill(main, signal.SIGUSR1)).start()


def in_window(*acts: Callable[[], object], body: Callable[[], object] | None = None) -> None:
    """Do all this inside a window. If there is a body, open the window for it, then do it all again."""
    with Window() as window:
        for act in acts:
            act()
        if body:
            window.run(body)
            for act in acts:
                act()


def test_a_signal_waits_until_the_window_is_left() -> None:
    done: list[object] = []
    with pytest.raises(Alarm):
        in_window(send, lambda: done.append("went on"))
    assert done


def test_or_until_it_is_open() -> None:
    with pytest.raises(Alarm):
        in_window(send, body=lambda: pytest.fail("it began"))


def test_while_it_is_open_handlers_are_the_programs_own() -> None:
    with Window() as window:
        assert window.run(lambda: signal.getsignal(signal.SIGUSR1)) == ring
        with pytest.raises(Alarm):
            window.run(send)
        assert signal.getsignal(signal.SIGUSR1) != ring


def test_a_handler_that_the_body_sets_is_heeded_too() -> None:
    def body() -> None:
        signal.signal(signal.SIGUSR1, ring_otherwise)
        acts.append(send)

    acts: list[Callable[[], None]] = []
    with pytest.raises(OtherAlarm):
        in_window(lambda: [act() for act in acts], body=body)
    signal.signal(signal.SIGUSR1, ring)


def test_the_window_of_another_thread_lets_nothing_in() -> None:
    def work() -> None:
        with Window() as window:
            window.run(lambda: None)

    with Window():
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert held.are_held


def test_a_window_that_another_thread_leaves_keeps_none_of_the_next_ones_from_holding() -> None:
    """For example the window of a generator, which the last thread that refers to it closes."""

    def leave() -> None:
        lock.__exit__(None, None, None)
        connections.close_all()

    lock = job_lock("nightly")
    lock.__enter__()
    thread = threading.Thread(target=leave)
    thread.start()
    thread.join()
    assert not held.are_held
    with pytest.raises(Alarm):
        in_window(send)


def test_inside_a_window_that_is_open_it_goes_to_the_outer_body() -> None:
    def body() -> None:
        with Window() as inner:
            inner.run(lambda: None)
            send()
            done.append("inner")
        pytest.fail("it went on")

    done: list[str] = []
    with Window() as outer, pytest.raises(Alarm):
        outer.run(body)
    assert done == ["inner"]


def test_inside_one_that_is_closed_it_waits_for_that_too() -> None:
    done: list[object] = []
    with pytest.raises(Alarm):
        in_window(lambda: in_window(send), lambda: done.append("went on"))
    assert done


def test_each_of_several_is_handled() -> None:
    with pytest.raises(OtherAlarm) as caught:
        in_window(*3 * [send, lambda: send(signal.SIGUSR2)])
    assert isinstance(caught.value.__context__, Alarm)


def test_a_handler_that_raises_nothing_is_called_later_and_once() -> None:
    calls: list[int] = []
    signal.signal(signal.SIGUSR1, lambda signum, frame: calls.append(signum))
    with Window():
        send()
        send()
        assert calls == []
    assert calls == [signal.SIGUSR1]
    signal.signal(signal.SIGUSR1, ring)


@pytest.mark.slow
def test_a_second_one_after_a_second_is_let_through(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handlers, "SECOND_SIGNAL", 0.1)
    with Window():
        send()
        send()
        time.sleep(0.2)
        with pytest.raises(Alarm):
            send()
    # And nothing is left of it.


@pytest.mark.slow
def test_one_that_comes_alone_is_sent_again_while_something_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handlers, "SECOND_SIGNAL", 0.1)
    monkeypatch.setattr(handlers, "PATIENCE", 0.3)
    with Window():
        begun_at = time.monotonic()
        send()
        with pytest.raises(Alarm):
            time.sleep(20)
    assert 0.2 < time.monotonic() - begun_at < 10


def test_it_is_let_in_where_nothing_is_at_stake() -> None:
    with Window():
        with pytest.raises(Alarm), signals_let_in():
            send()
        send()
        with pytest.raises(Alarm), signals_let_in():
            pytest.fail("it waited")
        with signals_let_in():
            pass
        assert held.are_held
    with signals_let_in():
        assert not held.are_held


def test_where_no_handler_can_be_set_none_is_replaced() -> None:
    def enter() -> None:
        with Window():
            seen.append(signal.getsignal(signal.SIGUSR1))

    seen: list[object] = []
    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert seen == [ring]


def test_a_handler_that_is_interrupted_by_another_is_put_back_all_the_same() -> None:
    """A signal for the first handler comes before the others are put back."""
    some = HeldSignals()
    signal.signal(signal.SIGUSR1, lambda *arguments: calls.append("first"))
    calls: list[str] = []
    some.hold()
    send()
    with pytest.raises(OtherAlarm):
        replaced_by_one_that_raises_at_once(some)
    assert calls == ["first"]
    signal.signal(signal.SIGUSR1, ring)


def replaced_by_one_that_raises_at_once(some: HeldSignals) -> None:
    usual = some._handlers[signal.SIGUSR1]

    class Eager(dict[int, Any]):
        def __delitem__(self, signum: int) -> None:
            super().__delitem__(signum)
            if signum == signal.SIGUSR1:
                send(signal.SIGUSR2)

    some._handlers = Eager(some._handlers)
    assert some._handlers[signal.SIGUSR1] is usual
    some.let_in()


# --- locks


def at(method: str, monkeypatch: pytest.MonkeyPatch, act: Callable[[], None] = send) -> None:
    """Have a signal arrive in the middle of the method."""
    owner = Lease if method == "__init__" else Release
    usual = getattr(owner, method)

    def interrupted(self: Any, *args: Any, **kwargs: Any) -> Any:
        act()
        return usual(self, *args, **kwargs)

    monkeypatch.setattr(owner, method, interrupted)


@pytest.mark.parametrize("method", ["__init__", "_transaction"])
def test_a_signal_while_a_lock_is_taken_or_released_leaves_nothing(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    at(method, monkeypatch)
    with pytest.raises(Alarm):
        singleton_job("nightly")(lambda: None)()
    assert is_free()
    assert last_run().status == ("failed" if method == "__init__" else "successful")
    with pytest.raises(Alarm), job_lock("nightly"):
        pass
    assert is_free()


def test_a_lock_that_is_released_early_is_released_to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    with job_lock("nightly") as lease:
        at("_transaction", monkeypatch)
        with pytest.raises(Alarm):
            lease.release()
        assert is_free()


def test_what_insists_while_a_lock_is_released_leaves_nothing_either(monkeypatch: pytest.MonkeyPatch) -> None:
    def insist() -> None:
        send()
        time.sleep(0.01)
        send()

    monkeypatch.setattr(handlers, "SECOND_SIGNAL", 0)
    at("_transaction", monkeypatch, insist)
    with pytest.raises(Alarm):
        singleton_job("nightly")(lambda: None)()
    assert is_free()
    assert last_run().status == "interrupted"


@pytest.mark.slow
def test_who_waits_for_a_lock_is_not_kept_waiting() -> None:
    job = singleton_job("nightly", wait=timedelta(minutes=1))(lambda: None)
    with job_lock("nightly"):
        send_from_elsewhere()
        begun_at = time.monotonic()
        with pytest.raises(Alarm):
            job()
        assert time.monotonic() - begun_at < 10
    assert job.run().status == "successful"


@pytest.mark.slow
def test_a_coroutine_that_is_waited_for_is_cancelled_and_its_lock_is_released() -> None:
    @singleton_job
    async def nightly() -> None:
        send_from_elsewhere_than(main)
        try:
            await asyncio.sleep(60)
        finally:
            cleaned_up.append(True)

    def send_from_elsewhere_than(thread: int) -> None:
        threading.Timer(0.2, lambda: signal.pthread_kill(thread, signal.SIGUSR1)).start()

    cleaned_up: list[bool] = []
    main = threading.get_ident()
    with pytest.raises(Alarm):
        nightly.run()
    assert cleaned_up
    assert is_free()
    assert last_run().status == "failed"


def test_a_signal_before_a_coroutine_begins_comes_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    @singleton_job
    async def nightly() -> None:
        await asyncio.sleep(60)

    at("__init__", monkeypatch)
    with pytest.raises(Alarm):
        nightly.run()
    assert is_free()


# --- forks


@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
def test_a_forked_child_holds_no_signals_back() -> None:
    with Window():
        pid = os.fork()
        if pid == 0:
            try:
                send()
                time.sleep(1)
            except Alarm:
                os._exit(5)
            finally:
                os._exit(1)
        _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 5


# --- where no handler can be set

ANOTHER_INTERPRETER = """
    import sys
    import _xxsubinterpreters as interpreters

    interpreters.run_string(interpreters.create(), sys.argv[1])
"""
HOLD = """
import signal
from django_singlejob.handlers import held
assert callable(signal.getsignal(signal.SIGINT))
held.hold()
held.let_in()
print("held and let in", held._handlers, flush=True)
"""


@pytest.mark.slow
@pytest.mark.skipif(
    sys.version_info >= (3, 12), reason="later versions have other modules for this, some without datetime"
)
def test_in_another_interpreter_than_the_main_one_no_handler_is_replaced() -> None:
    """mod_wsgi and uWSGI use such interpreters."""
    command = [sys.executable, "-c", dedent(ANOTHER_INTERPRETER), HOLD]
    env = {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "held and let in {}\n", done.stderr


def test_what_a_handler_raises_while_it_is_replaced_is_not_taken_for_a_refusal() -> None:
    def raise_value_error(*arguments: object) -> None:
        raise ValueError

    class Late(dict[int, Any]):
        """Raises just after the handler was looked up, and just before it is replaced."""

        def __setitem__(self, signum: int, handler: object) -> None:
            super().__setitem__(signum, handler)
            if signum == signal.SIGUSR1:
                _thread.interrupt_main(signal.SIGUSR1)

    some = HeldSignals()
    some._handlers = Late()
    signal.signal(signal.SIGUSR1, raise_value_error)
    with pytest.raises(ValueError, match=r"^$"):
        some.hold()
    assert not some.are_held
    signal.signal(signal.SIGUSR1, ring)
