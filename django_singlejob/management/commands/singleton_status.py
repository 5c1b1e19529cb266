"""``manage.py singleton_status``: how jobs, queues and workers are doing, for people and for monitoring."""

import argparse
import sys
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from itertools import groupby
from typing import TYPE_CHECKING, Any, NoReturn

from django.core.management.base import CommandError, CommandParser, no_translations

from django_singlejob.exceptions import quoted
from django_singlejob.locking.request import Reason
from django_singlejob.management.arguments import CallableCommand, queue, text, whole_number
from django_singlejob.management.exit_status import discover_jobs, explanation_of, refuse_settings
from django_singlejob.management.output import add_format, as_json
from django_singlejob.monitoring.findings import Finding, in_figures, roughly
from django_singlejob.monitoring.health import Health, Level, zone_of_schedule
from django_singlejob.monitoring.queues import Queue
from django_singlejob.monitoring.verdict import Scope, Verdict, judge
from django_singlejob.monitoring.workers import SeenWorker
from django_singlejob.process.clock import instant_in_words
from django_singlejob.process.escaping import shown
from django_singlejob.process.logs import in_english

if TYPE_CHECKING:
    from django_singlejob.models import JobStatus

EX_UNKNOWN = 3  # to Nagios

# A text from the database is cut to this length.
LONGEST = 1_000
# The first line names no more subjects of a kind: it has to fit on a pager.
MOST_NAMES = 10


def positive_number(value: object) -> int:
    """A whole number of 1 or more, which may be given as text."""
    number = whole_number(value)
    if not number:
        raise argparse.ArgumentTypeError(f"{quoted(value)} is not a whole number of 1 or more.")
    return number


class Command(CallableCommand):
    help = (
        "Shows how everything is doing: each job with its state, the holder of its lock, its last run and its next "
        "slot; the queues; the workers. With --check the exit status is that of a Nagios plugin."
    )
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--check",
            action="store_true",
            help="Exits with the status of a Nagios plugin: 0 if all is well, 1 for a warning, 2 if something is "
            "critical, 3 if nothing is known.",
        )
        parser.add_argument(
            "--job",
            action="append",
            default=[],
            type=text,
            metavar="NAME",
            help="Looks only at this job or lock. May be given several times. Queues are left out unless --queue names "
            "them.",
        )
        parser.add_argument(
            "--queue",
            action="append",
            default=[],
            type=queue,
            metavar="NAME",
            help="Looks only at this queue. May be given several times. Jobs are left out unless --job names them.",
        )
        parser.add_argument(
            "--ignore",
            action="append",
            default=[],
            type=text,
            metavar="NAME",
            help="Leaves out the job (with its one-offs), the lock or the queue of this name. May be given several "
            "times.",
        )
        parser.add_argument(
            "--failures",
            default=1,
            type=positive_number,
            metavar="N",
            help="A job is critical after N failures in a row, and a queue after N in the last hour if these are at "
            "least half of what finished. Fewer failures are a warning. Default: 1.",
        )
        add_format(parser, "table")

    @no_translations
    def handle(self, **given: Any) -> None:
        scope = Scope(jobs=given["job"], queues=given["queue"], ignored=given["ignore"])
        try:
            discover_jobs()
            refuse_settings()
            verdict = judge(scope, failures=given["failures"])
        except Exception as error:
            self._give_up(error, explanation_of(error), given)
        self.stdout.write(_as_json(verdict) if given["format"] == "json" else _as_text(verdict))
        if given["check"] and verdict.level:
            sys.exit(verdict.level)

    def _give_up(self, error: Exception, explanation: CommandError | None, given: dict[str, Any]) -> NoReturn:
        """Report that nothing is known."""
        problem = str(explanation or f"{type(error).__name__}: {error}")
        if given["check"]:
            # Monitoring reads standard output. To it, the exit status 1 of a traceback is only a warning.
            unknown = as_json({"level": "unknown", "error": problem})
            self.stdout.write(unknown if given["format"] == "json" else f"UNKNOWN: {_printable(problem)}")
            sys.exit(EX_UNKNOWN)
        if explanation:
            raise explanation from error
        raise error


