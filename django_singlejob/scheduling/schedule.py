"""When a schedule is due: pure functions over aware datetimes, without a clock and without a database.

A schedule is a cron expression in a time zone, or an interval. Its slots are whole minutes, or the interval's multiples
since the Unix epoch: the same on every server, with nothing to agree upon.

When clocks change, the rules are those of Debian's cron. A job at a fixed time runs once: one that falls into the hour
that is left out runs when it is over, one in the hour that comes twice runs the first time. A job whose minute or hour
begins with ``*`` follows the clock on the wall: not in the hour that is left out, twice in the other.

Cronsim only ever counts on a clock without changes here; what changes do to its times stands below.
"""

import functools
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError
from django.utils.dateparse import parse_duration
from django.utils.duration import duration_iso_string

from django_singlejob.exceptions import InvalidSchedule

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
LENGTH = 200
LONGEST = timedelta(days=36_525)
# A 29 February that is a Monday comes every 28 years, or after 40, for 2100 has none.
PATIENCE = timedelta(days=50 * 366)
# By then the rules of time zones are those that their data has for all years to come.
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


@dataclass(frozen=True)
class Cron:
    """A cron expression of five fields, on the wall clocks of a time zone."""

    text: str
    zone: ZoneInfo

    @property
    def time_zone(self) -> str:
        """Its IANA name."""
        return self.zone.key

    @property
    def is_fixed(self) -> bool:
        """Whether it names times, rather than follow the clock on the wall."""
        minute, hour, *_ = self.text.split()
        return not (minute.startswith("*") or hour.startswith("*"))


@dataclass(frozen=True)
class Every:
    """The multiples of an interval since the Unix epoch, UTC."""

    interval: timedelta

    @property
    def text(self) -> str:
        """The interval as ISO 8601 has it, which ``parse`` understands too."""
        return duration_iso_string(self.interval)

    @property
    def time_zone(self) -> str:
        """UTC, whatever the project's is."""
        return "UTC"


Schedule = Cron | Every


def parse(schedule: str | timedelta, time_zone: str = "UTC") -> Schedule:
    """The schedule that this describes: five cron fields, ``@hourly`` and its like, or an interval.

    Raises ``InvalidSchedule``, which names the field that is wrong, also for a time that never comes.
    """
    if isinstance(schedule, timedelta):
        return _every(schedule)
    if not isinstance(schedule, str):
        raise InvalidSchedule(f"{schedule!r} is no schedule: give a cron expression or a timedelta.")
    if schedule.startswith("P") and (interval := _interval(schedule)):
        return _every(interval)
    return _cron(schedule, _zone(time_zone))


def _interval(text: str) -> timedelta | None:
    try:
        return parse_duration(text)
    except OverflowError:
        raise InvalidSchedule(f"{text!r:.{LENGTH}} is no schedule: {LONGEST.days} days are the most.") from None


def _every(interval: timedelta) -> Every:
    if interval <= timedelta():
        raise InvalidSchedule(f"An interval of {interval} is no schedule: it must be longer than zero.")
    if interval > LONGEST:
        raise InvalidSchedule(f"An interval of {interval} is no schedule: {LONGEST.days} days are the most.")
    return Every(interval)


@functools.lru_cache(maxsize=4096)
def _cron(text: str, zone: ZoneInfo) -> Cron:
    cron = Cron(_expression(text), zone)
    next_slot(cron, _LATER)
    return cron


def _zone(name: str) -> ZoneInfo:
    try:
        zone = ZoneInfo(name)
    except (KeyError, ValueError, OSError, TypeError):
        raise InvalidSchedule(f"{name!r} is no time zone: use an IANA name, as 'Europe/Rome'.") from None
    if name in ("localtime", "posixrules", "Factory") or name.startswith(("posix/", "right/")):
        raise InvalidSchedule(f"{name!r} is not the same on every server: use an IANA name, as 'Europe/Rome'.")
    return zone


def _expression(text: str) -> str:
    words = text.split()
    if len(words) == 1 and words[0].startswith("@"):
        if words[0] not in _NICKNAMES:
            raise InvalidSchedule(f"{text!r} is no schedule. With an @ there are: {', '.join(_NICKNAMES)}.")
        return _NICKNAMES[words[0]]
    if len(words) != len(_FIELDS):
        raise InvalidSchedule(
            f"{text!r:.{LENGTH}} is no schedule: a cron expression has 5 fields ({', '.join(_FIELDS)}), "
            f"this one has {len(words)}."
        )
    if len(text) > LENGTH:
        raise InvalidSchedule(f"{text!r:.{LENGTH}} is too long for a schedule: {LENGTH} characters are the most.")
    try:
        CronSim(text, _naive(EPOCH))
    except CronSimError as error:
        raise InvalidSchedule(f"{text!r} is no schedule: {_complaint(error, words)}") from None
    return " ".join(words)


