"""What a supervisor tells others: what it writes, its log records, and its signals. Its main thread never waits for a
reader, a handler or a receiver. Threads of their own do: one for each file that is written to, one for each other
handler of the log, and one for all receivers, so that none of them holds up the others.
"""

import copy
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from itertools import pairwise
from math import inf
from types import FrameType
from typing import Any

from django.db import connections

from django_singlejob.process import received_signals
from django_singlejob.process.calls import Calls
from django_singlejob.process.clock import local_now, sleep
from django_singlejob.process.frames import is_own
from django_singlejob.process.logs import about, all_loggers
from django_singlejob.signals import JobSignal

logger = logging.getLogger("django_singlejob")

# How much may wait for each file, or each handler, and what a log record counts as. Bytes.
_MOST, _RECORD = 1_048_576, 1_000
# How many signals may wait for receivers. A run has three at most.
_SIGNALS = 10_000
# How much is written at once: a pipe that is not full has room for it. Bytes.
_PIECE = 4096
# How long the end of the process waits for a file that nobody reads, and for a handler, which may send an e-mail; and
# for all of them after a signal. Seconds.
_OF_FILE, _OF_HANDLER, _AFTER_SIGNAL = 2.0, 10.0, 0.5
# How soon a stream that cannot be written to is tried again. Seconds.
_SOON = 0.01


def _log_unsent(count: int) -> None:
    logger.error("%d signals were not sent, because a receiver had not returned.", count, extra=about())


#: Whether the main thread of this process waits for nobody.
are_begun = False
#: Whether what is logged now is printed otherwise, so that what handlers would write to the same streams is left out.
is_printed = ContextVar("django_singlejob_is_printed", default=False)
#: What calls the receivers of signals.
receivers = Calls("A receiver has not returned", _log_unsent, most=_SIGNALS, patience=inf)
_by_file: dict[tuple[int, int], Calls] = {}
_queued: "dict[logging.Handler, _QueuedHandler]" = {}
_warned: set[str] = set()


def begin() -> None:
    """Have the main thread wait for nobody from now on, until ``end``."""
    global are_begun
    are_begun, JobSignal.leave = True, _leave
    _flush()
    _exchange(lambda handler: _queued.setdefault(handler, _QueuedHandler(handler)))
    for calls in _all_calls():
        calls.start()


def end() -> bool:
    """Wait until everything is written, handled and received, but not for long if that hangs, or after a signal.

    Returns ``False`` if something is left: then a thread may hold a lock that the usual end of a process needs.
    Otherwise, all is as before."""
    global are_begun  # noqa: PLW0603
    if are_begun:
        _flush()
        since = local_now()
        give_up_at = since + _AFTER_SIGNAL if received_signals.is_ended_by_signal() else inf
        left = [calls for calls in _all_calls() if not calls.end(since, give_up_at)]
        are_begun = bool(left)
        if not left:
            _exchange(lambda handler: getattr(handler, "of", handler))
            _queued.clear()
    return not are_begun


def look(slow: float) -> float:
    """Warn of what has not got on for ``slow`` seconds, once of each. Returns when to look again, a value of
    ``local_now()``."""
    next_at = inf
    for calls in _all_calls():
        slow_at = calls.moved_at + slow if calls.is_busy else inf
        if slow_at > local_now():
            next_at = min(next_at, slow_at)
        else:
            what = calls.name
            if calls is receivers:
                what = f"{what}: {doing(calls.thread)}"
            if what not in _warned:
                _warned.add(what)
                message = "%s for %.0f seconds. The locks are kept, but what follows waits."
                logger.warning(message, what, slow, extra=about())
    return next_at


def _all_calls() -> list[Calls]:
    return [*dict.fromkeys([receivers, *(each.calls for each in _queued.values()), *_by_file.values()])]


# --- what is written


def say(stream: Any, write: Callable[[], object], text: str) -> None:
    """Have ``write`` called, which writes the text to the stream."""
    try:
        calls = of_file(stream.fileno()) if are_begun else None
    except Exception:  # it is not a file, or closed
        calls = None
    if calls:
        calls.put(write, len(text), count=text.count("\n") or 1)
    else:
        write()


