"""The body in an executor, whose main thread runs it: what is raised there to end it, and what goes with it."""

import ctypes
import logging
import os
import signal
import sys
import threading
from contextlib import suppress
from types import FrameType
from typing import NoReturn

from django_singlejob.exceptions import JobStopped, JobTimeout, LeaseLost
from django_singlejob.locking import liveness
from django_singlejob.locking.lease import Lease
from django_singlejob.process.clock import local_now, sleep
from django_singlejob.process.received_signals import ReceivedSignals
from django_singlejob.running.body_end import LOST, STOPPED, TIMEOUT, exception_for
from django_singlejob.running.shared import SharedMemory, flush_streams

logger = logging.getLogger("django_singlejob")

# What ``check()`` raises for the same reason.
_RAISED_BY_CHECK = {LOST: LeaseLost, TIMEOUT: JobTimeout, STOPPED: JobStopped}

# How long the child waits until what it has printed is passed on, at most, and how often it looks. Seconds.
LONGEST_READING, _MOMENT = 1.0, 0.002
# Of Linux: which signal a process gets when its parent dies. It is looked up here, because a lookup takes a lock, which
# another thread may hold when a process is forked.
_PR_SET_PDEATHSIG = 1
_prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else None


def grace_of(lease: Lease) -> float:
    """How many seconds a body has to end by itself once its lease is lost."""
    request = lease.grant.request
    return liveness.grace_of(request.heartbeat_interval, request.lease).total_seconds()


def die_with(supervisor: int) -> None:
    """Have this process killed when its supervisor dies."""
    if _prctl:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != supervisor:
        os.kill(os.getpid(), signal.SIGKILL)


class RecordsApart:
    """Has what handlers print of this package's records passed on, but not kept as output of the body: the records have
    what is left out there, such as the command that a failure names."""

    def __init__(self) -> None:
        self.memory: SharedMemory | None = None
        self._handle = logger.handle
        logger.handle = self._handle_apart  # type: ignore[method-assign]
        self._begin_anew()
        os.register_at_fork(after_in_child=self._begin_anew)

    def _begin_anew(self) -> None:
        self._mutex = threading.RLock()

    def _handle_apart(self, record: logging.LogRecord) -> None:
        if (memory := self.memory) is None:
            self._handle(record)
            return
        with self._mutex:
            _pass_on(memory)  # what was printed before is not a record
            memory.is_logging = True
            try:
                self._handle(record)
            finally:
                try:
                    _pass_on(memory)
                finally:
                    memory.is_logging = False


def _pass_on(memory: SharedMemory) -> None:
    """Wait until what this process has printed is passed on, unless nobody does that."""
    if memory.has_output and memory.output_waker:
        flush_streams()
        memory.is_behind = True
        memory.output_waker.wake()
        end = local_now() + LONGEST_READING
        while memory.is_behind and local_now() < end:
            sleep(_MOMENT)


def tell_loss(memory: SharedMemory) -> None:
    """Have the body of this process end, because its lease is lost."""
    memory.reason = LOST
    if signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        kill_own_group()  # the signal ends this process alone, and at once
    os.kill(os.getpid(), signal.SIGTERM)


def kill_own_group() -> None:
    """Kill this process and all that is in its group. If it has none of its own, as at a terminal, nothing happens."""
    with suppress(ProcessLookupError):
        os.killpg(os.getpid(), signal.SIGKILL)


def end_own_group() -> None:
    """Kill what this process leaves behind in its group, because the supervisor may be stopped. This process goes to
    the supervisor's group first, so that it exits with a status of its own."""
    with suppress(OSError):
        if os.getpgrp() == os.getpid():
            os.setpgid(0, os.getpgid(os.getppid()))
        # If the supervisor's group is outside of the container, this process cannot go there.
        if os.getpgrp() != os.getpid():
            kill_own_group()


class BodySignals(ReceivedSignals):
    """Raise in the body why it has to end: what the supervisor says, or else the signal."""

    def __init__(self, memory: SharedMemory, lease: Lease, *, heeds_any: bool = True) -> None:
        """``heeds_any``: whether a signal ends the body even if the supervisor gives no reason. Otherwise the
        supervisor, which gets the same signal, decides."""
        super().__init__()
        self._memory, self._lease, self._heeds_any = memory, lease, heeds_any

    def handle(self, signum: int, frame: FrameType | None) -> None:
        """Handle a signal. A body that has found out by ``check()`` already may clean up undisturbed."""
        if not (self._heeds_any or self._memory.reason):
            return
        known = _RAISED_BY_CHECK.get(self._memory.reason)
        if known and self._lease.raised is known:
            # Of this burst: the supervisor and the child both watch the deadline. What comes later is another one.
            self._lease.raised, self._raised_at = None, local_now()
        else:
            super().handle(signum, frame)

    def reason(self, signum: int) -> BaseException:
        return exception_for(self._memory.reason or signum, self._lease)


def status_after(error: BaseException) -> int:
    """Print the error as Python does at the end of a process, and return its exit status."""
    if not isinstance(error, SystemExit):
        sys.excepthook(type(error), error, error.__traceback__)
        return 1
    if error.code is None or isinstance(error.code, int):
        return error.code or 0
    sys.stderr.write(f"{error.code}\n")
    return 1


def exit_at_once(status: int = 0) -> NoReturn:
    flush_streams()
    os._exit(status)
