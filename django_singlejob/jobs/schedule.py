"""When a schedule is due: pure functions over aware datetimes, without a clock and without a database.

A schedule is a cron expression in a time zone, or an interval. Its slots are whole minutes, or the multiples of the
interval since the Unix epoch. They are the same on every server, so the servers need not agree on anything.

When clocks change, the rules are those of Debian's cron. A job at a fixed time runs once: if its hour is skipped, it
runs when that hour is over; if its hour is repeated, it runs the first time. A job whose minute or hour begins with
``*`` follows the wall clock: it does not run in a skipped hour, and runs twice in a repeated one.

Cronsim is only used for a clock that never changes. This module adjusts its times to clock changes.
"""

import functools
import itertools
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from typing import NamedTuple
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError
from django.utils.dateparse import parse_duration
from django.utils.duration import duration_iso_string

from django_singlejob.conf import quoted
from django_singlejob.exceptions import InvalidSchedule
from django_singlejob.jobs.hints import FIELDS, hint, is_valid, only_in_crontab

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
LENGTH = 200
LONGEST = timedelta(days=36_525)
# 29 February is a Monday every 28 years, or after 40 years across 2100, which has no 29 February.
PATIENCE = timedelta(days=50 * 366)
# From then on, the time zone data has the same rules for every year.
_LATER = datetime(2038, 1, 1, tzinfo=UTC)

_NICKNAMES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}


class Cron(NamedTuple):
    """A cron expression of five fields, on the wall clock of a time zone."""

    text: str
    zone: ZoneInfo

    @property
    def time_zone(self) -> str:
        """The IANA name of the zone."""
        return self.zone.key

    @property
    def is_on_either_day(self) -> bool:
        """Whether it names days of the month and days of the week: it is due on each day that is one or the other."""
        _, _, day, _, weekday = self.text.split()
        return not (day.startswith("*") or weekday.startswith("*"))

    @property
    def is_fixed(self) -> bool:
        """Whether it names fixed times, instead of following the wall clock."""
        minute, hour, *_ = self.text.split()
        return not (minute.startswith("*") or hour.startswith("*"))


class Every(NamedTuple):
    """The multiples of an interval since the Unix epoch, UTC."""

    interval: timedelta

    @property
    def text(self) -> str:
        """The interval in ISO 8601, which ``parse`` also accepts."""
        return duration_iso_string(self.interval)

    @property
    def time_zone(self) -> str:
        """UTC, whatever the project's time zone is."""
        return "UTC"

    @property
    def zone(self) -> tzinfo:
        """The same, for Python."""
        return UTC


Schedule = Cron | Every


def parse(schedule: str | timedelta, time_zone: str = "UTC") -> Schedule:
    """The schedule that is described by five cron fields, a name like ``@hourly``, or an interval.

    Raises ``InvalidSchedule``, which names the wrong field. A time that never comes is invalid too.
    """
    if isinstance(schedule, timedelta):
        return _every(schedule)
    if not isinstance(schedule, str):
        raise InvalidSchedule(f"{quoted(schedule)} is not a valid schedule: use a cron expression or a timedelta.")
    if schedule.startswith("P") and (interval := _interval(schedule)):
        return _every(interval)
    return _cron(schedule, _zone(time_zone))


def _interval(text: str) -> timedelta | None:
    try:
        return parse_duration(text)
    except OverflowError:
        raise InvalidSchedule(
            f"{quoted(text)} is not a valid schedule: an interval must be at most {LONGEST.days} days."
        ) from None


def _every(interval: timedelta) -> Every:
    if interval <= timedelta():
        raise InvalidSchedule(f"An interval of {interval} is not a valid schedule: it must be longer than zero.")
    if interval > LONGEST:
        raise InvalidSchedule(
            f"An interval of {interval} is not a valid schedule: it must be at most {LONGEST.days} days."
        )
    return Every(interval)