def of_file(descriptor: int) -> Calls:
    """The calls that write to this file, whatever its descriptor. Raises ``OSError`` if it is closed."""
    status = os.fstat(descriptor)
    name = {1: "standard output", 2: "standard error"}.get(descriptor, f"descriptor {descriptor}")
    calls = Calls(f"Nobody has read {name}", partial(_say_lost, descriptor), most=_MOST, patience=_OF_FILE)
    return _by_file.setdefault((status.st_dev, status.st_ino), calls)


def write(descriptor: int, data: bytes) -> bool:
    """Write all of it, in the thread that writes to that file. ``False`` if that is impossible."""
    left = memoryview(data)
    while left:
        try:
            left = left[os.write(descriptor, left[:_PIECE]) :]
            of_file(descriptor).move()
        except BlockingIOError:  # another program has made the stream non-blocking
            sleep(_SOON)
        except OSError:
            return False
    return True


def _say_lost(descriptor: int, count: int) -> None:
    write(descriptor, f"django-singlejob: {count} lines were not written here, because nobody read them.\n".encode())


def drain(seconds: float) -> None:
    """Wait at most this long until all that this process has said is written."""
    _flush()
    since = local_now()
    for calls in [*_by_file.values()]:
        calls.end(since, since + seconds)


def _flush() -> None:
    """Write what the streams of this process still hold."""
    for stream in sys.stdout, sys.stderr:
        say(stream, partial(_flushed, stream), "")


def _flushed(stream: Any) -> None:
    with suppress(Exception):  # it may be missing or closed
        stream.flush()


# --- what is logged


def _exchange(other: Callable[[Any], Any]) -> None:
    """Have all loggers use other handlers."""
    for each in all_loggers().values():
        each.handlers[:] = map(other, each.handlers)
    logging.lastResort = logging.lastResort and other(logging.lastResort)


class _QueuedHandler:
    """Stands for a handler, which is called by a thread."""

    def __init__(self, of: logging.Handler) -> None:
        self.of = of
        self.calls = _calls_of(of)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.of, name)

    def handle(self, record: logging.LogRecord) -> None:
        if is_printed.get() and self.calls in _by_file.values():
            return
        frozen = copy.copy(record)
        with suppress(Exception):  # the handler complains about it
            if record.args:
                frozen.msg, frozen.args = record.getMessage(), None
            if record.exc_info and not record.exc_text:
                frozen.exc_text = (self.of.formatter or logging.Formatter()).formatException(record.exc_info)
        self.calls.put(partial(self.of.handle, frozen), _RECORD)


def _calls_of(handler: logging.Handler) -> Calls:
    """What it writes to the streams of this process stays in order with what others write there."""
    with suppress(Exception):  # it has no stream, or one of its own
        file = of_file(handler.stream.fileno())  # type: ignore[attr-defined]
        if file in (of_file(1), of_file(2)):
            return file
    kind = type(handler)
    name = f"The log handler {kind.__module__}.{kind.__qualname__} has not returned"
    return Calls(name, partial(_log_lost, handler), most=_MOST, patience=_OF_HANDLER)


def _log_lost(handler: logging.Handler, count: int) -> None:
    message = "%d log records were not handled here, because this handler had not returned."
    handler.handle(logging.LogRecord(logger.name, logging.WARNING, __file__, 0, message, (count,), None))


# --- what is received


def _leave(send: Callable[[], object]) -> bool:
    """Have a signal sent by the thread that calls receivers. ``False`` if this thread may send it itself."""
    if not are_begun or threading.current_thread() is not threading.main_thread():
        return False
    receivers.put(partial(_send, send))
    return True


def _send(send: Callable[[], object]) -> None:
    try:
        send()
    finally:
        connections.close_all()


def doing(thread: threading.Thread | None) -> str:
    """What the thread is doing, for people."""
    frames = [*_callers(sys._current_frames().get(thread.ident or 0) if thread else None)]
    for number, (frame, caller) in enumerate(pairwise(frames)):
        if _module(caller) == "django.dispatch.dispatcher":
            # A package, such as Sentry's, may have wrapped the receiver.
            called = reversed(frames[: number + 1])
            return _name(next((each for each in called if is_own(each.f_code.co_filename)), frame))
        if _module(frame).startswith("django.db."):
            return "a database call"
    return _name(frames[0]) if frames else ""


def _callers(frame: FrameType | None) -> Iterator[FrameType]:
    """The frames, the innermost first."""
    while frame:
        yield frame
        frame = frame.f_back


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__"))


def _name(frame: FrameType) -> str:
    return f"{_module(frame)}.{frame.f_code.co_qualname}"
