"""What a signal raises in a job while a driver is at work."""

from django.db import Error, connections

from django_singlejob.exceptions import JobInterrupted, JobTimeout, LeaseLost


def interrupt_behind(error: BaseException) -> BaseException | None:
    """What has ended the body, if ``error`` is the driver's complaint about that; otherwise ``None``."""
    cause = error.__context__ if _is_of_a_database(error) else None
    while cause and not isinstance(cause, (JobInterrupted, JobTimeout, LeaseLost)):
        cause = cause.__context__
    return cause


def _is_of_a_database(error: BaseException) -> bool:
    # Django does not wrap a driver's error when it closes a cursor.
    drivers = {connection.Database.Error for connection in connections.all(initialized_only=True)}  # type: ignore[attr-defined]
    return isinstance(error, (Error, *drivers))
