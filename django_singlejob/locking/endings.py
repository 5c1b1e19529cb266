"""How a run ended, and what that means: whether its slot is run again, whether it counts as a failure, whether its
one-off is put back or retried, and what is recorded. ``locking.release`` carries that out.

A run whose holder is gone has no ending. What its death means is decided where its lock is taken away: in
``locking.clear``, and in ``locking.at_exit`` for a process that exits in between."""

import asyncio
import logging
import subprocess
import traceback
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

from django.db import Error

from django_singlejob.conf import ZERO
from django_singlejob.database import errors
from django_singlejob.exceptions import JobInterrupted, JobStopped, JobTimeout, LeaseLost, SkipRun
from django_singlejob.jobs.names import PATH_LENGTH
from django_singlejob.jobs.registry import Job
from django_singlejob.locking.grant import Grant
from django_singlejob.models.jobs import IF_SECOND
from django_singlejob.models.one_offs import AGAIN, RELEASED
from django_singlejob.process.clock import DBNow
from django_singlejob.process.escaping import printable
from django_singlejob.process.frames import own_frame

logger = logging.getLogger("django_singlejob")

ERROR_LENGTH = 1000
TRACEBACK_LENGTH = 10_000
ORIGIN_LENGTH = 1000

# One instance, so that two results that contain it are equal.
_NOW = DBNow()


class Ending(NamedTuple):
    """What is decided about a run that has ended.

    Attributes:
        value: what the body returned, as JSON can store it; ``None`` if nobody needs it.
        failure: what the body raised; ``None`` if it returned, or skipped itself.
        is_failure: whether it counts as a consecutive failure.
        is_cut_off: whether something outside of the run ended it, such as a signal. That counts as a failure if the run
            before was interrupted too, whatever has started them, and the slot is run again.
        one_off: what to record for the one-off that requested it; ``None`` if there is none.
        retry: the columns of a one-off that retries it; ``None`` if there is none.
        was_begun: whether the body has begun; if not, the grant is undone, and nothing is recorded.
    """

    status: str
    duration: timedelta
    acquire_duration: timedelta | None = None
    value: Any = None
    failure: BaseException | None = None
    is_failure: bool = False
    is_cut_off: bool = False
    error: str = ""
    error_class: str = ""
    traceback: str = ""
    origin: str = ""
    output: str = ""
    one_off: Mapping[str, Any] | None = None
    retry: Mapping[str, Any] | None = None
    was_begun: bool = True

    @property
    def result(self) -> dict[str, Any]:
        """What the history records of it."""
        names = ("status", "duration", "acquire_duration", "error", "traceback", "origin", "output")
        return {name: getattr(self, name) for name in names}

    @property
    def failures(self) -> Any:
        """By how much it raises the number of consecutive failures."""
        return IF_SECOND if self.is_cut_off else int(self.is_failure)

    @property
    def writes_more(self) -> bool:
        """Whether it changes a one-off, beside the gate, the lock and the history."""
        return self.one_off is not None or self.retry is not None

    def without_lease(self, why: str) -> "Ending":
        """The ending of a run that has outlived its lease: it has failed, unless it has not succeeded anyway."""
        is_loss = self.status in ("successful", "skipped")
        return self._replace(status="failed", error=f"LeaseLost: {why}") if is_loss else self


#: The ending of a run whose body has not begun.
NOT_BEGUN = Ending(status="", duration=ZERO, was_begun=False)


def ending(
    failure: BaseException | None,
    *,
    duration: timedelta,
    acquire_duration: timedelta = ZERO,
    is_ctrl_c: bool = False,
    package: str = "",
) -> Ending:
    """The ending of a run whose body raised ``failure``, which is ``None`` if the body returned. ``package``: the
    top-level package of the job or task, which is the project's own even if it is installed."""
    status = "interrupted" if is_ctrl_c else status_of(failure)
    is_cut_off = status == "interrupted" and not isinstance(failure, JobTimeout | JobStopped)
    end = Ending(status, duration, acquire_duration, failure=failure, is_cut_off=is_cut_off)
    if failure is None or status == "successful":
        return end
    if isinstance(failure, SkipRun):
        return end._replace(failure=None, error=reason_given(failure))
    return end._replace(
        is_failure=status == "failed" or isinstance(failure, JobTimeout),
        error=summary(failure),
        error_class=printable(f"{type(failure).__module__}.{type(failure).__qualname__}", PATH_LENGTH),
        traceback=_traceback(failure),
        origin=_origin(failure, package),
    )


