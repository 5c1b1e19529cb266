"""Signals end a job's body in the main thread, and nothing else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from textwrap import dedent
from typing import TYPE_CHECKING

import pytest

from django_singlejob import JobInterrupted, received_signals
from django_singlejob.interrupt import Window
from django_singlejob.received_signals import (
    ReceivedSignals,
    blocked_signals,
    deferred_signals,
    heed_signals,
    is_second_signal_received,
    is_shutdown_requested,
)
from tests.test_interrupt import Stop, fire, in_thread, spin

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator


@pytest.fixture
def signals() -> Iterator[ReceivedSignals]:
    with deferred_signals() as signals:
        yield signals


def send(signum: int) -> None:
    os.kill(os.getpid(), signum)
    spin()


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_interrupts_the_body(signals: ReceivedSignals, signum: int) -> None:
    assert not is_shutdown_requested()
    with Window() as window, pytest.raises(JobInterrupted, match=f"by signal {signum:d}") as caught:
        window.run(lambda: send(signum))
    assert caught.value.signum == signals.received == signum
    assert is_shutdown_requested()


def test_a_signal_before_the_body_waits_for_it(signals: ReceivedSignals) -> None:
    send(signal.SIGTERM)
    with Window() as window:
        send(signal.SIGINT)
        with pytest.raises(JobInterrupted) as caught:
            window.run(lambda: pytest.fail("it began"))
    assert caught.value.signum == signal.SIGTERM


def test_it_does_not_wait_for_that_of_another_thread(signals: ReceivedSignals) -> None:
    def work() -> None:
        with Window() as window:
            window.run(lambda: done.append("elsewhere"))

    done: list[str] = []
    send(signal.SIGTERM)
    in_thread(work)
    assert done
    with Window() as window, pytest.raises(JobInterrupted):
        window.run(lambda: pytest.fail("it began"))


def test_a_signal_after_the_body_is_only_remembered(signals: ReceivedSignals) -> None:
    with Window() as window:
        window.run(spin)
        send(signal.SIGTERM)
    assert signals.received == signal.SIGTERM


def test_a_burst_of_signals_is_one(signals: ReceivedSignals) -> None:
    def clean_up() -> None:
        try:
            send(signal.SIGTERM)
        finally:
            send(signal.SIGTERM)
            send(signal.SIGINT)
            cleaned.append(True)

    cleaned: list[bool] = []
    with Window() as window, pytest.raises(JobInterrupted):
        window.run(clean_up)
    assert cleaned


def test_a_second_signal_hurries(signals: ReceivedSignals, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(received_signals, "SECOND_SIGNAL", 0)

    def clean_up_slowly() -> None:
        try:
            send(signal.SIGTERM)
        finally:
            send(signal.SIGINT)
            pytest.fail("it goes on cleaning up")

    with Window() as window, pytest.raises(JobInterrupted) as caught:
        window.run(clean_up_slowly)
    assert (caught.value.signum, signals.received) == (signal.SIGINT, signal.SIGTERM)


def test_the_main_thread_is_fetched_out_of_a_call_that_blocks(signals: ReceivedSignals) -> None:
    def body() -> None:
        threading.Timer(0.05, window.fire, [Stop]).start()
        time.sleep(20)

    begun_at = time.monotonic()
    with Window() as window, pytest.raises(Stop):
        window.run(body)
    assert time.monotonic() - begun_at < 5
    assert signals.received is None
    assert not is_shutdown_requested()


def test_an_interrupt_that_is_slow_to_arrive_comes_to_nothing_after_the_body(signals: ReceivedSignals) -> None:
    with Window() as window:
        with blocked_signals():
            window.run(lambda: fire(window))
        spin()
    assert signals.received is None


@pytest.mark.parametrize("first", ["the interrupt", "the signal"])
def test_a_signal_that_comes_with_an_interrupt_is_not_taken_for_it(signals: ReceivedSignals, first: str) -> None:
    """If it were the same signal, for example SIGTERM, the two would merge while they wait."""

    def body() -> None:
        with blocked_signals():
            acts = [lambda: fire(window), lambda: os.kill(os.getpid(), signal.SIGTERM)]
            for act in acts if first == "the interrupt" else reversed(acts):
                act()

    with Window() as window, pytest.raises((Stop, JobInterrupted)):
        window.run(body)
    assert signals.received == signal.SIGTERM
    assert is_shutdown_requested()


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGURG])
def test_the_main_thread_is_fetched_where_signals_are_ignored_too(ignore: Callable[[int], None], signum: int) -> None:
    ignore(signum)

    def body() -> None:
        fire(window)
        spin()

    with deferred_signals(), Window() as window, pytest.raises(Stop):
        window.run(body)


def test_a_job_that_handles_the_signal_that_fetches_it_is_interrupted_at_its_next_step(
    signals: ReceivedSignals,
) -> None:
    def body() -> None:
        signal.signal(signal.SIGURG, lambda *arguments: pytest.fail("a signal"))
        fire(window)
        spin()

    with Window() as window, pytest.raises(Stop):
        window.run(body)


@pytest.fixture
def ignore() -> Iterator[Callable[[int], None]]:
    before = {}
    yield lambda signum: before.update({signum: signal.signal(signum, signal.SIG_IGN)})
    for signum, handler in before.items():
        signal.signal(signum, handler)


def test_what_is_ignored_stays_ignored(ignore: Callable[[int], None]) -> None:
    ignore(signal.SIGHUP)
    with deferred_signals() as signals, Window() as window:
        window.run(lambda: send(signal.SIGHUP))
    assert signals.received is None


def test_the_handlers_are_put_back() -> None:
    heeded = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGURG]
    before = [signal.getsignal(signum) for signum in heeded]
    with pytest.raises(Stop), deferred_signals():
        raise Stop
    assert [signal.getsignal(signum) for signum in heeded] == before
    assert not is_shutdown_requested()


def test_they_are_put_back_behind_a_command_that_was_not_told_to_end() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with deferred_signals(is_last=True):
        pass
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.slow
@pytest.mark.parametrize(("seconds", "status"), [(0, 5), (2, -signal.SIGTERM)])
def test_once_it_was_told_to_end_only_a_second_thought_changes_how(seconds: float, status: int) -> None:
    """Another signal of the same burst arrives while the process waits for threads, or while Python shuts down."""
    code = f"""
        import signal, sys, threading, time
        from django_singlejob.received_signals import deferred_signals

        class Last:
            def __del__(self):
                raise_signal(SIGTERM)

        def send_again():
            time.sleep({seconds})
            signal.pthread_kill(threading.main_thread().ident, signal.SIGTERM)
            time.sleep(0.1)

        last, raise_signal, SIGTERM = Last(), signal.raise_signal, signal.SIGTERM
        with deferred_signals(is_last=True):
            signal.raise_signal(signal.SIGTERM)
        threading.Thread(target=send_again).start()
        sys.exit(5)
    """
    done = subprocess.run([sys.executable, "-c", dedent(code)], env={}, timeout=60, check=False)
    assert done.returncode == status


def test_in_another_thread_signals_do_what_they_did_before() -> None:
    def command() -> None:
        with deferred_signals() as signals:
            seen.append((signals.received, signal.getsignal(signal.SIGTERM) == before))

    seen: list[object] = []
    before = signal.getsignal(signal.SIGTERM)
    in_thread(command)
    assert seen == [(None, True)]


def test_a_thread_that_is_started_with_signals_blocked_gets_none() -> None:
    def look() -> None:
        seen.append(signal.pthread_sigmask(signal.SIG_BLOCK, []))

    seen: list[set[int | signal.Signals]] = []
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    with blocked_signals():
        in_thread(look)
    assert {signal.SIGTERM, signal.SIGINT, signal.SIGHUP} <= seen[0]
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before


def test_an_interrupt_while_signals_are_blocked_leaves_none_blocked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python calls the handlers of signals that arrived before as soon as these are blocked."""
    block = signal.pthread_sigmask

    def raise_then(how: int, signums: Collection[int]) -> object:
        before = block(how, signums)
        if how == signal.SIG_BLOCK and signums:
            raise KeyboardInterrupt
        return before

    before = block(signal.SIG_BLOCK, [])
    with monkeypatch.context() as patch:
        patch.setattr(signal, "pthread_sigmask", raise_then)
        with pytest.raises(KeyboardInterrupt), blocked_signals():
            pytest.fail("the block began")
    assert block(signal.SIG_SETMASK, before) == before


