"""``manage.py singleton_status``: how the jobs are doing, for people and for monitoring."""

import json
import sys
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NoReturn

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError, CommandParser
from django.db import Error

from django_singlejob import registry
from django_singlejob.clock import instant_in_words
from django_singlejob.conf import ZERO
from django_singlejob.exceptions import SingleJobError
from django_singlejob.management.arguments import CallableCommand
from django_singlejob.management.exit_status import EX_UNAVAILABLE, EX_USAGE
from django_singlejob.management.output import add_format
from django_singlejob.monitoring.health import Health, State, survey, worst
from django_singlejob.scheduling.schedule import MINUTE, duration_in_words

if TYPE_CHECKING:
    from django_singlejob.models import JobStatus

EX_UNKNOWN = 3  # to Nagios

DAY, HOUR, SECOND = timedelta(days=1), timedelta(hours=1), timedelta(seconds=1)


class Command(CallableCommand):
    help = (
        "Shows how each job is doing: its state, who holds its lock, its last run, its next slot. With --check the "
        "exit status is that of a Nagios plugin."
    )
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--check",
            action="store_true",
            help="Exits with 2 when something is overdue, stale or failing; with 1 when something is overrunning, or "
            "scheduled but never asked for; with 3 when that cannot be told; else with 0.",
        )
        add_format(parser, "table")

    def handle(self, **given: Any) -> None:
        try:
            registry.autodiscover()
            healths = survey()
        except Exception as error:
            self._give_up(error, given)
        self.stdout.write(_as_json(healths) if given["format"] == "json" else _as_text(healths))
        if given["check"] and worst(healths):
            sys.exit(worst(healths))

    def _give_up(self, error: Exception, given: dict[str, Any]) -> NoReturn:
        """Nothing is known of the jobs."""
        if given["check"]:
            # Monitoring reads the standard output, and to it a status of 1, as a traceback has, is but a warning.
            as_json = json.dumps({"level": "unknown", "error": _problem(error)})
            self.stdout.write(as_json if given["format"] == "json" else f"UNKNOWN: {_problem(error)}")
            sys.exit(EX_UNKNOWN)
        match error:
            case Error():
                raise CommandError(_problem(error), returncode=EX_UNAVAILABLE) from error
            case SingleJobError() | ImproperlyConfigured():
                raise CommandError(_problem(error), returncode=EX_USAGE) from error
        raise error


def _problem(error: Exception) -> str:
    match error:
        case Error():
            return f"The database cannot be asked: {error}"
        case SingleJobError() | ImproperlyConfigured():
            return str(error)
    return f"{type(error).__name__}: {error}"


def _as_text(healths: list[Health]) -> str:
    return "\n".join([_summary(healths), *_table(healths)])


def _summary(healths: list[Health]) -> str:
    """``CRITICAL: 1 overdue (hourly_report). Jobs and locks: 12.``"""
    by_state: dict[State, list[str]] = {state: [] for state in State if state.level}
    for health in healths:
        by_state.get(health.state, []).append(health.name)
    troubles = [f"{len(names)} {state.label} ({', '.join(names)})" for state, names in by_state.items() if names]
    return f"{worst(healths).name}: {', '.join(troubles) or 'all is well'}. Jobs and locks: {len(healths)}."


def _table(healths: list[Health]) -> list[str]:
    if not healths:
        return []
    rows = [("JOB", "STATE", "HOLDER", "LAST RUN", "NEXT SLOT"), *map(_row, healths)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["", *("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)]


def _row(health: Health) -> tuple[str, ...]:
    status, lock = health.status, health.lock
    holder = f"{lock.holder} for {_roughly(lock.now - lock.acquired_at)}" if lock else ""
    return (health.name, str(health.state.label), holder, _last(status) if status else "", _next(health))


def _last(status: "JobStatus") -> str:
    if status.last_status in ("", "abandoned"):  # nobody saw when it died
        return status.last_status
    return f"{status.last_status} {_distance(status.now, status.last_finished_at)}".strip()


def _next(health: Health) -> str:
    if health.status and health.status.next_slot:
        return f"{instant_in_words(health.status.next_slot)}, {_distance(health.status.now, health.status.next_slot)}"
    return ""


def _distance(now: datetime, instant: datetime | None) -> str:
    if instant is None:
        return ""
    return f"{_roughly(now - instant)} ago" if instant < now else f"in {_roughly(instant - now)}"


def _roughly(duration: timedelta) -> str:
    """Two units at most, none below a second: ``2 days 3 hours``."""
    precision = HOUR if duration >= DAY else MINUTE if duration >= HOUR else SECOND
    return duration_in_words(max(duration, ZERO) // precision * precision)


def _as_json(healths: list[Health]) -> str:
    return json.dumps({"level": worst(healths).name.lower(), "jobs": list(map(_facts, healths))}, indent=2)


def _facts(health: Health) -> dict[str, Any]:
    """What there is to know, in JSON's own types: instants in ISO 8601 (UTC), durations in seconds."""
    return {
        "name": health.name,
        "state": health.state.value,
        "level": health.state.level.name.lower(),
        "schedule": health.schedule,
        **_columns(health.status, _STATUS_COLUMNS),
        "run_count": health.status.run_count if health.status else 0,
        "holder": _columns(health.lock, _LOCK_COLUMNS) if health.lock else None,
    }


_STATUS_COLUMNS = [
    "next_slot",
    "last_slot",
    "paused",
    "last_started_at",
    "last_finished_at",
    "last_status",
    "consecutive_failures",
    "run_count",
    "mean_duration",
    "misfire_count",
    "coalesced_count",
]
_LOCK_COLUMNS = [
    "name",
    "hostname",
    "pid",
    "command",
    "acquired_at",
    "heartbeat_at",
    "expires_at",
    "slot",
    "attempt",
]


def _columns(row: object, names: list[str]) -> dict[str, Any]:
    return {name: _plain(getattr(row, name, None)) for name in names}


def _plain(value: Any) -> Any:
    match value:
        case datetime():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
    return value
