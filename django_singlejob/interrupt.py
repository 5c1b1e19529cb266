"""Ending a job from outside: by an exception in its thread, and only while its body runs.

An exception that arrives while a lock is being acquired or released would leave its row behind, and one that arrives
after the body would hit whatever the thread does next. So there is a ``Window`` around each body: interrupts come in
only while it is open; the others wait, or are dropped when the body was left. So do, in the main thread, the signals
that the program handles itself.
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
from django_singlejob.exceptions import JobInterrupted
from django_singlejob.handlers import held
from django_singlejob.received_signals import here

T = TypeVar("T")
Interrupt = BaseException | type[BaseException]


class Window:
    """The time in which one thread may be interrupted: while a job's body runs in it.

    It lets in one interrupt of a kind. While a window is inside another of the same thread (a job calls a job), what
    comes for the outer one waits until the inner one is done.
    """

    def __init__(self) -> None:
        # Reentrant: on some Pythons an interrupt can arrive just after the lock was taken, which then stays taken.
        self._mutex = threading.RLock()
        self._thread = threading.get_ident()
        self._outer: Window | None = None
        self._outer_was_open = False
        #: The one inside this one, if there is one.
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
        if self._is_mains:
            held.hold()
        here.innermost = self
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
        self.is_left = True
        # One that was left out of order, as by generators, stays until the ones inside it are left.
        while here.innermost and here.innermost.is_left:
            here.innermost.make_way()

    def make_way(self) -> None:
        """Let the window around this one be the innermost again."""
        here.innermost = self._outer
        if self._outer:
            self._outer.inner = None
        if self._outer and self._outer_was_open and not self._outer.is_left:
            self._outer.open()
        elif self._outer is None and self._is_mains:
            held.let_in()

    def run(self, body: Callable[[], T]) -> T:
        """Call ``body``, open to interrupts."""
        with closing(self), closing(self):
            try:
                self.open()
                return body()
            except Exception as error:
                if interrupt := self.interrupt_behind(error):
                    raise interrupt from None
                raise

    def interrupt_behind(self, error: Exception) -> BaseException | None:
        """The interrupt that cut a statement off, where the driver then complains of its connection's state."""
        cause = error.__context__
        while cause and not isinstance(cause, (JobInterrupted, *self._fired)):
            cause = cause.__context__
        return cause if cause and _is_of_a_database(error) else None

    async def run_async(self, body: Callable[[], Awaitable[T]]) -> T:
        """Await ``body``, open to interrupts, which cancel its task."""
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
        """Let interrupts in; raises the one that waits.

        To be called inside ``with closing(window), closing(window)``. One would not do: an interrupt that comes as its
        ``__exit__`` begins keeps the window from being closed. It does not come a second time.
        """
        with self._mutex:
            self.is_open = True
            waiting, self._waiting = self._waiting, None
        if waiting:
            raise waiting
        if received_signals.in_force and self._is_mains:
            received_signals.in_force.raise_remembered()
        if self._governs_signals:
            held.let_in(throw=None if here.is_main else self.interrupt)

    def close(self) -> None:
        """Let nothing in any more."""
        if self.is_open and self._governs_signals:
            held.hold()
        with self._mutex:
            self.is_open = False
            if not_arrived := self._delivery.call_back():
                # For the case that this window is opened again, after one inside it.
                self._waiting = not_arrived

    def fire(self, exception: type[BaseException]) -> None:
        """Raise ``exception`` in the body, from another thread: the first of its kind, and none after the body."""
        if exception in self._fired:
            return
        with self._mutex:
            self._fired.add(exception)
            if self.is_open:
                self._delivery.deliver(exception)
            else:
                self._waiting = exception

    def fire_throughout(self, exception: type[BaseException]) -> None:
        """The same for the windows inside this one, too: whatever runs in its thread is to end."""
        # Outside in: what waits for this one keeps a job from beginning in it.
        self.fire(exception)
        if inner := self.inner:
            inner.fire_throughout(exception)

    def interrupt(self, interrupt: BaseException) -> None:
        """Raise ``interrupt`` in the body, from its own thread."""
        self._delivery.throw(interrupt)

    def is_ctrl_c(self, error: BaseException) -> bool:
        """Whether what its body raised may be a Ctrl-C: a coroutine gets those of the thread that waits for it."""
        return self._is_mains and _is_unhandled_interrupt(error)

    @property
    def is_awaited(self) -> bool:
        """Whether an interrupt waits until this window opens."""
        return self._waiting is not None

    @property
    def is_outer_awaited(self) -> bool:
        """Whether an interrupt waits for one of the windows around this one."""
        outer = self._outer
        return outer is not None and (outer.is_awaited or outer.is_outer_awaited)

    @property
    def _is_mains(self) -> bool:
        return self._thread == threading.main_thread().ident

    @property
    def _governs_signals(self) -> bool:
        """Whether it is the main thread's innermost. For a coroutine that is waited for there, its loop opens it."""
        return self._is_mains and (here.innermost is self if here.is_main else isinstance(self._delivery, _ToTask))


class _ToThread:
    """Interrupts come at the thread's next step in Python: a call into C that blocks goes on until it returns."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self._coming: set[type[BaseException]] = set()

    def deliver(self, exception: type[BaseException]) -> None:
        """Raise it in the body, from another thread."""
        self._coming.add(exception)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread), ctypes.py_object(exception))

    def throw(self, interrupt: BaseException) -> None:
        """Raise it in the body, from the body's own thread."""
        raise interrupt

    def call_back(self) -> type[BaseException] | None:
        """Let nothing come from now on. Returns what is still on its way; ``None``: nothing is."""
        # An exception that is on its way arrives at the next jump backwards: here, where it harms nothing. To call it
        # back would do as well, but after that CPython 3.11 loops for ever in what is traced, as by coverage.
        try:
            for _ in range(3 if self._coming else 0):
                pass
        except tuple(self._coming):
            pass
        self._coming.clear()
        return None


class _ToMainThread(_ToThread):
    """Where a command handles signals, one brings them: it ends even a call that blocks."""

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
    """The task is cancelled, in its loop: a coroutine that waits has no thread."""

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
        """Nothing is cancelled once the window is closed."""


def interrupt_behind(error: Exception) -> BaseException | None:
    """What interrupted this thread's job, if that made the driver complain; ``None``: it is an error of its own."""
    return here.innermost.interrupt_behind(error) if here.innermost else None


def is_ctrl_c(error: BaseException) -> bool:
    """Whether what this thread's job raised may be a Ctrl-C, and not its own doing."""
    return here.is_main and _is_unhandled_interrupt(error)


def _is_unhandled_interrupt(error: BaseException) -> bool:
    # Where a command handles the signals, they raise nothing but JobInterrupted.
    return (
        received_signals.in_force is None
        and isinstance(error, KeyboardInterrupt)
        and not isinstance(error, JobInterrupted)
    )


def _is_of_a_database(error: Exception) -> bool:
    # Django lets a driver's own error through when it closes a cursor.
    drivers = {connection.Database.Error for connection in connections.all(initialized_only=True)}  # type: ignore[attr-defined]
    return isinstance(error, (Error, *drivers))