@functools.lru_cache(maxsize=4096)
def _cron(text: str, zone: ZoneInfo) -> Cron:
    cron = Cron(_expression(text), zone)
    next_slot(cron, _LATER)
    return cron


def _zone(name: str) -> ZoneInfo:
    # First, because a machine may lack them too: Debian has a package of its own for the last two.
    if name in ("localtime", "posixrules", "Factory") or str(name).startswith(("posix/", "right/")):
        raise InvalidSchedule(
            f"{quoted(name)} is not the same on every server: use an IANA name, such as 'Europe/Rome'."
        )
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError, TypeError):
        if not _has_time_zones():
            raise InvalidSchedule(
                f"The time zone {quoted(name)} cannot be found, because this machine has no time zone data: install "
                "the package tzdata, for example with pip."
            ) from None
        raise InvalidSchedule(
            f"{quoted(name)} is not a valid time zone: use an IANA name, such as 'Europe/Rome'."
        ) from None


def _has_time_zones() -> bool:
    # Not `available_timezones()`, which reads a thousand files, for each row whose time zone is not known.
    try:
        return bool(ZoneInfo("UTC"))
    except KeyError:
        return False


def _expression(text: str) -> str:
    words = text.split()
    if way_out := only_in_crontab(text):
        raise InvalidSchedule(f"{quoted(text)} is not a valid schedule: {way_out}")
    if len(words) == 1 and words[0].startswith("@"):
        if words[0] not in _NICKNAMES:
            raise InvalidSchedule(
                f"{quoted(text)} is not a valid schedule: the names with an @ are {', '.join(_NICKNAMES)}."
            )
        return _NICKNAMES[words[0]]
    if len(words) != len(FIELDS):
        raise InvalidSchedule(
            f"{quoted(text)} is not a valid schedule: a cron expression has 5 fields ({', '.join(FIELDS)}), "
            f"but this one has {len(words)}.{_SECONDS if len(words) == len(FIELDS) + 1 else ''}"
        )
    if len(text) > LENGTH:
        raise InvalidSchedule(f"{quoted(text)} is too long for a schedule: use at most {LENGTH} characters.")
    try:
        CronSim(text, _naive(EPOCH))
    except CronSimError as error:
        raise InvalidSchedule(f"{quoted(text)} is not a valid schedule: {_complaint(error, words)}") from None
    return " ".join(words)


_SECONDS = " Seconds are not supported: use a timedelta, and run singleton_worker, which looks every second."


def _complaint(error: CronSimError, words: list[str]) -> str:
    """Which field is wrong. Cronsim says "Bad day-of-month" for a day that the month does not have, too."""
    field = str(error).removeprefix("Bad ").replace("-", " ")
    value = words[FIELDS.index(field)]
    if is_valid(field, value):
        return f"the {field} cannot be {quoted(value)} in that month."
    return f"the {field} cannot be {quoted(value)}. {hint(field, value)}".rstrip()


