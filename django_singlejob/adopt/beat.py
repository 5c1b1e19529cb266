"""The schedules of Celery beat become jobs, each of which sends its task to Celery's workers, as beat did.

They are those of Celery's app, and the rows of django-celery-beat. Celery's own objects say when each was due.
"""

import ast
import copy
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from keyword import iskeyword
from textwrap import indent
from typing import Any
from zoneinfo import available_timezones

from django.apps import apps
from django.conf import settings
from django.utils.module_loading import import_string

from django_singlejob.adopt.found import Found, Job, Left, Stays, call, free_name, in_seconds, quoted, slug
from django_singlejob.adopt.matcher import numbers
from django_singlejob.exceptions import InvalidSchedule
from django_singlejob.jobs.schedule import parse
from django_singlejob.process.clock import utc_now
from django_singlejob.process.escaping import shown

_FULL = {"minute": range(60), "hour": range(24), "day": range(1, 32), "month": range(1, 13), "weekday": range(7)}
# What an entry or a row that is not as Celery expects it raises.
_UNREADABLE = (AttributeError, KeyError, OverflowError, TypeError, ValueError)
_NOTES = (
    "All: a run sends the task, as beat did. To have one at a time, with its output here, call it without delay().",
    "All: what was due while no server lived is sent late, once.",
    "All: stop beat on every server first, or both send.",
)
_CLEANUP = "celery.backend_cleanup"
_NOTE_OF_CLEANUP = f"All: if results are kept in a database, beat also sends {_CLEANUP} at 4:00: add a job for it."
_NOTE_OF_ROWS = "its row is sent only by a beat with DatabaseScheduler, with the header periodic_task_name"
_NOTHING = "Celery's app sends nothing. If it does, import it in the project's __init__.py, as Celery's guide shows."


@dataclass(frozen=True)
class Periodic:
    """What beat sends, as it is configured.

    Attributes:
        name: of the entry.
        task: the name of the task.
        schedule: Celery's own object, an interval, or seconds.
        args, kwargs: of the task.
        options: how it is sent, such as ``queue``.
        why: why it should stay; empty if it becomes a job.
        notes: what differs.
    """

    name: str
    task: str
    schedule: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    options: Mapping[str, Any]
    why: str = ""
    notes: tuple[str, ...] = ()


def adopt_beat(zone: str) -> Found:
    """What becomes of all that beat sends. ``zone``: the time zone of a schedule whose own has no IANA name.

    Raises ``ImportError`` if Celery is not there, and what the database raises for the rows.
    """
    jobs: list[Job] = []
    left: list[Stays] = []
    found = [*_all()]
    packages = {periodic.task.partition(".")[0] for periodic in found}
    for periodic in found:
        try:
            jobs.append(_job(periodic, zone, packages | {job.name for job in jobs}))
        except (Left, *_UNREADABLE) as why:
            left.append(Stays(_source(periodic), str(why)))
    cleanup = [] if any(periodic.task == _CLEANUP for periodic in found) else [_NOTE_OF_CLEANUP]
    return Found(jobs, left, [*_NOTES, *cleanup] if jobs else [_NOTHING])


def _source(periodic: Periodic) -> str:
    """On one line: it becomes a comment."""
    return shown(f"{periodic.name}: {periodic.task}")


# --- what beat sends


def _all() -> Iterator[Periodic]:
    app = import_string("celery.current_app")
    app.autodiscover_tasks(force=True)  # their modules, and finalize(), may add some
    app.finalize()
    entries = app.conf.beat_schedule or getattr(settings, "CELERY_BEAT_SCHEDULE", {})
    rows: list[Any] = []
    if apps.is_installed("django_celery_beat"):
        rows = [*import_string("django_celery_beat.models.PeriodicTask").objects.order_by("name")]
    disabled = {row.name for row in rows if not row.enabled}
    for name, entry in entries.items():  # beat writes them over the rows of these names
        why = "its row is disabled" if name in disabled else ""
        yield _readable(str(name), entry, partial(of_entry, str(name), entry, why))
    for row in rows:
        if row.name not in entries:
            yield _readable(row.name, row.task, partial(of_row, row, utc_now()))


