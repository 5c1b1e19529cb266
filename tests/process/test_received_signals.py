"""Signals end a job's body in the main thread, and nothing else."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from textwrap import dedent
from typing import TYPE_CHECKING

import pytest

from django_singlejob import JobInterrupted
from django_singlejob.process import received_signals
from django_singlejob.process.received_signals import (
    ReceivedSignals,
    blocked_signals,
    deferred_signals,
    heed_signals,
    is_ctrl_c,
    is_second_signal_received,
    is_shutdown_requested,
    let_in,
    without_signals,
)
from tests.contract.acts import in_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator


@pytest.fixture
def signals() -> Iterator[ReceivedSignals]:
    with deferred_signals() as signals:
        yield signals


def send(signum: int = signal.SIGTERM) -> None:
    os.kill(os.getpid(), signum)


def never() -> None:
    pytest.fail("it began")


# --- a body


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP])
def test_a_signal_ends_the_body(signals: ReceivedSignals, signum: int) -> None:
    assert not is_shutdown_requested()
    with pytest.raises(JobInterrupted, match=f"by signal {signum:d}") as caught:
        let_in(lambda: send(signum))
    assert caught.value.signum == signals.received == signum
    assert is_shutdown_requested()


def test_one_before_the_body_waits_for_it(signals: ReceivedSignals) -> None:
    send(signal.SIGTERM)
    send(signal.SIGINT)
    with pytest.raises(JobInterrupted) as caught:
        let_in(never)
    assert caught.value.signum == signal.SIGTERM


def test_it_does_not_wait_for_that_of_another_thread(signals: ReceivedSignals) -> None:
    send()
    assert in_thread(lambda: let_in(lambda: "done")) == "done"
    with pytest.raises(JobInterrupted):
        let_in(never)


def test_one_after_the_body_is_only_remembered(signals: ReceivedSignals) -> None:
    let_in(int)
    send()
    assert signals.received == signal.SIGTERM


def test_a_burst_of_signals_is_one(signals: ReceivedSignals) -> None:
    def clean_up() -> None:
        try:
            send()
        finally:
            send(signal.SIGTERM)
            send(signal.SIGINT)
            cleaned.append(True)

    cleaned: list[bool] = []
    with pytest.raises(JobInterrupted):
        let_in(clean_up)
    assert cleaned


def test_a_second_signal_hurries(signals: ReceivedSignals, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(received_signals, "SECOND_SIGNAL", 0)

    def clean_up_slowly() -> None:
        try:
            send()
        finally:
            send(signal.SIGINT)
            pytest.fail("it goes on cleaning up")

    with pytest.raises(JobInterrupted) as caught:
        let_in(clean_up_slowly)
    assert (caught.value.signum, signals.received) == (signal.SIGINT, signal.SIGTERM)


def test_it_is_kept_out_of_what_must_not_be_cut_short_and_raises_after_that(signals: ReceivedSignals) -> None:
    def body() -> None:
        with without_signals():
            send()
            reached.append("the end")
        reached.append("more")

    reached: list[str] = []
    with pytest.raises(JobInterrupted):
        let_in(body)
    assert reached == ["the end"]


def test_outside_a_body_nothing_raises_after_that(signals: ReceivedSignals) -> None:
    with without_signals():
        send()
    assert signals.received == signal.SIGTERM


def test_what_another_thread_keeps_out_is_let_in_here(signals: ReceivedSignals) -> None:
    def look() -> bool:
        with without_signals():
            return True

    assert in_thread(look)
    with pytest.raises(JobInterrupted):
        let_in(send)


# --- an async body


def test_it_cancels_a_coroutine(signals: ReceivedSignals) -> None:
    async def nightly() -> None:
        try:
            send()
            await asyncio.Event().wait()
        finally:
            await asyncio.to_thread(int)
            cleaned.append(True)

    cleaned: list[bool] = []
    with pytest.raises(JobInterrupted, match="by signal 15"):
        asyncio.run(signals.call_async(nightly))
    assert cleaned


def test_one_before_the_coroutine_waits_for_it(signals: ReceivedSignals) -> None:
    async def nightly() -> None:
        never()

    send()
    with pytest.raises(JobInterrupted):
        asyncio.run(signals.call_async(nightly))


def test_a_coroutine_that_somebody_else_cancels_is_cancelled(signals: ReceivedSignals) -> None:
    async def nightly() -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(signals.call_async(nightly))


# --- a command


def test_where_no_command_handles_them_signals_are_the_programs() -> None:
    def body() -> str:
        with without_signals():
            signal.raise_signal(signal.SIGINT)
        return "done"

    with pytest.raises(KeyboardInterrupt) as caught:
        let_in(body)
    assert is_ctrl_c(caught.value)
    assert not is_ctrl_c(JobInterrupted(2))
    assert not is_shutdown_requested()
    assert not is_second_signal_received()


def test_where_a_command_handles_them_no_other_exception_is_a_ctrl_c(signals: ReceivedSignals) -> None:
    assert not is_ctrl_c(KeyboardInterrupt())


def test_a_command_that_a_program_calls_leaves_the_handlers_of_the_program_alone() -> None:
    before = {signum: signal.getsignal(signum) for signum in received_signals.ENDING_SIGNALS}
    handler = signal.signal(signal.SIGHUP, lambda *_: None)
    try:
        theirs = signal.getsignal(signal.SIGHUP)
        with deferred_signals(is_guest=True) as signals:
            assert signal.getsignal(signal.SIGHUP) == theirs
            assert signal.getsignal(signal.SIGINT) == before[signal.SIGINT]  # a Ctrl-C is theirs too
            signal.raise_signal(signal.SIGTERM)  # which would have ended the process
        assert signals.received == signal.SIGTERM
    finally:
        signal.signal(signal.SIGHUP, handler)
    assert {signum: signal.getsignal(signum) for signum in before} == before


def test_in_another_thread_they_do_what_they_did_before() -> None:
    def command() -> object:
        with deferred_signals() as signals:
            return signals.received, signal.getsignal(signal.SIGTERM)

    assert in_thread(command) == (None, signal.getsignal(signal.SIGTERM))


@pytest.fixture
def ignore() -> Iterator[Callable[[int], None]]:
    before = {}
    yield lambda signum: before.update({signum: signal.signal(signum, signal.SIG_IGN)})
    for signum, handler in before.items():
        signal.signal(signum, handler)


def test_what_is_ignored_stays_ignored(ignore: Callable[[int], None]) -> None:
    ignore(signal.SIGHUP)
    with deferred_signals() as signals:
        let_in(lambda: send(signal.SIGHUP))
    assert signals.received is None


@pytest.mark.parametrize("is_last", [False, True])
def test_the_handlers_are_put_back(*, is_last: bool) -> None:
    heeded = [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP]
    before = [signal.getsignal(signum) for signum in heeded]
    with pytest.raises(ZeroDivisionError), deferred_signals(is_last=is_last):
        raise ZeroDivisionError
    assert [signal.getsignal(signum) for signum in heeded] == before
    assert not is_shutdown_requested()


@pytest.mark.slow
@pytest.mark.parametrize(("seconds", "status"), [(0, 5), (2, -signal.SIGTERM)])
def test_once_it_was_told_to_end_only_a_second_thought_changes_how(seconds: float, status: int) -> None:
    """Another signal of the same burst arrives while the process waits for threads, or while Python shuts down."""
    code = f"""
        import signal, sys, threading, time
        from django_singlejob.process.received_signals import deferred_signals

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


# --- threads


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
    def is_helper_told() -> bool:
        heed_signals()
        return is_shutdown_requested()

    with deferred_signals():
        assert not in_thread(is_helper_told)
        send()
        assert in_thread(is_helper_told)
        assert not in_thread(is_shutdown_requested)
    assert not in_thread(is_helper_told)


def test_a_thread_that_is_started_with_signals_blocked_gets_none() -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    with blocked_signals():
        blocked = in_thread(lambda: signal.pthread_sigmask(signal.SIG_BLOCK, []))
    assert {signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP} <= blocked
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
