"""The thread that receives signals. `processes/test_hung_database.py` tests what it does about a hanging database."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from typing import TYPE_CHECKING

import pytest

from django_singlejob.received_signals import deferred_signals, is_second_signal_received, is_shutdown_requested
from django_singlejob.second_signal import second_signal_heeded
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django_singlejob.received_signals import ReceivedSignals

pytestmark = [pytest.mark.django_db, pytest.mark.on_database("postgresql", "mysql")]

A_SECOND_THOUGHT = 1.2


@pytest.fixture
def signals() -> Iterator[ReceivedSignals]:
    with deferred_signals() as signals, second_signal_heeded(signals):
        yield signals


def test_a_second_signal_is_heard_of(signals: ReceivedSignals) -> None:
    signal.raise_signal(signal.SIGHUP)
    time.sleep(A_SECOND_THOUGHT)
    assert is_shutdown_requested()
    assert not is_second_signal_received()
    signal.raise_signal(signal.SIGTERM)
    eventually(is_second_signal_received)
    assert signals.received == signal.SIGHUP


def test_a_second_signal_is_heard_of_though_no_handler_is_called(signals: ReceivedSignals) -> None:
    for signum in signal.SIGHUP, signal.SIGTERM:
        ring(signum)
        time.sleep(A_SECOND_THOUGHT)
    eventually(is_second_signal_received)
    assert signals.received == signal.SIGHUP


def ring(signum: int) -> None:
    """Write to the wakeup descriptor, as the system does."""
    bell = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(bell)
    os.write(bell, bytes([signum]))


def test_a_burst_is_one_signal(signals: ReceivedSignals) -> None:
    for _ in range(5):
        signal.raise_signal(signal.SIGTERM)
        time.sleep(0.05)
    time.sleep(0.2)
    assert not is_second_signal_received()


@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
def test_signals_of_a_forked_child_are_its_own(signals: ReceivedSignals) -> None:
    if pid := os.fork():
        os.waitpid(pid, 0)
    else:
        for _ in range(2):
            signal.raise_signal(signal.SIGTERM)
            time.sleep(A_SECOND_THOUGHT)
        os._exit(0)
    time.sleep(0.2)
    assert signals.received is None
    assert not is_second_signal_received()


def test_who_was_told_of_signals_before_still_is() -> None:
    ear, bell = socket.socketpair()
    bell.setblocking(False)
    ear.settimeout(5)
    with ear, bell:
        before = signal.set_wakeup_fd(bell.fileno())
        try:
            with deferred_signals() as signals, second_signal_heeded(signals):
                signal.raise_signal(signal.SIGHUP)
                assert ear.recv(1) == bytes([signal.SIGHUP])
        finally:
            assert signal.set_wakeup_fd(before) == bell.fileno()


def test_who_is_told_instead_of_us_stays() -> None:
    ear, bell = socket.socketpair()
    bell.setblocking(False)
    before = signal.set_wakeup_fd(-1)
    with ear, bell:
        with deferred_signals() as signals, second_signal_heeded(signals):
            signal.set_wakeup_fd(bell.fileno())
        assert signal.set_wakeup_fd(before) == bell.fileno()


def test_the_thread_ends_with_the_command() -> None:
    threads = threading.active_count()
    with deferred_signals() as signals, second_signal_heeded(signals):
        assert threading.active_count() == threads + 1
    eventually(lambda: threading.active_count() == threads)