def _readable(name: str, shown_as: object, read: Callable[[], Periodic]) -> Periodic:
    try:
        return read()
    except Exception as error:  # whatever Celery's own code raises, such as for a row that needs a library
        return Periodic(name, str(shown_as), None, (), {}, {}, f"it cannot be read: {error!r}")


def of_entry(name: str, entry: Mapping[str, Any], why: str = "") -> Periodic:
    """An entry of ``CELERY_BEAT_SCHEDULE``."""
    if not isinstance(entry["task"], str):
        raise TypeError(f"its task is {entry['task']!r}")
    args, kwargs, options = entry.get("args") or (), entry.get("kwargs") or {}, entry.get("options") or {}
    return Periodic(name, entry["task"], entry["schedule"], *_arguments(args, kwargs), {**options}, why)


def of_row(row: Any, now: datetime) -> Periodic:
    """A row of django-celery-beat."""
    options = {name: getattr(row, name) for name in ("queue", "exchange", "routing_key", "priority")}
    args, kwargs, headers = (json.loads(given or none) for given, none in _given(row))
    options |= {"expires": row.expire_seconds, "headers": {**headers} or None}
    why = "it is disabled" if not row.enabled else "it is sent once, and no more" if row.one_off else ""
    notes: tuple[str, ...] = ()
    if row.expires:
        why = why or (f"it was sent until {row.expires}" if row.expires <= now else "")
        notes += (f"it is sent until {row.expires}: take the job out then",)
    if row.start_time and row.start_time > now:
        notes += (f"it is not sent before {row.start_time}: take the job in then",)
    kept = {name: value for name, value in options.items() if value not in (None, "")}
    return Periodic(row.name, row.task, row.schedule, *_arguments(args, kwargs), kept, why, (*notes, _NOTE_OF_ROWS))


def _given(row: Any) -> list[tuple[str, str]]:
    return [(row.args, "[]"), (row.kwargs, "{}"), (row.headers, "{}")]


def _arguments(args: Any, kwargs: Any) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """Raises ``TypeError`` if they are none."""
    if not isinstance(args, list | tuple) or not all(isinstance(name, str) for name in kwargs):
        raise TypeError(f"{args!r} and {kwargs!r} are not a list and an object of arguments")
    return (*args,), {**kwargs}


# --- the job


def _job(periodic: Periodic, zone: str, taken: set[str]) -> Job:
    if periodic.why:
        raise Left(periodic.why)
    schedule, former = _schedule(periodic.schedule)
    own = str(getattr(periodic.schedule, "tz", ""))
    zone = own if own in available_timezones() else zone
    try:
        parse(schedule, zone)
    except InvalidSchedule as error:
        raise Left(f"its schedule is not understood: {str(error).rstrip('.')}") from None
    notes = list(periodic.notes)
    if isinstance(schedule, timedelta):
        options = [f"schedule={in_seconds(schedule.total_seconds())}"]
        notes.append("its interval counts from midnight of 1 January 1970, and not from the last run")
        if schedule < timedelta(minutes=1):
            notes.append("the one line begins it once a minute: keep singleton_worker running instead, without --once")
    else:
        options = [f"schedule={quoted(schedule)}", f"time_zone={quoted(zone)}"]
    target, module = _sender(periodic.task)
    if not module:
        notes.append("it is sent by its name, so what its decorator says of queues, priority or expiry does not hold")
    name = _name(periodic, taken)
    body = indent(_sending(periodic, target), "    ")
    code = f"\n# {_source(periodic)}\n@{call('singleton_job', options)}\ndef {name}():\n{body}"
    imports = (f"import {module}",) if module else ("from celery import current_app",)
    return Job(_source(periodic), name, schedule, zone, code, tuple(notes), former, imports)


def _name(periodic: Periodic, taken: set[str]) -> str:
    reserved = {"timedelta", "current_app", "singleton_job", *taken}
    choices = [slug(periodic.name), slug(periodic.task.rpartition(".")[2]), slug(f"send {periodic.name}")]
    usable = [each for each in choices if each.isidentifier() and not iskeyword(each) and each not in reserved]
    return free_name(usable or ["send_task"], taken)


def _sender(task: str) -> tuple[str, str]:
    """The code that names the task, and the module to import; empty if the task can only be sent by its name."""
    module, _, attribute = task.rpartition(".")
    try:
        found = import_string(task)
    except Exception:  # whatever a module raises while it is imported
        found = None
    if getattr(found, "name", None) == task and hasattr(found, "apply_async"):
        return f"{module}.{attribute}", module
    return "current_app", ""


