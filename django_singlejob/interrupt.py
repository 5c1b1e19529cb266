"""Ending a job from outside: by an exception in its thread, and only while its body runs.

An exception that arrives while a lock is being acquired or released would leave its row behind, and one that arrives
after the body would hit whatever the thread does next. So there is a ``Window`` around each body: interrupts come in
only while it is open; the others wait, or are dropped when the body was left. So do, in the main thread, the signals
that the program handles itself.
"""

import asyncio
import atexit
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
from django_singlejob.handlers import SECOND_SIGNAL, held

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
        if self._is_mains:
            held.hold(harmless=_signals)
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
        elif self._outer is None and self._is_mains:
            held.let_in()

    def run(self, body: Callable[[], T]) -> T:
        """Call ``body``, open to interrupts."""
        try:
            try:
                self.open()
                return body()
            except Exception as error:
                if interrupt := self.interrupt_behind(error):
                    raise interrupt from None
                raise
            finally:
                self.close()
        finally:
            # An interrupt may have come just before the window was closed above.
            self.close()

    def interrupt_behind(self, error: Exception) -> BaseException | None:
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
        if self._governs_signals:
            held.let_in(throw=None if _here.is_main else self.interrupt)

    def close(self) -> None:
        """Let nothing in any more."""
        if self.is_open and self._governs_signals:
            held.hold(harmless=_signals)
        with self._mutex:
            self.is_open = False
            if _signals and self._is_mains and _signals.pending_interrupt:
                # For the case that this window is opened again, after one inside it.
                self._waiting, _signals.pending_interrupt = _signals.pending_interrupt, None
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
            elif _signals and self._is_mains and _signals.can_fetch:
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
        return self._is_mains and (_here.innermost is self if _here.is_main else self._cancel is not None)


def interrupt_behind(error: Exception) -> BaseException | None:
    """What interrupted this thread's job, if that made the driver complain; ``None``: it is an error of its own."""
    return _here.innermost.interrupt_behind(error) if _here.innermost else None


def is_ctrl_c(error: BaseException) -> bool:
    """Whether what this thread's job raised may be a Ctrl-C, and not its own doing."""
    return _here.is_main and _is_unhandled_interrupt(error)


def _is_unhandled_interrupt(error: BaseException) -> bool:
    # Where a command handles the signals, they raise nothing but JobInterrupted.
    return _signals is None and isinstance(error, KeyboardInterrupt) and not isinstance(error, JobInterrupted)


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


class ReceivedSignals:
    """What came from outside while a command was running."""

    def __init__(self) -> None:
        #: The first signal's number; ``None``: none came.
        self.received: int | None = None
        #: Whether another came, and not in the same burst.
        self.is_repeated = False
        #: Called with each signal's number instead of raising: for a command that runs a child.
        self.forward: Callable[[int], None] | None = None
        #: An exception that another thread wants raised in the main thread.
        self.pending_interrupt: type[BaseException] | None = None
        #: When a call to a database was last given up, since it went on after a second signal.
        self.gave_up_at = float("-inf")
        #: Whether that was one that began after the second signal: nothing more is asked.
        self.is_database_given_up = False
        #: The threads that a call which was given up does not return to.
        self.stuck: frozenset[int] = frozenset()
        self._is_remembered = False
        self._raised_at = -SECOND_SIGNAL
        self._received_at = float("inf")

    def handle(self, signum: int, frame: FrameType | None) -> None:
        """The handler: raise in the open window, or remember."""
        if self.received is None:
            self.received, self._received_at = signum, local_now()
        self.is_repeated = self.is_repeated or local_now() - self._received_at >= SECOND_SIGNAL
        if self.forward:
            self.forward(signum)
        elif _here.innermost and _here.innermost.is_open:
            self._interrupt(_here.innermost, signum)
        else:
            self._is_remembered = True

    def repeat(self, first: int, first_at: float) -> None:
        """A second signal has come. ``first``: the first one; its handler may not have been called yet."""
        if self.received is None:
            self.received, self._received_at = first, first_at
        self.is_repeated = True

    def raise_remembered(self) -> None:
        """Raise what came while the window was closed."""
        if self._is_remembered and self.received:
            self._is_remembered = False
            self._raised_at = local_now()
            raise JobInterrupted(self.received)

    @property
    def can_fetch(self) -> bool:
        """Whether ``send_to_main_thread`` reaches it: the job may handle that signal itself."""
        return _FETCH is not None and signal.getsignal(_FETCH) == self.fetch

    def send_to_main_thread(self, exception: type[BaseException]) -> None:
        """Have the main thread raise ``exception``, even out of a blocking call: only a signal ends one."""
        assert _FETCH is not None  # noqa: S101  (see can_fetch)
        self.pending_interrupt = exception
        signal.pthread_kill(threading.main_thread().ident or 0, _FETCH)

    def fetch(self, signum: int, frame: FrameType | None) -> None:
        """The handler of the signal that fetches the main thread."""
        pending_interrupt, self.pending_interrupt = self.pending_interrupt, None
        if pending_interrupt and _here.innermost and _here.innermost.is_open:
            raise pending_interrupt

    def outlive(self, signum: int, frame: FrameType | None) -> None:
        """The handler once the command is done: another signal of the same burst does not change how it ended."""
        if local_now() - self._received_at >= SECOND_SIGNAL:
            signal.signal(signum, signal.SIG_DFL)
            signal.raise_signal(signum)

    def _interrupt(self, window: Window, signum: int) -> None:
        if local_now() - self._raised_at >= SECOND_SIGNAL:
            self._raised_at = local_now()
            window.interrupt(JobInterrupted(signum))


