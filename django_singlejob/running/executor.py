"""An executor, as its supervisor sees it: a new process of this program, which carries out one order after the other.

It is started when a run needs one. One that its last run has left clean waits for the next run for a while.
"""

import os
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from math import inf
from typing import NamedTuple

import django_singlejob
from django_singlejob.process import program
from django_singlejob.process.clock import local_now, sleep
from django_singlejob.process.logs import flush_handlers
from django_singlejob.process.program import Invitation
from django_singlejob.process.received_signals import blocked_signals
from django_singlejob.running import order as orders
from django_singlejob.running.order import Order
from django_singlejob.running.output import STDERR, STDOUT, Output, are_closed
from django_singlejob.running.process import Process, leave_connections
from django_singlejob.running.serving import FREE, serve_as_program
from django_singlejob.running.shared import SharedMemory, flush_streams

# How long an executor waits for another run: the one that was the last to work, which so serves a job a minute, and the
# others. Seconds.
LAST_IDLE, IDLE = 150.0, 10.0
# How long one that is not needed any more may take to end. Seconds.
LONGEST_END = 5.0
# How soon to look again whether it has. Seconds.
SOON = 0.5
# How often to look whether it has. Seconds.
_MOMENT = 0.01


class NotBegun(Exception):
    """The body has not begun, and never will. The message says why, if that is known.

    Attributes:
        was_idle: whether an executor that had waited for the order ended meanwhile. A new one may be better.
        is_by_signal: whether a signal has come for the supervisor meanwhile.
    """

    def __init__(self, message: str, *, was_idle: bool = False, is_by_signal: bool = False) -> None:
        super().__init__(message)
        self.was_idle, self.is_by_signal = was_idle, is_by_signal


class Executor(Process):
    """A process that carries out an order, or waits for one.

    Attributes:
        has_served: whether it has carried out an order.
    """

    def __init__(self, pid: int, channel: socket.socket, popen: "subprocess.Popen[bytes] | None" = None) -> None:
        super().__init__(pid, popen)
        self.has_served = False
        self._channel = channel
        self._channel.setblocking(False)
        self._heard, self._is_deaf = b"", False

    def order(self, order: Order, memory: SharedMemory, output: Output | None) -> None:
        """Have it carry out the order. Raises ``OSError`` if there is no memory for that."""
        self._heard = b""
        pipes = output.descriptors if output else []
        wakers = [output.waker] if output else []
        with suppress(BrokenPipeError, ConnectionResetError):  # it is dead, which is seen soon
            orders.send(self._channel, order._replace(streams=len(pipes)), memory, [*pipes, *wakers])
        memory.close_descriptor()
        self.has_served = True

    @property
    def descriptors(self) -> list[int | None]:
        """Are ready to be read when it says something, or has ended."""
        return [self.pidfd] if self._is_deaf else [self._channel.fileno(), self.pidfd]

    def is_free(self, *, takes: bool = True) -> bool:
        """Whether the run is over, and it can carry out another order. ``takes``: whether what it has said wakes the
        supervisor no more."""
        with suppress(OSError):  # it has said nothing, or is dead
            said = self._channel.recv(16, 0 if takes else socket.MSG_PEEK)
            if not takes:
                return FREE in self._heard + said
            self._heard += said
            # A body may close all descriptors. Then the end of the process tells that the run is over.
            self._is_deaf = not said
        return FREE in self._heard

    def dismiss(self) -> None:
        """Have it end as any program does: there are no more orders."""
        self._channel.close()

    def end_by(self, instant: float) -> None:
        """Wait for its end until this instant, a value of ``local_now()``, and then kill it."""
        while not self.is_over() and local_now() < instant:
            sleep(_MOMENT)
        if not self.is_over():
            self.kill()
        self.collect()

    def collect(self) -> int | None:
        self._channel.close()
        return super().collect()


def started(output: Output | None, *, has_terminal: bool) -> Executor:
    """A new executor: a new process of this program. It prints to ``output`` at first: what keeps it from its first run
    is a part of that. ``has_terminal``: whether it has the input and the terminal of this process.

    Raises ``OSError`` if the system cannot start it."""
    if program.directory is None:
        raise NotADirectoryError("the directory that this program was started in is gone")
    ours, theirs = socket.socketpair()
    own = _own_streams()
    try:
        invitation = Invitation(theirs.fileno(), own[0], own[1], django_singlejob.__version__)
        pipes = output.descriptors if output else own
        popen = subprocess.Popen(
            program.command_line(),
            stdin=None if has_terminal else subprocess.DEVNULL,
            stdout=pipes[0],
            stderr=pipes[-1],
            pass_fds=[theirs.fileno(), *own],
            env=program.environment(invitation),
            cwd=program.directory,
            process_group=None if has_terminal and os.isatty(0) else 0,
        )
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
        for descriptor in own:
            os.close(descriptor)
    return Executor(popen.pid, ours, popen)


def _own_streams() -> list[int]:
    """Standard output and standard error of this process, for another one, or what takes everything if they are
    closed."""
    return [os.open(os.devnull, os.O_WRONLY) if are_closed() else os.dup(stream) for stream in (STDOUT, STDERR)]


