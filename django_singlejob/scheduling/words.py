"""A schedule for people, in their language.

In English, cronsim explains every cron expression. In other languages, there are words for the usual ones; the others
are shown as they are.
"""

import functools
from collections.abc import Callable
from datetime import datetime, time, timedelta

from cronsim import CronSim
from django.utils.dates import WEEKDAYS
from django.utils.formats import time_format
from django.utils.translation import get_language, gettext as _, ngettext

from django_singlejob.scheduling.schedule import MINUTE, Cron, Every, Schedule

_DAY, _HOUR, _SECOND = timedelta(days=1), timedelta(hours=1), timedelta(seconds=1)
_EVERY: dict[timedelta, Callable[[int], str]] = {
    _DAY: lambda count: ngettext("Every %(count)d day", "Every %(count)d days", count),
    _HOUR: lambda count: ngettext("Every %(count)d hour", "Every %(count)d hours", count),
    MINUTE: lambda count: ngettext("Every %(count)d minute", "Every %(count)d minutes", count),
    _SECOND: lambda count: ngettext("Every %(count)d second", "Every %(count)d seconds", count),
}
_UNITS: dict[timedelta, Callable[[int], str]] = {
    _DAY: lambda count: ngettext("%d day", "%d days", count),
    _HOUR: lambda count: ngettext("%d hour", "%d hours", count),
    MINUTE: lambda count: ngettext("%d minute", "%d minutes", count),
    _SECOND: lambda count: ngettext("%d second", "%d seconds", count),
    timedelta(milliseconds=1): lambda count: ngettext("%d millisecond", "%d milliseconds", count),
    timedelta(microseconds=1): lambda count: ngettext("%d microsecond", "%d microseconds", count),
}


def schedule_in_words(schedule: Schedule) -> str:
    """The schedule for people: ``At 08:00 on Monday through Friday (Europe/Rome)``, ``Every 1 hour 30 minutes``."""
    if isinstance(schedule, Every):
        return _interval_in_words(schedule.interval)
    words = _explained(schedule) if _is_english() else _cron_in_words(schedule)
    return f"{words or schedule.text} ({schedule.time_zone})"


def _is_english() -> bool:
    # Without a language, texts are not translated.
    return (get_language() or "en").split("-")[0] == "en"


@functools.lru_cache(maxsize=4096)
def _explained(cron: Cron) -> str:
    words = CronSim(cron.text, datetime(1970, 1, 1)).explain()  # noqa: DTZ001  (it only explains)
    return " or on ".join(words.rsplit(" and on ", 1)) if cron.is_on_either_day else words


def _interval_in_words(interval: timedelta) -> str:
    parts: list[str] = []
    rest = interval
    for unit, named in _UNITS.items():
        count, rest = divmod(rest, unit)
        if count and not (parts or rest) and unit in _EVERY:
            return _every(count, unit)
        if count:
            parts.append(named(count) % count)
    return _("Every %(duration)s") % {"duration": " ".join(parts)}


def _every(count: int, unit: timedelta) -> str:
    return _EVERY[unit](count) % {"count": count}


def _cron_in_words(cron: Cron) -> str:
    """Empty if there are no words for it, or none in this language."""
    if _("Every day at %(time)s") == "Every day at %(time)s":
        return ""
    minute, hour, *days = cron.text.split()
    if hour == "*" and days == ["*"] * 3:
        return _within_the_hour(minute)
    if not (minute.isdecimal() and hour.isdecimal()):
        return ""
    return _at_a_time(time_format(time(int(hour), int(minute)), "TIME_FORMAT"), *days)


def _within_the_hour(minute: str) -> str:
    if minute.isdecimal():
        return _("Every hour at minute %(minute)d") % {"minute": int(minute)}
    step = minute.removeprefix("*/")
    if minute == "*":
        return _every(1, MINUTE)
    return _every(int(step), MINUTE) if step.isdecimal() and int(step) and not 60 % int(step) else ""


def _at_a_time(at: str, day: str, month: str, weekday: str) -> str:
    match [day, month, weekday]:
        case ["*", "*", "*"]:
            return _("Every day at %(time)s") % {"time": at}
        case ["*", "*", "1-5"]:
            return _("Monday to Friday at %(time)s") % {"time": at}
        case ["*", "*", number] if number.isdecimal():
            # Django counts from Monday, cron from Sunday.
            return _("Every %(weekday)s at %(time)s") % {"weekday": WEEKDAYS[(int(number) - 1) % 7], "time": at}
        case [number, "*", "*"] if number.isdecimal():
            return _("On day %(day)d of every month at %(time)s") % {"day": int(number), "time": at}
    return ""
