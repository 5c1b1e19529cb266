"""Holds back the program's own signal handlers, whose exceptions could interrupt acquiring or releasing a lock.

Such an exception can come between any two steps, in the middle of a statement or after a COMMIT, and code that cleans
up after it is not safe from the next one. So these signals wait for the few statements that matter, as SIGTERM does in
a command, and are then sent again. Handlers run in the main thread only, so no other thread needs this.
"""

import _thread
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from types import FrameType
from typing import Any

from django_singlejob.clock import local_now, sleep

Handler = Callable[[int, FrameType | None], Any]

# The functions of ``signal`` look each handler up in an enum, which takes ten times as long, and swallows the
# ValueError of a handler that is called meanwhile.
_signal = import_module("_signal")

# Another signal is let through after the first has waited for this long, so that a process that hangs can be ended.
# Seconds.
SECOND_SIGNAL = 1.0
# A single signal, such as an alarm, is sent again after this long. Seconds.
PATIENCE = 5.0


class HeldSignals:
    """Signals with a handler in Python, held back until the handlers' exceptions do no harm."""

    def __init__(self) -> None:
        #: The handlers that were replaced, by signal.
        self._handlers: dict[int, Handler] = {}
        self._came: list[int] = []
        self._came_at = 0.0
        self._is_insisted = False
        self._throw: Callable[[BaseException], object] | None = None
        self.are_held = False
        #: An object whose methods, as handlers, know when not to raise; ``None`` if there is none.
        self.harmless: object = None

    def hold(self) -> None:
        """Hold signals back from now on."""
        if self.are_held:
            return
        if _is_main():
            self._replace()
        # If this is interrupted earlier, the new handlers still do what the replaced ones did.
        self.are_held = True

    def original(self, signum: int) -> Handler | None:
        """The program's own handler of a signal that is held back; ``None`` if the signal is not held back."""
        return self._handlers.get(signum)

    def let_in(self, throw: Callable[[BaseException], object] | None = None) -> None:
        """Let signals in, beginning with those that have arrived. Another thread may call this for the main thread:
        what handlers then raise is passed to ``throw``."""
        self.are_held, self._throw = False, throw
        if not _is_main():
            self._send_to_main()
            return
        try:
            self._put_back()
        finally:
            self._send_again()

    def forget(self) -> None:
        """Forget the parent's signals, in a forked child."""
        self._came.clear()
        self.are_held = False

    def handle(self, signum: int, frame: FrameType | None) -> None:
        """Remember the signal, or call the program's own handler."""
        if self.are_held and not self._is_second_thought:
            self._remember(signum)
            return
        if signum in self._came:
            self._came.remove(signum)
        try:
            self._handlers[signum](signum, frame)
        except BaseException as error:
            if self._throw is None:
                raise
            self._throw(error)

    @property
    def _is_second_thought(self) -> bool:
        return bool(self._came) and local_now() - self._came_at >= SECOND_SIGNAL

    def _remember(self, signum: int) -> None:
        if not self._came:
            self._came_at = local_now()
        if signum not in self._came:
            self._came.append(signum)
        if not self._is_insisted:
            self._is_insisted = True
            # Not with threading: the main thread may be holding a lock of that module.
            _thread.start_new_thread(self._insist, ())

    def _insist(self) -> None:
        sleep(PATIENCE)
        self._is_insisted = False
        for signum in self._came[:1]:
            signal.pthread_kill(_main(), signum)

    def _replace(self) -> None:
        for signum in range(1, signal.NSIG):
            handler = _signal.getsignal(signum)
            is_harmless = self.harmless is not None and getattr(handler, "__self__", None) is self.harmless
            if callable(handler) and handler != self.handle and not is_harmless:
                self._handlers[signum] = handler
                if not _set(signum, self.handle):
                    return

    def _put_back(self) -> None:
        try:
            for signum, handler in list(self._handlers.items()):
                if _signal.getsignal(signum) == self.handle:  # otherwise the job has set another
                    _signal.signal(signum, handler)
                del self._handlers[signum]
        finally:
            # A handler that was put back may have raised.
            if self._handlers:
                self._put_back()

    def _send_again(self) -> None:
        try:
            while self._came:
                signal.raise_signal(self._came.pop(0))
        finally:
            if self._came:
                self._send_again()

    def _send_to_main(self) -> None:
        while self._came:
            signal.pthread_kill(_main(), self._came.pop(0))


def _set(signum: int, handler: Handler) -> bool:
    """Set a handler. ``False`` outside the main interpreter, where handlers cannot be set and do not raise."""
    try:
        _signal.signal(signum, handler)
    except ValueError as error:
        if error.__traceback__ and error.__traceback__.tb_next:
            raise  # raised by a handler that was called just now
        return False
    return True


def _main() -> int:
    return threading.main_thread().ident or 0


def _is_main() -> bool:
    return threading.get_ident() == _main()


#: The signals of this process.
held = HeldSignals()


@contextmanager
def signals_let_in() -> Iterator[None]:
    """Let signals in during the block, inside a closed window. Use it only where an exception leaves nothing behind."""
    if not (_is_main() and held.are_held):
        yield
        return
    try:
        held.let_in()
        yield
    finally:
        held.hold()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=held.forget)
