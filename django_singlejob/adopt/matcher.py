"""When cron would begin a line, found by trying all minutes: a check of the schedules that are made of it.

It follows the manual page of Debian's cron, and shares no code with ``jobs.schedule``.
"""

import re
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from typing import NamedTuple
from zoneinfo import ZoneInfo

_NAMES = {
    "month": ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"],
    "weekday": ["sun", "mon", "tue", "wed", "thu", "fri", "sat"],
}
_FIELDS = {"minute": (0, 59), "hour": (0, 23), "day": (1, 31), "month": (1, 12), "weekday": (0, 7)}
_NICKNAMES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_MINUTE, _DAY = timedelta(minutes=1), timedelta(days=1)
# No field of five comes more rarely: 29 February on a given weekday.
_LONGEST = 366 * 40


class Rule(NamedTuple):
    """The five fields, as the numbers that they allow. ``has_star``: which of them begin with a star."""

    allowed: dict[str, set[int]]
    has_star: dict[str, bool]

    @classmethod
    def of(cls, text: str) -> "Rule":
        """Raises ``ValueError`` if a field is not understood."""
        words = _NICKNAMES.get(text, text).split()
        if len(words) != len(_FIELDS):
            raise ValueError(f"{text!r} does not have five fields")
        allowed = {name: numbers(name, word) for name, word in zip(_FIELDS, words, strict=True)}
        stars = {name: word.startswith("*") for name, word in zip(_FIELDS, words, strict=True)}
        return cls(allowed, stars)

    def is_on(self, day: date) -> bool:
        """Whether any time of that day is allowed."""
        by_day = day.day in self.allowed["day"]
        by_weekday = day.isoweekday() % 7 in self.allowed["weekday"]
        either = self.has_star["day"] or self.has_star["weekday"]
        return day.month in self.allowed["month"] and (by_day and by_weekday if either else by_day or by_weekday)

    @property
    def is_fixed(self) -> bool:
        """Whether the line is at fixed times, which a change of clocks moves, instead of following the wall clock."""
        return not (self.has_star["minute"] or self.has_star["hour"])


def numbers(name: str, word: str) -> set[int]:
    """Those that a field allows; Sunday is 0. Raises ``ValueError`` if it is not understood."""
    found = {number for term in word.split(",") for number in _term(name, term)}
    return {number % 7 for number in found} if name == "weekday" else found


def _term(name: str, term: str) -> range:
    low, high = _FIELDS[name]
    match = re.fullmatch(r"(?:\*|(\w+)(?:-(\w+))?)(?:/(\d+))?", term)
    if match is None:
        raise ValueError(f"the {name} {term!r} is not understood")
    begin, end, step = match.groups()
    if begin:
        low = _number(name, begin)
        high = _number(name, end) if end else high if step else low
    if not (_FIELDS[name][0] <= low <= high <= _FIELDS[name][1] and int(step or 1) > 0):
        raise ValueError(f"the {name} {term!r} is not understood")
    return range(low, high + 1, int(step or 1))


def _number(name: str, text: str) -> int:
    if text.isdecimal():
        return int(text)
    names = _NAMES.get(name, [])
    if text.lower()[:3] not in names:
        raise ValueError(f"the {name} {text!r} is not understood")
    return names.index(text.lower()[:3]) + (name == "month")


def instants(text: str, zone: ZoneInfo, after: datetime) -> Iterator[datetime]:
    """The instants at which cron begins the line, in UTC, later than ``after``. Raises ``ValueError``."""
    rule = Rule.of(text)
    first = after.astimezone(zone).date() - _DAY
    last = after
    for number in range(_LONGEST):
        day = first + number * _DAY
        if not rule.is_on(day):
            continue
        for instant in sorted({*_of_day(rule, day, zone)}):
            if instant > last:
                yield instant
                last = instant


def _of_day(rule: Rule, day: date, zone: ZoneInfo) -> Iterator[datetime]:
    for hour in sorted(rule.allowed["hour"]):
        for minute in sorted(rule.allowed["minute"]):
            yield from _at(datetime(day.year, day.month, day.day, hour, minute), zone, is_fixed=rule.is_fixed)  # noqa: DTZ001


def _at(wall: datetime, zone: ZoneInfo, *, is_fixed: bool) -> Iterator[datetime]:
    """The instants at which the wall clock shows this time, as cron counts them."""
    found = sorted({wall.replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (0, 1)})
    shown = [instant for instant in found if instant.astimezone(zone).replace(tzinfo=None, fold=0) == wall]
    if shown:
        yield from shown[:1] if is_fixed else shown
    elif is_fixed:  # clocks are set forward over it: it runs right after that
        while not shown:
            wall += _MINUTE
            shown = [*_at(wall, zone, is_fixed=False)]
        yield shown[0]
