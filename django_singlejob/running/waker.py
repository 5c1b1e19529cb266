"""Wakes a thread or a process that waits for it."""

import selectors
import socket
from collections.abc import Iterable
from contextlib import suppress

from django_singlejob.process.clock import wait


class Waker:
    """A pair of sockets: a byte in one of them wakes the thread or process that waits for the other. Both ends
    outlive a fork.

    Attributes:
        descriptor: is ready to be read once somebody has woken it.
        writer: for ``signal.set_wakeup_fd``, and for another process.
    """

    def __init__(self, *descriptors: int) -> None:
        """``descriptors``: of both ends, or of the writer, of one that another process has made; none for a new one."""
        ends = [socket.socket(fileno=descriptor) for descriptor in descriptors] or socket.socketpair()
        self._reader, self._writer = ends[0], ends[-1]
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self.descriptor, self.writer = self._reader.fileno(), self._writer.fileno()

    def wake(self) -> None:
        """Wake it. A signal handler may call this."""
        with suppress(OSError):  # there is enough to read, or nobody is left to read it
            self._writer.send(b"\0")

    def taken(self) -> bytes:
        """Read what has come. The next wait begins anew."""
        with suppress(BlockingIOError):
            return self._reader.recv(4096)
        return b""

    def close(self) -> None:
        self._reader.close()
        self._writer.close()


def wait_for(descriptors: Iterable[int], seconds: float) -> set[int]:
    """The descriptors that are ready to be read. Waits at most this long for one."""
    # Not select(), which fails from descriptor 1024 on.
    with selectors.PollSelector() as selector:
        for descriptor in descriptors:
            selector.register(descriptor, selectors.EVENT_READ)
        return {key.fd for key, _ in wait(selector.select, max(0.0, seconds))}
