"""A child process, as its supervisor sees it: it gets signals, and is collected."""

import fcntl
import os
import signal
import subprocess
import sys
import termios
import threading
from contextlib import suppress

from django.db import connections


class Process:
    """A child process of this one.

    Attributes:
        pidfd: is ready to be read when it has ended; ``None`` if the system has none.
    """

    def __init__(self, pid: int, popen: "subprocess.Popen[bytes] | None" = None) -> None:
        """``popen``: what has started it, if that is such an object."""
        self.pid, self._popen = pid, popen
        self.pidfd: int | None = None
        if sys.platform == "linux":
            with suppress(AttributeError, OSError):  # an old kernel, or no permission
                self.pidfd = os.pidfd_open(pid)
        # While it is held, the process is not collected, so its number is not another's.
        self._mutex = threading.Lock()
        self._is_collected = False

    @property
    def descriptors(self) -> list[int | None]:
        """Are ready to be read when it has ended."""
        return [self.pidfd]

    def send(self, signum: int) -> None:
        """Send a signal to it alone. Raises ``ProcessLookupError`` or ``PermissionError`` if that fails."""
        with self._mutex:
            if not self._is_collected:
                os.kill(self.pid, signum)

    def kill(self) -> None:
        """Kill it, even if it has left its process group, and all that is in its group. At a terminal there is no such
        group, unless the process has made one."""
        with self._mutex:
            if not self._is_collected:
                for kill in os.killpg, os.kill:
                    with suppress(ProcessLookupError, PermissionError):
                        kill(self.pid, signal.SIGKILL)

    def is_over(self) -> bool:
        """Whether it has ended."""
        try:
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:  # there is none any more, see ``collect``
            return True

    def wait(self) -> None:
        """Wait for its end."""
        with suppress(ChildProcessError):
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)

    def collect(self) -> int | None:
        """Wait for its end and return its exit code; -n if signal n has killed it. ``None`` if that is unknown: the
        project ignores SIGCHLD, or has collected it."""
        self.wait()
        with self._mutex:
            self._is_collected = True
            if self.pidfd is not None:
                os.close(self.pidfd)
                self.pidfd = None
            try:
                code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
            except ChildProcessError:
                code = None
        if self._popen:
            self._popen.returncode = code or 0  # it need not wait for it any more
        return code


def is_stopped_by_terminal(pid: int) -> bool:
    """Whether this child is stopped because it reads from its terminal, or changes it, in the background."""
    with suppress(ChildProcessError):
        found = os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT)
        return found is not None and found.si_status in (signal.SIGTTIN, signal.SIGTTOU)
    return False


def leave_terminal_without_input() -> None:
    """If the input is /dev/null, have no terminal either: the system would stop for ever what reads from it in the
    background."""
    if _has_no_input():
        with suppress(OSError):  # there is none
            terminal = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY)
            try:
                fcntl.ioctl(terminal, termios.TIOCNOTTY)
            finally:
                os.close(terminal)


def _has_no_input() -> bool:
    try:
        return os.fstat(0).st_rdev == os.stat(os.devnull).st_rdev  # noqa: PTH116
    except OSError:
        return True


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