_FIELDS = ("minute", "hour", "day of month", "month", "day of week")


def _complaint(error: CronSimError, words: list[str]) -> str:
    """Cronsim says "Bad day-of-month", also of a day that its month does not have."""
    field = str(error).removeprefix("Bad ").replace("-", " ")
    value = words[_FIELDS.index(field)]
    return f"the {field} cannot be {value!r}" + (" (in that month)." if field == "day of month" else ".")


def next_slot(schedule: Schedule, after: datetime) -> datetime:
    """The first slot later than ``after`` (both aware; the result in UTC)."""
    if isinstance(schedule, Every):
        return EPOCH + ((after - EPOCH) // schedule.interval + 1) * schedule.interval
    local = after.astimezone(schedule.zone)
    return _next_fixed(schedule, local) if schedule.is_fixed else _next_on_the_wall(schedule, local)


def _next_fixed(cron: Cron, local: datetime) -> datetime:
    slots = (_instant(_when_it_is_over(wall, cron.zone), cron.zone) for wall in _walls(cron, _naive(local)))
    # Not one that has come already, in the hour that comes twice or in the one that was left out.
    return next(slot for slot in slots if slot > local.astimezone(UTC))


def _when_it_is_over(wall: datetime, zone: ZoneInfo) -> datetime:
    """When it is left out, the first time that is not."""
    while _is_left_out(wall, zone):
        wall += MINUTE
    return wall


def _next_on_the_wall(cron: Cron, local: datetime) -> datetime:
    now = _naive(local)
    first = next(wall for wall in _walls(cron, now) if not _is_left_out(wall, cron.zone))
    # How long the time lasts that comes twice, if this is part of it.
    length = max(_offset(now, cron.zone, fold=0) - _offset(now, cron.zone, fold=1), timedelta())
    if first - now < length and _comes_twice(first, cron.zone):
        return _instant(first, cron.zone, fold=local.fold)
    if length and not local.fold:
        # Nothing more is due the first time: the second time begins anew.
        again = itertools.takewhile(lambda wall: wall <= now, _walls(cron, now - length))
        for wall in again:
            if _comes_twice(wall, cron.zone):
                return _instant(wall, cron.zone, fold=1)
    return _instant(first, cron.zone)


def _walls(cron: Cron, after: datetime) -> Iterator[datetime]:
    """The times at which the expression is due on a clock that is never changed. Raises ``InvalidSchedule`` to who
    looks further than ``PATIENCE``."""
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


def _is_left_out(wall: datetime, zone: ZoneInfo) -> bool:
    return _offset(wall, zone, fold=0) < _offset(wall, zone, fold=1)


def _comes_twice(wall: datetime, zone: ZoneInfo) -> bool:
    return _offset(wall, zone, fold=0) > _offset(wall, zone, fold=1)


def latest_slot(schedule: Schedule, at: datetime) -> datetime:
    """The last slot that is not later than ``at`` (both aware; the result in UTC)."""
    if isinstance(schedule, Every):
        return EPOCH + (at - EPOCH) // schedule.interval * schedule.interval
    at, local = at.astimezone(UTC), _naive(at.astimezone(schedule.zone)) + timedelta.resolution
    # A guess, since clocks may have changed meanwhile.
    back = local - next(CronSim(schedule.text, local, reverse=True)) + MINUTE
    while (latest := next_slot(schedule, at - back)) > at:
        back *= 2
    # There is none between `clear` and `at`. Halve what may have one.
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
    until = until.astimezone(UTC)  # of two instants in one zone Python compares the wall clocks
    while (after := next_slot(schedule, after)) <= until:
        yield after


@functools.lru_cache(maxsize=4096)
def schedule_in_words(schedule: Schedule) -> str:
    """For people: ``At 08:00 on Monday through Friday (Europe/Rome)``, ``Every 1 hour 30 minutes``."""
    if isinstance(schedule, Every):
        return f"Every {duration_in_words(schedule.interval)}"
    return f"{CronSim(schedule.text, _naive(EPOCH)).explain()} ({schedule.time_zone})"


def duration_in_words(duration: timedelta) -> str:
    """For people: ``1 hour 30 minutes``."""
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
