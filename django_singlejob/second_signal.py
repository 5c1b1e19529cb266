"""Lets a second signal end this process even if its database hangs.

A database call that never returns may keep signals from being handled: MySQL's driver goes back to waiting, in C, and
Python calls no handler. So the system reports each signal to a separate thread. From the second signal on, that
thread gives up each call that takes too long: it shuts the connection down, and the call fails as on any lost
connection. After that everything ends in the usual way, except that a lock that was being acquired or released is left
to expire.

If a call still does not return, for example because it is connecting, the process exits during the call. To other
servers this looks like ``kill -9``, and so it does to jobs in other threads of the process: their ``finally`` blocks do
not run. Nothing else is lost. What was committed stays committed, the lease expires, and a child of the process ends
with it.
"""

import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from django_singlejob.calls import Call, Calls
from django_singlejob.clock import local_now, wait
from django_singlejob.cutoff import cut_off
from django_singlejob.database import alias, is_on_one_host
from django_singlejob.handlers import SECOND_SIGNAL, held
from django_singlejob.logs import about
from django_singlejob.received_signals import ENDING_SIGNALS, ReceivedSignals, start_thread, threads_of_command

logger = logging.getLogger("django_singlejob")

# Seconds between two looks at the calls, after the first signal.
TICK = 0.1
# A call that takes this long after the second signal is given up. Seconds.
PATIENCE = 1.0
# The same, if the call began after the second signal; and if another such call was already given up. Seconds.
PATIENCE_WITH_NEW_ONES, SHORT_PATIENCE = 0.7, 0.3
# A call that was given up should have returned after this long. Seconds.
_RETURN = 0.4
# The last message may delay the exit for this long, if nothing reads it. Seconds.
_LAST_WORDS = 0.5


@contextmanager
def second_signal_heeded(signals: ReceivedSignals, *, is_last: bool = False) -> Iterator[None]:
    """Watch for a second signal during a command in the main thread, inside ``deferred_signals``.

    ``is_last`` means that the process exits after the block. The watch then goes on until the exit.
    """
    # SQLite has no server that could hang: its own time-out ends each wait.
    if threading.current_thread() is not threading.main_thread() or is_on_one_host(alias()):
        yield
        return
    watcher = _Watcher(signals)
    watcher.start()
    try:
        yield
    finally:
        if not (is_last and signals.received):
            watcher.stop()


class _Watcher:
    """Receives each signal, and knows which database calls are in progress."""

    def __init__(self, signals: ReceivedSignals) -> None:
        self._signals = signals
        self._calls = Calls()
        self._given_up: dict[FrameType, float] = {}
        self._has_said = False
        self._first: int | None = None
        self._first_at = self._second_at = float("inf")
        self._ear, self._bell = socket.socketpair()
        self._thread: threading.Thread | None = None
        # The descriptor of the program, or of a command around this one.
        self._former_bell = -1

    def start(self) -> None:
        self._bell.setblocking(False)
        self._former_bell = signal.set_wakeup_fd(self._bell.fileno(), warn_on_full_buffer=False)
        _bells.add(self._bell)
        self._thread = start_thread(self._watch, "second signal")

    def stop(self) -> None:
        if self._bell not in _bells:
            return  # it belongs to the parent process
        present = _set_bell(self._former_bell)
        if present != self._bell.fileno():
            _set_bell(present)  # the job has set another one
        _bells.discard(self._bell)
        self._bell.shutdown(socket.SHUT_WR)  # a forked child may have a copy
        self._bell.close()
        if self._thread:
            wait(self._thread.join, _LAST_WORDS)

    def _watch(self) -> None:
        with self._ear:
            while (signums := self._hear()) is not None:
                self._note(signums)
                if self._first:
                    calls = self._calls.look()
                    if self._signals.is_repeated:
                        self._insist({thread: calls[thread] for thread in threads_of_command() & calls.keys()})

    def _hear(self) -> bytes | None:
        """The signals that have arrived meanwhile; ``None`` if the watch is over."""
        try:
            signums = wait(self._receive, TICK if self._first else float("inf"))
        except TimeoutError:
            return b""
        if signums and self._former_bell >= 0:
            with suppress(OSError):
                os.write(self._former_bell, signums)
        return signums or None

    def _receive(self, seconds: float) -> bytes:
        self._ear.settimeout(None if seconds == float("inf") else seconds)
        return self._ear.recv(4096)

    def _note(self, signums: bytes) -> None:
        for signum in signums:
            if signum not in ENDING_SIGNALS or not self._is_for_us(signum):
                continue
            if self._first is None:
                self._first, self._first_at = signum, local_now()
            elif local_now() - self._first_at >= SECOND_SIGNAL and self._second_at == float("inf"):
                self._second_at = local_now()
                self._signals.repeat(self._first, self._first_at)

    def _is_for_us(self, signum: int) -> bool:
        """Whether the signal ends the command. The job may handle it itself."""
        handler = held.original(signum) or signal.getsignal(signum)
        return getattr(handler, "__self__", None) is self._signals

    def _insist(self, calls: dict[int, Call]) -> None:
        frames = {call.frame for call in calls.values()}
        self._given_up = {frame: at for frame, at in self._given_up.items() if frame in frames}
        for thread, call in calls.items():
            if call.frame not in self._given_up and self._is_too_long(call):
                self._give_up(thread, call)
        self._signals.stuck = frozenset(thread for thread, call in calls.items() if self._is_in_vain(call))
        is_stuck = threading.main_thread().ident in self._signals.stuck
        # If another thread is stuck, the main thread waits for it only for a limited time.
        if is_stuck:
            self._end()

    def _is_too_long(self, call: Call) -> bool:
        if self._signals.is_database_given_up:
            return call.age >= SHORT_PATIENCE
        return call.age >= (PATIENCE if call.seen_at <= self._second_at else PATIENCE_WITH_NEW_ONES)

    def _give_up(self, thread: int, call: Call) -> None:
        if not self._has_said:
            self._has_said = True
            self._say(
                "After a second signal, a database call did not return for a second and was given up. If it was a "
                "COMMIT, its outcome is unknown. A lock that cannot be released is left to expire."
            )
        self._signals.gave_up_at = local_now()
        self._signals.is_database_given_up |= call.seen_at > self._second_at
        self._given_up[call.frame] = local_now()
        cut_off(thread)

    def _is_in_vain(self, call: Call) -> bool:
        return local_now() - self._given_up.get(call.frame, float("inf")) >= _RETURN

    def _end(self) -> None:
        writer = self._say("The database call still does not return, so the process exits without waiting for it.")
        wait(writer.join, _LAST_WORDS)
        os._exit(128 + (self._signals.received or 0))

    def _say(self, message: str) -> threading.Thread:
        # Not in this thread: the thread that hangs may hold a lock that logging needs.
        writer = threading.Thread(target=_log, args=[message], daemon=True)
        writer.start()
        return writer


def _set_bell(number: int) -> int:
    """Set the wakeup descriptor and return the former one. A closed one counts as none."""
    try:
        return signal.set_wakeup_fd(number)
    except OSError:
        return signal.set_wakeup_fd(-1)


def _log(message: str) -> None:
    logger.error("%s", message, extra=about())
    for stream in sys.stdout, sys.stderr:
        with suppress(Exception):  # it may be closed, or there may be none
            stream.flush()


_bells: set[socket.socket] = set()


def _forget() -> None:
    """For a forked child, whose signals are not its parent's."""
    if _bells:
        _bells.clear()
        with suppress(ValueError):  # this is not the main interpreter
            signal.set_wakeup_fd(-1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
