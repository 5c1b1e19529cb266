"""The process of a shell command, as its supervisor sees it: it is forked, gets signals, and is collected."""

import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

from django.db import connections

from django_singlejob.process.received_signals import blocked_signals
from django_singlejob.running.in_child import die_with
from django_singlejob.running.shared import flush_streams


class Process:
    """A child process.

    Attributes:
        leads_group: whether it has a process group of its own. One that may read from a terminal stays in the
            terminal's.
        descriptor: is ready to be read when it has ended; ``None`` if the system has none.
    """

    def __init__(self, become: Callable[[], NoReturn], *, has_terminal: bool = True) -> None:
        """Fork it. The child calls ``become``, with signals blocked. ``has_terminal``: if there is one."""
        self.leads_group = not (has_terminal and os.isatty(0))
        # While it is held, the process is not collected, so its number is not another's.
        self._mutex = threading.Lock()
        self._is_collected = False
        supervisor = os.getpid()
        leave_connections()
        with blocked_signals():
            self.pid = _fork()
            if self.leads_group:
                with suppress(OSError):  # both processes do this, because neither can wait for the other
                    os.setpgid(self.pid, self.pid)
            if self.pid == 0:
                _become(become, supervisor)
        self.descriptor = pidfd(self.pid)

    def send(self, signum: int) -> None:
        """Send a signal to the child alone. Raises ``ProcessLookupError`` or ``PermissionError`` if that fails."""
        with self._mutex:
            if not self._is_collected:
                os.kill(self.pid, signum)

    def has_left_group(self) -> bool:
        """Whether the child, which had a process group of its own, has moved to another one."""
        with self._mutex, suppress(ProcessLookupError, PermissionError):
            return self.leads_group and not self._is_collected and os.getpgid(self.pid) != self.pid
        return False

    def kill(self) -> None:
        """Kill the child and what is in its group: see ``kill_with_group``."""
        with self._mutex:
            if not self._is_collected:
                kill_with_group(self.pid)

    @property
    def descriptors(self) -> list[int | None]:
        """Are ready to be read when it has ended."""
        return [self.descriptor]

    def is_over(self) -> bool:
        """Whether it has ended."""
        try:
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:  # there is none any more, see ``collect``
            return True

    def collect(self) -> int | None:
        """Wait for its end and return its exit code; -n if signal n has killed it. ``None`` if that is unknown: the
        project ignores SIGCHLD, or has collected it."""
        with suppress(ChildProcessError):
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        with self._mutex:
            self._is_collected = True
            if self.descriptor is not None:
                os.close(self.descriptor)
                self.descriptor = None
            try:
                _, status = os.waitpid(self.pid, 0)
            except ChildProcessError:
                return None
        return os.waitstatus_to_exitcode(status)


def kill_with_group(pid: int) -> None:
    """Kill a process that has not been collected, even if it has left its process group, and all that is in its group.
    At a terminal there is no such group, unless the process has made one."""
    for kill in os.killpg, os.kill:
        with suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)


def _become(become: Callable[[], NoReturn], supervisor: int) -> NoReturn:
    """Whatever happens, do not go on in the supervisor's frames."""
    try:
        signal.set_wakeup_fd(-1)  # it is the supervisor's
        die_with(supervisor)
        become()
    except BaseException:
        sys.excepthook(*sys.exc_info())
        raise
    finally:
        flush_streams()
        os._exit(1)


def leave_connections() -> None:
    """Close all connections, because a child must neither use nor close those of its parent."""
    for connection in connections.all(initialized_only=True):
        connection.close()
        if hasattr(connection, "close_pool"):
            # A backend with pools of its own, such as django-db-geventpool, may have none where Django looks for one.
            with suppress(KeyError):
                connection.close_pool()


def how_it_ended(code: int | None) -> str:
    """How a process ended that has this exit code, see ``collect``, as part of a sentence."""
    if code is None:
        return "ended with an unknown exit status"
    if code >= 0:
        return f"exited with status {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:  # a real-time signal
        name = f"signal {-code}"
    return f"was killed by {name}"


def _fork() -> int:
    flush_streams()  # the child would write a second time what is still to be written
    with warnings.catch_warnings():
        # Python warns of other threads. There are only ours, and a fork leaves them in no bad moment.
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def pidfd(pid: int) -> int | None:
    if sys.platform == "linux":
        with suppress(AttributeError, OSError):  # an old kernel, or no permission
            return os.pidfd_open(pid)
    return None
