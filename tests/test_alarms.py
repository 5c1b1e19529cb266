"""What happens at an instant unless a block has ended by then."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
from contextlib import ExitStack
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from django_singlejob import alarms
from django_singlejob.alarms import alarm_at
from django_singlejob.clock import local_now
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FAR = 3600.0
SOON = 0.05
# Much longer than anything takes, even on a busy machine.
LONG = 20.0


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An alarm clock of the test's own."""
    monkeypatch.setattr(alarms, "_alarm_clock", alarms._AlarmClock())
    before = set(threading.enumerate())
    yield
    # Its thread ends when nothing is left to wait for: wake it.
    with alarm_at(local_now(), bool):
        pass
    alarms._alarm_clock._calls.put(None)
    eventually(lambda: set(threading.enumerate()) <= before)


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "alarms"]


def rung(instant: float) -> bool:
    """Whether an alarm for this instant rings in a block that waits for it."""
    rang = threading.Event()
    with alarm_at(instant, rang.set):
        return rang.wait(LONG)


def test_it_rings_during_the_block() -> None:
    assert rung(local_now() + SOON)


def test_an_instant_that_has_passed_rings_at_once() -> None:
    assert rung(local_now() - 1)


def test_not_after_the_block() -> None:
    rang = threading.Event()
    with alarm_at(local_now() + SOON, rang.set):
        pass
    assert rung(local_now() + 2 * SOON)  # a later one
    assert not rang.is_set()


def test_an_earlier_one_does_not_wait_for_a_later_one() -> None:
    with alarm_at(local_now() + FAR, bool):
        assert rung(local_now() + SOON)
        assert rung(local_now())


def test_one_thread_waits_for_all() -> None:
    with ExitStack() as stack:
        for number in range(100):
            stack.enter_context(alarm_at(local_now() + FAR - number, bool))
        assert len(threads()) == 1


def test_a_block_that_ends_in_time_neither_starts_nor_wakes_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    woken: list[None] = []
    with alarm_at(local_now() + FAR, bool), monkeypatch.context() as patch:
        eventually(lambda: alarms._alarm_clock._sleeps_until < float("inf"))
        (thread,) = threads()
        patch.setattr(alarms._alarm_clock, "_calls", SimpleNamespace(put=woken.append))
        for _ in range(50):
            with alarm_at(local_now() + 2 * FAR, bool):
                pass
        assert threads() == [thread]
    assert not woken


def test_the_thread_ends_when_nothing_is_left() -> None:
    assert rung(local_now() + SOON)
    eventually(lambda: not threads())
    assert rung(local_now() + SOON)


def test_one_that_fails_does_not_silence_the_others(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise RuntimeError("broken")

    with alarm_at(local_now(), fail):
        eventually(lambda: caplog.records != [])
        assert rung(local_now())
    assert [record.getMessage() for record in caplog.records] == ["An alarm failed."]


def test_without_a_thread_the_block_still_runs(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with alarm_at(local_now(), bool):
            pass
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert rung(local_now())


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def test_an_interrupt_while_the_thread_starts_leaves_no_alarm_without_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", interrupt)
        with pytest.raises(KeyboardInterrupt), alarm_at(local_now(), bool):
            pytest.fail("the block began")
    assert rung(local_now())


def test_a_block_that_an_interrupt_kept_from_beginning_has_no_alarm(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would cut off a later call on the same connection."""
    rang = threading.Event()
    with alarm_at(local_now() + FAR, bool), monkeypatch.context() as patch:
        eventually(lambda: alarms._alarm_clock._sleeps_until < float("inf"))
        patch.setattr(alarms._alarm_clock, "_calls", SimpleNamespace(put=interrupt))
        with pytest.raises(KeyboardInterrupt), alarm_at(local_now() + SOON, rang.set):
            pytest.fail("the block began")
    assert rung(local_now() + 2 * SOON)
    assert not rang.is_set()


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="there are no timers")
def test_a_signal_handler_may_set_an_alarm_at_any_step() -> None:
    """Also in the middle of ``alarm_at``. In a child, because a main thread that is stuck ends no test."""
    child = [sys.executable, "-c", INTERRUPTING]
    assert subprocess.run(child, capture_output=True, text=True, timeout=60, check=False).stdout == "done\n"


INTERRUPTING = """
import faulthandler, os, signal
from django_singlejob.alarms import alarm_at
from django_singlejob.clock import local_now

def handle(*_):
    with alarm_at(local_now() + 60 - 0.001 * count, bool):
        pass
    signal.setitimer(signal.ITIMER_REAL, 0.0003)

faulthandler.dump_traceback_later(30, exit=True)
signal.signal(signal.SIGALRM, handle)
count, end_at = 0, local_now() + 4
signal.setitimer(signal.ITIMER_REAL, 0.0003)
while local_now() < end_at:
    count += 1
    with alarm_at(local_now() + 60 - 0.001 * count, bool):
        pass
signal.setitimer(signal.ITIMER_REAL, 0)
print("done", flush=True)
os._exit(0)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_has_alarms_of_its_own() -> None:
    with alarm_at(local_now() + FAR, bool):
        pid = os.fork()
        if not pid:
            os._exit(0 if rung(local_now() + SOON) and len(threads()) <= 1 else 1)
        assert os.waitpid(pid, 0)[1] == 0


@pytest.mark.slow
def test_none_is_missed_under_stress() -> None:
    """Blocks of many threads, of which some end just as their alarms ring."""

    def work(miss: Callable[[int], None], number: int) -> None:
        for step in range(40):
            with alarm_at(local_now() + 0.001 * (step % 3), bool):
                pass
            if not rung(local_now() + 0.001 * ((number + step) % 4)):
                miss(step)

    missed: list[int] = []
    workers = [threading.Thread(target=work, args=(missed.append, number)) for number in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not missed
