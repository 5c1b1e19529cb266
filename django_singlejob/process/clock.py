"""The clocks: the database's, which decides every deadline, and two of this machine's, one for durations and one for
the time of day. The time of day is never trusted alone.

Only this module reads a clock, sleeps, or waits for a limited time. If you replace ``time`` here, as a simulation does,
you replace it everywhere.
"""

import asyncio
import random
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from typing import TYPE_CHECKING, Any, TypeVar

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import DateTimeField
from django.db.models.functions import Now
from django.utils.timezone import get_default_timezone

if TYPE_CHECKING:
    from django.db.models.sql.compiler import SQLCompiler

T = TypeVar("T")

# No run, lease or interval is longer, and the databases cannot add much more to an instant.
CENTURY = timedelta(days=36_525)
# MySQL has no earlier years. The last hours of the year 9999 are in the year 10000 in other time zones.
YEARS = range(1000, 9999)


class DBNow(Now):
    """The database's statement time, in UTC.

    On MySQL and MariaDB, Django's ``Now()`` is the session's local time: hours off, and an hour wrong twice a year.
    Only ``DBNow() + timedelta`` is safe on every database; arithmetic on columns is not.
    """

    output_field = DateTimeField()

    def as_mysql(
        self, compiler: "SQLCompiler", connection: BaseDatabaseWrapper, **context: Any
    ) -> tuple[str, tuple[str | int, ...]]:
        return "UTC_TIMESTAMP(6)", ()


# monotonic() stops while a machine is suspended; a lease does not.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", None)


def local_now() -> float:
    """Seconds on a clock of this machine that never steps. Only differences between values have a meaning."""
    return time.monotonic() if _CLOCK is None else time.clock_gettime(_CLOCK)


def since(start: float) -> timedelta:
    """The time since ``start``, a value of ``local_now()``."""
    return timedelta(seconds=local_now() - start)


def utc_now() -> datetime:
    """The time of day by this machine's clock. It can be changed at any time, so no decision rests on it alone."""
    # Not datetime.now(): see above.
    return datetime.fromtimestamp(time.time(), UTC)


def storable(instant: datetime) -> datetime | None:
    """The aware instant in UTC, because PostgreSQL refuses some offsets; ``None`` if some database cannot store it."""
    try:
        found = instant.astimezone(UTC)
    except OverflowError:
        return None
    return found if found.year in YEARS else None


def sleep(seconds: float) -> None:
    """Do nothing for ``seconds``."""
    time.sleep(seconds)


async def sleep_in_loop(seconds: float) -> None:
    """Like ``sleep``, for a coroutine: its event loop goes on."""
    await asyncio.sleep(seconds)


def wait(call: Callable[[float], T], seconds: float) -> T:
    """Call ``call`` with ``seconds``, the longest that it may wait, and return its value."""
    return call(seconds)


def saturated(length: timedelta, times: float = 1) -> timedelta:
    """``length * times``, but at most a century forwards or backwards: to add it to an instant does not overflow."""
    seconds, most = length.total_seconds() * times, CENTURY.total_seconds()
    if abs(seconds) >= most:
        return CENTURY if seconds > 0 else -CENTURY
    return length * times


def backoff(first: float = 0.05, most: float = 1.0) -> Iterator[float]:
    """Yield pauses in seconds, without end: first 0, then growing, with jitter so that concurrent callers spread
    out."""
    yield 0.0
    pause = first
    while True:
        yield pause * random.uniform(0.5, 1.5)  # noqa: S311
        pause = min(pause * 1.6, most)


def instant_in_words(instant: datetime, zone: tzinfo = UTC) -> str:
    """Format an instant for people: ``2026-11-21 10:00:00 UTC``, whatever the connection's time zone is."""
    return f"{instant.astimezone(zone):%Y-%m-%d %H:%M:%S %Z}"


def project_zone() -> tzinfo:
    """``settings.TIME_ZONE``; UTC if this machine does not know that zone."""
    try:
        return get_default_timezone()
    except (KeyError, ValueError, OSError):
        return UTC
