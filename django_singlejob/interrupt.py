"""Ends a job from outside, with an exception in its thread, and only while its body runs.

An exception while a lock is acquired or released would leave its row behind, and an exception after the body would hit
whatever the thread does next. So there is a ``Window`` around each body, and interrupts come in only while it is open.
The others wait, or are dropped once the body has ended. In the main thread, the signals that the program handles itself
wait in the same way.
"""

import asyncio
import ctypes
import threading
from collections.abc import Awaitable, Callable
from contextlib import closing
from types import TracebackType
from typing import Any, Self, TypeVar, cast

from django.db import Error, connections

from django_singlejob import received_signals
from django_singlejob.exceptions import JobInterrupted, JobTimeout, LeaseLost
from django_singlejob.handlers import held
from django_singlejob.received_signals import here

T = TypeVar("T")
Interrupt = BaseException | type[BaseException]


class Window:
    """The time in which a thread may be interrupted: while it runs a job's body.

    A window lets in one interrupt of each kind. If a job calls another job in the same thread, interrupts for the outer
    window wait until the inner one is left.
    """

    def __init__(self) -> None:
        # Reentrant: on some versions of Python an interrupt can arrive just after the lock was taken, which then
        # stays taken.
        self._mutex = threading.RLock()
        self._thread = threading.get_ident()
        self._outer: Window | None = None
        self._outer_was_open = False
        #: The window inside this one, if there is one.
        self.inner: Window | None = None
        self._fired: set[type[BaseException]] = set()
        self._waiting: type[BaseException] | None = None
        self._delivery: _ToThread | _ToTask = _ToMainThread() if here.is_main else _ToThread()
        self.is_open = False
        self.is_left = False

    def __enter__(self) -> Self:
        self._outer = here.innermost
        if self._outer:
            self._outer_was_open = self._outer.is_open
            self._outer.close()
            self._outer.inner = self
        if self._is_in_main_thread:
            held.hold()
        here.innermost = self
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
        self.is_left = True
        # A window that is left out of order, as generators may do, stays until the windows inside it are left.
        while here.innermost and here.innermost.is_left:
            here.innermost.make_way()

    def make_way(self) -> None:
        """Make the window around this one the innermost again."""
        here.innermost = self._outer
        if self._outer:
            self._outer.inner = None
        if self._outer and self._outer_was_open and not self._outer.is_left:
            self._outer.open()
        elif self._outer is None and self._is_in_main_thread:
            held.let_in()

    def run(self, body: Callable[[], T]) -> T:
        """Call ``body`` with the window open."""
        with closing(self), closing(self):
            try:
                self.open()
                return body()
            except Exception as error:
                if interrupt := self.interrupt_behind(error):
                    raise interrupt from None
                raise

    def interrupt_behind(self, error: Exception) -> BaseException | None:
        """The interrupt that cut a statement off, if ``error`` is the driver's complaint about that; otherwise
        ``None``."""
        cause = error.__context__
        while cause and not isinstance(cause, (JobInterrupted, *self._fired)):
            cause = cause.__context__
        return cause if cause and _is_of_a_database(error) else None

    async def run_async(self, body: Callable[[], Awaitable[T]]) -> T:
        """Await ``body`` with the window open. Interrupts cancel its task."""
        self._delivery = delivery = _ToTask(self)
        try:
            self.open()
            return await body()
        except asyncio.CancelledError:
            if not delivery.came:
                raise
            raise delivery.came[0] from None
        finally:
            self.close()
            if delivery.came:
                delivery.task.uncancel()

    def open(self) -> None:
        """Let interrupts in, and raise the one that is waiting.

        Call this inside ``with closing(window), closing(window)``. One ``closing`` is not enough: an interrupt that
        arrives at the beginning of its ``__exit__`` keeps it from closing the window. The same interrupt does not
        arrive twice.
        """
        with self._mutex:
            self.is_open = True
            waiting, self._waiting = self._waiting, None
        if waiting:
            raise waiting
        if received_signals.in_force and self._is_in_main_thread:
            received_signals.in_force.raise_remembered()
        if self._governs_signals:
            held.let_in(throw=None if here.is_main else self.interrupt)

    def close(self) -> None:
        """Let no more interrupts in."""
        if self.is_open and self._governs_signals:
            held.hold()
        with self._mutex:
            self.is_open = False
            if not_arrived := self._delivery.call_back():
                # This window may be opened again, after a window inside it.
                self._waiting = not_arrived

    def fire(self, exception: type[BaseException]) -> None:
        """Raise ``exception`` in the body, from another thread: only the first of its kind, and never after the
        body."""
        if exception in self._fired:
            return
        with self._mutex:
            self._fired.add(exception)
            if self.is_open:
                self._delivery.deliver(exception)
            else:
                self._waiting = exception

    def fire_throughout(self, exception: type[BaseException]) -> None:
        """Like ``fire``, but also for the windows inside this one, so that everything in its thread ends."""
        # From the outside in: an interrupt that waits for this window keeps a job from starting in it.
        self.fire(exception)
        if inner := self.inner:
            inner.fire_throughout(exception)

    def interrupt(self, interrupt: BaseException) -> None:
        """Raise ``interrupt`` in the body, from its own thread."""
        self._delivery.throw(interrupt)

    def is_ctrl_c(self, error: BaseException) -> bool:
        """Whether ``error``, raised by the body, may be a Ctrl-C. A coroutine gets those of the thread that waits for
        it."""
        return self._is_in_main_thread and _is_unhandled_interrupt(error)

    @property
    def is_awaited(self) -> bool:
        """Whether an interrupt is waiting for this window to open."""
        return self._waiting is not None

    @property
    def is_outer_awaited(self) -> bool:
        """Whether an interrupt is waiting for one of the windows around this one."""
        outer = self._outer
        return outer is not None and (outer.is_awaited or outer.is_outer_awaited)

    @property
    def _is_in_main_thread(self) -> bool:
        return self._thread == threading.main_thread().ident

    @property
    def _governs_signals(self) -> bool:
        """Whether this is the main thread's innermost window. If the main thread waits for a coroutine, the coroutine's
        loop opens the window."""
        return self._is_in_main_thread and (
            here.innermost is self if here.is_main else isinstance(self._delivery, _ToTask)
        )


