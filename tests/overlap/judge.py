"""A judge of living processes. Each reports as it begins, and the judge then holds a pidfd of it, and looks whether it
is alive."""

from __future__ import annotations

import os
import select
import signal
import socket
import struct
import time
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Thread
from typing import Self
from uuid import uuid4

from tests.waiting import eventually

#: How often the judge looks, and how long what was killed may take to be dead. Seconds.
MOMENT, TOLERANCE = 0.01, 0.03


def now() -> float:
    return time.clock_gettime(time.CLOCK_MONOTONIC)


@dataclass
class Reported:
    """A process that has reported.

    Attributes:
        began_at: when it reported, by its own look at the clock.
        alive_at: when it was last seen alive. On a busy machine, that is too early, and never too late.
    """

    what: str
    pid: int
    began_at: float
    alive_at: float = field(init=False)
    pidfd: int | None = None

    def __post_init__(self) -> None:
        self.alive_at = self.began_at
        with suppress(ProcessLookupError):
            self.pidfd = os.pidfd_open(self.pid)


class Judge:
    """Use it as a context manager. Whatever has reported is killed at its end.

    Attributes:
        name: that of its socket.
    """

    def __init__(self) -> None:
        self.name = str(uuid4())
        self._reported: list[Reported] = []
        self._looked_at = now()
        self._is_over = False
        self._thread = Thread(target=self._listen)

    def __enter__(self) -> Self:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(f"\0{self.name}")
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)  # the kernel says which process it was
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._is_over = True
        self._thread.join()
        self._socket.close()
        for each in self._reported:
            if each.pidfd is not None:
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(each.pidfd, signal.SIGKILL)
                os.close(each.pidfd)

    def reported(self, what: str) -> list[Reported]:
        return [each for each in self._reported if each.what == what]

    def are_all_alive(self) -> bool:
        """Whether all that have reported are alive now."""
        return self.alive() == self._reported

    def alive(self) -> list[Reported]:
        return self._alive_after(now())

    def survivors(self) -> list[str]:
        """What was alive when the successor had begun, apart from strays."""
        (successor,) = self.reported("successor")
        return [
            f"{each.what} {each.pid}"
            for each in self._alive_after(successor.began_at + TOLERANCE)
            if each.began_at < successor.began_at and each.what != "stray"
        ]

    def last_death(self) -> float | None:
        """When the last one died that began before the successor, strays left aside. `None` if one is alive."""
        (successor,) = self.reported("successor")
        looked_at = self._looked_at
        last = max(
            each.alive_at for each in self._reported if each.began_at < successor.began_at and each.what != "stray"
        )
        return last if last < looked_at - TOLERANCE else None

    def _alive_after(self, instant: float) -> list[Reported]:
        eventually(lambda: self._looked_at > instant)
        return [each for each in self._reported if each.alive_at > instant]

    # --- in its thread

    def _listen(self) -> None:
        with select.epoll() as epoll:
            epoll.register(self._socket, select.EPOLLIN)
            alive: dict[int, Reported] = {}
            while not self._is_over:
                asked_at = now()
                for descriptor, _ in epoll.poll(MOMENT):
                    if descriptor == self._socket.fileno():
                        each = self._receive()
                        if each.pidfd is not None:
                            epoll.register(each.pidfd, select.EPOLLIN)
                            alive[each.pidfd] = each
                    else:
                        epoll.unregister(descriptor)
                        del alive[descriptor]
                for each in alive.values():
                    each.alive_at = max(each.alive_at, asked_at)
                self._looked_at = asked_at

    def _receive(self) -> Reported:
        message, ancillary, _, _ = self._socket.recvmsg(4096, socket.CMSG_SPACE(12))
        what, began_at = message.decode().split()
        pid, _, _ = struct.unpack("3i", ancillary[0][2])
        reported = Reported(what, pid, float(began_at))
        self._reported.append(reported)
        return reported