def _as_text(verdict: Verdict) -> str:
    return "\n".join(
        [
            _summary(verdict),
            *_table(("JOB", "STATE", "HOLDER", "LAST RUN", "NEXT SLOT"), map(_row, verdict.healths)),
            *_table(
                ("PAUSED", "UNTIL", "BY", "BECAUSE"),
                (
                    _row_of_pause(health.status)
                    for health in verdict.healths
                    if health.status and health.status.is_paused
                ),
            ),
            *_table(
                ("QUEUE", "DUE", "OLDEST", "FAILED LATELY", "WORKERS"),
                (_row_of_queue(queue, verdict.servers(queue)) for queue in verdict.queues),
            ),
            *_table(("WORKER", "QUEUES", "STATE", "LAST SEEN"), map(_row_of_worker, verdict.workers)),
            *_advice(verdict.findings),
        ]
    )


def _summary(verdict: Verdict) -> str:
    """What Nagios shows: ``CRITICAL: 1 overdue (hourly_report). Jobs and locks: 12. | due=0 failed=0 workers=2``."""
    by_kind = (list(group) for _kind, group in groupby(verdict.findings, key=lambda finding: finding.kind))
    well = "all is well" if verdict.is_enabled else in_english(Reason.DISABLED.label)
    troubles = ", ".join(map(_troubles, by_kind)) or well
    summary = f"{troubles}. Jobs and locks: {in_figures(len(verdict.healths), is_cut=verdict.is_cut)}."
    return f"{verdict.level.name}: {summary} | {_figures(verdict)}"


def _troubles(found: Sequence[Finding]) -> str:
    """The findings of one kind: ``2 overdue (backup, hourly_report)``."""
    more = [f"and {len(found) - MOST_NAMES} more"] if len(found) > MOST_NAMES else []
    return f"{len(found)} {found[0].kind.label} ({', '.join([*map(_subject, found[:MOST_NAMES]), *more])})"


def _subject(finding: Finding) -> str:
    name = _printable(finding.subject)
    return f"{finding.about} {name}" if finding.about in ("queue", "worker", "row") else name


def _figures(verdict: Verdict) -> str:
    figures = {
        "due": sum(queue.due for queue in verdict.queues),
        "failed": sum(queue.failed for queue in verdict.queues),
        "workers": sum(worker.is_live for worker in verdict.workers),
    }
    return " ".join(f"{name}={count}" for name, count in figures.items())


def _advice(findings: Sequence[Finding]) -> list[str]:
    lines = [f"{found.level.name}: {found.what_happened} {found.what_to_do}" for found in findings]
    return ["", *map(_printable, lines)] if lines else []


def _table(titles: tuple[str, ...], rows: Iterable[tuple[object, ...]]) -> list[str]:
    """The lines of a table; without rows there is no table."""
    shown = [titles, *(tuple(map(_printable, row)) for row in rows)]
    if len(shown) == 1:
        return []
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    return ["", *("  ".join(map(str.ljust, row, widths)).rstrip() for row in shown)]


def _printable(value: object) -> str:
    """A text on one line, whatever the database contains. To Nagios, everything after a bar is figures."""
    return shown(str(value)[:LONGEST]).replace("|", r"\x7c")


def _row(health: Health) -> tuple[object, ...]:
    status, lock = health.status, health.lock
    holder = f"{lock.holder} for {roughly(lock.now - lock.acquired_at)}" if lock else ""
    return (health.name, health.state.label, holder, _last(status) if status else "", _next(health))


def _row_of_pause(status: "JobStatus") -> tuple[object, ...]:
    until = instant_in_words(status.paused_until) if status.paused_until else "resumed"
    return (status.name, until, status.paused_by, status.pause_reason)


def _row_of_queue(queue: Queue, workers: int) -> tuple[object, ...]:
    due, oldest = in_figures(queue.due, is_cut=queue.is_cut), roughly(queue.oldest) if queue.due else ""
    return (queue.name, due, oldest, _failed(queue), workers)