def test_where_signals_cannot_be_blocked_they_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    mask = signal.pthread_sigmask
    monkeypatch.delattr(signal, "pthread_sigmask")
    with blocked_signals():
        assert mask(signal.SIG_BLOCK, []) == before


def test_what_is_on_its_way_to_the_outer_one_waits_for_the_inner_one_too(signals: ReceivedSignals) -> None:
    def body() -> None:
        with blocked_signals():
            fire(outer)
            inner = Window().__enter__()
        inner.run(spin)
        inner.__exit__(None, None, None)
        spin()

    with Window() as outer, pytest.raises(Stop):
        outer.run(body)


def test_what_arrives_while_the_window_is_being_closed_waits_for_it_to_be_opened_again(
    signals: ReceivedSignals,
) -> None:
    def body() -> None:
        with blocked_signals():
            fire(window)
            window.is_open = False  # close() does this first
        spin()
        window.close()

    with Window() as window:
        window.run(body)
        assert window.is_awaited


# --- which threads notice


def test_nobody_is_told_again_where_no_signals_are_handled() -> None:
    assert not is_second_signal_received()


def test_a_burst_of_signals_is_one_and_another_after_it_is_told_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with deferred_signals():
        answers = []
        for now in 100.0, 100.1, 100.9, 101.0, 101.1:
            monkeypatch.setattr(received_signals, "local_now", lambda now=now: now)
            signal.raise_signal(signal.SIGTERM)
            answers.append(is_second_signal_received())
        assert answers == [False, False, False, True, True]
    assert not is_second_signal_received()


def test_only_a_thread_that_works_for_the_main_one_is_told_to_end_with_it() -> None:
    answers: list[bool] = []

    def listen(*, heeds: bool) -> None:
        if heeds:
            heed_signals()
        answers.append(is_shutdown_requested())

    with deferred_signals():
        in_thread(lambda: listen(heeds=True))
        signal.raise_signal(signal.SIGTERM)
        in_thread(lambda: listen(heeds=False))
        in_thread(lambda: listen(heeds=True))
    in_thread(lambda: listen(heeds=True))
    assert answers == [False, False, True, False]
