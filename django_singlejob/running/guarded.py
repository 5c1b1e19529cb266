"""The runs of a supervisor that a guard watches over, see ``guard``. Only Linux has what that needs."""

import logging
import os
import socket
import subprocess
import sys
from itertools import count
from math import inf
from pathlib import Path
from typing import NamedTuple

from django_singlejob.process.clock import backoff, local_now
from django_singlejob.process.logs import about
from django_singlejob.running import guard
from django_singlejob.running.process import how_it_ended, pidfd
from django_singlejob.running.watch import Child

logger = logging.getLogger("django_singlejob")

# After a guard has ended, how soon to start another one: at once, and if that ends soon, later and later. Seconds.
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 60.0


class _Run(NamedTuple):
    """The message about a run, and the descriptors that go with it."""

    message: bytes
    descriptors: list[int]


class GuardedRuns:
    """The runs of this process that a guard watches over, and the guard. It is started for the first of them."""

    def __init__(self) -> None:
        self._numbers = count(1)
        self._runs: dict[Child, _Run] = {}
        self._guard: _Guard | None = None
        self._is_possible: bool | None = None
        self._pauses = backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
        self._starts_at = -inf

    @property
    def descriptor(self) -> int | None:
        """Is ready to be read when the guard has ended; ``None`` if there is none."""
        return self._guard.pidfd if self._guard else None

    @property
    def pids(self) -> set[int]:
        return {self._guard.pid} if self._guard else set()

    def prepare(self) -> None:
        """See that there is a guard, if the system has what it needs. Raises ``OSError`` if none can be started."""
        if self._is_possible is None:
            self._is_possible = _is_possible()
        if self._guard is None and self._is_possible and local_now() >= self._starts_at:
            self._guard = _Guard()

    def add(self, child: Child) -> None:
        """Have the guard watch over this one, until ``remove``. Its memory must still have a descriptor.

        Raises ``OSError`` if there are too many open files.
        """
        if not self._is_possible:
            return
        number, pid, lease = next(self._numbers), child.process.pid, child.lease
        length = lease.grant.request.lease.total_seconds()
        process = os.pidfd_open(pid)
        try:
            memory = os.dup(child.memory.descriptor)
        except OSError:
            os.close(process)
            raise
        self._runs[child] = _Run(guard.MESSAGE.pack(number, pid, length, child.grace), [memory, process])
        self._tell(self._runs[child])

    def remove(self, child: Child) -> None:
        """The run of this one is over."""
        if run := self._runs.pop(child, None):
            for descriptor in run.descriptors:
                os.close(descriptor)
            # Without descriptors, the same message says so.
            self._tell(run._replace(descriptors=[]))

    def _tell(self, run: _Run) -> None:
        if self._guard and not self._guard.tell(run):
            self._guard.kill()  # it is stopped, and so of no use

    def tend(self) -> float:
        """Start another guard if the last one has ended. Returns when to call this again, as ``local_now()``."""
        if self._guard and (code := self._guard.poll()) is not None:
            self._guard.close()
            self._guard = None
            self._starts_at = local_now() + next(self._pauses)
            message = "The guard of this command %s. Another one is started."
            logger.warning(message, how_it_ended(code), extra=about())
        if self._guard or not self._runs:
            return inf
        if local_now() < self._starts_at:
            return self._starts_at
        try:
            self.prepare()
        except OSError as error:
            self._starts_at = local_now() + _FIRST_PAUSE
            logger.warning("No guard could be started for this command: %s", error, extra=about(reason=error))
            return self._starts_at
        for run in self._runs.values():
            self._tell(run)
        return inf

    def close(self) -> None:
        """End the guard. No run is left."""
        if self._guard:
            self._guard.kill()
            self._guard.close()
            self._guard = None


class _Guard:
    """A guard that runs."""

    def __init__(self) -> None:
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._channel.setblocking(False)
        supervisor = os.pidfd_open(os.getpid())
        try:
            socket.send_fds(self._channel, [b"\0"], [supervisor])
            self._popen: subprocess.Popen[bytes] = subprocess.Popen(
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
        self.pid = self._popen.pid
        self.pidfd = pidfd(self.pid)

    def tell(self, run: _Run) -> bool:
        """``False`` if it does not listen any more."""
        try:
            socket.send_fds(self._channel, [run.message], run.descriptors)
        except OSError:
            return False
        return True

    def poll(self) -> int | None:
        """Its exit code, if it has ended."""
        return self._popen.poll()

    def kill(self) -> None:
        self._popen.kill()

    def close(self) -> None:
        """Wait for its end."""
        self._popen.wait()
        self._channel.close()
        if self.pidfd is not None:
            os.close(self.pidfd)


def _is_possible() -> bool:
    """Whether this system has what a guard needs. On Linux, where it should, a warning says why not."""
    if sys.platform != "linux":
        return False
    if why := _why_impossible():
        message = (
            "If this command is killed or stopped, nothing ends what it runs, because no guard can be started: %s."
        )
        logger.warning(message, why, extra=about(reason=why))
    return not why


def _why_impossible() -> str:
    """Empty if it is possible."""
    if "py" not in Path(sys.executable or "").name:
        return f"the program of this process, {sys.executable!r}, is not Python"
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError) as error:
        return f"the system has no pidfd_open(): {error}"
    return ""
