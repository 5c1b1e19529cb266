"""The guard of a command: a tiny process that kills runs if their supervisor cannot, because it is gone or stopped.

It is a program of its own, run by its path. It imports nothing of the package or the project, so it takes a few
milliseconds to start, and nothing in the project keeps it from its work. It is in a session of its own, without a
terminal, and ignores the signals that end a command: it ends when its supervisor does.
"""

import mmap
import os
import resource
import select
import signal
import socket
import struct
import time
from contextlib import suppress
from math import inf

#: What the supervisor says of a run: its number, its process, and in seconds its lease and its grace. With it come the
#: descriptors of its memory and of its process (a pidfd). Without a lease, the run is over.
MESSAGE = struct.Struct("=qqdd")
#: Where the shared memory has the numbers that the guard needs, see ``SharedMemory``.
PROVEN_AT, IS_ONLY_WRITER, REASON = 0, 4, 5
#: The reason for which a body has to end if its lease is lost.
LOST = 1001
# How many graces after the deadline of its lease a run is killed. Its supervisor does that after one, and somebody else
# may begin after two.
_GRACES = 1.5
# How often to look meanwhile, in each grace.
_LOOKS = 10
_IGNORED = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGTSTP", "SIGTTIN", "SIGTTOU", "SIGPIPE")
# The longest wait that the system knows is 24 days.
_DAY = 86_400.0
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class _Run:
    """A run: its process, and the memory that it shares with its supervisor."""

    def __init__(self, pid: int, length: float, grace: float, memory: int, pidfd: int) -> None:
        self._pid, self._length, self._grace, self._pidfd = pid, length, grace, pidfd
        self._numbers = memoryview(mmap.mmap(memory, mmap.PAGESIZE)).cast("d")
        os.close(memory)
        # For how long this process has not slept since it saw that the deadline was over. A supervisor that was
        # suspended together with it, as in a laptop, may still send a heartbeat.
        self._awake = 0.0

    def look(self, awake: float) -> float:
        """Kill it if it is time. ``awake`` is how long this process has waited for that. Returns in how many seconds to
        look again."""
        is_only_writer = self._numbers[IS_ONLY_WRITER]
        late = -inf if is_only_writer else time.clock_gettime(_CLOCK) - self._numbers[PROVEN_AT] - self._length
        if late < 0:
            self._awake = 0.0
            return min(-late, self._length)
        moment = self._grace / _LOOKS
        self._awake += min(awake, moment)
        if late >= _GRACES * self._grace and self._awake >= self._grace:
            self._numbers[REASON] = self._numbers[REASON] or LOST
            self.kill()
        return moment

    def kill(self) -> None:
        """Kill its process, and the group that this leads, or led."""
        if self._has_group():
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._pid, signal.SIGKILL)
        with suppress(ProcessLookupError, PermissionError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def _has_group(self) -> bool:
        """Whether the group of this number cannot be another's. While a group exists, no new process gets its
        number."""
        with suppress(PermissionError):
            try:
                signal.pidfd_send_signal(self._pidfd, 0)
            except ProcessLookupError:  # its exit status was collected
                return not _exists(self._pid)
        return True

    def close(self) -> None:
        os.close(self._pidfd)


def _exists(pid: int) -> bool:
    try:
        os.getpgid(pid)
    except ProcessLookupError:
        return False
    return True


class _Guard:
    """The guard, with the runs of its supervisor."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        _, (self._supervisor, *_), *_ = socket.recv_fds(channel, 1, 1)
        self._channel.setblocking(False)
        self._runs: dict[int, _Run] = {}
        self._poll = select.poll()
        for descriptor in channel.fileno(), self._supervisor:
            self._poll.register(descriptor, select.POLLIN)

    def work(self) -> None:
        pause = _DAY
        while True:
            began = time.monotonic()
            ready = {descriptor for descriptor, _ in self._poll.poll(min(pause, _DAY) * 1000)}
            awake = time.monotonic() - began
            is_supervised = self._hear() and self._supervisor not in ready
            if not is_supervised:
                break
            pause = min((run.look(awake) for run in self._runs.values()), default=_DAY)
        for run in self._runs.values():
            run.kill()

    def _hear(self) -> bool:
        """Take note of all that the supervisor has said. ``False`` if it says nothing more."""
        with suppress(BlockingIOError):
            while True:
                message, descriptors, *_ = socket.recv_fds(self._channel, MESSAGE.size, 2)
                if not message:
                    return False
                number, pid, length, grace = MESSAGE.unpack(message)
                if length:
                    self._runs[number] = _Run(pid, length, grace, *descriptors)
                elif run := self._runs.pop(number, None):
                    run.close()
        return True


def main() -> None:
    for name in _IGNORED:
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    _Guard(socket.socket(fileno=0)).work()


if __name__ == "__main__":
    main()