# The one that is in force in this process; None: signals do what they did before.
_signals: ReceivedSignals | None = None
# That of the command behind which the process ends, once a signal came.
_last: ReceivedSignals | None = None


@contextmanager
def deferred_signals(*, is_last: bool = False) -> Iterator[ReceivedSignals]:
    """For a command in the main thread: SIGTERM, SIGINT and SIGHUP end a job's body, and nothing but that.

    ``is_last``: the process ends behind it. In another thread signals do what they did before, for no handler can be
    set there.
    """
    if not _here.is_main:
        yield ReceivedSignals()
        return
    global _signals, _last  # noqa: PLW0603  (signal handlers are the process's, too)
    before, deferred = _signals, ReceivedSignals()
    # What is ignored stays ignored: nohup, a shell's background job.
    handlers = {
        signum: signal.getsignal(signum) for signum in ENDING_SIGNALS if signal.getsignal(signum) != signal.SIG_IGN
    }
    if _FETCH is not None:
        handlers[_FETCH] = signal.getsignal(_FETCH)
    try:
        for signum in handlers:
            signal.signal(signum, deferred.fetch if signum == _FETCH else deferred.handle)
        _signals = deferred
        yield deferred
    finally:
        is_ending = is_last and deferred.received is not None
        for signum, handler in handlers.items():
            # None: it was not set from Python
            signal.signal(signum, deferred.outlive if is_ending else handler or signal.SIG_DFL)
        if is_ending:
            _last = deferred
        _signals = before


ENDING_SIGNALS = [getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGHUP") if hasattr(signal, name)]
# It fetches the main thread out of a call. Signals of one number merge, and so one that somebody else sends would be
# lost: this one nobody sends, and where it is not handled it does nothing.
_FETCH: int | None = getattr(signal, "SIGURG", None)


@atexit.register
def _ignore() -> None:
    """Python takes its own handlers away before the process is gone. Behind whatever is done at exit: this was
    registered first."""
    if _last:
        for signum in ENDING_SIGNALS:
            signal.signal(signum, signal.SIG_IGN)


@contextmanager
def signals_let_in() -> Iterator[None]:
    """Inside a window that is closed, for as long as an exception would leave nothing behind."""
    if not (_here.is_main and held.are_held):
        yield
        return
    try:
        held.let_in()
        yield
    finally:
        held.hold(harmless=_signals)


def heed_signals() -> None:
    """This thread works for the main thread's command: who tells that to end, tells this thread."""
    _here.is_hand = True
    _hands.add(threading.get_ident())


# They last as long as the process.
_hands: set[int] = set()


def threads_of_command() -> frozenset[int]:
    """The main thread, and those that work for it."""
    return frozenset(_hands | {threading.main_thread().ident or 0})


def is_told_to_end() -> bool:
    """Whether a signal waits for this thread's job, or an interrupt for the job that called it."""
    if _signals is not None and (_here.is_main or _here.is_hand) and _signals.received is not None:
        return True
    window = _here.innermost
    return window is not None and window.is_outer_awaited


def is_told_again() -> bool:
    """Whether another signal came since, and not in the same burst."""
    return _signals is not None and _signals.is_repeated


def gave_up_since(instant: float) -> bool:
    """Whether a second signal has ended a call to a database since that instant, a value of ``local_now()``."""
    signals = _signals or _last
    return signals is not None and signals.gave_up_at >= instant


def is_database_given_up() -> bool:
    """Whether this process is to end, by a second signal, without asking a database for anything more."""
    signals = _signals or _last
    return signals is not None and signals.is_database_given_up


def stuck_threads() -> frozenset[int]:
    """Those that are in a call to a database which was given up, and goes on all the same."""
    return _signals.stuck if _signals else frozenset()


def status_if_given_up() -> int:
    """The exit status of a process that gave up a call to a database at a second signal; 0: it did not."""
    return 128 + (_signals.received or 0) if _signals and gave_up_since(0) else 0


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
