"""What is sent to other services: by a thread of its own, one message after the other, so a run's start arrives before
its end.

A run only leaves a message: a server that hangs delays no run. Only the end of the process waits for what is left, and
not for long.
"""

import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from django_singlejob.process.clock import local_now, sleep
from django_singlejob.process.leaving import at_end
from django_singlejob.process.logs import about
from django_singlejob.process.received_signals import start_thread

# A shell command is forked right after its run has begun. A start waits this long, to be sent after that. Seconds.
_MOMENT = 0.1
# After this long, a message waits for the network, and a fork leaves the child no lock that its thread holds. Seconds.
_BUSY = 0.25
# How long the end of the process waits for all that are left. With the wait of a fork, it is less than two seconds.
_LAST = 1.5
# How many may wait to be sent, and for how long. Seconds.
_MOST, _LONGEST = 1000, 60.0


logger = logging.getLogger("django_singlejob")


class _Message(NamedTuple):
    send: Callable[[], object]
    give_up: Callable[[str], object]
    is_start: bool
    left_at: float


class Outbox:
    """The messages that are to be sent to a service. A thread sends them, and ends when there are no more."""

    _has_thread: bool

    def __init__(self, name: str, *, last: float = _LAST) -> None:
        """``name``: of the messages, for people. ``last``: how many seconds the end of the process waits."""
        self._name, self._last = name, last
        self._is_registered = False
        self._begin_anew()

    def put(self, send: Callable[[], object], give_up: Callable[[str], object], *, is_start: bool = False) -> None:
        """Have the thread call ``send``, which raises nothing. If that is impossible, ``give_up`` is called with the
        reason. ``is_start``: whether a run has just begun."""
        self._register()
        with self._changed:
            if len(self._waiting) >= _MOST:
                give_up("too many wait to be sent")
                return
            self._waiting.append(_Message(send, give_up, is_start, local_now()))
            if not self._has_thread:
                start_thread(self._send_all, self._name)
                self._has_thread = True

    def _register(self) -> None:
        """Have forks, and the end of the process, wait. Not before: what is registered last comes first at the end, and
        a client of the service may be registered to stop there."""
        if not self._is_registered:
            self._is_registered = True
            at_end(self._flush, patience=self._last + _BUSY)
            if hasattr(os, "register_at_fork"):
                os.register_at_fork(before=self._hold, after_in_parent=self._let_go, after_in_child=self._begin_anew)

    def _flush(self) -> None:
        """Wait for what is left, but not for long."""
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting, self._last)
            if self._waiting:
                message = "The process ended before %d %s were sent."
                logger.warning(message, len(self._waiting), self._name, extra=about())

    # --- at a fork

    def _hold(self) -> None:
        """Wait until the process may be forked, and send nothing until ``_let_go``."""
        self._changed.acquire()
        self._changed.wait_for(self._is_calm, self._sent_at + _BUSY - local_now())

    def _is_calm(self) -> bool:
        return self._sent_at + _BUSY <= local_now()

    def _let_go(self) -> None:
        self._changed.release()

    def _begin_anew(self) -> None:
        """Be empty, as in a forked child: its parent sends what is left there."""
        self._changed = threading.Condition()
        self._waiting = deque[_Message]()
        self._has_thread = False
        # When the message under way began to be sent.
        self._sent_at = float("-inf")

    # --- in the thread

    def _send_all(self) -> None:
        while message := self._next():
            if message.is_start:
                sleep(max(0.0, message.left_at + _MOMENT - local_now()))
            self._note(local_now())
            try:
                if message.left_at + _LONGEST < local_now():
                    message.give_up("it would be too late")
                else:
                    message.send()
            finally:
                self._note(float("-inf"))
                self._remove()

    def _next(self) -> _Message | None:
        with self._changed:
            self._has_thread = bool(self._waiting)
            return self._waiting[0] if self._waiting else None

    def _note(self, sent_at: float) -> None:
        with self._changed:
            self._sent_at = sent_at
            self._changed.notify_all()

    def _remove(self) -> None:
        with self._changed:
            self._waiting.popleft()
            self._changed.notify_all()
