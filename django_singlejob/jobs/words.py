"""A schedule for people, in their language: cronsim explains cron expressions, but only in English."""

import functools
from collections.abc import Callable
from datetime import datetime, timedelta

from cronsim import CronSim
from django.utils.translation import get_language, gettext as _, ngettext

from django_singlejob.jobs.schedule import MINUTE, Cron, Every, Schedule

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
    return f"{_explained(schedule) if _is_english() else schedule.text} ({schedule.time_zone})"


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