class _ToThread:
    """Delivers interrupts at the thread's next step in Python. A blocking call into C goes on until it returns."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self._coming: set[type[BaseException]] = set()

    def deliver(self, exception: type[BaseException]) -> None:
        """Raise ``exception`` in the body, from another thread."""
        self._coming.add(exception)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread), ctypes.py_object(exception))

    def throw(self, interrupt: BaseException) -> None:
        """Raise ``interrupt`` in the body, from the body's own thread."""
        raise interrupt

    def call_back(self) -> type[BaseException] | None:
        """Let nothing arrive from now on. Returns the exception that is still on its way, or ``None``."""
        # An exception that is on its way arrives at the next backward jump: here, where it does no harm. Cancelling it
        # would also work, but then CPython 3.11 loops for ever in traced code, for example under coverage.
        try:
            for _ in range(3 if self._coming else 0):
                pass
        except tuple(self._coming):
            pass
        self._coming.clear()
        return None


class _ToMainThread(_ToThread):
    """Delivers interrupts with a signal if a command handles signals. That ends even a blocking call."""

    def deliver(self, exception: type[BaseException]) -> None:
        signals = received_signals.in_force
        if signals and signals.can_fetch:
            signals.send_to_main_thread(exception)
        else:
            super().deliver(exception)

    def call_back(self) -> type[BaseException] | None:
        super().call_back()
        return received_signals.in_force.call_back() if received_signals.in_force else None


class _ToTask:
    """Cancels the task, in its loop: a coroutine that waits has no thread."""

    def __init__(self, window: Window) -> None:
        self.task = cast("asyncio.Task[Any]", asyncio.current_task())
        self.came: list[Interrupt] = []
        self._window = window

    def deliver(self, interrupt: Interrupt) -> None:
        self.task.get_loop().call_soon_threadsafe(self._cancel, interrupt)

    throw = deliver

    def _cancel(self, interrupt: Interrupt) -> None:
        if self._window.is_open:
            self.came.append(interrupt)
            self.task.cancel()

    def call_back(self) -> None:
        """Do nothing: once the window is closed, the task is not cancelled."""


def interrupt_behind(error: Exception) -> BaseException | None:
    """The interrupt of this thread's job that made the driver raise ``error``; ``None`` if there is another cause."""
    if here.innermost:
        return here.innermost.interrupt_behind(error)
    cause = error.__context__  # in the child of a supervisor, which has no windows
    while cause and not isinstance(cause, (JobInterrupted, JobTimeout, LeaseLost)):
        cause = cause.__context__
    return cause if cause and _is_of_a_database(error) else None


def is_ctrl_c(error: BaseException) -> bool:
    """Whether ``error``, raised by this thread's job, may be a Ctrl-C and not the job's own exception."""
    return here.is_main and _is_unhandled_interrupt(error)


def _is_unhandled_interrupt(error: BaseException) -> bool:
    # If a command handles the signals, they raise only JobInterrupted.
    return (
        received_signals.in_force is None
        and isinstance(error, KeyboardInterrupt)
        and not isinstance(error, JobInterrupted)
    )


def _is_of_a_database(error: Exception) -> bool:
    # Django does not wrap a driver's error when it closes a cursor.
    drivers = {connection.Database.Error for connection in connections.all(initialized_only=True)}  # type: ignore[attr-defined]
    return isinstance(error, (Error, *drivers))
