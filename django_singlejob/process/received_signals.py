"""The signals that ask a command to exit, and their consequences.

They end a job's body, and nothing else. One that arrives while no body runs waits for the next one: so none can come
between a COMMIT and what follows from it.
"""

import asyncio
import atexit
import inspect
import os
import signal
import threading
from collections.abc import Awaitable, Callable, Iterator, Set as AbstractSet
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any, TypeVar, cast
from weakref import WeakSet

from asgiref.sync import async_to_sync

from django_singlejob.exceptions import JobInterrupted
from django_singlejob.process.clock import local_now, sleep

T = TypeVar("T")

# Signals within this many seconds count as one. After that, another one counts as a second signal.
SECOND_SIGNAL = 1.0
# How long a fork may need to be over. Seconds.
_MOMENT = 0.05

_NAMES = ("SIGTERM", "SIGINT", "SIGQUIT", "SIGHUP")
ENDING_SIGNALS = [getattr(signal, name) for name in _NAMES if hasattr(signal, name)]
_ALL = signal.valid_signals()


class ReceivedSignals:
    """The signals that arrived while a command was running.

    Attributes:
        received: the first signal's number; ``None`` if no signal has arrived.
        is_repeated: whether another signal has arrived, not in the same burst.
        handles_ctrl_c: whether a Ctrl-C is one of them.
    """

    def __init__(self, *, handles_ctrl_c: bool = True) -> None:
        self.handles_ctrl_c = handles_ctrl_c
        self.received: int | None = None
        self.is_repeated = False
        self._is_open = self._is_remembered = False
        #: Whether the process is being forked, where nothing can be raised, and a signal that has come meanwhile.
        self.is_forking = False
        self.came_while_forking: int | None = None
        self._raised_at = -SECOND_SIGNAL
        self._received_at = float("inf")
        # How to end a body that is a coroutine, and what it was ended with.
        self._cancel: Callable[[], object] | None = None
        self._raised: BaseException | None = None

    def handle(self, signum: int, frame: FrameType | None) -> None:
        """Handle a signal: raise in the body, or remember it."""
        if self.is_forking:
            self.came_while_forking = signum
            return
        if self.received is None:
            self.received, self._received_at = signum, local_now()
        self.is_repeated = self.is_repeated or local_now() - self._received_at >= SECOND_SIGNAL
        if not self._is_open:
            self._is_remembered = True
        elif local_now() - self._raised_at >= SECOND_SIGNAL:
            self._raised, self._raised_at = self.reason(signum), local_now()
            if self._cancel is None:
                raise self._raised
            self._cancel()

    def reason(self, signum: int) -> BaseException:
        """What a body is ended with."""
        return JobInterrupted(signum)

    def raise_remembered(self) -> None:
        """Raise for a signal that arrived while no body ran."""
        if self._is_remembered and self.received:
            self._is_remembered, self._raised_at = False, local_now()
            raise self.reason(self.received)

    def call(self, body: Callable[[], Any]) -> Any:
        """Call the body, which may be an ``async def``, and let signals in."""
        if inspect.iscoroutinefunction(body):
            return async_to_sync(self.call_async)(body)
        was_open, self._is_open = self._is_open, True
        try:
            self.raise_remembered()
            return body()
        finally:
            self._is_open = was_open

    async def call_async(self, body: Callable[[], Awaitable[T]]) -> T:
        """The same in an event loop: what ends the body cancels its task."""
        task = cast("asyncio.Task[Any]", asyncio.current_task())
        was_open, former, self._raised = self._is_open, self._cancel, None
        self._cancel = partial(task.get_loop().call_soon_threadsafe, task.cancel)
        self._is_open = True
        try:
            self.raise_remembered()
            return await body()
        except asyncio.CancelledError:
            self._raise_cause(task)
            raise
        finally:
            self._is_open, self._cancel = was_open, former

    def _raise_cause(self, task: "asyncio.Task[Any]") -> None:
        """Raise what has cancelled the task, if that was a signal."""
        if self._raised:
            task.uncancel()
            raise self._raised from None

    @contextmanager
    def without_signals(self) -> Iterator[None]:
        """Keep signals out of the block, although a body runs. They raise after it."""
        was_open, self._is_open = self._is_open, False
        try:
            yield
        finally:
            self._is_open = was_open
        if was_open:
            self.raise_remembered()

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
def deferred_signals(*, is_last: bool = False, is_guest: bool = False) -> Iterator[ReceivedSignals]:
    """For a command in the main thread: the ``ENDING_SIGNALS`` end a job's body, and nothing else.

    ``is_last`` means that the process exits after the block. ``is_guest`` means that a program calls the command: the
    signals for which it has a handler do what they did before, and so does a Ctrl-C. In other threads all do, because
    only the main thread can set handlers.
    """
    global in_force, _last  # noqa: PLW0603  (signal handlers are global, too)
    if not _is_main() or (is_guest and in_force):
        yield ReceivedSignals()
        return
    before, deferred = in_force, ReceivedSignals(handles_ctrl_c=not is_guest)
    if is_last:
        remember_how_children_end()
    # Ignored signals stay ignored, as under nohup or in a shell's background job.
    handlers = {signum: handler for signum in ENDING_SIGNALS if (handler := signal.getsignal(signum)) != signal.SIG_IGN}
    if is_guest:
        handlers = {signum: handler for signum, handler in handlers.items() if handler == signal.SIG_DFL}
    try:
        for signum in handlers:
            signal.signal(signum, deferred.handle)
        in_force = deferred
        yield deferred
    finally:
        is_ending = is_last and deferred.received is not None
        for signum, handler in handlers.items():
            # None: it was not set from Python
            signal.signal(signum, deferred.outlive if is_ending else handler or signal.SIG_DFL)
        if is_ending:
            _last = deferred
        in_force = before


