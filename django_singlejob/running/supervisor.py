"""Runs a body in a child process. The supervisor holds the lease, and ends the body when it must.

Its main thread does all that needs the database. A second thread watches signals, the lease's deadline and
``max_runtime``. It waits for nothing else: so a driver that hangs hides nothing, and the body is over before anybody
else may begin, whatever it is doing. It first gets a signal, which raises an exception in it, and then SIGKILL.
"""

import logging
import os
import select
import signal
import socket
import threading
import warnings
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any, NoReturn, Self

from django.db import connections

from django_singlejob import database, received_signals
from django_singlejob.clock import local_now, sleep, wait
from django_singlejob.cutoff import cut_off_at
from django_singlejob.exceptions import JobDied, LeaseLost
from django_singlejob.handlers import SECOND_SIGNAL
from django_singlejob.locking.heartbeat import Pulse, send_alone
from django_singlejob.locking.lease import Lease
from django_singlejob.logs import about_grant
from django_singlejob.received_signals import ENDING_SIGNALS, blocked_signals, start_thread
from django_singlejob.running.child import (
    LOST,
    TIMEOUT,
    BodyEnd,
    LogInChild,
    die_with,
    exception_for,
    grace_of,
    run_as_child,
    unpacked,
)
from django_singlejob.running.shared import SharedMemory, flush_streams
from django_singlejob.signals import lease_lost

logger = logging.getLogger("django_singlejob")

# Seconds between a second signal and SIGKILL.
LAST_GRACE = 3.0
# Where the system cannot tell when a child ends, this is how often the supervisor looks. Seconds.
NAP = 0.05
# A wait that is as good as endless.
DAY = 86_400.0


def can_supervise() -> bool:
    """Whether this process can run a body in a child. Not in a thread; not beside other threads, which a fork might
    stop in the middle of something; and not if the child would not see what this process has written."""
    return (
        hasattr(os, "fork")
        and hasattr(os, "waitid")
        and threading.current_thread() is threading.main_thread()
        and not database.is_private(database.alias())
        and _is_alone()
    )


def _is_alone() -> bool:
    if received_signals.has_other_threads():
        _leave_connections()  # a pool has threads
    return not received_signals.has_other_threads()


def supervise(
    lease: Lease,
    body: Callable[[], Any],
    end: Callable[[Any, BaseException | None], BodyEnd],
    log: LogInChild,
    *,
    max_runtime: timedelta | None = None,
) -> BodyEnd:
    """Run ``body``, which may be an ``async def``, in a child process under the lease, and return how it ended. The
    child reports ``end(value, failure)``, and calls ``log`` if there is a failure.

    Raises ``JobInterrupted`` if a signal had come before, so that nothing was begun; ``JobDied``, ``LeaseLost``,
    ``JobTimeout`` or ``JobInterrupted`` if the child ended without a word.
    """
    memory = SharedMemory()
    process = Process(lease, memory, partial(run_as_child, memory, lease, body, end, log))
    watch = Watch(process, lease, memory, max_runtime)
    try:
        with watch:
            keep_until(process.is_over, lease, watch)
    finally:
        process.kill()  # and what it has left behind, while the process group cannot be another's
        code = process.collect()
        memory.is_only_writer = False
    reported = unpacked(memory.message) if memory.message else None
    # If it was killed after a success, it has left threads behind, which had not ended.
    if reported and (code >= 0 or reported.failure):
        return reported
    if watch.has_killed or memory.reason == LOST or -code in ENDING_SIGNALS:
        raise exception_for(memory.reason or -code, lease)
    raise JobDied(_words_of(code))


def _words_of(code: int) -> str:
    if code >= 0:
        return f"Its process exited with status {code} before the job had ended."
    try:
        name = signal.Signals(-code).name
    except ValueError:  # a real-time signal
        name = f"signal {-code}"
    return f"Its process was killed by {name}."


