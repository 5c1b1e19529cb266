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
from typing import Any

from django.db import connections

from django_singlejob import database, received_signals
from django_singlejob.clock import local_now, sleep, wait
from django_singlejob.cutoff import cut_off_at
from django_singlejob.exceptions import JobDied, LeaseLost
from django_singlejob.handlers import SECOND_SIGNAL
from django_singlejob.locking.lease import Lease
from django_singlejob.logs import about_grant
from django_singlejob.received_signals import ENDING_SIGNALS, blocked_signals, start_thread
from django_singlejob.running.child import LOST, TIMEOUT, BodyEnd, exception_for, run_as_child, unpacked
from django_singlejob.running.shared import SharedMemory
from django_singlejob.signals import lease_lost

logger = logging.getLogger("django_singlejob")

# After a failed heartbeat, the next one follows this many times sooner.
HURRY = 4
# Seconds between the signal that ends a body and SIGKILL: at most this, and never more than a heartbeat interval, since
# nobody takes over before two of them have passed.
LONGEST_GRACE = 10.0
# The same for a lease without heartbeats, which others may take two seconds after it has expired.
SHORT_GRACE = 1.0
# Where the system cannot tell when a child ends, this is how often the supervisor looks. Seconds.
NAP = 0.05


def can_supervise() -> bool:
    """Whether this process can run a body in a child. Not in a thread; not beside other threads, which a fork might
    stop in the middle of something; and not if the child would not see what this process has written."""
    return (
        hasattr(os, "fork")
        and hasattr(os, "waitid")
        and threading.current_thread() is threading.main_thread()
        and not received_signals.has_other_threads()
        and not database.is_private(database.alias())
    )


def supervise(
    lease: Lease,
    body: Callable[[], Any],
    end: Callable[[Any, BaseException | None], BodyEnd],
    *,
    max_runtime: timedelta | None = None,
) -> BodyEnd:
    """Run ``body``, which may be an ``async def``, in a child process under the lease, and return how it ended. ``end``
    makes the report of it, in the child.

    Raises ``JobInterrupted`` if a signal had come before, so that nothing was begun; ``JobDied``, ``LeaseLost``,
    ``JobTimeout`` or ``JobInterrupted`` if the child ended without a word.
    """
    memory = SharedMemory()
    # At a terminal, the body has to stay in the terminal's group to read from it.
    in_group = not os.isatty(0)
    _leave_connections()
    supervisor = os.getpid()
    with blocked_signals():
        if received_signals.in_force:
            received_signals.in_force.raise_remembered()
        lease.share(memory)
        pid = _fork()
        if pid == 0:
            run_as_child(memory, lease, body, end, supervisor=supervisor, in_group=in_group)
        child = _Child(pid, in_group=in_group)
        try:
            watch = _Watch(child, lease, memory, max_runtime)
            watch.start()
        except BaseException:
            child.kill()
            child.collect()
            raise
    return _Supervisor(child, lease, memory, watch).run()


def _leave_connections() -> None:
    """Close all connections, because a child must neither use nor close those of its parent."""
    for connection in connections.all(initialized_only=True):
        connection.close()
        if hasattr(connection, "close_pool"):
            connection.close_pool()


def _fork() -> int:
    with warnings.catch_warnings():
        # Python warns of other threads. There are only ours, and a fork leaves them in no bad moment.
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


class _Child:
    """The child process, from outside."""

    def __init__(self, pid: int, *, in_group: bool) -> None:
        self.pid = pid
        self._in_group = in_group
        self._number = _pidfd(pid)
        if in_group:
            with suppress(OSError):  # the child does the same, and one of them is the first
                os.setpgid(pid, pid)

    def send(self, signum: int) -> None:
        """Send a signal to the child alone. Call this before ``collect``."""
        os.kill(self.pid, signum)

    def kill(self) -> None:
        """Kill the child, and what it has started, unless that has left its process group."""
        with suppress(ProcessLookupError, PermissionError):
            (os.killpg if self._in_group else os.kill)(self.pid, signal.SIGKILL)

    def is_over(self, timeout: float) -> bool:
        """Whether it has ended. Waits for that for at most ``timeout`` seconds."""
        if number := self._number:
            return bool(wait(partial(select.select, [number], [], []), max(0.0, timeout))[0])
        sleep(min(max(0.0, timeout), NAP))
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def collect(self) -> int:
        """Wait for its end, and kill what it has left behind in its process group. Returns its exit code; -n if signal
        n has killed it."""
        if self._number is not None:
            os.close(self._number)
        try:
            _, status = os.waitpid(self.pid, 0)
        except ChildProcessError:  # the job's project ignores SIGCHLD, so there is none
            status = 0
        if self._in_group:
            self.kill()
        return os.waitstatus_to_exitcode(status)


