from __future__ import annotations

import asyncio
import gc
import random
import subprocess
import sys
import threading
import time
from contextlib import nullcontext
from queue import SimpleQueue
from textwrap import dedent
from typing import TYPE_CHECKING

import pytest
from django.db import ProgrammingError

from django_singlejob.interrupt import Window
from django_singlejob.received_signals import deferred_signals, here, is_shutdown_requested

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

ROUNDS = 5000


class Stop(Exception):
    pass


class StopAgain(Exception):
    pass


def in_thread(act: Callable[..., object], *arguments: object) -> None:
    def act_on_go() -> None:
        go.wait(10)
        act(*arguments)

    go = threading.Event()
    thread = threading.Thread(target=act_on_go, daemon=True)
    thread.start()
    go.set()  # not earlier: `act` may interrupt this thread, and start() does not survive that
    # Not join(): a blocked thread cannot be interrupted, and in Python 3.11 it keeps a traced one from going on.
    while thread.is_alive():
        time.sleep(0.001)


def fire(window: Window, exception: type[Exception] = Stop) -> None:
    in_thread(window.fire, exception)


def fire_and_work(window: Window, exception: type[Exception] = Stop) -> None:
    fire(window, exception)
    while True:
        time.sleep(0.01)


def spin(steps: int = 500) -> None:
    """Give an interrupt that is on its way time to arrive."""
    for _ in range(steps):
        pass


# --- an interrupt comes in while the body runs, and never after it


@pytest.mark.slow
@pytest.mark.parametrize("protection", [nullcontext, deferred_signals])
def test_no_interrupt_at_any_moment_hits_what_comes_after_the_body(
    protection: Callable[[], AbstractContextManager[object]], quick_switches: None
) -> None:
    windows: SimpleQueue[Window | None] = SimpleQueue()
    thread = threading.Thread(target=fire_at_random_moments, args=[windows])
    thread.start()
    # An interrupt in coverage's own functions would leave its lock locked.
    tracer = sys.gettrace()
    sys.settrace(None)
    # An interrupt in a callback of the garbage collector, such as hypothesis's, would be lost.
    gc.disable()
    try:
        with protection():
            interrupted = sum(is_interrupted(windows) for _ in range(ROUNDS))
    finally:
        gc.enable()
        sys.settrace(tracer)
        windows.put(None)
        thread.join()
    assert 0 < interrupted < ROUNDS