class Process:
    """A child process, from outside.

    Attributes:
        leads_group: whether it has a process group of its own. At a terminal, it has to stay in the terminal's, to read
            from it.
    """

    def __init__(self, lease: Lease, memory: SharedMemory, become: Callable[[], NoReturn]) -> None:
        """Fork it. The child calls ``become``, with signals blocked, and has the lease's state in ``memory``.

        Raises ``JobInterrupted`` if a signal had come before, so that nothing was begun.
        """
        self.leads_group = not os.isatty(0)
        supervisor = os.getpid()
        _leave_connections()
        with blocked_signals():
            if received_signals.in_force:
                received_signals.in_force.raise_remembered()
            lease.share(memory)
            self.pid = _fork()
            if self.leads_group:
                with suppress(OSError):  # both processes do this, because neither can wait for the other
                    os.setpgid(self.pid, self.pid)
            if self.pid == 0:
                die_with(supervisor)
                become()
        self._descriptor = _pidfd(self.pid)

    def send(self, signum: int) -> None:
        """Send a signal to the child alone. Raises ``ProcessLookupError`` or ``PermissionError`` if that fails."""
        os.kill(self.pid, signum)

    def kill(self) -> None:
        """Kill the child, and what it has started, unless that has left its process group."""
        with suppress(ProcessLookupError, PermissionError):
            (os.killpg if self.leads_group else os.kill)(self.pid, signal.SIGKILL)

    def is_over(self, timeout: float) -> bool:
        """Whether it has ended. Waits for that for at most ``timeout`` seconds."""
        if self._descriptor is not None:
            return bool(wait(partial(select.select, [self._descriptor], [], []), timeout)[0])
        sleep(min(timeout, NAP))
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def collect(self) -> int:
        """Wait for its end and return its exit code; -n if signal n has killed it."""
        if self._descriptor is not None:
            os.close(self._descriptor)
        try:
            _, status = os.waitpid(self.pid, 0)
        except ChildProcessError:  # the project ignores SIGCHLD, so there is none
            status = 0
        return os.waitstatus_to_exitcode(status)


def _leave_connections() -> None:
    """Close all connections, because a child must neither use nor close those of its parent."""
    for connection in connections.all(initialized_only=True):
        connection.close()
        if hasattr(connection, "close_pool"):
            connection.close_pool()


