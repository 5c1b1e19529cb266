"""Whether any process of a command is left. As with ``flock(1)``, the processes that it started hold the lock too."""

import fcntl
import os
import selectors
from contextlib import suppress

from django_singlejob.process.clock import wait

# Shell scripts use descriptors with one digit for their own purposes.
FIRST_DESCRIPTOR = 10
CHUNK = 65536


class Pipe:
    """A pipe whose write end every descendant of a command inherits. End of file means that all of them have exited.

    This needs no list of processes. A process cannot hide by forking or by starting its own session, only by closing
    the descriptor.
    """

    def __init__(self) -> None:
        self._read, write = os.pipe()
        try:
            #: The descriptor to start the command with.
            self.write = fcntl.fcntl(write, fcntl.F_DUPFD_CLOEXEC, FIRST_DESCRIPTOR)
        except OSError:
            os.close(self._read)
            raise
        finally:
            os.close(write)
        # A process that writes to it by mistake must not block. It is not read until the command has exited.
        os.set_blocking(self.write, False)

    def let_go(self) -> None:
        """Close our copy of the write end once the command has started, so that only its descendants hold it."""
        os.close(self.write)

    def is_at_end(self, timeout: float = 0.0) -> bool:
        """Whether all descendants have exited. Waits for this for at most ``timeout`` seconds."""
        with selectors.PollSelector() as selector:
            selector.register(self._read, selectors.EVENT_READ)
            # The pipe is also ready if bytes were written by mistake.
            return bool(wait(selector.select, timeout)) and not os.read(self._read, CHUNK)

    def close(self) -> None:
        os.close(self._read)


class Group:
    """The process group of a command."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._was_empty = False

    def send(self, signum: int) -> None:
        """Send a signal to every process in it. Raises ``ProcessLookupError`` and ``PermissionError``."""
        # Once the group is empty, its number may be reused for another group.
        if not self._was_empty:
            os.killpg(self._number, signum)

    def is_empty(self) -> bool:
        """Whether no process is left in the group, not even one that has closed the pipe. Call this only after the
        command's own exit status was collected."""
        if not self._was_empty:
            self._reap()
            try:
                self.send(0)
            except ProcessLookupError:
                self._was_empty = True
            except PermissionError:
                pass
        return self._was_empty

    def _reap(self) -> None:
        # In a container we may be process 1, the parent of all orphans. They stay in the group until we collect their
        # exit statuses.
        with suppress(ChildProcessError):
            while os.waitpid(-self._number, os.WNOHANG) != (0, 0):
                pass
