"""The threads of a worker: each carries out one errand at a time."""

import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, Queue
from types import FrameType
from typing import Generic, NamedTuple, TypeVar

from django.db import connections

from django_singlejob.database import tidy_up
from django_singlejob.interrupt import Window, heed_signals

R = TypeVar("R")
Errand = Callable[[Window], R]

# Who has had nothing to do for so long closes its connections. Seconds.
IDLE = 1.0
_A_MOMENT = 0.05


class _Return(NamedTuple, Generic[R]):
    """What became of an errand."""

    results: list[R]
    error: BaseException | None = None


class Crew(Generic[R]):
    """So many threads, which are started when there is something to do. They end with the process."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._threads = 0
        # How many errands have been sent that nobody has come back from.
        self._out = 0
        # Not SimpleQueue: until CPython 3.12 its get() waits for ever if a signal arrives just as its timeout elapses.
        self._errands: Queue[Errand[R]] = Queue()
        self._returns: Queue[_Return[R]] = Queue()
        self._errors: list[BaseException] = []
        self._windows: dict[int, Window] = {}

    @property
    def free(self) -> int:
        """How many have nothing to do; less than 0: so many errands wait for one of them."""
        return self.size - self._out

    @property
    def is_idle(self) -> bool:
        """Whether all have come back."""
        return not self._out

    def send(self, errand: Errand[R]) -> None:
        """Have it carried out by a thread as soon as one is free. It is handed a ``Window`` of its own."""
        if self._threads == min(self._out, self.size - 1):
            self._threads += 1
            # Not with blocked signals: what a job starts would inherit that.
            threading.Thread(target=self._work, name=f"worker {self._threads}", daemon=True).start()
        self._out += 1
        self._errands.put(errand)

    def recall(self) -> list[Errand[R]]:
        """The errands that nobody has begun. Nobody will."""
        recalled: list[Errand[R]] = []
        with suppress(Empty):
            while True:
                recalled.append(self._errands.get_nowait())
        self._out -= len(recalled)
        return recalled

    def come_back(self, timeout: float) -> list[R]:
        """What has been carried out; waits so many seconds until something is. Raises what an errand raised, when
        nothing else has come back."""
        results: list[R] = []
        with suppress(Empty):
            back = (
                self._returns.get(timeout=timeout) if timeout > 0 and not self._errors else self._returns.get_nowait()
            )
            while True:
                self._out -= 1
                results += back.results
                self._errors += [back.error] if back.error else []
                back = self._returns.get_nowait()
        if self._errors and not results:
            raise self._errors.pop(0)
        return results

    def fire(self, exception: type[BaseException]) -> None:
        """Raise it in whatever is being carried out."""
        for window in list(self._windows.values()):
            window.fire_throughout(exception)

    def is_blocked(self) -> bool:
        """Whether all who are out wait for something, and none of them for a statement that he sent to a database.
        What was fired at them is raised as soon as their call into C returns, before anything else of theirs is run."""
        if not hasattr(time, "pthread_getcpuclockid"):
            return False
        threads = list(self._windows)
        before = [_cpu_time(thread) for thread in threads]
        time.sleep(_A_MOMENT)
        frames = sys._current_frames()
        are_idle = [_cpu_time(thread) for thread in threads] == before
        return are_idle and not any(_is_in_a_statement(frames.get(thread)) for thread in threads)

    def _work(self) -> None:
        heed_signals()
        pid = os.getpid()
        while self._work_once(pid):
            tidy_up()

    def _work_once(self, pid: int) -> bool:
        """``False``: this is a forked child that has come back from a job. It has this thread only, and nothing more to
        do: the connections are its parent's, and so may be the thread that has locked the queue."""
        back = self._carry_out(self._next())
        if os.getpid() != pid:
            return False
        self._returns.put(back)
        return True

    def _carry_out(self, errand: Errand[R]) -> _Return[R]:
        try:
            with Window() as window:
                self._windows[threading.get_ident()] = window
                return _Return([errand(window)])
        except BaseException as error:
            return _Return([], error)
        finally:
            self._windows.pop(threading.get_ident(), None)

    def _next(self) -> Errand[R]:
        try:
            return self._errands.get(timeout=IDLE)
        except Empty:
            connections.close_all()
            return self._errands.get()


def _cpu_time(thread: int) -> float:
    return time.clock_gettime(time.pthread_getcpuclockid(thread))


def _is_in_a_statement(frame: FrameType | None) -> bool:
    while frame and not frame.f_globals.get("__name__", "").startswith("django.db.backends."):
        frame = frame.f_back
    return frame is not None
