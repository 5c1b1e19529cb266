"""The threads of a worker: each carries out one task at a time."""

import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import Empty, Queue
from typing import Generic, NamedTuple, TypeVar

from django.db import connections

from django_singlejob.calls import frame_of_call
from django_singlejob.clock import cpu_time, sleep, wait
from django_singlejob.database import tidy_up
from django_singlejob.interrupt import Window
from django_singlejob.received_signals import heed_signals, stuck_threads

R = TypeVar("R")
PoolTask = Callable[[Window], R]

# Who has had nothing to do for so long closes its connections. Seconds.
IDLE = 1.0
_A_MOMENT = 0.05


class _Return(NamedTuple, Generic[R]):
    """What became of a task."""

    results: list[R]
    error: BaseException | None = None


class Pool(Generic[R]):
    """So many threads, which are started when there is something to do. They end with the process."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._threads = 0
        # How many tasks have been sent that nobody has come back from.
        self._out = 0
        # Not SimpleQueue: until CPython 3.12 its get() waits for ever if a signal arrives just as its timeout elapses.
        self._tasks: Queue[PoolTask[R]] = Queue()
        self._returns: Queue[_Return[R]] = Queue()
        self._errors: list[BaseException] = []
        self._windows: dict[int, Window] = {}

    @property
    def free(self) -> int:
        """How many have nothing to do; less than 0: so many tasks wait for one of them."""
        return self.size - self._out

    @property
    def is_idle(self) -> bool:
        """Whether all have come back."""
        return not self._out

    def send(self, task: PoolTask[R]) -> None:
        """Have it carried out by a thread as soon as one is free. It is handed a ``Window`` of its own."""
        if self._threads == min(self._out, self.size - 1):
            self._threads += 1
            # Not with blocked signals: what a job starts would inherit that.
            threading.Thread(target=self._work, name=f"worker {self._threads}", daemon=True).start()
        self._out += 1
        self._tasks.put(task)

    def recall(self) -> list[PoolTask[R]]:
        """The tasks that nobody has begun. Nobody will."""
        recalled: list[PoolTask[R]] = []
        with suppress(Empty):
            while True:
                recalled.append(self._tasks.get_nowait())
        self._out -= len(recalled)
        return recalled

    def come_back(self, timeout: float) -> list[R]:
        """What has been carried out; waits so many seconds until something is. Raises what a task raised, when
        nothing else has come back."""
        results: list[R] = []
        with suppress(Empty):
            patience = 0.0 if self._errors else max(0.0, timeout)
            back = wait(partial(self._returns.get, True), patience)
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
        threads = list(self._windows)
        before = [cpu_time(thread) for thread in threads]
        sleep(_A_MOMENT)
        frames = sys._current_frames()
        are_idle = None not in before and [cpu_time(thread) for thread in threads] == before
        return are_idle and not any(frame_of_call(frames.get(thread)) for thread in threads)

    @property
    def is_stuck(self) -> bool:
        """Whether all who are out are in a call to a database that was given up, and goes on."""
        return bool(self._windows) and stuck_threads().issuperset(self._windows)

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

    def _carry_out(self, task: PoolTask[R]) -> _Return[R]:
        try:
            with Window() as window:
                self._windows[threading.get_ident()] = window
                return _Return([task(window)])
        except BaseException as error:
            return _Return([], error)
        finally:
            self._windows.pop(threading.get_ident(), None)

    def _next(self) -> PoolTask[R]:
        try:
            return wait(partial(self._tasks.get, True), IDLE)
        except Empty:
            connections.close_all()
            return self._tasks.get()
