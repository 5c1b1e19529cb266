"""The signals that ask a command to exit, and their consequences.

They end a job's body, and nothing else; see ``interrupt``. A signal that arrives while no body runs waits for the next
one.
"""

import atexit
import os
import signal
import threading
from collections.abc import Callable, Iterator, Set as AbstractSet
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from django_singlejob.clock import local_now
from django_singlejob.exceptions import JobInterrupted
from django_singlejob.handlers import SECOND_SIGNAL, held

if TYPE_CHECKING:
    from django_singlejob.interrupt import Window


class _Here(threading.local):
    """What this thread is."""

    innermost: "Window | None" = None
    #: Whether it works for a command that signals can end.
    is_hand = False

    @property
    def is_main(self) -> bool:
        return threading.current_thread() is threading.main_thread()


here = _Here()


class ReceivedSignals:
    """The signals that arrived while a command was running."""

    def __init__(self) -> None:
        #: The first signal's number; ``None`` if no signal has arrived.
        self.received: int | None = None
        #: Whether another signal has arrived, not in the same burst.
        self.is_repeated = False
        #: When a database call was last given up because it went on after a second signal.
        self.gave_up_at = float("-inf")
        #: Whether that call began after the second signal. If so, no more database calls are made.
        self.is_database_given_up = False
        #: The threads in which a call that was given up does not return.
        self.stuck: frozenset[int] = frozenset()
        # An exception that another thread wants raised in the main thread.
        self._to_fetch: type[BaseException] | None = None
        self._is_remembered = False
        self._raised_at = -SECOND_SIGNAL
        self._received_at = float("inf")

    def handle(self, signum: int, frame: FrameType | None) -> None:
        """Handle a signal: raise in the open window, or remember it."""
        if self.received is None:
            self.received, self._received_at = signum, local_now()
        self.is_repeated = self.is_repeated or local_now() - self._received_at >= SECOND_SIGNAL
        if here.innermost and here.innermost.is_open:
            self._interrupt(here.innermost, signum)
        else:
            self._is_remembered = True

    def _interrupt(self, window: "Window", signum: int) -> None:
        if local_now() - self._raised_at >= SECOND_SIGNAL:
            self._raised_at = local_now()
            window.interrupt(JobInterrupted(signum))

    def repeat(self, first: int, first_at: float) -> None:
        """Record a second signal. ``first`` is the first one, whose handler may not have been called yet."""
        if self.received is None:
            self.received, self._received_at = first, first_at
        self.is_repeated = True

    @property
    def remembered(self) -> int | None:
        """The signal that arrived while the window was closed; ``None`` if none has."""
        return self.received if self._is_remembered else None

    def raise_remembered(self) -> None:
        """Raise for a signal that arrived while the window was closed."""
        if signum := self.remembered:
            self._is_remembered = False
            self._raised_at = local_now()
            raise JobInterrupted(signum)

    @property
    def can_fetch(self) -> bool:
        """Whether ``send_to_main_thread`` works. It does not if the job handles that signal itself."""
        return _FETCH is not None and signal.getsignal(_FETCH) == self.fetch

    def send_to_main_thread(self, exception: type[BaseException]) -> None:
        """Have the main thread raise ``exception``, even out of a blocking call, which only a signal can end."""
        assert _FETCH is not None  # noqa: S101  (see can_fetch)
        self._to_fetch = exception
        signal.pthread_kill(threading.main_thread().ident or 0, _FETCH)

    def fetch(self, signum: int, frame: FrameType | None) -> None:
        """Handle the signal that calls the main thread out of a blocking call."""
        if here.innermost and here.innermost.is_open and (exception := self.call_back()):
            raise exception

    def call_back(self) -> type[BaseException] | None:
        """Take back the exception that was sent to the main thread and has not arrived; ``None`` if there is none."""
        exception, self._to_fetch = self._to_fetch, None
        return exception

    def outlive(self, signum: int, frame: FrameType | None) -> None:
        """Handle signals after the command: another signal of the same burst does not change how the command ended."""
        if local_now() - self._received_at >= SECOND_SIGNAL:
            signal.signal(signum, signal.SIG_DFL)
            signal.raise_signal(signum)


#: The signals of this process's command; ``None`` if signals do what they did before.
in_force: ReceivedSignals | None = None
# The signals of the command after which the process exits, if one arrived.
_last: ReceivedSignals | None = None


@contextmanager
def deferred_signals(*, is_last: bool = False) -> Iterator[ReceivedSignals]:
    """For a command in the main thread: SIGTERM, SIGINT and SIGHUP end a job's body, and nothing else.

    ``is_last`` means that the process exits after the block. In other threads signals do what they did before, because
    only the main thread can set handlers.
    """
    if not here.is_main:
        yield ReceivedSignals()
        return
    global in_force, _last  # noqa: PLW0603  (signal handlers are global, too)
    before, deferred = in_force, ReceivedSignals()
    handlers = _handlers()
    try:
        for signum in handlers:
            signal.signal(signum, deferred.fetch if signum == _FETCH else deferred.handle)
        in_force = held.harmless = deferred
        yield deferred
    finally:
        is_ending = is_last and deferred.received is not None
        for signum, handler in handlers.items():
            # None: it was not set from Python
            signal.signal(signum, deferred.outlive if is_ending else handler or signal.SIG_DFL)
        if is_ending:
            _last = deferred
        in_force = held.harmless = before


