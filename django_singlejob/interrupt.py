"""Ending a job from outside: by an exception in its thread, and only while its body runs.

An exception that arrives while a lock is being acquired or released would leave its row behind, and one that arrives
after the body would hit whatever the thread does next. So there is a ``Window`` around each body: interrupts come in
only while it is open; the others wait, or are dropped when the body was left.
"""

import asyncio
import ctypes
import signal
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Self, TypeVar

from django.db import Error, connections

from django_singlejob.clock import local_now
from django_singlejob.exceptions import JobInterrupted

T = TypeVar("T")
Interrupt = BaseException | type[BaseException]

# Supervisors and terminals send signals in bursts; only a second thought is a second signal. Seconds.
SECOND_SIGNAL = 1.0


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
        self._cancel: Callable[[Interrupt], object] | None = None
        self._may_be_coming = False
        self.is_open = False
        self.is_left = False

    def __enter__(self) -> Self:
        self._outer = _here.innermost
        if self._outer:
            self._outer_was_open = self._outer.is_open
            self._outer.close()
            self._outer.inner = self
        _here.innermost = self
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
        self.is_left = True
        # One that was left out of order, as by generators, stays until the ones inside it are left.
        while _here.innermost and _here.innermost.is_left:
            _here.innermost.make_way()

    def make_way(self) -> None:
        """Let the window around this one be the innermost again."""
        _here.innermost = self._outer
        if self._outer:
            self._outer.inner = None
        if self._outer and self._outer_was_open and not self._outer.is_left:
            self._outer.open()

    def run(self, body: Callable[[], T]) -> T:
        """Call ``body``, open to interrupts."""
        try:
            try:
                self.open()
                return body()
            except Exception as error:
                if interrupt := self._interrupt_behind(error):
                    raise interrupt from None
                raise
            finally:
                self.close()
        finally:
            # An interrupt may have come just before the window was closed above.
            self.close()

    def _interrupt_behind(self, error: Exception) -> BaseException | None:
        """The interrupt that cut a statement off, where the driver then complains of its connection's state."""
        cause = error.__context__
        while cause and not isinstance(cause, (JobInterrupted, *self._fired)):
            cause = cause.__context__
        return cause if cause and _is_of_a_database(error) else None

    async def run_async(self, body: Callable[[], Awaitable[T]]) -> T:
        """Await ``body``, open to interrupts: its task is cancelled, since a coroutine that waits has no thread."""
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None  # noqa: S101  (a coroutine runs in one)
        came: list[Interrupt] = []

        def cancel_in_loop(interrupt: Interrupt) -> None:
            if self.is_open:
                came.append(interrupt)
                task.cancel()

        self._cancel = lambda interrupt: loop.call_soon_threadsafe(cancel_in_loop, interrupt)
        try:
            self.open()
            return await body()
        except asyncio.CancelledError:
            if not came:
                raise
            raise came[0] from None
        finally:
            self.close()
            if came:
                task.uncancel()

    def open(self) -> None:
        """Let interrupts in; raises the one that waits."""
        with self._mutex:
            self.is_open = True
            waiting, self._waiting = self._waiting, None
        if waiting:
            raise waiting
        if _signals and self._is_mains:
            _signals.raise_remembered()

    def close(self) -> None:
        """Let nothing in any more."""
        with self._mutex:
            self.is_open = False
            if _signals and self._is_mains and _signals.errand:
                # For the case that this window is opened again, after one inside it.
                self._waiting, _signals.errand = _signals.errand, None
            if self._may_be_coming:
                self._may_be_coming = False
                self._let_it_come()

    def _let_it_come(self) -> None:
        # An exception that is on its way arrives at the next jump backwards: here, where it harms nothing. To call it
        # back would do as well, but after that CPython 3.11 loops for ever in what is traced, as by coverage.
        try:
            for _ in range(3):
                pass
        except tuple(self._fired):
            pass

    def fire(self, exception: type[BaseException]) -> None:
        """Raise ``exception`` in the body, from another thread: the first of its kind, and none after the body."""
        if exception in self._fired:
            return
        with self._mutex:
            self._fired.add(exception)
            if not self.is_open:
                self._waiting = exception
            elif self._cancel:
                self._cancel(exception)
            elif _signals and self._is_mains and _signals.are_handled:
                _signals.send_to_main_thread(exception)
            else:
                # Raised at the thread's next step in Python: a call into C that blocks goes on until it returns.
                self._may_be_coming = True
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread), ctypes.py_object(exception))

    def fire_throughout(self, exception: type[BaseException]) -> None:
        """The same for the windows inside this one, too: whatever runs in its thread is to end."""
        # Outside in: what waits for this one keeps a job from beginning in it.
        self.fire(exception)
        if inner := self.inner:
            inner.fire_throughout(exception)

    def interrupt(self, interrupt: BaseException) -> None:
        """Raise ``interrupt`` in the body, from its own thread; in a coroutine by way of its loop."""
        if self._cancel is None:
            raise interrupt
        self._cancel(interrupt)

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


