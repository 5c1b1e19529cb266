"""What is done at an instant, unless a block has ended by then. One thread does it for the whole process.

Blocks that end in time cost almost nothing: the first one starts the thread, and the thread sleeps until the earliest
instant that it knows of. It ends when nothing is left to wait for.
"""

import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from queue import Empty, SimpleQueue

from django_singlejob.clock import local_now, wait
from django_singlejob.logs import about
from django_singlejob.received_signals import start_thread

logger = logging.getLogger("django_singlejob")


@contextmanager
def alarm_at(instant: float, act: Callable[[], object]) -> Iterator[None]:
    """Call ``act`` if the block is still running at ``instant``, a value of ``local_now()``. It is called in another
    thread, and must not block: the alarms of all threads would wait for it."""
    alarm = _Alarm(instant, act)
    clock = _alarm_clock
    try:
        clock.add(alarm)
        yield
    finally:
        clock.remove(alarm)


class _Alarm:
    def __init__(self, instant: float, act: Callable[[], object]) -> None:
        self.instant, self.act = instant, act


class _AlarmClock:
    """All alarms of this process, and the thread that waits for them.

    Alarms come and go in all threads, and an interrupt or a signal handler with alarms of its own may come at any step.
    So there is no mutex that could stay locked, and no harm is done if two threads wait.
    """

    def __init__(self) -> None:
        self._alarms: set[_Alarm] = set()
        # Not an event: a signal handler may call while it interrupts a call. Up to CPython 3.12, a signal may keep
        # get() waiting for ever, but this thread gets none.
        self._calls: SimpleQueue[None] = SimpleQueue()
        #: Until when the thread sleeps by itself. If an alarm needs it sooner, it has to be called.
        self._sleeps_until = float("inf")
        # ``None`` if there is none, or if it is about to end.
        self._thread: threading.Thread | None = None

    def add(self, alarm: _Alarm) -> None:
        self._alarms.add(alarm)
        thread = self._thread
        if thread is None or not thread.is_alive():
            self._start()
        elif alarm.instant < self._sleeps_until:
            self._calls.put(None)

    def remove(self, alarm: _Alarm) -> None:
        # The thread goes on sleeping. To wake it for each block that ends would cost more than the block.
        self._alarms.discard(alarm)

    def _start(self) -> None:
        try:
            self._thread = start_thread(self._run, "alarms")
        except RuntimeError as error:  # no more threads are available, or the process exits
            message = "Nothing ends a database call that hangs, because no thread can be started: %s"
            logger.warning(message, error, extra=about(reason=error))

    # --- in the thread

    def _run(self) -> None:
        while self._sleep():
            for alarm in self._due():
                try:
                    alarm.act()
                except Exception as error:  # the others still ring
                    logger.exception("An alarm failed.", extra=about(reason=error))

    def _sleep(self) -> bool:
        """Sleep until the next alarm, or until an earlier one is added. ``False`` if there is none: the thread ends."""
        # Until the sleep is set, every alarm that comes calls, since it may be too late to be seen.
        self._sleeps_until = float("inf")
        alarms = list(self._alarms)
        if not alarms:
            if self._thread is threading.current_thread():
                self._thread = None
            # An alarm that came before relies on this thread. Each that comes now starts another one.
            return bool(self._alarms)
        self._sleeps_until = sleeps_until = min(alarm.instant for alarm in alarms)
        with suppress(Empty):
            wait(partial(self._calls.get, True), max(0.0, sleeps_until - local_now()))
            while True:  # the next look answers all calls that have come
                self._calls.get_nowait()
        return True

    def _due(self) -> list[_Alarm]:
        due = [alarm for alarm in list(self._alarms) if alarm.instant <= local_now()]
        self._alarms.difference_update(due)
        return due


_alarm_clock = _AlarmClock()


def _forget() -> None:
    """For a forked child, which has no copy of the thread."""
    global _alarm_clock  # noqa: PLW0603  (the parent's alarms are none of ours)
    _alarm_clock = _AlarmClock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
