"""What carries out a worker's tasks: threads, one task at a time in each, or the calling thread."""

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import Empty, Queue
from typing import Protocol

from django.db import connections

from django_singlejob.database.transactions import drop_dead, forget_queries, tidy_up
from django_singlejob.process.clock import sleep, wait
from django_singlejob.process.received_signals import heed_signals
from django_singlejob.running.reports import Report

# A thread that has been idle this long closes its connections. Seconds.
IDLE = 1.0
# How often a waiting worker looks whether a signal has come. Seconds.
NAP = 0.1


class PoolTask(Protocol):
    """What can be sent to a thread."""

    @property
    def name(self) -> str:
        """The name of the job or task, for the report."""

    def __call__(self) -> Report: ...


class Pool:
    """At most ``size`` threads, which are started when there is something to do. They end with the process.

    ``woken`` is called when a task has come back.
    """

    def __init__(self, size: int, woken: Callable[[], object] = lambda: None) -> None:
        self.size = size
        self._woken = woken
        self._threads = 0
        # How many tasks have been sent and have not come back.
        self._out = 0
        # Not SimpleQueue: until CPython 3.12 its get() waits for ever if a signal arrives just as its timeout elapses.
        self._tasks: Queue[PoolTask] = Queue()
        self._returns: Queue[tuple[PoolTask, Report]] = Queue()

    @property
    def free(self) -> int:
        """How many threads are idle. A negative number counts the tasks that wait for a thread."""
        return self.size - self._out

    @property
    def is_idle(self) -> bool:
        """Whether all tasks have come back."""
        return not self._out

    def send(self, task: PoolTask) -> None:
        """Have a thread carry out the task as soon as one is free."""
        if self._threads == min(self._out, self.size - 1):
            self._threads += 1
            # Signals are not blocked in it: processes that a task starts would inherit that.
            threading.Thread(target=self._work, name=f"worker {self._threads}", daemon=True).start()
        self._out += 1
        self._tasks.put(task)

    def recall(self) -> list[PoolTask]:
        """Take back the tasks that no thread has begun, and return them. No thread will begin them."""
        recalled: list[PoolTask] = []
        with suppress(Empty):
            while True:
                recalled.append(self._tasks.get_nowait())
        self._out -= len(recalled)
        return recalled

    def come_back(self) -> list[tuple[PoolTask, Report]]:
        """The tasks that were carried out by now, with their reports."""
        returns: list[tuple[PoolTask, Report]] = []
        with suppress(Empty):
            while True:
                returns.append(self._returns.get_nowait())
        self._out -= len(returns)
        return returns

    def _work(self) -> None:
        heed_signals()
        pid = os.getpid()
        while self._work_once(pid):
            tidy_up()
            forget_queries()

    def _work_once(self, pid: int) -> bool:
        """``False`` if this is a forked child that returned from a task. It has only this thread and nothing more to
        do: the connections belong to its parent, and so may a thread that has locked the queue."""
        was_idle = self._tasks.empty()
        task = self._next()
        report = self._carry_out(task, was_idle=was_idle)
        if os.getpid() != pid:
            return False
        self._returns.put((task, report))
        self._woken()
        return True

    def _carry_out(self, task: PoolTask, *, was_idle: bool) -> Report:
        try:
            if was_idle:
                drop_dead()
            return task()
        except BaseException as error:  # whatever goes wrong, the task must not stay under way for ever
            return Report(task.name, error=error)

    def _next(self) -> PoolTask:
        try:
            return wait(partial(self._tasks.get, True), IDLE)
        except Empty:
            connections.close_all()
            return self._tasks.get()


class Inline:
    """A pool without threads: the thread that sends a task carries it out at once."""

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
            report = task()
        except BaseException as error:
            report = Report(task.name, error=error)
        if os.getpid() != pid:
            raise report.error or SystemExit(0)  # a forked child that returned: the rest is its parent's
        self._returns.append((task, report))

    def recall(self) -> list[PoolTask]:
        return []

    def come_back(self) -> list[tuple[PoolTask, Report]]:
        returns, self._returns = self._returns, []
        return returns

    def beat(self) -> None:
        """Do nothing: another thread sends heartbeats."""

    def wait(self, seconds: float) -> bool:
        """Wait. Returns ``False``: nothing can have happened. A signal is only remembered, so each wait is short."""
        if seconds > 0 and not self._returns:
            sleep(min(seconds, NAP))
        return False