def remember_how_children_end() -> None:
    """Stop ignoring SIGCHLD, which some launchers do, and their programs after them. The system would forget the exit
    status of each child, and ``subprocess`` takes it for 0."""
    if hasattr(signal, "SIGCHLD") and signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def is_ended_by_signal() -> bool:
    """Whether this process ends after a command that a signal has ended."""
    return _last is not None


@atexit.register
def _ignore() -> None:
    """Ignore signals at the very end, because Python removes its handlers before the process exits. This is registered
    first, so it runs after everything else at exit."""
    if _last:
        for signum in ENDING_SIGNALS:
            signal.signal(signum, signal.SIG_IGN)


# --- what they mean for this thread


class _Thread(threading.local):
    """``is_of_command``: whether the thread works for a command that signals can end."""

    is_of_command = False


_thread = _Thread()


def heed_signals() -> None:
    """Mark this thread as one that works for the main thread's command."""
    _thread.is_of_command = True


def is_shutdown_requested() -> bool:
    """Whether a signal has asked this thread's command to end."""
    return in_force is not None and in_force.received is not None and (_is_main() or _thread.is_of_command)


def is_second_signal_received() -> bool:
    """Whether another signal has arrived since, not in the same burst."""
    return in_force is not None and in_force.is_repeated


def let_in(body: Callable[[], Any]) -> Any:
    """Call the body, which may be an ``async def``. If a command handles signals, they end it."""
    if signals := of_this_thread():
        return signals.call(body)
    return async_to_sync(body)() if inspect.iscoroutinefunction(body) else body()


def of_this_thread() -> ReceivedSignals | None:
    """The signals that end what this thread runs; ``None`` if none do."""
    return in_force if _is_main() else None


@contextmanager
def without_signals() -> Iterator[None]:
    """Keep the signals of a command out of the block: what it does must not be cut short."""
    if signals := of_this_thread():
        with signals.without_signals():
            yield
    else:
        yield


def is_ctrl_c(error: BaseException) -> bool:
    """Whether ``error``, raised by a job, may be a Ctrl-C and not the job's own exception. If a command handles the
    signals, they raise only ``JobInterrupted``."""
    is_handled = in_force is not None and in_force.handles_ctrl_c
    return not is_handled and isinstance(error, KeyboardInterrupt) and not isinstance(error, JobInterrupted)


def _is_main() -> bool:
    return threading.current_thread() is threading.main_thread()


# --- children


def handle_all(handler: "Callable[[int, FrameType | None], object] | signal.Handlers") -> None:
    """Handle all signals that end a command in this way. Those that are ignored stay ignored."""
    for signum in ENDING_SIGNALS:
        if signal.getsignal(signum) != signal.SIG_IGN:
            signal.signal(signum, handler)


def attend_to_forks() -> None:
    """Have what a body forks handle signals as any program. Call this once in a process."""
    # A process that the body forks, as multiprocessing does, is none of ours. Python drops a signal with a handler that
    # arrives before the process has begun. A pool would wait for ever for one that it has ended so early.
    os.register_at_fork(before=_forking.block, after_in_parent=_forking.let_in, after_in_child=_begin_anew)


class _Forking(threading.local):
    """The signals that the thread blocked before it forked."""

    mask: AbstractSet[int] = frozenset()

    def block(self) -> None:
        self.mask = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING_SIGNALS)

    def let_in(self) -> None:
        """Unblock them. Python swallows what is raised here, so a signal is sent once more after this."""
        if in_force:
            in_force.is_forking = True
        signal.pthread_sigmask(signal.SIG_SETMASK, self.mask)
        if in_force:
            in_force.is_forking = False
            if in_force.came_while_forking:
                start_thread(partial(_send_again, in_force.came_while_forking), "signal")
                in_force.came_while_forking = None


_forking = _Forking()


def _send_again(signum: int) -> None:
    sleep(_MOMENT)
    signal.pthread_kill(threading.main_thread().ident or 0, signum)


def _begin_anew() -> None:
    stop_handling()
    _forking.let_in()


def stop_handling() -> None:
    """Have signals do what they do in any program."""
    global in_force
    signals, in_force = in_force, None
    for signum in ENDING_SIGNALS:
        if signals and signal.getsignal(signum) == signals.handle:
            signal.signal(signum, signal.default_int_handler if signum == signal.SIGINT else signal.SIG_DFL)


def unblock() -> None:
    """Let signals in that ``blocked_signals`` has blocked, in a process that was forked inside its block."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _ALL)


# --- threads


class NoThread(RuntimeError):
    """The system has no thread for this process."""


def start_thread(target: Callable[[], object], name: str) -> threading.Thread:
    """Start a thread that ends with the process and gets no signals. Raises ``NoThread`` if that is impossible."""
    thread = threading.Thread(target=target, name=name, daemon=True)
    _ours.add(thread)
    try:
        with blocked_signals():
            thread.start()
    except RuntimeError as error:
        raise NoThread(str(error)) from error
    return thread


# The threads that ``start_thread`` has started.
_ours: WeakSet[threading.Thread] = WeakSet()


def other_threads() -> set[threading.Thread]:
    """The threads of this process that are neither the main thread nor ours."""
    return {thread for thread in threading.enumerate() if thread is not threading.main_thread() and thread not in _ours}


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
