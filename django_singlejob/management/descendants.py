"""Whether anything is left of a command: as with ``flock(1)``, whatever it started holds the lock too."""

import fcntl
import os
import selectors
from contextlib import suppress

from django_singlejob.clock import wait

# Shell scripts choose descriptors of one digit themselves.
FIRST_DESCRIPTOR = 10
CHUNK = 65536


class Pipe:
    """A pipe whose write end every descendant of a command inherits. Its end of file tells that all of them are gone.

    It needs no list of processes, and a fork or a session of its own hides none: only a process that closes the
    descriptor is not seen.
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
        # A process that writes to it by mistake must not block: nobody reads until the command has ended.
        os.set_blocking(self.write, False)

    def let_go(self) -> None:
        """To be called once the command was started: from now on only its descendants hold the write end."""
        os.close(self.write)

    def is_at_end(self, timeout: float = 0.0) -> bool:
        """Whether all are gone. Returns as soon as they are, and after ``timeout`` seconds if they are not."""
        with selectors.PollSelector() as selector:
            selector.register(self._read, selectors.EVENT_READ)
            # Bytes written by mistake do not mean the end.
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
        # Once it is empty, the number may become a stranger's.
        if not self._was_empty:
            os.killpg(self._number, signum)

    def is_empty(self) -> bool:
        """Whether no process is left in it; one that has closed the pipe counts too. Ask only after the command's own
        exit status was collected."""
        if not self._was_empty:
            self._bury_orphans()
            try:
                self.send(0)
            except ProcessLookupError:
                self._was_empty = True
            except PermissionError:
                pass
        return self._was_empty

    def _bury_orphans(self) -> None:
        # In a container we may be the first process, and so the parent of all orphans: they remain until asked for.
        with suppress(ChildProcessError):
            while os.waitpid(-self._number, os.WNOHANG) != (0, 0):
                pass
