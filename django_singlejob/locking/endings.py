"""How a run ended: turns the exception that its body raised, if any, into what is recorded."""

import asyncio
import logging
import subprocess
import traceback
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NamedTuple

from django.db import Error

from django_singlejob.conf import ZERO
from django_singlejob.database import errors, transactions
from django_singlejob.exceptions import JobInterrupted, JobStopped, JobTimeout, SkipRun
from django_singlejob.jobs.names import PATH_LENGTH
from django_singlejob.process.escaping import printable
from django_singlejob.process.frames import own_frame
from django_singlejob.process.logs import about

logger = logging.getLogger("django_singlejob")

ERROR_LENGTH = 1000
TRACEBACK_LENGTH = 10_000
ORIGIN_LENGTH = 1000


class WriteRefused(Exception):
    """The database refused an ``AlsoWrite``, so the transaction must be rolled back and tried again."""


class AlsoWrite:
    """A write that belongs to the end of a run, but decides nothing: the run has ended even if the database refuses it.

    ``sentence``: the beginning of a log message about a refusal: ``The result of a one-off of 'mail' was refused``.
    ``writes``: the write; then what is tried in its place if the database refuses the one before. ``facts``: returns
    what the log record carries.
    """

    def __init__(self, sentence: str, *writes: Callable[[], object], facts: Callable[..., Any] = about) -> None:
        self._sentence, self._facts = sentence, facts
        self._left = list(writes)
        self._is_second_try = False

    def write_along(self, *, is_patient: bool) -> None:
        """Write it in the transaction that releases the lock. Raises the error if the same may work later, and there is
        time for that; and otherwise ``WriteRefused``."""
        try:
            for write in self._left[:1]:
                write()
        except Exception as error:
            if is_patient and errors.is_transient(error):
                raise
            self._leave_out(error)
            raise WriteRefused from error

    def write_alone(self) -> None:
        """Write it although the lock was released before."""
        while self._left:
            try:
                with transactions.durable(transactions.alias()):
                    self._left[0]()
            except Exception as error:
                self._leave_out(error)
            else:
                return

    def _leave_out(self, error: Exception) -> None:
        # A connection may be lost by chance. A server that ends it for a statement that is too long does so each time.
        self._is_second_try = errors.is_connection_lost(error) and not self._is_second_try
        if not self._is_second_try:
            del self._left[0]
            logger.error("%s: %s", self._sentence, summary(error), extra=self._facts(reason=error))


class Ending(NamedTuple):
    """The result that is recorded in ``JobStatus`` and ``JobRun``.

    ``is_failure``: whether it counts as a consecutive failure. ``is_cut_off``: whether a signal ended the run of a
    slot, which is run again. ``also_write``: a further write in the transaction that records the result.
    ``was_begun``: whether the body has begun; if not, the grant is undone, and nothing is recorded.
    """

    status: str
    duration: timedelta
    acquire_duration: timedelta | None = None
    is_failure: bool = False
    is_cut_off: bool = False
    error: str = ""
    error_class: str = ""
    traceback: str = ""
    origin: str = ""
    output: str = ""
    also_write: AlsoWrite | None = None
    was_begun: bool = True

    @property
    def result(self) -> dict[str, Any]:
        """What the history records of it."""
        names = ("status", "duration", "acquire_duration", "error", "traceback", "origin", "output")
        return {name: getattr(self, name) for name in names}


#: The ending of a run whose body has not begun.
NOT_BEGUN = Ending(status="", duration=ZERO, was_begun=False)


def ending(
    failure: BaseException | None,
    *,
    duration: timedelta,
    acquire_duration: timedelta,
    is_ctrl_c: bool = False,
    package: str = "",
) -> Ending:
    """The ending of a run whose body raised ``failure``, which is ``None`` if the body returned. ``package``: the
    top-level package of the job or task, which is the project's own even if it is installed."""
    status = "interrupted" if is_ctrl_c else status_of(failure)
    end = Ending(status=status, duration=duration, acquire_duration=acquire_duration)
    if failure is None or status == "successful":
        return end
    if isinstance(failure, SkipRun):
        return end._replace(error=reason_given(failure))
    return end._replace(
        is_failure=status == "failed" or isinstance(failure, JobTimeout),
        error=summary(failure),
        error_class=printable(f"{type(failure).__module__}.{type(failure).__qualname__}", PATH_LENGTH),
        traceback=_traceback(failure),
        origin=_origin(failure, package),
    )


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