def _is_of_a_database(error: Exception) -> bool:
    # Django lets a driver's own error through when it closes a cursor.
    drivers = {connection.Database.Error for connection in connections.all(initialized_only=True)}  # type: ignore[attr-defined]
    return isinstance(error, (Error, *drivers))


class _Here(threading.local):
    innermost: Window | None = None
    #: A thread that works for a command which is told to end by signals.
    is_hand = False

    @property
    def is_main(self) -> bool:
        return threading.current_thread() is threading.main_thread()


_here = _Here()


class Signals:
    """What came from outside while a command was running."""

    def __init__(self) -> None:
        #: The first signal's number; ``None``: none came.
        self.received: int | None = None
        #: Whether another came, and not in the same burst.
        self.is_repeated = False
        #: Called with each signal's number instead of raising: for a command that runs a child.
        self.forward: Callable[[int], None] | None = None
        #: An exception that another thread wants raised in the main thread.
        self.errand: type[BaseException] | None = None
        self._errands_sent = 0
        self._is_remembered = False
        self._raised_at = -SECOND_SIGNAL
        self._received_at = float("inf")

    def handle(self, signum: int, frame: FrameType | None) -> None:
        """The handler: raise in the open window, or remember."""
        if self._errands_sent:
            self._errands_sent -= 1
            self._do_errand()
            return
        if self.received is None:
            self.received, self._received_at = signum, local_now()
        self.is_repeated = self.is_repeated or local_now() - self._received_at >= SECOND_SIGNAL
        if self.forward:
            self.forward(signum)
        elif _here.innermost and _here.innermost.is_open:
            self._interrupt(_here.innermost, signum)
        else:
            self._is_remembered = True

    def raise_remembered(self) -> None:
        """Raise what came while the window was shut."""
        if self._is_remembered and self.received:
            self._is_remembered = False
            self._raised_at = local_now()
            raise JobInterrupted(self.received)

    @property
    def are_handled(self) -> bool:
        """Whether SIGTERM comes here: it may be ignored, or the job may handle it itself."""
        return signal.getsignal(signal.SIGTERM) == self.handle

    def send_to_main_thread(self, exception: type[BaseException]) -> None:
        """Have the main thread raise ``exception``, even out of a blocking call: only a signal ends one."""
        self.errand = exception
        self._errands_sent += 1
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)

    def _do_errand(self) -> None:
        errand, self.errand = self.errand, None
        if errand and _here.innermost and _here.innermost.is_open:
            raise errand

    def _interrupt(self, window: Window, signum: int) -> None:
        if local_now() - self._raised_at >= SECOND_SIGNAL:
            self._raised_at = local_now()
            window.interrupt(JobInterrupted(signum))


# The one that is in force in this process; None: signals do what they did before.
_signals: Signals | None = None


@contextmanager
def deferred_signals() -> Iterator[Signals]:
    """For a command in the main thread: SIGTERM, SIGINT and SIGHUP end a job's body, and nothing but that.

    In another thread signals do what they did before, for no handler can be set there.
    """
    if not _here.is_main:
        yield Signals()
        return
    global _signals  # noqa: PLW0603  (signal handlers are the process's, too)
    before, deferred = _signals, Signals()
    # What is ignored stays ignored: nohup, a shell's background job.
    handlers = {signum: signal.getsignal(signum) for signum in _ENDING if signal.getsignal(signum) != signal.SIG_IGN}
    try:
        for signum in handlers:
            signal.signal(signum, deferred.handle)
        _signals = deferred
        yield deferred
    finally:
        for signum, handler in handlers.items():
            signal.signal(signum, handler or signal.SIG_DFL)  # None: it was not set from Python
        _signals = before


_ENDING = [getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGHUP") if hasattr(signal, name)]


def heed_signals() -> None:
    """This thread works for the main thread's command: who tells that to end, tells this thread."""
    _here.is_hand = True


def is_told_to_end() -> bool:
    """Whether a signal waits for this thread's job, or an interrupt for the job that called it."""
    if _signals is not None and (_here.is_main or _here.is_hand) and _signals.received is not None:
        return True
    window = _here.innermost
    return window is not None and window.is_outer_awaited


def is_told_again() -> bool:
    """Whether another signal came since, and not in the same burst."""
    return _signals is not None and _signals.is_repeated


@contextmanager
def blocked_signals() -> Iterator[None]:
    """A thread that is started inside inherits this: the system hands signals to the main thread only, and wakes it."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
