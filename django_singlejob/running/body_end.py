"""How a body ends, as its executor and its supervisor tell each other: the reason to end, and how it has ended."""

import pickle
import signal
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple, cast

from django_singlejob.exceptions import JobFailed, JobInterrupted, JobStopped, JobTimeout, LeaseLost
from django_singlejob.locking.endings import Ending, summary
from django_singlejob.locking.lease import Lease
from django_singlejob.running import guard
from django_singlejob.running.shared import SharedMemory

# Why a body has to end: one of these, or a signal's number.
LOST, TIMEOUT, STOPPED = guard.LOST, 1002, 1003
# The first line of the note of an exception that a child has raised, and logged; or that something killed before that.
NOTE = "It was raised in the process of the job:"
_NOTE_UNLOGGED = "It was raised in the process of the job, which was killed before it had logged it:"
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


class _Message(NamedTuple):
    """The end in words that any process understands, and the failure itself, which only some may be able to read."""

    end: Ending
    failure: bytes


def report(ended: Ending, log: Callable[[BaseException], object], memory: SharedMemory) -> None:
    """Tell the supervisor how the body has ended, and log its failure, if there is one."""
    memory.message = _packed(ended)
    try:
        if ended.failure:
            log(ended.failure)
    finally:
        memory.has_logged = True


def _packed(end: Ending) -> bytes:
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


def reported(memory: SharedMemory, *, is_logged: bool = True) -> Ending | None:
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
        end.failure.add_note(f"{NOTE if is_logged else _NOTE_UNLOGGED}\n{end.traceback}")
    return cast("Ending", end)