def _pidfd(pid: int) -> int | None:
    """A descriptor that is ready when the process has ended; ``None`` if the system has none."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None


class _Watch:
    """The thread that ends the child in time. It waits for nothing but signals and the clock."""

    def __init__(self, child: _Child, lease: Lease, memory: SharedMemory, max_runtime: timedelta | None) -> None:
        interval = lease.grant.request.heartbeat_interval
        self._child, self._lease, self._memory = child, lease, memory
        self._grace = min(interval.total_seconds(), LONGEST_GRACE) if interval else SHORT_GRACE
        self._timeout_at = local_now() + max_runtime.total_seconds() if max_runtime else float("inf")
        self._kill_at = float("inf")
        self._is_loss_told = False
        self._first_signal_at = float("inf")
        self._is_over = False
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        self._former = -1
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Raises ``RuntimeError`` if no thread can be started."""
        self._thread = start_thread(self._run, "watch over a job")
        self._former = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)

    def stop(self) -> None:
        """Send nothing to the child any more."""
        self._is_over = True
        self.wake()
        if self._thread:
            self._thread.join()
        signal.set_wakeup_fd(self._former)
        self._reader.close()
        self._writer.close()

    def wake(self) -> None:
        """Have the thread look at the lease."""
        with suppress(BlockingIOError):  # then it has enough to read
            self._writer.send(b"\0")

    # --- in the thread

    def _run(self) -> None:
        while not self._is_over:
            signums = self._hear()
            if not self._is_over:
                with suppress(ProcessLookupError):
                    self._look(signums)

    def _hear(self) -> bytes:
        """The signals that have come by now. Waits until there may be something to do."""
        seconds = max(0.0, min(self._next_at() - local_now(), threading.TIMEOUT_MAX))
        ready = wait(partial(select.select, [self._reader], [], []), seconds)[0]
        signums = self._reader.recv(4096) if ready else b""
        if self._former != -1 and signums.strip(b"\0"):
            with suppress(OSError):
                os.write(self._former, signums.strip(b"\0"))
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
            self._kill_at = float("inf")
            self._child.kill()

    def _look_at_lease(self, now: float) -> None:
        is_lost = self._lease.lost and not self._lease.is_over
        if is_lost and not self._is_loss_told:
            self._end(LOST, now)
        elif self._is_loss_told and not is_lost and self._memory.reason == LOST:
            self._kill_at = float("inf")  # a late heartbeat got through, so nobody else can begin
        self._is_loss_told = is_lost

    def _pass_on(self, signum: int, now: float) -> None:
        """Pass a signal on. The body may take its time to clean up, until there is a second one, not of the same
        burst."""
        self._memory.reason = signum
        self._child.send(signum)
        self._first_signal_at = min(self._first_signal_at, now)
        if now - self._first_signal_at >= SECOND_SIGNAL:
            self._kill_at = min(self._kill_at, now + self._grace)

    def _end(self, reason: int, now: float) -> None:
        self._memory.reason = reason
        self._child.send(signal.SIGTERM)
        self._kill_at = min(self._kill_at, now + self._grace)


class _Supervisor:
    """What the main thread does while the child runs: it keeps the lease, and waits."""

    def __init__(self, child: _Child, lease: Lease, memory: SharedMemory, watch: _Watch) -> None:
        self._child, self._lease, self._memory, self._watch = child, lease, memory, watch
        interval = lease.grant.request.heartbeat_interval
        self._interval = interval.total_seconds() if interval else float("inf")
        self._beat_at = local_now() + self._interval
        self._is_loss_reported = False

    def run(self) -> BodyEnd:
        """Keep the lease until the child has ended. Returns, or raises, how it ended."""
        try:
            while not self._child.is_over(self._next_at() - local_now()):
                if local_now() >= self._beat_at:
                    self._beat()
                self._report_loss()
            self._watch.stop()
        except BaseException:
            self._watch.stop()
            self._child.kill()
            raise
        finally:
            code = self._child.collect()
            self._memory.is_only_writer = False
        if code >= 0 and (message := self._memory.message):
            return unpacked(message)
        raise self._why(code)

    def _next_at(self) -> float:
        lease = self._lease
        deadline = float("inf") if self._is_loss_reported or lease.is_over else lease.deadline
        return min(self._beat_at, deadline, local_now() + threading.TIMEOUT_MAX)

    def _beat(self) -> None:
        lease, sent_at = self._lease, local_now()
        try:
            with cut_off_at(database.alias(), sent_at + self._interval):
                lease.renew()
            self._beat_at = sent_at + self._interval
        except LeaseLost:
            self._beat_at = float("inf")
        except Exception as error:  # not a loss yet: the lease goes on, and the next heartbeat may get through
            self._beat_at = local_now() + min(self._interval / HURRY, 1.0)
            # No heartbeat gets through while the lease's own transaction is the only writer.
            if not lease.is_only_writer:
                message = "A heartbeat of %r failed and will be retried soon: %s"
                extra = about_grant(lease.grant, reason=error)
                logger.warning(message, lease.name, database.words_of(error), extra=extra)
        finally:
            self._watch.wake()

    def _report_loss(self) -> None:
        lease = self._lease
        is_lost = lease.lost and not lease.is_over
        if is_lost and not self._is_loss_reported:
            loss = LeaseLost(lease.why_lost())
            logger.error("%s", loss, extra=about_grant(lease.grant, reason=loss))
            lease_lost.send_robust(sender=Lease, name=lease.name, lease=lease)
        self._is_loss_reported = is_lost

    def _why(self, code: int) -> BaseException:
        """Why the child has ended without a word, or was killed while its threads went on after the body."""
        if self._memory.reason == 0:
            return JobDied(_words_of(code))
        return exception_for(self._memory.reason, self._lease)


def _words_of(code: int) -> str:
    if code >= 0:
        return f"Its process exited with status {code} before the job had ended."
    try:
        name = signal.Signals(-code).name
    except ValueError:  # a real-time signal
        name = f"signal {-code}"
    return f"Its process was killed by {name}."
