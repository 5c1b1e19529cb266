"""How a run ended: turns the exception that its body raised, if any, into what is recorded."""

import asyncio
import subprocess
import traceback
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import NamedTuple

from django.db import Error

from django_singlejob.database.errors import words_of
from django_singlejob.exceptions import JobInterrupted, JobTimeout
from django_singlejob.jobs.names import PATH_LENGTH
from django_singlejob.process.escaping import printable
from django_singlejob.process.frames import own_frame

ERROR_LENGTH = 1000
TRACEBACK_LENGTH = 10_000
ORIGIN_LENGTH = 1000


class AlsoWrite(NamedTuple):
    """A write that belongs to the end of a run, but decides nothing: the run has ended even if the database refuses it.

    Attributes:
        sentence: the beginning of a log message about a refusal: ``The result of a one-off of 'mail' was refused``.
        writes: the write; then what is tried in its place if the database refuses the one before.
    """

    sentence: str
    writes: Sequence[Callable[[], object]]


class Ending(NamedTuple):
    """The result that is recorded in ``JobStatus`` and ``JobRun``.

    ``is_failure``: whether it counts as a consecutive failure. ``also_write``: a further write in the transaction that
    records the result.
    """

    status: str
    duration: timedelta
    acquire_duration: timedelta | None = None
    is_failure: bool = False
    error: str = ""
    error_class: str = ""
    traceback: str = ""
    origin: str = ""
    also_write: AlsoWrite | None = None


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
    is_successful = status == "successful"
    return Ending(
        status=status,
        duration=duration,
        acquire_duration=acquire_duration,
        is_failure=status == "failed" or isinstance(failure, JobTimeout),
        error="" if is_successful else summary(failure),
        error_class="" if is_successful else _path_of(failure),
        traceback="" if is_successful else _traceback(failure),
        origin="" if failure is None or is_successful else _origin(failure, package),
    )


def status_of(failure: BaseException | None) -> str:
    """The status of a run whose body raised ``failure``, by itself or because of a signal. ``failure`` is ``None`` if
    the body returned."""
    if failure is None or (isinstance(failure, SystemExit) and not failure.code):
        return "successful"
    # The job does not cause a GeneratorExit or a CancelledError either.
    if isinstance(failure, JobTimeout | JobInterrupted | GeneratorExit | asyncio.CancelledError):
        return "interrupted"
    return "failed"


def summary(failure: BaseException | None) -> str:
    """The exception on one line: ``ValueError: no such customer``."""
    try:
        words = words_of(failure) if isinstance(failure, Error) else str(_without_command(failure))
    except Exception:  # an exception with a broken __str__ must not keep the end from being recorded
        words = "(the message cannot be printed)"
    return printable(f"{type(failure).__name__}: {words}", ERROR_LENGTH)


def _without_command(failure: BaseException | None) -> BaseException | None:
    """``subprocess`` puts the whole command, with its arguments, into its exceptions."""
    match failure:
        case subprocess.CalledProcessError():
            return subprocess.CalledProcessError(failure.returncode, "...")
        case subprocess.TimeoutExpired():
            return subprocess.TimeoutExpired("...", failure.timeout)
    return failure


def _path_of(failure: BaseException | None) -> str:
    kind = type(failure)
    return printable(f"{kind.__module__}.{kind.__qualname__}", PATH_LENGTH)


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
