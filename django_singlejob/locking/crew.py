"""Threads for work that the keeper of the leases must not wait for. They come and go with the work."""

import threading
from collections.abc import Callable
from contextlib import suppress

from django.db import connections

from django_singlejob.clock import local_now, wait
from django_singlejob.database import forget_queries
from django_singlejob.received_signals import start_thread

# A thread that has been idle this long ends. Seconds.
IDLE = 1.0


class Crew:
    """Up to ``most`` threads that call ``work`` as long as ``has_work()``.

    There is one thread as long as it comes back. Another one joins if all of them stay away, because a driver hangs,
    for example. A thread without work has no connections.
    """

    def __init__(self, name: str, work: Callable[[], object], has_work: Callable[[], bool], most: int) -> None:
        self._name = name
        self._work = work
        self._has_work = has_work
        self._most = most
        self._hands: list[_Hand] = []
        self._number = 0

    def see_to_it(self, patience: float) -> float:
        """Have a thread do the work, a new one only if all others have been away for ``patience`` seconds. Only one
        thread may call this. Add the work before the call.

        Returns when to call again, as ``local_now()``. Raises ``RuntimeError`` if no thread can be started.
        """
        self._hands = [hand for hand in self._hands if not hand.is_over]
        if not self._has_work():
            return float("inf")
        for hand in self._hands:
            if hand.is_idle:
                hand.call()
                return local_now() + patience
        free_at = max((hand.began_at for hand in self._hands), default=float("-inf")) + patience
        if free_at > local_now():
            return free_at
        if len(self._hands) < self._most:
            self._start()
        return local_now() + patience

    def _start(self) -> None:
        hand = _Hand(self._work, self._has_work)
        self._number += 1
        start_thread(hand.run, f"{self._name} {self._number}")
        self._hands.append(hand)


class _Hand:
    """What one thread of a crew is doing."""

    def __init__(self, work: Callable[[], object], has_work: Callable[[], bool]) -> None:
        self.began_at = local_now()
        self._called = threading.Event()
        self.is_idle = False
        self.is_over = False
        self._work = work
        self._has_work = has_work

    def call(self) -> None:
        """Have it look for work. From now on it counts as away, until it is idle again."""
        self.is_idle, self.began_at = False, local_now()
        self._called.set()

    def run(self) -> None:
        """Work until there has been nothing to do for a while."""
        try:
            while not self.is_over:
                while self._has_work() or self._is_called():
                    self.began_at = local_now()
                    self._work()
                    forget_queries()
                self.is_over = True
                # It may have been added while this one did not seem to be over yet.
                self.is_over = not self._has_work()
        finally:
            self.is_over = True
            _disconnect()

    def _is_called(self) -> bool:
        """Wait for work. ``False``: none came."""
        if not self._has_work():
            _disconnect()
        # Work may be added at any time. ``see_to_it`` reads ``is_idle`` after that, so look for work after setting it.
        # A call stays until the next wait.
        self._called.clear()
        self.is_idle = True
        if not self._has_work():
            wait(self._called.wait, IDLE)
        self.is_idle = False
        return self._has_work()


def _disconnect() -> None:
    with suppress(Exception):  # drivers raise different errors if a connection is broken
        connections.close_all()