@pytest.fixture
def quick_switches() -> Iterator[None]:
    """Switch threads often. Otherwise a short body would end before another thread runs."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(usual)


def fire_at_random_moments(windows: SimpleQueue[Window | None]) -> None:
    while window := windows.get():
        for exception in Stop, StopAgain:
            spin(random.randrange(500))
            window.fire(exception)


def is_interrupted(windows: SimpleQueue[Window | None]) -> bool:
    def body() -> None:
        while is_patient and not windows.empty():
            pass
        spin(random.randrange(500))

    # However busy the machine is, some bodies are still running when the interrupts come.
    is_patient = random.random() < 0.02

    with Window() as window:
        windows.put(window)
        try:
            window.run(body)
        except (Stop, StopAgain):
            return True
        finally:
            spin()
    spin()
    return False


def test_a_body_is_interrupted_and_a_value_is_handed_on() -> None:
    with Window() as window:
        assert window.run(lambda: 5) == 5
    with Window() as window, pytest.raises(Stop):
        window.run(lambda: fire_and_work(window))


def test_an_interrupt_is_not_hidden_by_the_driver_whose_statement_it_cut_off() -> None:
    """Django closes the cursor and the driver complains of "commands out of sync", but the interrupt is what counts."""

    def is_cut_off() -> None:
        try:
            fire_and_work(window)
        except Stop:
            raise ProgrammingError(2014, "Commands out of sync") from None

    with Window() as window, pytest.raises(Stop):
        window.run(is_cut_off)


def test_an_error_of_the_bodys_own_is_not_hidden_by_the_interrupt_that_it_followed() -> None:
    def fails_at_cleaning_up() -> None:
        try:
            fire_and_work(window)
        finally:
            raise KeyError

    with Window() as window, pytest.raises(KeyError):
        window.run(fails_at_cleaning_up)


def test_what_comes_before_the_body_waits_for_it() -> None:
    with Window() as window:
        fire(window)
        spin()
        with pytest.raises(Stop):
            window.run(lambda: pytest.fail("it began"))


def test_what_comes_after_the_body_comes_to_nothing() -> None:
    with Window() as window:
        assert window.run(lambda: "done") == "done"
        fire(window)
        spin()
    fire(window)
    spin()


def test_of_each_kind_only_the_first_comes_in() -> None:
    def body() -> None:
        with pytest.raises(Stop):
            fire_and_work(window)
        fire(window)
        spin()
        with pytest.raises(StopAgain):
            fire_and_work(window, StopAgain)

    with Window() as window:
        window.run(body)


@pytest.mark.slow
def test_who_was_interrupted_can_be_traced_afterwards() -> None:
    """By a debugger, a profiler or coverage. It runs in a process of its own, because it may hang."""
    code = """
        import faulthandler, sys, threading
        from django_singlejob.interrupt import Window

        def fire():
            is_running.wait()
            window.fire(ZeroDivisionError)

        def body():
            is_running.set()
            while True:
                pass

        is_running = threading.Event()
        threading.Thread(target=fire).start()  # not in the body: start() does not survive an interrupt
        with Window() as window:
            try:
                window.run(body)
            except ZeroDivisionError:
                print("interrupted")
        faulthandler.dump_traceback_later(2, exit=True)
        sys.settrace(lambda *arguments: None)
        (lambda: print("traced"))()
    """
    command = [sys.executable, "-c", dedent(code)]
    # With an empty environment, coverage does not trace it from the start.
    done = subprocess.run(command, env={}, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "interrupted\ntraced\n", done.stderr


# --- a coroutine


def test_a_coroutine_is_interrupted_and_its_task_is_not_cancelled_afterwards() -> None:
    async def work() -> int:
        with Window() as window, pytest.raises(Stop):
            await window.run_async(lambda: fire_and_sleep(window))
        return cancellations()

    async def fire_and_sleep(window: Window) -> None:
        fire(window)
        await asyncio.sleep(60)

    assert asyncio.run(work()) == 0


def test_what_comes_as_a_coroutine_returns_comes_to_nothing() -> None:
    async def work() -> int:
        with Window() as window:
            await window.run_async(lambda: fire_and_return(window))
        await asyncio.sleep(0.01)
        return cancellations()

    async def fire_and_return(window: Window) -> None:
        fire(window)

    assert asyncio.run(work()) == 0


def cancellations() -> int:
    task = asyncio.current_task()
    assert task
    return task.cancelling()


# --- a window inside another


def test_what_comes_for_the_outer_one_waits_until_the_inner_one_is_done() -> None:
    done: list[str] = []

    def body() -> None:
        with Window() as inner:
            fire(outer)
            inner.run(spin)
            done.append("inner")
        pytest.fail("the outer one goes on")

    with Window() as outer, pytest.raises(Stop):
        outer.run(body)
    assert done == ["inner"]


def test_what_comes_for_the_inner_one_stays_inside() -> None:
    def body() -> str:
        with Window() as inner, pytest.raises(Stop):
            inner.run(lambda: fire_and_work(inner))
        return "done"

    with Window() as outer:
        assert outer.run(body) == "done"


def test_an_outer_one_that_was_not_open_stays_closed() -> None:
    with Window() as outer:
        with Window() as inner:
            inner.run(spin)
        fire(outer)
        spin()
        assert not outer.is_open


def test_the_windows_of_two_threads_are_not_inside_each_other() -> None:
    def elsewhere() -> None:
        with Window() as other:
            other.run(spin)

    def body() -> None:
        in_thread(elsewhere)
        fire_and_work(window)

    with Window() as window, pytest.raises(Stop):
        window.run(body)


def test_who_waits_inside_is_told_that_something_comes_for_the_outer_one() -> None:
    with Window() as outer, Window(), Window() as inner:
        assert not is_shutdown_requested()
        fire(inner)
        assert not is_shutdown_requested()
        fire(outer)
        assert is_shutdown_requested()


def test_windows_can_be_left_out_of_order() -> None:
    """As two generators do, if one was started inside the other."""
    first, second = Window(), Window()
    for window in first, second:
        window.__enter__()
        window.open()
    for window in first, second:
        window.__exit__(None, None, None)
    try:
        assert not first.is_open
        assert here.innermost is None
    finally:
        here.innermost = None


def test_what_is_to_end_throughout_ends_with_the_windows_inside_it() -> None:
    done: list[str] = []

    def body() -> None:
        with Window() as inner:
            try:
                inner.run(lambda: in_thread_and_stay(outer.fire_throughout))
            except Stop:
                done.append("inner")
        pytest.fail("the outer one goes on")

    with Window() as outer, pytest.raises(Stop):
        outer.run(body)
    assert done == ["inner"]


def in_thread_and_stay(fire: Callable[[type[BaseException]], None]) -> None:
    in_thread(fire, Stop)
    while True:
        time.sleep(0.01)


def test_what_is_to_end_throughout_begins_nothing_more() -> None:
    """A job that is interrupted while it acquires its lock, inside another job."""
    with Window() as outer:
        with Window() as inner:
            in_thread(outer.fire_throughout, Stop)
            assert inner.is_awaited
            assert is_shutdown_requested()
            with pytest.raises(Stop):
                inner.run(lambda: pytest.fail("it began"))
        with pytest.raises(Stop):
            outer.run(lambda: pytest.fail("it went on"))


def test_a_window_that_was_left_is_not_inside_any_more() -> None:
    with Window() as outer:
        with Window() as inner:
            inner.run(spin)
        in_thread(outer.fire_throughout, Stop)
        assert outer.is_awaited
        assert not inner.is_awaited
