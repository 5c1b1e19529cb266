"""The runs of a supervisor that a guard watches over, see ``guard``. Only Linux has what that needs."""

import errno
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from itertools import count
from math import inf
from pathlib import Path
from typing import NamedTuple

from django_singlejob.process.clock import local_now
from django_singlejob.process.logs import about
from django_singlejob.running import guard
from django_singlejob.running.process import Process, how_it_ended
from django_singlejob.running.watch import Child

logger = logging.getLogger("django_singlejob")

# How long after the start of a guard another one may be started: at first, and at most. Seconds.
_PAUSE, _LONGEST_PAUSE = 1.0, 60.0
# How long a new guard may take until it listens. Seconds.
_LONGEST_START = 5.0


class _Run(NamedTuple):
    """The message about a run, and the descriptors that go with it."""

    message: bytes
    descriptors: list[int]


class _Guard(Process):
    """A guard of this process."""

    def __init__(self, runs: Iterable[_Run]) -> None:
        """``runs``: what it has to know from the first. Raises ``OSError`` if it cannot be started."""
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._channel.setblocking(False)
        supervisor, told = os.pidfd_open(os.getpid()), list(runs)
        try:
            socket.send_fds(self._channel, [b"\0"], [supervisor])
            # First, because this process may be killed as soon as the guard is there; as many as the socket takes.
            with suppress(BlockingIOError):
                while told:
                    socket.send_fds(self._channel, [told[0].message], told[0].descriptors)
                    del told[0]
            popen = subprocess.Popen(
                # Isolated, so that no variable and no module of the project changes what it does.
                [sys.executable, "-I", "-S", guard.__file__],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                start_new_session=True,
            )
        except BaseException:
            self._channel.close()
            raise
        finally:
            os.close(supervisor)
            theirs.close()
        super().__init__(popen.pid, popen)
        self._channel.settimeout(_LONGEST_START)
        for run in told:
            self.tell(run)
        self._channel.setblocking(False)

    def tell(self, run: _Run) -> None:
        """Pass on a message. If the guard does not take it, it is dead, or stopped and of no use."""
        try:
            socket.send_fds(self._channel, [run.message], run.descriptors)
        except OSError:
            self.kill()

    def collect(self) -> int | None:
        self._channel.close()
        return super().collect()


class GuardedRuns:
    """The runs of this process that a guard watches over, and the guard. It is started for the first of them."""

    def __init__(self) -> None:
        self._numbers = count(1)
        self._runs: dict[Child, _Run] = {}
        self._guard: _Guard | None = None
        self._starts_at, self._pause = 0.0, _PAUSE
        self._is_possible: bool | None = None

    @property
    def descriptors(self) -> list[int]:
        """Are ready to be read when the guard has ended."""
        return [each for each in self._guard.descriptors if each is not None] if self._guard else []

    @property
    def pids(self) -> set[int]:
        return {self._guard.pid} if self._guard else set()

    def prepare(self) -> None:
        """See that there is a guard, if the system has what it needs. Raises ``OSError`` if none can be started."""
        if self._is_possible is None:
            self._is_possible = _is_possible()
        if self._guard is None and self._is_possible:
            self._starts_at, self._pause = local_now() + self._pause, min(2 * self._pause, _LONGEST_PAUSE)
            self._guard = _Guard(self._runs.values())

    def add(self, child: Child) -> None:
        """Have the guard watch over this one, until ``remove``. Its memory must still have a descriptor.

        Raises ``OSError`` if there are too many open files.
        """
        if self._guard is None:
            return
        length = child.lease.grant.request.lease.total_seconds()
        message = guard.MESSAGE.pack(next(self._numbers), child.process.pid, length, child.grace)
        try:
            process = os.pidfd_open(child.process.pid)
        except ProcessLookupError:  # it has ended, and the project ignores SIGCHLD
            return
        try:
            self._runs[child] = _Run(message, [os.dup(child.memory.descriptor), process])
        except OSError:
            os.close(process)
            raise
        self._guard.tell(self._runs[child])

    def remove(self, child: Child) -> None:
        """The run of this one is over."""
        if run := self._runs.pop(child, None):
            for descriptor in run.descriptors:
                os.close(descriptor)
            if self._guard:
                number, pid, _, grace = guard.MESSAGE.unpack(run.message)
                self._guard.tell(_Run(guard.MESSAGE.pack(number, pid, 0.0, grace), []))

    def tend(self) -> float:
        """Start another guard if the last one has ended. Returns when to call this again, as ``local_now()``."""
        if self._guard and self._guard.is_over():
            message = "The guard of this command %s. Another one is started."
            logger.warning(message, how_it_ended(self._guard.collect()), extra=about())
            self._guard = None
        if self._guard or not self._runs:
            return inf
        if local_now() >= self._starts_at:
            try:
                self.prepare()
            except OSError as error:
                logger.warning("No guard could be started for this command: %s", error, extra=about(reason=error))
        return inf if self._guard else self._starts_at

    def close(self) -> None:
        """End the guard. No run is left."""
        if self._guard:
            self._guard.kill()
            self._guard.collect()
            self._guard = None


def _is_possible() -> bool:
    """Whether this system has what a guard needs. On Linux, where it should, a warning says why not."""
    if sys.platform != "linux":
        return False
    if why := _why_impossible():
        message = "Nothing ends what this command runs if it is killed or stopped: a guard cannot be started, since %s."
        logger.warning(message, why, extra=about(reason=why))
    return not why


def _why_impossible() -> str:
    """Empty if it is possible. Raises ``OSError`` if it is only at the moment that it is not."""
    if "py" not in Path(sys.executable or "").name:
        return f"the program of this process, {sys.executable!r}, is not Python"
    try:
        os.close(os.pidfd_open(os.getpid()))
    except AttributeError:
        return "this Python has no os.pidfd_open()"
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.EPERM, errno.EINVAL):
            raise
        return f"the system has no pidfd_open(): {error}"
    return ""