def _failed(queue: Queue) -> str:
    """How many failed, of how many: ``20 of 25``."""
    failed = in_figures(queue.failed, is_cut=queue.is_failed_cut)
    return f"{failed} of {queue.finished}" if queue.finished else str(failed)


def _row_of_worker(worker: SeenWorker) -> tuple[object, ...]:
    state = "pass" if worker.is_once else "alive" if worker.is_live else "dead"
    return (worker.holder, ", ".join(worker.queues) or "all", state, instant_in_words(worker.seen_at))


def _last(status: "JobStatus") -> str:
    if status.last_status in ("", "abandoned"):  # it is not known when its holder died
        return status.last_status
    return f"{status.last_status} {_distance(status.now, status.last_finished_at)}".strip()


def _next(health: Health) -> str:
    if health.status and health.status.next_slot:
        slot = instant_in_words(health.status.next_slot, zone_of_schedule(health.status))
        return f"{slot}, {_distance(health.status.now, health.status.next_slot)}"
    return ""


def _distance(now: datetime, instant: datetime | None) -> str:
    if instant is None:
        return ""
    return f"{roughly(now - instant)} ago" if instant < now else f"in {roughly(instant - now)}"


# --- JSON


def _as_json(verdict: Verdict) -> str:
    levels = verdict.levels
    facts = {
        "level": verdict.level.name.lower(),
        "enabled": verdict.is_enabled,
        "is_cut": verdict.is_cut,
        "findings": [_facts_of_finding(finding) for finding in verdict.findings],
        "jobs": [_facts(health, levels.get(health.name, Level.OK)) for health in verdict.healths],
        "queues": [_facts_of_queue(queue, verdict.servers(queue)) for queue in verdict.queues],
        "workers": [_columns(worker, _WORKER_COLUMNS) for worker in verdict.workers],
    }
    return as_json(facts)


def _facts_of_finding(finding: Finding) -> dict[str, str]:
    return {
        "kind": finding.kind.value,
        "level": finding.level.name.lower(),
        "about": finding.about,
        "subject": finding.subject,
        "what_happened": str(finding.what_happened),
        "what_to_do": str(finding.what_to_do),
    }


def _facts(health: Health, level: Level) -> dict[str, Any]:
    """All facts about a job or a lock in JSON's types: instants in ISO 8601 (UTC), durations in seconds."""
    return {
        "name": health.name,
        "state": health.state.value,
        "level": level.name.lower(),
        "schedule": health.schedule,
        **_columns(health.status, _STATUS_COLUMNS),
        **_facts_of_pause(health.status),
        "run_count": health.status.run_count if health.status else 0,
        "holder": _columns(health.lock, _LOCK_COLUMNS) if health.lock else None,
    }


def _facts_of_pause(status: "JobStatus | None") -> dict[str, Any]:
    """Of a pause that has ended by itself, nothing."""
    facts = {"paused": status.is_paused if status else None}
    return facts | _columns(status if status and status.is_paused else None, _PAUSE_COLUMNS)


def _facts_of_queue(queue: Queue, workers: int) -> dict[str, Any]:
    oldest = _plain(queue.oldest) if queue.due else None
    return {**_columns(queue, _QUEUE_COLUMNS), "oldest": oldest, "workers": workers}


_STATUS_COLUMNS = [
    "next_slot",
    "last_slot",
    "last_started_at",
    "last_finished_at",
    "last_status",
    "consecutive_failures",
    "run_count",
    "mean_duration",
    "misfire_count",
    "coalesced_count",
]
_PAUSE_COLUMNS = ["paused_until", "pause_reason", "paused_by"]
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
_QUEUE_COLUMNS = ["name", "due", "failed", "finished"]
_WORKER_COLUMNS = ["holder", "queues", "seen_at", "is_once", "is_live"]


def _columns(row: object, names: list[str]) -> dict[str, Any]:
    return {name: _plain(getattr(row, name, None)) for name in names}


def _plain(value: Any) -> Any:
    match value:
        case datetime():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
    return value
