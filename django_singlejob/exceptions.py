"""The exceptions. A held lock is not an error: see ``SKIPPED``."""

from django.db import OperationalError


class SingleJobError(Exception):
    """The base class of this package's errors."""


class InvalidName(SingleJobError, ValueError):
    """The name of a job or a lock is invalid: not every database could keep it apart from others."""


class InvalidSchedule(SingleJobError, ValueError):
    """A schedule or time zone is invalid, or the schedule is never due."""


class InvalidOrder(SingleJobError, ValueError, TypeError):
    """A one-off has arguments that cannot be stored as JSON, or invalid options."""


class DuplicateJob(SingleJobError):
    """Two functions were registered as jobs with the same name."""


class UnknownJob(SingleJobError, LookupError):
    """No job with this name is registered."""


class UnsafeTransaction(SingleJobError):
    """A lock was requested inside a transaction, which could roll the grant back or hide it from other processes."""


class DatabaseUnreachable(SingleJobError, OperationalError):
    """The database did not answer, so it is unknown whether the lock is free. Nothing was run."""


class LockHeld(SingleJobError):
    """Another caller holds the lock, or this could not be decided, and an exception was requested."""


class LeaseLost(SingleJobError):
    """The lease is lost, or can no longer be proven: another server may be running the job by now."""

    def __init__(self, message: str = "The lease was lost, so another server may be running this job by now.") -> None:
        super().__init__(message)


class JobTimeout(SingleJobError):
    """The job ran longer than its ``max_runtime`` and was interrupted."""

    def __init__(self, message: str = "The job ran longer than its max_runtime and was interrupted.") -> None:
        super().__init__(message)


class JobInterrupted(KeyboardInterrupt):
    """The process received SIGTERM, SIGINT or SIGHUP while the job was running.

    This is not an ``Exception``, so a job's ``except Exception`` does not swallow it.

    Attributes:
        signum: the signal's number, or 0 in a worker's thread, which receives no signals itself.
    """

    def __init__(self, signum: int = 0) -> None:
        super().__init__(f"The job was interrupted{f' by signal {signum}' if signum else ''}.")
        self.signum = signum
