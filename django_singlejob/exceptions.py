"""The exceptions. A held lock is not an error: see ``SKIPPED``."""

from enum import Enum

from django.db import OperationalError, ProgrammingError


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


class Lack(Enum):
    """What is missing before the database can be used. A retry does not help. The value is for people."""

    TABLES = "a table or a column is missing"
    DATABASE = "the database does not exist, or the file is not a database"
    LOGIN = "the user may not connect"
    RIGHTS = "the user lacks a privilege"
    WRITES = "the database is read-only"


class DatabaseUnusable(SingleJobError, OperationalError, ProgrammingError):
    """The database answered with a refusal that a retry does not change: tables or rights are missing, or it is
    read-only; or ``DATABASES`` does not allow a connection to be opened. Nothing was run or enqueued.

    Attributes:
        job_name: the requested job or lock; empty if neither was requested.
        lack: what is missing, a ``Lack``; ``None`` if it is something else.
        is_lasting: whether nothing else works either until the database is changed. ``False`` for a server that has
            become read-only, because a new connection may reach the new primary.
    """

    def __init__(self, message: str, *, job_name: str = "", lack: Lack | None = None, is_lasting: bool = False) -> None:
        super().__init__(message)
        self.job_name = job_name
        self.lack = lack
        self.is_lasting = is_lasting


class UnreadableRow(SingleJobError):
    """A row that decides holds a value that cannot be read, so it is unknown whether the lock is free."""


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


class JobDied(SingleJobError):
    """The process that ran the job ended before the job did, for example because it was killed."""


class JobFailed(SingleJobError):
    """The job raised an exception that cannot be passed from its process to its supervisor. This one has its words."""


class JobStopped(SingleJobError):
    """A user stopped the run.

    Attributes:
        by: the user.
    """

    def __init__(self, by: str) -> None:
        super().__init__(f"The run was stopped by {by}.")
        self.by = by

    def __reduce__(self) -> tuple[type["JobStopped"], tuple[str]]:
        return type(self), (self.by,)


class JobInterrupted(KeyboardInterrupt):
    """The process received SIGTERM, SIGINT, SIGQUIT or SIGHUP while the job was running, or a user stopped the run.

    This is not an ``Exception``, so a job's ``except Exception`` does not swallow it.

    Attributes:
        signum: the signal's number; 0 if it is not known.
        stopped_by: the user who stopped the run; empty if nobody did.
    """

    def __init__(self, signum: int = 0, stopped_by: str = "") -> None:
        by = f"stopped by {stopped_by}" if stopped_by else f"interrupted{f' by signal {signum}' if signum else ''}"
        super().__init__(f"The job was {by}.")
        self.signum, self.stopped_by = signum, stopped_by

    def __reduce__(self) -> tuple[type["JobInterrupted"], tuple[int, str]]:
        return type(self), (self.signum, self.stopped_by)


class SkipRun(Exception):
    """Raise this in a job to end its run as skipped, with the reason: ``raise SkipRun("holiday")``.

    The run is neither a success nor a failure. The caller does not get the exception, but ``SKIPPED``.
    """