def decided(
    end: Ending, job: Job, grant: Grant, call: Callable[[], Sequence[Any] | None], *, is_stopped: bool
) -> Ending:
    """What the end of a job's run means: whether its slot is run again, whether it is a failure, and what becomes of
    the one-off that requested it. If it failed and none has, a one-off retries it.

    ``call``: returns the two arguments of a retry, ``args`` and ``kwargs``; ``None`` if they would not come back from
    JSON unchanged. ``is_stopped``: a user has stopped the run, so it is not started again, however it has ended."""
    is_by_signal = isinstance(end.failure, KeyboardInterrupt)
    if end.is_cut_off and (is_stopped or grant.is_last_of_slot or (grant.slot and not is_by_signal)):
        end = end._replace(is_cut_off=False, is_failure=not is_stopped)
    if grant.request.one_off:
        most = 0 if is_stopped else job.most_attempts
        result = one_off_result(end, is_last=grant.attempt >= most, may_begin_again=most > 1)
        delay = job.delay_before_retry(grant.attempt) if result["status"] == "failed" and not is_stopped else None
        if delay is not None:
            result |= {"status": "waiting", "finished_at": None, "run_after": DBNow() + delay}
        return end._replace(one_off=result)
    delay = job.delay_before_retry(1) if end.is_failure and not is_stopped else None
    if delay is None:
        return end
    if arguments := call():
        columns = {"job_name": job.name, "max_attempts": job.most_attempts, "attempt": 1}
        columns["retried_slot"] = grant.slot_of_run
        columns |= {"args": arguments[0], "kwargs": arguments[1], "created_at": _NOW, "run_after": DBNow() + delay}
        return end._replace(retry=columns)
    message = "The job %r is not retried: its arguments would not come back from JSON unchanged."
    logger.error(message, job.name, extra=grant.facts())
    return end


def one_off_result(end: Ending, *, is_last: bool, may_begin_again: bool = True) -> dict[str, Any]:
    """What to record for a one-off whose run ended like this. If a signal interrupted it, it is started again if it
    ``may_begin_again``, which uses up no attempt; if its lease could not be proven for a while, unless it ``is_last``.
    """
    if isinstance(end.failure, JobInterrupted) and may_begin_again:
        return dict(RELEASED)
    is_over = end.status in ("successful", "skipped")
    # Why a run has skipped itself is in the history: it is not an error.
    error = {"error": "" if is_over else end.error, "error_class": end.error_class, "traceback": end.traceback}
    error |= {"origin": end.origin}
    is_ctrl_c = isinstance(end.failure, KeyboardInterrupt) and end.status == "interrupted"
    if (is_ctrl_c or isinstance(end.failure, LeaseLost)) and not is_last:
        return {**error, **AGAIN}
    return error | {"status": "done" if is_over else "failed", "result": end.value, "finished_at": _NOW}


def without_values(result: Mapping[str, Any]) -> dict[str, Any]:
    """The same end of a one-off, if the database refuses to store the value or the error of the run."""
    kept = {name: result[name] for name in ("status", "attempt", "finished_at", "run_after") if name in result}
    error = {"error": "The database refused the result of this run.", "error_class": "", "traceback": "", "origin": ""}
    return kept | error


def status_of(failure: BaseException | None) -> str:
    """The status of a run whose body raised ``failure``, by itself or because of a signal. ``failure`` is ``None`` if
    the body returned."""
    if failure is None or (isinstance(failure, SystemExit) and not failure.code):
        return "successful"
    if isinstance(failure, SkipRun):
        return "skipped"
    # The job does not cause a GeneratorExit or a CancelledError either.
    if isinstance(failure, JobTimeout | JobStopped | JobInterrupted | GeneratorExit | asyncio.CancelledError):
        return "interrupted"
    return "failed"


def summary(failure: BaseException | None) -> str:
    """The exception on one line: ``ValueError: no such customer``."""
    return printable(f"{type(failure).__name__}: {_words(failure)}", ERROR_LENGTH)


def reason_given(skip: SkipRun) -> str:
    """Why a run has skipped itself, on one line: ``holiday``; empty if it does not say."""
    return printable(_words(skip), ERROR_LENGTH)


def _words(failure: BaseException | None) -> str:
    try:
        return errors.words_of(failure) if isinstance(failure, Error) else str(_without_command(failure))
    except Exception:  # an exception with a broken __str__ must not keep the end from being recorded
        return "(the message cannot be printed)"


def _without_command(failure: BaseException | None) -> BaseException | None:
    """``subprocess`` puts the whole command, with its arguments, into its exceptions."""
    match failure:
        case subprocess.CalledProcessError():
            return subprocess.CalledProcessError(failure.returncode, "...")
        case subprocess.TimeoutExpired():
            return subprocess.TimeoutExpired("...", failure.timeout)
    return failure


def _traceback(failure: BaseException | None) -> str:
    try:
        lines = "".join(traceback.format_exception(failure))
        if (shorter := _without_command(failure)) is not failure:
            lines = lines.replace(str(failure), str(shorter))
    except Exception as error:  # it may be too deep or too large; the end must be recorded all the same
        lines = f"(the traceback cannot be printed: {type(error).__name__})"
    return printable(lines[-TRACEBACK_LENGTH:], TRACEBACK_LENGTH, keep="\n")


def _origin(failure: BaseException, package: str) -> str:
    try:
        frame = own_frame(failure, package)
        lines = str(frame or "")
    except Exception:  # a file that cannot be read, for example
        return ""
    return printable(lines, ORIGIN_LENGTH, keep="\n")
