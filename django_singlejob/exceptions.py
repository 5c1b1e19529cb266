"""What can go wrong, by name. A lock that is held is no error: see ``SKIPPED``."""

from typing import TYPE_CHECKING

from django.db import OperationalError, ProgrammingError

if TYPE_CHECKING:
    from django_singlejob.codes import Lack


class SingleJobError(Exception):
    """The base of every error of this package."""


class InvalidName(SingleJobError, ValueError):
    """A job's or a lock's name that not every database keeps apart from others."""


class InvalidSchedule(SingleJobError, ValueError):
    """A schedule or a time zone that cannot be understood, or a schedule that is never due."""


class InvalidOrder(SingleJobError, ValueError, TypeError):
    """A one-off job with arguments that cannot be kept as JSON, or with options that cannot be."""


class DuplicateJob(SingleJobError):
    """Two functions were registered as jobs under one name."""


class UnknownJob(SingleJobError, LookupError):
    """No job of that name is registered."""


class UnsafeTransaction(SingleJobError):
    """A lock was asked for inside a transaction, which could roll the grant back or hide it from others."""


class DatabaseUnreachable(SingleJobError, OperationalError):
    """The database did not answer, so it is not known whether the lock is free. Nothing was run."""


class DatabaseUnusable(SingleJobError, OperationalError, ProgrammingError):
    """The database answered with a refusal that trying again does not change: tables or rights are missing, or it is
    read-only. Nothing was run or enqueued.

    Attributes:
        job_name: the job, or the lock, that was asked for; empty: neither.
        lack: what is missing, a member of ``codes.Lack``; ``None``: something else.
        is_lasting: whether nothing else works either until somebody has changed the database: one that is read-only
            may have lost its place to another one.
    """

    def __init__(
        self, message: str, *, job_name: str = "", lack: "Lack | None" = None, is_lasting: bool = False
    ) -> None:
        super().__init__(message)
        self.job_name = job_name
        self.lack = lack
        self.is_lasting = is_lasting


class LockHeld(SingleJobError):
    """Somebody else holds the lock, and the caller asked for an exception."""


class LeaseLost(SingleJobError):
    """The right to run is gone, or can no longer be proven: somebody else may be running the job by now."""

    def __init__(self, message: str = "The lease was lost: somebody else may run this job by now.") -> None:
        super().__init__(message)


class JobTimeout(SingleJobError):
    """The job ran longer than its ``max_runtime`` and was interrupted."""

    def __init__(self, message: str = "The job ran longer than its max_runtime and was interrupted.") -> None:
        super().__init__(message)


class JobInterrupted(KeyboardInterrupt):
    """The process was told to end (SIGTERM, SIGINT, SIGHUP) while the job was running.

    No ``Exception``, so that a job's ``except Exception`` does not swallow it.

    Attributes:
        signum: the signal's number, or 0 when none arrived in its thread: it ran in one of a worker's.
    """

    def __init__(self, signum: int = 0) -> None:
        super().__init__(f"The job was interrupted{f' by signal {signum}' if signum else ''}.")
        self.signum = signum
