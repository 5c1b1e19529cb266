"""What a test names: a job, a lock, an instant or a day."""

from contextlib import suppress
from datetime import date, datetime

from django_singlejob.conf import quoted
from django_singlejob.exceptions import SingleJobError
from django_singlejob.jobs import registry
from django_singlejob.jobs.discovery import autodiscover, why_not_registered
from django_singlejob.jobs.names import validate_own_name
from django_singlejob.jobs.registry import Job
from django_singlejob.process.clock import storable


def discover() -> None:
    """Import the modules that register jobs. Raises ``SingleJobError`` if one of them cannot be imported."""
    for error in autodiscover():
        raise SingleJobError(why_not_registered(error)) from error


def job_of(given: object) -> Job:
    """The job, which may be given by its name. Raises ``UnknownJob``, or ``SingleJobError`` for something else."""
    if isinstance(given, Job):
        return given
    if not isinstance(given, str):
        raise SingleJobError(f"{quoted(given)} is neither a job nor the name of one.")
    discover()
    return registry.get(given)


def lock_of(given: object) -> str:
    """The name of the lock, which may be given by a job that has it, or by the name of one. Raises ``SingleJobError``,
    which an ``InvalidName`` is."""
    if isinstance(given, Job):
        return given.lock
    if not isinstance(given, str):
        raise SingleJobError(f"{quoted(given)} is neither a job nor the name of a lock.")
    discover()
    return registry.get(given).lock if registry.is_known(given) else validate_own_name(given)


def instant_of(given: object) -> datetime:
    """The aware instant in UTC, which may be given as ISO 8601. Raises ``SingleJobError``."""
    found = given
    if isinstance(given, str):
        with suppress(ValueError):
            found = datetime.fromisoformat(given)
    if not isinstance(found, datetime):
        raise SingleJobError(f"{quoted(given)} is not an instant: use an aware datetime, or '2027-03-28T07:00+01:00'.")
    if found.utcoffset() is None:
        raise SingleJobError(f"{quoted(given)} has no time zone: add an offset, as in '2027-03-28T07:00+01:00'.")
    if instant := storable(found):
        return instant
    raise SingleJobError(f"{quoted(given)} is too far away: not every database can store it.")


def day_of(given: object) -> date:
    """The day, which may be given as ISO 8601. Raises ``SingleJobError``."""
    try:
        found = date.fromisoformat(given) if isinstance(given, str) else given
    except ValueError:
        found = None
    if isinstance(found, date) and not isinstance(found, datetime):
        return found
    raise SingleJobError(f"{quoted(given)} is not a day: use a date, or '2027-03-28'.")
