"""Calls that a thread of their own makes, so that the caller does not wait."""

import sys
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from math import inf
from typing import NamedTuple

from django_singlejob.process.clock import local_now, wait
from django_singlejob.process.received_signals import NoThread, start_thread

# A wait that is as good as endless. Seconds.
_DAY = 86_400.0


class _Call(NamedTuple):
    make: Callable[[], object]
    size: int


class _Lost:
    """Stands where calls would be that are never made."""

    size = 0

    def __init__(self, say: Callable[[int], object]) -> None:
        self.count, self._say = 0, say

    def make(self) -> None:
        self._say(self.count)


class Calls:
    """A thread makes these calls, one after the other, each in the context in which it was left here. The thread stays:
    if the system has no threads any more, that can still be said.

    Attributes:
        name: what they do, for people.
        most: how large those that wait may be, all together.
        patience: how many seconds the end of the process waits for them while they do not get on.
        moved_at: when the one under way began, or got on; a value of ``local_now()``.
        thread: the one that makes them; ``None`` before ``start``.
    """

    def __init__(
        self, name: str, say_lost: Callable[[int], object] = lambda count: None, *, most: float = inf, patience: float
    ) -> None:
        """``say_lost`` is called in their thread, with the number of those that have not been made."""
        self.name, self.most, self.patience = name, most, patience
        self.thread: threading.Thread | None = None
        self.moved_at = -inf
        self._say_lost = say_lost
        self._changed = threading.Condition()
        self._waiting: deque[_Call | _Lost] = deque()
        self._size = 0

    def put(
        self,
        make: Callable[[], object],
        size: int = 1,
        *,
        count: int = 1,
        share: float = 1.0,
        until: Callable[[], float] = lambda: -inf,
    ) -> bool:
        """Have the thread make this call. It may fill ``most`` up to ``share``. If it does not fit, wait until
        ``until()``, a value of ``local_now()``; if it still does not, it is lost, and ``count`` is added to the number
        that ``say_lost`` gets. Returns ``False`` then."""
        with self._changed:
            while not self._has_room(size, share) and (left := until() - local_now()) > 0:
                wait(self._changed.wait, min(left, _DAY))
            if not self.is_busy:
                self.move()
            if has_room := self._has_room(size, share):
                self._waiting.append(_Call(partial(copy_context().run, make), size))
                self._size += size
            else:
                self._lose(count)
            self._changed.notify_all()
        self.start()
        return has_room

    def _has_room(self, size: int, share: float) -> bool:
        return not self._size or self._size + size <= share * self.most

    def _lose(self, count: int) -> None:
        last = self._waiting[-1]
        if not isinstance(last, _Lost) or len(self._waiting) == 1:  # the first may be under way
            self._waiting.append(last := _Lost(self._say_lost))
        last.count += count

    @property
    def is_busy(self) -> bool:
        """Whether calls wait, or one is under way."""
        return bool(self._waiting)

    def start(self) -> None:
        """Start the thread, unless there is one or the system has none: then perhaps next time."""
        with self._changed, suppress(NoThread):
            self.thread = self.thread or start_thread(self._run, self.name)

    def end(self, since: float, give_up_at: float = inf) -> bool:
        """Wait for those that are left, while they get on, as seen from ``since``. Returns ``False`` if they do not, or
        not by ``give_up_at``. Both are values of ``local_now()``."""
        with self._changed:
            while self._waiting:
                if not self.thread:
                    self._make_next()
                    continue
                left = min(give_up_at, max(since, self.moved_at) + self.patience) - local_now()
                if left <= 0:
                    return False
                wait(self._changed.wait, min(left, _DAY))
        return True

    # --- in the thread

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self.is_busy)
            self._make_next()

    def _make_next(self) -> None:
        self.move()
        call = self._waiting[0]
        try:
            call.make()
        except BaseException:  # even the SystemExit of a receiver: others wait behind it
            with suppress(BaseException):
                sys.excepthook(*sys.exc_info())
        with self._changed:
            self._waiting.popleft()
            self._size -= call.size
            self._changed.notify_all()

    def move(self) -> None:
        """Take note that the call under way gets on."""
        self.moved_at = local_now()
