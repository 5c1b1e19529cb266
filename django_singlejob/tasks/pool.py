"""The threads that carry out tasks, one at a time in each."""

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import Empty, Queue

from django.db import Error, connections

from django_singlejob.database.transactions import drop, forget_queries, is_in_testcase, leave_no_transaction
from django_singlejob.process.clock import wait
from django_singlejob.process.received_signals import heed_signals
from django_singlejob.running.in_child import exit_at_once, status_after
from django_singlejob.running.outcomes import Outcome, raised
from django_singlejob.worker.due_run import Runnable

# A thread that has been idle this long closes its connections. Seconds.
IDLE = 1.0


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
        self._tasks: Queue[Runnable] = Queue()
        self._returns: Queue[tuple[Runnable, Outcome]] = Queue()

    @property
    def free(self) -> int:
        """How many threads are idle. A negative number counts the tasks that wait for a thread."""
        return self.size - self._out

    @property
    def is_idle(self) -> bool:
        """Whether all tasks have come back."""
        return not self._out

    def send(self, task: Runnable) -> None:
        """Have a thread carry out the task as soon as one is free."""
        if self._threads == min(self._out, self.size - 1):
            self._threads += 1
            # Signals are not blocked in it: processes that a task starts would inherit that.
            threading.Thread(target=self._work, name=f"worker {self._threads}", daemon=True).start()
        self._out += 1
        self._tasks.put(task)

    def recall(self) -> list[Runnable]:
        """Take back the tasks that no thread has begun, and return them. No thread will begin them."""
        recalled: list[Runnable] = []
        with suppress(Empty):
            while True:
                recalled.append(self._tasks.get_nowait())
        self._out -= len(recalled)
        return recalled

    def come_back(self) -> list[tuple[Runnable, Outcome]]:
        """The tasks that were carried out by now, with their outcomes."""
        returns: list[tuple[Runnable, Outcome]] = []
        with suppress(Empty):
            while True:
                returns.append(self._returns.get_nowait())
        self._out -= len(returns)
        return returns

    def _work(self) -> None:
        heed_signals()
        pid = os.getpid()
        while True:
            was_idle = self._tasks.empty()
            task = self._next()
            outcome = self._carry_out(task, was_idle=was_idle)
            # A forked child that returned from the task has nothing more to do. The end of this thread would not end
            # it: libraries start their own anew in each child.
            if os.getpid() != pid:
                exit_at_once(status_after(outcome.error) if outcome.error else 0)
            self._returns.put((task, outcome))
            self._woken()
            tidy_up()
            forget_queries()

    def _carry_out(self, task: Runnable, *, was_idle: bool) -> Outcome:
        try:
            if was_idle:
                drop_dead()
            return task()
        except BaseException as error:  # whatever goes wrong, the task must not stay under way for ever
            return raised(task.name, error)

    def _next(self) -> Runnable:
        try:
            return wait(partial(self._tasks.get, True), IDLE)
        except Empty:
            connections.close_all()
            return self._tasks.get()


def tidy_up() -> None:
    """Clean up this thread's connections after a body, so that its leftovers do not affect later statements."""
    for connection in connections.all(initialized_only=True):
        try:
            leave_no_transaction(connection.alias)
        except Error:
            drop(connection.alias)
        else:
            if connection.errors_occurred and not is_in_testcase(connection):
                connection.close_if_unusable_or_obsolete()


def drop_dead() -> None:
    """Forget this thread's connections that the server has closed since they were used, so that the next body gets new
    ones. Asks each of them."""
    for connection in connections.all(initialized_only=True):
        if connection.connection is not None and not connection.is_usable():
            drop(connection.alias)
