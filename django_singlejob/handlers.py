"""The program's own signal handlers, whose exceptions would cut off what takes a lock or releases it.

Such an exception comes between any two steps, in the middle of a statement or behind a COMMIT, and nothing that cleans
up after it is safe from the next one. So these signals wait for the few statements that matter, as SIGTERM does in a
command, and are then sent once more. Handlers run in the main thread only, so nobody else has to be kept from them.
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

# What ``signal`` makes of these looks for each handler among the members of an enum, which takes ten times as long, and
# swallows the ValueError of a handler that is called meanwhile.
_signal = import_module("_signal")

# What hangs can be ended: another signal is let through when the first has waited for so long. Seconds.
SECOND_SIGNAL = 1.0
# One that comes alone, as an alarm does, is sent again then. Seconds.
PATIENCE = 5.0


class HeldSignals:
    """Signals that have a handler in Python, held back until their exceptions harm nothing."""

    def __init__(self) -> None:
        #: Those that were replaced, by signal.
        self._handlers: dict[int, Handler] = {}
        self._came: list[int] = []
        self._came_at = 0.0
        self._is_insisted = False
        self._throw: Callable[[BaseException], object] | None = None
        self.are_held = False
        #: An object whose methods, as handlers, know when to raise nothing; ``None``: there is none.
        self.harmless: object = None

    def hold(self) -> None:
        """Let none in any more."""
        if self.are_held:
            return
        if _is_main():
            self._replace()
        # If this is interrupted earlier, the new handlers still do what the ones that they replaced did.
        self.are_held = True

    def original(self, signum: int) -> Handler | None:
        """The program's own handler of a signal that is held back; ``None``: it is not held back."""
        return self._handlers.get(signum)

    def let_in(self, throw: Callable[[BaseException], object] | None = None) -> None:
        """Let them in, and first those that have come. Another thread may do so as well, on behalf of the main one:
        what handlers raise there is handed to ``throw``."""
        self.are_held, self._throw = False, throw
        if not _is_main():
            self._send_to_main()
            return
        try:
            self._put_back()
        finally:
            self._send_again()

    def forget(self) -> None:
        """For a forked child: what its parent does there is not its business."""
        self._came.clear()
        self.are_held = False

    def handle(self, signum: int, frame: FrameType | None) -> None:
        """The handler: remember, or do what the program's own does."""
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
            # Not threading's: the main thread may just be holding a lock of that module.
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
                if _signal.getsignal(signum) == self.handle:  # else the job has set another
                    _signal.signal(signum, handler)
                del self._handlers[signum]
        finally:
            # A handler that is back may have raised.
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
    """``False``: no handler can be set here, nor does one raise here: this is not the main interpreter."""
    try:
        _signal.signal(signum, handler)
    except ValueError as error:
        if error.__traceback__ and error.__traceback__.tb_next:
            raise  # it is what a handler raised which was called just now
        return False
    return True


def _main() -> int:
    return threading.main_thread().ident or 0


def _is_main() -> bool:
    return threading.get_ident() == _main()


#: Of this process.
held = HeldSignals()


@contextmanager
def signals_let_in() -> Iterator[None]:
    """Inside a window that is closed, for as long as an exception would leave nothing behind."""
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