def next_slot(schedule: Schedule, after: datetime) -> datetime:
    """The first slot later than ``after``. Both are aware, and the result is in UTC."""
    if isinstance(schedule, Every):
        return EPOCH + ((after - EPOCH) // schedule.interval + 1) * schedule.interval
    local = after.astimezone(schedule.zone)
    return _next_fixed(schedule, local) if schedule.is_fixed else _next_on_the_wall(schedule, local)


def _next_fixed(cron: Cron, local: datetime) -> datetime:
    slots = (_instant(_not_skipped(wall, cron.zone), cron.zone) for wall in _walls(cron, _naive(local)))
    # In a repeated hour, or after a skipped one, the first slots found may already be past.
    return next(slot for slot in slots if slot > local.astimezone(UTC))


def _not_skipped(wall: datetime, zone: ZoneInfo) -> datetime:
    """The time itself or, if clocks skip it, the first time after it that they do not skip."""
    while _is_skipped(wall, zone):
        wall += MINUTE
    return wall


def _next_on_the_wall(cron: Cron, local: datetime) -> datetime:
    now = _naive(local)
    first = next(wall for wall in _walls(cron, now) if not _is_skipped(wall, cron.zone))
    # The length of the repeated time, if `now` is part of it; otherwise zero.
    length = max(_offset(now, cron.zone, fold=0) - _offset(now, cron.zone, fold=1), timedelta())
    if first - now < length and _is_repeated(first, cron.zone):
        return _instant(first, cron.zone, fold=local.fold)
    if length and not local.fold:
        # Nothing more is due the first time, so search the repetition from its start.
        again = itertools.takewhile(lambda wall: wall <= now, _walls(cron, now - length))
        for wall in again:
            if _is_repeated(wall, cron.zone):
                return _instant(wall, cron.zone, fold=1)
    return _instant(first, cron.zone)


def _walls(cron: Cron, after: datetime) -> Iterator[datetime]:
    """The times at which the expression is due on a clock that never changes. Raises ``InvalidSchedule`` when the
    search goes beyond ``PATIENCE``."""
    for wall in CronSim(cron.text, after):
        if wall - after > PATIENCE:
            break
        yield wall
    raise InvalidSchedule(
        f"{cron.text!r} is never due: there is no such day, or no such time on the clocks of {cron.time_zone}."
    )


def _naive(instant: datetime) -> datetime:
    return instant.replace(tzinfo=None, fold=0)


def _instant(wall: datetime, zone: ZoneInfo, fold: int = 0) -> datetime:
    return wall.replace(tzinfo=zone, fold=fold).astimezone(UTC)


def _offset(wall: datetime, zone: ZoneInfo, fold: int) -> timedelta:
    return wall.replace(tzinfo=zone, fold=fold).utcoffset() or timedelta()


def _is_skipped(wall: datetime, zone: ZoneInfo) -> bool:
    return _offset(wall, zone, fold=0) < _offset(wall, zone, fold=1)


def _is_repeated(wall: datetime, zone: ZoneInfo) -> bool:
    return _offset(wall, zone, fold=0) > _offset(wall, zone, fold=1)


def latest_slot(schedule: Schedule, at: datetime) -> datetime:
    """The last slot that is not later than ``at``. Both are aware, and the result is in UTC."""
    if isinstance(schedule, Every):
        return EPOCH + (at - EPOCH) // schedule.interval * schedule.interval
    at, local = at.astimezone(UTC), _naive(at.astimezone(schedule.zone)) + timedelta.resolution
    # A guess, because clocks may have changed in between.
    back = local - next(CronSim(schedule.text, local, reverse=True)) + MINUTE
    while (latest := next_slot(schedule, at - back)) > at:
        back *= 2
    # There is no slot between `clear` and `at`. Bisect the span that may have one.
    clear = at
    while (following := next_slot(schedule, latest)) <= at:
        middle = following + (clear - following) / 2
        if (candidate := next_slot(schedule, middle)) <= at:
            latest = candidate
        else:
            latest, clear = following, middle
    return latest


def slots_between(schedule: Schedule, after: datetime, until: datetime) -> Iterator[datetime]:
    """The slots later than ``after`` and not later than ``until``, oldest first."""
    until = until.astimezone(UTC)  # Python compares two datetimes in the same zone by their wall clocks
    while (after := next_slot(schedule, after)) <= until:
        yield after


def duration_in_words(duration: timedelta) -> str:
    """The duration for people: ``1 hour 30 minutes``."""
    parts = []
    for unit, length in _UNITS.items():
        count, duration = divmod(duration, length)
        if count:
            parts.append(f"{count} {unit}{'' if count == 1 else 's'}")
    return " ".join(parts) or "0 seconds"


_UNITS = {
    "day": timedelta(days=1),
    "hour": timedelta(hours=1),
    "minute": MINUTE,
    "second": timedelta(seconds=1),
    "millisecond": timedelta(milliseconds=1),
    "microsecond": timedelta(microseconds=1),
}