def forked() -> Executor | None:
    """An executor for a command that has one run: a process that this one forks before it has anything of its own. That
    costs half as much as to start the program once more, and the executor goes on as the program, which this process is
    not any more once it has given an order. ``None`` if the other process would not be as good as a new one: this one
    has threads, or a connection that the two would share. The same if the system has no process."""
    leave_connections()
    if sys.platform != "linux" or _has_threads() or _has_connection():
        return None
    # The child would write a second time what is still to be written.
    flush_streams()
    flush_handlers()
    with blocked_signals():
        try:
            ours, theirs = socket.socketpair()
            pid = os.fork()
        except OSError:
            return None
        if not os.isatty(0):
            with suppress(OSError):  # both processes do this, because neither can wait for the other
                os.setpgid(pid, pid)
        if pid == 0:
            ours.close()
            serve_as_program(theirs.detach())
    theirs.close()
    return Executor(pid, ours)


def _has_threads() -> bool:
    try:
        return len(os.listdir("/proc/self/task")) > 1  # noqa: PTH208  (only their number matters)
    except OSError:
        return True


def _has_connection() -> bool:
    """Whether this process has a connected socket, apart from its standard streams, such as one of a database's."""
    try:
        descriptors = [int(name) for name in os.listdir("/proc/self/fd")]  # noqa: PTH208
    except OSError:
        return True
    return any(map(_is_connected, (descriptor for descriptor in descriptors if descriptor > STDERR)))


def _is_connected(descriptor: int) -> bool:
    try:
        with socket.socket(fileno=os.dup(descriptor)) as found:
            found.getpeername()
            return found.type == socket.SOCK_STREAM
    except OSError:  # it is not a socket, or not connected
        return False


class ExecutorRun:
    """A run in an executor, which may go on after it.

    Attributes:
        was_idle: whether the executor had waited for it.
        is_executor_free: whether the executor can carry out another order, now that the run is over.
    """

    def __init__(self, executor: Executor) -> None:
        self.is_executor_free = False
        self.was_idle = executor.has_served
        self.executor, self.pid = executor, executor.pid
        # While it is held, the run is not collected.
        self._mutex = threading.Lock()
        self._is_collected = False

    @property
    def descriptors(self) -> list[int | None]:
        """Are ready to be read when the executor says something, or has ended. After ``collect``, the system cannot
        tell anything more."""
        return [None] if self._is_collected else self.executor.descriptors

    def send(self, signum: int) -> None:
        """Send a signal to the executor alone. Raises ``ProcessLookupError`` or ``PermissionError``."""
        with self._mutex:
            if not (self._is_collected or self.executor.is_free(takes=False)):
                os.kill(self.pid, signum)

    def kill(self) -> None:
        """Kill the executor and what it has started, unless the run is over and has left nothing."""
        with self._mutex:
            if not (self._is_collected or self.executor.is_free(takes=False)):
                self.executor.kill()

    def is_over(self) -> bool:
        """Whether the run is over."""
        with self._mutex:
            return self._is_collected or self.executor.is_free() or self.executor.is_over()

    def collect(self) -> int | None:
        """Wait until the run is over. Returns the executor's exit code; 0 if it can carry out another order."""
        if not self.executor.is_free():
            self.executor.wait()
        with self._mutex:
            self._is_collected = True
            is_free = self.executor.is_free()
            self.is_executor_free = is_free and not self.executor.is_over()
            code = 0 if self.is_executor_free else self.executor.collect()
            return 0 if is_free else code


class _Idle(NamedTuple):
    executor: Executor
    since: float


def _ends_at(idle: _Idle, last: list[_Idle]) -> float:
    """When an executor has waited for long enough."""
    return idle.since + (LAST_IDLE if idle in last else IDLE)


class Executors:
    """The executors of a supervisor that have nothing to do, the last to work at the end."""

    def __init__(self, first: Executor | None = None, *, has_terminal: bool) -> None:
        """``first``: one that waits for an order already, for as long as it takes.

        ``has_terminal``: see ``started``."""
        self._idle = [_Idle(first, inf)] if first else []
        self._has_terminal = has_terminal
        self._leaving: list[_Idle] = []

    @property
    def pids(self) -> set[int]:
        return {idle.executor.pid for idle in [*self._idle, *self._leaving]}

    @property
    def has_one(self) -> bool:
        """Whether one waits for an order."""
        self.tidy()
        return bool(self._idle)

    def take(self, output: Output | None) -> Executor:
        """One that waits for an order, or a new one. Raises ``OSError`` if none can be started."""
        while self._idle:
            executor = self._idle.pop().executor
            if not executor.is_over():
                return executor
            executor.collect()
        return started(output, has_terminal=self._has_terminal)

    def put_back(self, executor: Executor) -> None:
        """It can carry out another order."""
        self._idle.append(_Idle(executor, local_now()))

    def tidy(self) -> float:
        """Have those end that have waited for long. Returns when to call this again, a value of ``local_now()``."""
        now, last = local_now(), self._idle[-1:]
        for idle in list(self._idle):
            if idle.executor.is_over():
                idle.executor.collect()
                self._idle.remove(idle)
            elif now >= _ends_at(idle, last):
                idle.executor.dismiss()
                self._idle.remove(idle)
                self._leaving.append(_Idle(idle.executor, now))
        self._reap_leaving(now)
        return min([_ends_at(idle, last) for idle in self._idle] + [now + SOON for _ in self._leaving], default=inf)

    def _reap_leaving(self, now: float) -> None:
        left = []
        for leaving in self._leaving:
            if now - leaving.since >= LONGEST_END:
                leaving.executor.kill()
            if leaving.executor.is_over():
                leaving.executor.collect()
            else:
                left.append(leaving)
        self._leaving = left

    def close(self) -> None:
        """Have all of them end, beside each other."""
        for idle in self._idle:
            idle.executor.dismiss()
        end = local_now() + LONGEST_END
        for idle in [*self._idle, *self._leaving]:
            idle.executor.end_by(end)
        self._idle, self._leaving = [], []
