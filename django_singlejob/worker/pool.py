"""Who carries out a worker's tasks: threads, each of them one at a time, or the thread that asks."""

import os
import threading
from contextlib import suppress
from functools import partial
from queue import Empty, Queue
from typing import Protocol

from django.db import connections

from django_singlejob.clock import sleep, wait
from django_singlejob.database import tidy_up
from django_singlejob.interrupt import Window
from django_singlejob.received_signals import heed_signals, stuck_threads
from django_singlejob.reports import Report

# Who has had nothing to do for so long closes its connections. Seconds.
IDLE = 1.0


class PoolTask(Protocol):
    """What a thread can be sent. It is handed a ``Window`` of its own."""

    @property
    def name(self) -> str:
        """Of the job or task, for the report."""

    def __call__(self, window: Window) -> Report: ...


class Pool:
    """So many threads, which are started when there is something to do. They end with the process."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._threads = 0
        # How many tasks have been sent that nobody has come back from.
        self._out = 0
        # Not SimpleQueue: until CPython 3.12 its get() waits for ever if a signal arrives just as its timeout elapses.
        self._tasks: Queue[PoolTask] = Queue()
        self._returns: Queue[tuple[PoolTask, Report]] = Queue()
        self._windows: dict[int, Window] = {}

    @property
    def free(self) -> int:
        """How many have nothing to do; less than 0: so many tasks wait for one of them."""
        return self.size - self._out

    @property
    def is_idle(self) -> bool:
        """Whether all have come back."""
        return not self._out

    def send(self, task: PoolTask) -> None:
        """Have it carried out by a thread as soon as one is free."""
        if self._threads == min(self._out, self.size - 1):
            self._threads += 1
            # Not with blocked signals: what a job starts would inherit that.
            threading.Thread(target=self._work, name=f"worker {self._threads}", daemon=True).start()
        self._out += 1
        self._tasks.put(task)

    def recall(self) -> list[PoolTask]:
        """The tasks that nobody has begun. Nobody will."""
        recalled: list[PoolTask] = []
        with suppress(Empty):
            while True:
                recalled.append(self._tasks.get_nowait())
        self._out -= len(recalled)
        return recalled

    def come_back(self, timeout: float) -> list[tuple[PoolTask, Report]]:
        """The tasks that have been carried out, and what became of them; waits so many seconds until one has."""
        returns: list[tuple[PoolTask, Report]] = []
        with suppress(Empty):
            returns.append(wait(partial(self._returns.get, True), max(0.0, timeout)))
            while True:
                returns.append(self._returns.get_nowait())
        self._out -= len(returns)
        return returns

    def fire(self, exception: type[BaseException]) -> None:
        """Raise it in whatever is being carried out."""
        for window in list(self._windows.values()):
            window.fire_throughout(exception)

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
        task = self._next()
        report = self._carry_out(task)
        if os.getpid() != pid:
            return False
        self._returns.put((task, report))
        return True

    def _carry_out(self, task: PoolTask) -> Report:
        try:
            with Window() as window:
                self._windows[threading.get_ident()] = window
                return task(window)
        except BaseException as error:  # whatever goes wrong, it does not stay under way for ever
            return Report(task.name, error=error)
        finally:
            self._windows.pop(threading.get_ident(), None)

    def _next(self) -> PoolTask:
        try:
            return wait(partial(self._tasks.get, True), IDLE)
        except Empty:
            connections.close_all()
            return self._tasks.get()


class Inline:
    """A stand-in for a pool that has no threads: a task is carried out at once, by the one who sends it."""

    def __init__(self) -> None:
        self.size = 0
        self._returns: list[tuple[PoolTask, Report]] = []

    @property
    def free(self) -> int:
        return 1 - len(self._returns)

    @property
    def is_idle(self) -> bool:
        return not self._returns

    def send(self, task: PoolTask) -> None:
        pid = os.getpid()
        try:
            with Window() as window:
                report = task(window)
        except BaseException as error:
            report = Report(task.name, error=error)
        if os.getpid() != pid:
            raise report.error or SystemExit(0)  # a forked child that comes back: what comes next is not its own
        self._returns.append((task, report))

    def recall(self) -> list[PoolTask]:
        return []

    def come_back(self, timeout: float) -> list[tuple[PoolTask, Report]]:
        if not self._returns:
            sleep(max(0.0, timeout))
        returns, self._returns = self._returns, []
        return returns

    def fire(self, exception: type[BaseException]) -> None:
        """Whoever could fire is the one who carries out."""

    is_stuck = False