def _sending(periodic: Periodic, target: str) -> str:
    args, kwargs, options = periodic.args, periodic.kwargs, periodic.options
    if target != "current_app" and not options and all(map(_is_keyword_argument, kwargs)):
        return call(f"{target}.delay", [*map(_literal, args), *(f"{name}={_literal(kwargs[name])}" for name in kwargs)])
    given = {"args": [*args], "kwargs": {**kwargs}, **options}
    named = [f"{name}={_literal(value)}" for name, value in given.items() if value or name in options]
    if target == "current_app":
        return call("current_app.send_task", [quoted(periodic.task), *named])
    return call(f"{target}.apply_async", named)


def _is_keyword_argument(name: str) -> bool:
    return name.isascii() and name.isidentifier() and not iskeyword(name) and name not in ("self", "__debug__")


def _literal(value: Any) -> str:
    text = quoted(value) if isinstance(value, str) else repr(value)
    try:
        if ast.literal_eval(text) == value:
            return text
    except (SyntaxError, ValueError):
        pass
    raise Left(f"{text}, which it is sent with, cannot be written into a file")


# --- its schedule


def _schedule(given: Any) -> tuple[str | timedelta, Callable[[datetime], Iterator[datetime]] | None]:
    """The schedule of a job, and the instants of Celery's; ``None`` for an interval, which counts from the last run."""
    schedules = import_string("celery.schedules")
    if isinstance(given, int | float) and not isinstance(given, bool):
        return timedelta(seconds=given), None
    if isinstance(given, timedelta):
        return given, None
    if isinstance(given, schedules.crontab) and _is_plain(given):
        return _expression(given), partial(_instants, given)
    if type(given) is schedules.schedule:
        return given.run_every, None
    raise Left(f"a job has no schedule like {given!r}")


def _is_plain(rule: Any) -> bool:
    """Whether it is due when Celery's own, or that of django-celery-beat, would be."""
    methods = ("remaining_delta", "remaining_estimate", "is_due")
    modules = {getattr(type(rule), name).__module__.partition(".")[0] for name in methods}
    return modules <= {"celery", "django_celery_beat"}


def _expression(rule: Any) -> str:
    _, (minute, hour, weekday, day, month, *_), *_ = rule.__reduce__()  # as they were given, which is not public
    allowed = {
        "minute": (minute, rule.minute),
        "hour": (hour, rule.hour),
        "day": (day, rule.day_of_month),
        "month": (month, rule.month_of_year),
        "weekday": (weekday, rule.day_of_week),
    }
    fields = {name: _field(name, str(text), found) for name, (text, found) in allowed.items()}
    if not (fields["day"].startswith("*") or fields["weekday"].startswith("*")):
        fields["weekday"] = _of_week(rule.day_of_month, rule.day_of_week)
        fields["day"] = "*"
    return " ".join(fields.values())


def _field(name: str, text: str, allowed: set[int]) -> str:
    """The text, if it means the same in a crontab; otherwise the numbers that Celery allows."""
    if allowed >= {*_FULL[name]}:
        return "*"
    try:
        is_same = numbers(name, text) == allowed and not re.search(r"[a-z]{4}", text, re.IGNORECASE)
    except ValueError:
        is_same = False
    return text if is_same else ",".join(map(str, sorted(allowed)))


def _of_week(days: set[int], weekdays: set[int]) -> str:
    """The field for days that have to be both: the first week's Monday, if the days are the first to the seventh."""
    for week in range(1, 6):
        if days == {*range(7 * week - 6, min(7 * week, 31) + 1)}:
            return ",".join(f"{weekday}#{week}" for weekday in sorted(weekdays))
    raise Left(
        "with Celery, the day of the month and the day of the week have to match, and no cron expression says so: give "
        "the job a schedule with one of them, and let it return on other days"
    )


def _instants(rule: Any, after: datetime) -> Iterator[datetime]:
    """The instants at which Celery finds the rule due, one after another."""
    rule = copy.copy(rule)
    while True:
        rule.nowfun = partial(_same, after)
        after = (after + rule.remaining_estimate(after)).astimezone(UTC)
        yield after


def _same(instant: datetime) -> datetime:
    return instant