def _fork() -> int:
    flush_streams()  # the child would write a second time what is still to be written
    with warnings.catch_warnings():
        # Python warns of other threads. There are only ours, and a fork leaves them in no bad moment.
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _pidfd(pid: int) -> int | None:
    """A descriptor that is ready when the process has ended; ``None`` if the system has none."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None


class Watch:
    """The thread that ends a child in time. It waits for nothing but signals and the clock.

    Attributes:
        signum: the last signal that was passed on; ``None`` if none has come.
        has_killed: whether it has killed the child.
    """

    #: The signals of which a second one kills. A job may take SIGHUP for "read the configuration again".
    insistent = frozenset({signal.SIGTERM, signal.SIGINT})

    def __init__(
        self, process: Process, lease: Lease, memory: SharedMemory, max_runtime: timedelta | None = None
    ) -> None:
        self.grace = grace_of(lease)
        self.signum: int | None = None
        self.has_killed = False
        self.process, self._lease, self._memory = process, lease, memory
        self._timeout_at = local_now() + max_runtime.total_seconds() if max_runtime else float("inf")
        self._kill_at = float("inf")
        self._is_loss_told = False
        self._first_signal_at = float("inf")
        self._is_over = False
        self._former = -1

    def __enter__(self) -> Self:
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        self._thread = start_thread(self._run, "watch over a job")
        self._former = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        if received_signals.in_force and received_signals.in_force.remembered:
            self.wake(received_signals.in_force.remembered)  # it came after the fork
        return self

    def __exit__(self, *error: object) -> None:
        """Send nothing to the child any more."""
        self._is_over = True
        self.wake()
        self._thread.join()
        signal.set_wakeup_fd(self._former)
        self._reader.close()
        self._writer.close()

    def wake(self, signum: int = 0) -> None:
        """Have the thread look at the lease, and pass on a signal."""
        with suppress(BlockingIOError):  # then it has enough to read
            self._writer.send(bytes([signum]))

    def kill_by(self, instant: float) -> None:
        """Kill the child at this instant, a value of ``local_now()``, unless it has ended by then."""
        self._kill_at = min(self._kill_at, instant)
        self.wake()

    # --- in the thread

    def _run(self) -> None:
        while not self._is_over:
            signums = self._hear()
            if not self._is_over:
                self._look(signums)

    def _hear(self) -> bytes:
        """The signals that have come by now. Waits until there may be something to do."""
        seconds = max(0.0, min(self._next_at() - local_now(), DAY))
        ready = wait(partial(select.select, [self._reader], [], []), seconds)[0]
        signums = self._reader.recv(4096).strip(b"\0") if ready else b""
        if signums and self._former != -1:
            with suppress(OSError):
                os.write(self._former, signums)
        return signums

    def _next_at(self) -> float:
        deadline = float("inf") if self._is_loss_told or self._lease.is_over else self._lease.deadline
        return min(deadline, self._timeout_at, self._kill_at)

    def _look(self, signums: bytes) -> None:
        now = local_now()
        for signum in signums:
            if signum in ENDING_SIGNALS:
                self._pass_on(signum, now)
        if now >= self._timeout_at:
            self._timeout_at = float("inf")
            self._end(TIMEOUT, now)
        self._look_at_lease(now)
        if now >= self._kill_at:
            self._kill_at, self.has_killed = float("inf"), True
            self.process.kill()

    def _look_at_lease(self, now: float) -> None:
        is_lost = self._lease.lost and not self._lease.is_over
        if is_lost and not self._is_loss_told:
            self._end(LOST, now)
        elif self._is_loss_told and not is_lost and self._memory.reason == LOST:
            self._kill_at = float("inf")  # a late heartbeat got through, so nobody else can begin
        self._is_loss_told = is_lost

    def _pass_on(self, signum: int, now: float) -> None:
        self._memory.reason = self.signum = signum
        self._send(signum)
        if signum in self.insistent:
            self._first_signal_at = min(self._first_signal_at, now)
            is_second = now - self._first_signal_at >= SECOND_SIGNAL
            self._kill_at = min(self._kill_at, self.kill_at(now, is_second=is_second))

    def kill_at(self, now: float, *, is_second: bool) -> float:
        """When to kill the child after a signal. It may take its time to clean up, until there is a second one, not of
        the same burst."""
        return now + LAST_GRACE if is_second else float("inf")

    def _end(self, reason: int, now: float) -> None:
        self._memory.reason = reason
        self._send(signal.SIGTERM)
        self._kill_at = min(self._kill_at, now + self.grace)

    def _send(self, signum: int) -> None:
        with suppress(ProcessLookupError, PermissionError):  # the latter for example of sudo
            self.process.send(signum)


def keep_until(is_over: Callable[[float], bool], lease: Lease, watch: Watch) -> None:
    """Keep the lease until ``is_over``, which waits for at most the seconds that it is passed. This is all that the
    main thread does while the child runs."""
    pulse, is_loss_reported = Pulse(lease, watch.wake), False
    while not is_over(_pause(pulse, is_loss_reported=is_loss_reported)):
        if pulse.is_due(local_now()):
            pulse.skip()
            _send(pulse)
        is_lost = lease.lost and not lease.is_over
        if is_lost and not is_loss_reported:
            _report_loss(lease)
        is_loss_reported = is_lost


def _pause(pulse: Pulse, *, is_loss_reported: bool) -> float:
    """How long there is nothing to do, in seconds."""
    deadline = float("inf") if is_loss_reported or pulse.lease.is_over else pulse.lease.deadline
    return max(0.0, min(pulse.due_at - local_now(), deadline - local_now(), DAY))


def _send(pulse: Pulse) -> None:
    try:
        with cut_off_at(database.alias(), local_now() + pulse.interval):
            send_alone(pulse)
    except Exception as error:  # it could not connect
        pulse.retry_soon(error)


def _report_loss(lease: Lease) -> None:
    loss = LeaseLost(lease.why_lost())
    logger.error("%s", loss, extra=about_grant(lease.grant, reason=loss))
    lease_lost.send_robust(sender=Lease, name=lease.name, lease=lease)
