"""The body in an executor, whose main thread runs it: what is raised there to end it, and how its end is reported."""

import ctypes
import os
import pickle
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import NamedTuple, NoReturn, cast

from django_singlejob.exceptions import JobFailed, JobInterrupted, JobStopped, JobTimeout, LeaseLost
from django_singlejob.locking import liveness
from django_singlejob.locking.endings import Ending, summary
from django_singlejob.locking.lease import Lease
from django_singlejob.process.clock import local_now, sleep
from django_singlejob.process.received_signals import ReceivedSignals
from django_singlejob.running import guard
from django_singlejob.running.shared import SharedMemory, flush_streams

# Why a body has to end: one of these, or a signal's number.
LOST, TIMEOUT, STOPPED = guard.LOST, 1002, 1003
# What ``check()`` raises for the same reason.
_RAISED_BY_CHECK = {LOST: LeaseLost, TIMEOUT: JobTimeout, STOPPED: JobStopped}

# The first line of the note of an exception that a child has raised, and logged; or that something killed before that.
NOTE = "It was raised in the process of the job:"
_NOTE_UNLOGGED = "It was raised in the process of the job, which was killed before it had logged it:"
#: The first line of the note with the last lines that the body printed.
OUTPUT_NOTE = "The last lines of its output:"
# How long the child waits for those lines, at most, and how often it looks. Seconds.
LONGEST_READING, _MOMENT = 1.0, 0.002
# Of Linux: which signal a process gets when its parent dies. It is looked up here, because a lookup takes a lock, which
# another thread may hold when a process is forked.
_PR_SET_PDEATHSIG = 1
_prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else None
# The most bytes of an exception that is passed to the supervisor.
_MOST_OF_FAILURE = 100_000


def exception_for(reason: int, lease: Lease) -> BaseException:
    """What a body is ended with for this reason."""
    if reason == LOST:
        return LeaseLost(lease.why_lost())
    if reason == STOPPED:
        return JobInterrupted(signal.SIGTERM, lease.stopped_by)
    return JobTimeout() if reason == TIMEOUT else JobInterrupted(reason)


def for_caller(failure: BaseException) -> BaseException:
    """The failure of a body, as its caller gets it: to stop a run must not end the caller's process."""
    if isinstance(failure, JobInterrupted) and failure.stopped_by:
        return JobStopped(failure.stopped_by).with_traceback(failure.__traceback__)
    return failure


def grace_of(lease: Lease) -> float:
    """How many seconds a body has to end by itself once its lease is lost."""
    request = lease.grant.request
    return liveness.grace_of(request.heartbeat_interval, request.lease).total_seconds()


class BodyEnd(NamedTuple):
    """How a body has ended, as the child reports to its supervisor.

    Attributes:
        value: what it returned, as JSON can store it; ``None`` if nobody asked for it.
        failure: what it raised; ``None`` if it returned, or skipped itself.
    """

    ending: Ending
    value: object
    failure: BaseException | None


class _Message(NamedTuple):
    """The end in words that any process understands, and the failure itself, which only some may be able to read."""

    end: BodyEnd
    failure: bytes


def report(ended: BodyEnd, log: Callable[[BaseException], object], memory: SharedMemory) -> None:
    """Tell the supervisor how the body has ended, and log its failure, if there is one."""
    memory.message = _packed(ended)
    if ended.failure:
        add_output(ended.failure, _last_lines(memory))
        try:
            log(ended.failure)
        finally:
            memory.has_logged = True


def die_with(supervisor: int) -> None:
    """Have this process killed when its supervisor dies."""
    if _prctl:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != supervisor:
        os.kill(os.getpid(), signal.SIGKILL)


def add_output(failure: BaseException, lines: str) -> None:
    """Have the log show these lines, the last ones that the body printed, below the failure."""
    if lines:
        failure.add_note(f"{OUTPUT_NOTE}\n{lines}")


def _last_lines(memory: SharedMemory) -> str:
    """The last lines that this process has printed; empty if that is not known."""
    if not (memory.has_output and memory.output_waker):
        return ""
    flush_streams()
    memory.wants_lines = True
    memory.output_waker.wake()
    end = local_now() + LONGEST_READING
    while memory.wants_lines and local_now() < end:
        sleep(_MOMENT)
    return "" if memory.wants_lines else str(memory.last_lines)


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


def _packed(end: BodyEnd) -> bytes:
    if end.failure is None:
        return pickle.dumps(_Message(end, b""))
    return pickle.dumps(_Message(end._replace(failure=JobFailed(summary(end.failure))), _passable(end.failure)))


def _passable(failure: BaseException) -> bytes:
    """The failure for another process; empty if it cannot be passed."""
    with suppress(Exception):  # whatever it does when it is copied
        pickled = pickle.dumps(failure)
        passed = pickle.loads(pickled)  # noqa: S301  (it is our own)
        if type(passed) is type(failure) and str(passed) == str(failure) and len(pickled) < _MOST_OF_FAILURE:
            return pickled
    return b""


def reported(memory: SharedMemory, *, is_logged: bool = True) -> BodyEnd | None:
    """What the child has reported; ``None`` if it has not. Its failure has a note with its traceback there, and whether
    that is logged."""
    if not memory.message:
        return None
    end, pickled = pickle.loads(memory.message)  # noqa: S301  (it comes from our own child)
    if pickled:
        with suppress(Exception):  # its module may exist in the child only
            end = end._replace(failure=pickle.loads(pickled))  # noqa: S301
    if end.failure is not None:
        # Not the cause, which may tell what a driver's error means.
        end.failure.add_note(f"{NOTE if is_logged else _NOTE_UNLOGGED}\n{end.ending.traceback}")
    return cast("BodyEnd", end)
