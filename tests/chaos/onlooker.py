"""Looks again and again at the bodies of a process: whether they are alive, and whether their leases can be trusted."""

from __future__ import annotations

import os
import sys
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from django_singlejob import is_executor
from django_singlejob.process.received_signals import start_thread
from tests.chaos.history import now

if TYPE_CHECKING:
    from types import FrameType

    from django_singlejob import Lease
    from tests.chaos.history import History

PAUSE = 0.02


@dataclass
class Body:
    """A job's function that is running: where, and under which lease."""

    lease: Lease
    thread: int
    frame: FrameType
    was_trusted: bool = True

    @property
    def is_under_way(self) -> bool:
        """Whether its frame is still on its thread's stack. A signal may end a body anywhere, so the body itself cannot
        be relied on to report its end."""
        frame = sys._current_frames().get(self.thread)
        while frame is not None and frame is not self.frame:
            frame = frame.f_back
        return frame is not None


class Onlooker:
    """A thread that notes which bodies are alive, and what their leases say."""

    def __init__(self, history: History) -> None:
        self._history = history
        #: The process that has begun as the server: executors run the bodies that it supervises.
        self._server = 0 if is_executor() else os.getpid()
        self._pid = 0

    def start(self) -> None:
        """Start the thread of this process."""
        self._pid, self._parent = os.getpid(), os.getppid()
        self._is_supervised = self._pid != self._server
        self._bodies: list[Body] = []
        start_thread(self._look_on, "onlooker")

    def watch(self, lease: Lease) -> None:
        """Call it in the body's own function: it watches the lease from now on, until that function returns."""
        if self._pid != os.getpid():
            self.start()
        self._bodies.append(Body(lease, threading.get_ident(), sys._getframe(1)))

    def _look_on(self) -> None:
        # When the chaos is killed, no server may go on without it. To end executors is for the package.
        while self._is_supervised or os.getppid() == self._parent:
            for body in list(self._bodies):
                self._ask(body)
            time.sleep(PAUSE)
        os._exit(1)

    def _ask(self, body: Body) -> None:
        asked_at = now()
        if not body.is_under_way:
            self._bodies.remove(body)
            return
        lease = body.lease
        if self._is_supervised:
            self._history.note("alive", at=asked_at, **facts(lease))
        is_trusted = not lease.lost
        if is_trusted:
            until = lease.deadline
            self._history.note("trust", at=asked_at, until=until if until < float("inf") else None, **facts(lease))
        elif body.was_trusted:
            self._history.note("lost", **facts(lease))
        body.was_trusted = is_trusted


def facts(lease: Lease) -> dict[str, object]:
    """What the history needs to know of a lease."""
    return {"lock": lease.name, "fence": lease.fence, "token": str(lease.token)}