ENDING_SIGNALS = [getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGHUP") if hasattr(signal, name)]
_ALL = signal.valid_signals()
# Calls the main thread out of a blocking call. Signals with the same number merge, so a signal that others send could
# be lost. No other program sends this one, and without a handler it does nothing.
_FETCH: int | None = getattr(signal, "SIGURG", None)


def _handlers() -> dict[int, Any]:
    """The handlers that a command replaces, by signal."""
    # Ignored signals stay ignored, as under nohup or in a shell's background job.
    handlers = {signum: handler for signum in ENDING_SIGNALS if (handler := signal.getsignal(signum)) != signal.SIG_IGN}
    return handlers if _FETCH is None else {**handlers, _FETCH: signal.getsignal(_FETCH)}


@atexit.register
def _ignore() -> None:
    """Ignore signals at the very end, because Python removes its handlers before the process exits. This is registered
    first, so it runs after everything else at exit."""
    if _last:
        for signum in ENDING_SIGNALS:
            signal.signal(signum, signal.SIG_IGN)


def heed_signals() -> None:
    """Mark this thread as one that works for the main thread's command, so that signals to the command end it too."""
    here.is_hand = True
    _hands.add(threading.get_ident())


# These threads live as long as the process.
_hands: set[int] = set()


def threads_of_command() -> frozenset[int]:
    """The main thread and the threads that work for it."""
    return frozenset(_hands | {threading.main_thread().ident or 0})


def is_shutdown_requested() -> bool:
    """Whether a signal is waiting for this thread's job, or an interrupt for the job that called it."""
    if in_force is not None and (here.is_main or here.is_hand) and in_force.received is not None:
        return True
    return here.innermost is not None and here.innermost.is_outer_awaited


def is_second_signal_received() -> bool:
    """Whether another signal has arrived since, not in the same burst."""
    return in_force is not None and in_force.is_repeated


def gave_up_since(instant: float) -> bool:
    """Whether a second signal has ended a database call since ``instant``, a value of ``local_now()``."""
    signals = in_force or _last
    return signals is not None and signals.gave_up_at >= instant


def is_database_given_up() -> bool:
    """Whether this process must exit after a second signal without any further database calls."""
    signals = in_force or _last
    return signals is not None and signals.is_database_given_up


def stuck_threads() -> frozenset[int]:
    """The threads in a database call that was given up and still does not return."""
    return in_force.stuck if in_force else frozenset()


def status_if_given_up() -> int:
    """The exit status of a process that gave up a database call after a second signal; 0 if it did not."""
    return 128 + (in_force.received or 0) if in_force and gave_up_since(0) else 0


def leave_to_child(handle: Callable[[int, FrameType | None], object] | signal.Handlers) -> None:
    """In a child that runs the body of its parent's command: have these signals call ``handle``, and forget that the
    parent handles them. Signals that are ignored stay ignored."""
    global in_force, _last  # noqa: PLW0603  (signal handlers are global, too)
    in_force = _last = here.innermost = held.harmless = None
    for signum in ENDING_SIGNALS:
        if signal.getsignal(signum) != signal.SIG_IGN:
            signal.signal(signum, handle)
    # A process that the body forks, as multiprocessing does, is none of ours. Python drops a signal with a handler that
    # arrives before the process has begun. A pool would wait for ever for one that it has ended so early.
    os.register_at_fork(
        before=_forking.block, after_in_parent=_forking.let_in, after_in_child=partial(_begin_anew, handle)
    )


def note_in_child() -> None:
    """The same in a child whose threads run bodies: signals are noted, see ``is_shutdown_requested``."""
    global in_force  # noqa: PLW0603
    noted = ReceivedSignals()
    leave_to_child(noted.handle)
    in_force = noted


class _Forking(threading.local):
    """The signals that the thread blocked before it forked."""

    mask: AbstractSet[int] = frozenset()

    def block(self) -> None:
        self.mask = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING_SIGNALS)

    def let_in(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self.mask)


_forking = _Forking()


def _begin_anew(handle: Callable[[int, FrameType | None], object] | signal.Handlers) -> None:
    stop_handling(handle)
    _forking.let_in()


def stop_handling(handle: Callable[[int, FrameType | None], object] | signal.Handlers) -> None:
    """Have the signals that call ``handle`` do what they do in any program."""
    for signum in ENDING_SIGNALS:
        if signal.getsignal(signum) == handle:
            signal.signal(signum, signal.default_int_handler if signum == signal.SIGINT else signal.SIG_DFL)


def unblock() -> None:
    """Let signals in that ``blocked_signals`` has blocked, in a process that was forked inside its block."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _ALL)


def start_thread(target: Callable[[], object], name: str) -> threading.Thread:
    """Start a thread that ends with the process and gets no signals. Raises ``RuntimeError`` if that is impossible."""
    thread = threading.Thread(target=target, name=name, daemon=True)
    _ours.add(thread)
    with blocked_signals():
        thread.start()
    return thread


# The threads that ``start_thread`` has started.
_ours: WeakSet[threading.Thread] = WeakSet()


def has_other_threads() -> bool:
    """Whether this process has threads that are neither the main thread nor ours."""
    return any(thread is not threading.main_thread() and thread not in _ours for thread in threading.enumerate())


@contextmanager
def blocked_signals() -> Iterator[None]:
    """Block signals in the block and in threads that are started inside it. The system then delivers signals to the
    main thread only, and wakes it."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        # Python calls the handlers of signals that came before, when they are blocked already. A handler may raise.
        signal.pthread_sigmask(signal.SIG_BLOCK, _ALL)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
