"""What the page of a job says: how it is doing, what runs, what went wrong, what comes, and who did what."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any
from urllib.parse import urlencode
from zoneinfo import ZoneInfo

from django.utils import timezone
from django.utils.formats import date_format
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from django_singlejob.admin.addresses import address
from django_singlejob.admin.cells import (
    badge,
    breakable,
    clock_time,
    cut,
    distance,
    duration,
    first_line,
    link,
    moment,
    noted,
    preformatted,
    when,
)
from django_singlejob.admin.charts import plot
from django_singlejob.admin.failures import failure_of
from django_singlejob.admin.history import STALE, PastRun, dead_one_offs, label, recent_runs
from django_singlejob.admin.read_only import NOW
from django_singlejob.admin.schedules import facts
from django_singlejob.admin.states import add_means, by_whom, held_for, state
from django_singlejob.conf import options
from django_singlejob.jobs import registry
from django_singlejob.jobs.registry import Job
from django_singlejob.jobs.schedule import duration_in_words
from django_singlejob.models import JobNote, JobStatus
from django_singlejob.models.jobs import database_now, mean_of
from django_singlejob.models.locks import locks
from django_singlejob.models.notes import NoteKind, notes
from django_singlejob.models.one_offs import one_offs
from django_singlejob.models.runs import FAILURES, runs
from django_singlejob.monitoring.acknowledging import Acknowledged, acknowledged
from django_singlejob.monitoring.findings import Finding, of_health
from django_singlejob.monitoring.health import Health, next_slots, schedule_of
from django_singlejob.monitoring.job_facts import options_of
from django_singlejob.process.clock import saturated
from django_singlejob.process.escaping import shown
from django_singlejob.process.progress import Progress

NEXT_SLOTS, RUNS, ONE_OFFS, NOTES, MISSES = 5, 8, 5, 8, 3
# The prefix of our own jobs, which no app has in its jobs.py.
OURS = "django_singlejob."


def now_of(row: Any, *, may_see_runs: bool) -> dict[str, Any]:
    """How the job is doing now: the part of the page that is refreshed while it runs. ``may_see_runs``: whether what a
    run prints may be shown."""
    health, at = row.health, row.now or database_now()
    findings = [*of_health(health, 1)]
    known = acknowledged([row.name]) if findings else {}
    return {
        "health": health,
        "at": date_format(timezone.localtime(at), "H:i:s"),
        "state": state(health),
        "findings": [_finding(found, at, known.get((row.name, found.kind.value))) for found in findings],
        "now": [*_now(health, at)],
        "output": _output(health) if may_see_runs else None,
    }


def _finding(found: Finding, at: datetime, by: Acknowledged | None) -> tuple[str, str, SafeString | str, str]:
    """What happened, what to do, since when, and who has acknowledged it."""
    since = moment(found.since, at) if found.since else ""
    return shown(found.what_happened), shown(found.what_to_do), since, by_whom(by) if by else ""


def _now(health: Health, at: datetime) -> Iterator[tuple[str, object]]:
    status, lock = health.status, health.lock
    if status and status.consecutive_failures:
        yield _("Failures in a row"), status.consecutive_failures
    if success := getattr(status, "last_success_at", None):
        yield _("Last success"), moment(success, at)
    if not lock:
        yield _("Lock"), _held_by_another(health.name) or _("free")
        return
    holder: Any = lock
    add_means([holder])
    if lock.stopped_by:
        yield _("Asked to stop by"), shown(lock.stopped_by)
    yield _("Runs for"), held_for(holder)
    yield _("Lock"), noted(link("joblock", lock.name, lock.name), breakable(lock.holder))
    yield _("Last heartbeat"), distance(lock.heartbeat_at, holder.now)


def _held_by_another(name: str) -> SafeString | str:
    """The holder of the lock that the job shares with others; empty if there is none."""
    shared = registry.get(name).lock if registry.is_known(name) else name
    lock = locks().filter(name=shared).first() if shared != name else None
    return noted(link("joblock", lock.name, lock.name), breakable(f"{lock.job_name} {lock.holder}")) if lock else ""


def _output(health: Health) -> dict[str, str] | None:
    """The end of what the run prints, as its last heartbeat recorded it; ``None`` if that is nothing."""
    lock: Any = health.lock
    text = Progress.read(lock.progress).output if lock else ""
    if not text:
        return None
    told = {"ago": distance(lock.heartbeat_at, lock.now), "interval": duration(lock.heartbeat_interval)}
    words = _("The end of it, as the last heartbeat recorded it %(ago)s. One comes every %(interval)s.")
    return {"text": preformatted(text), "words": words % told}


# --- the rest of the page


def details(row: Any) -> dict[str, Any]:
    """What the page says beside ``now_of``."""
    name, at = row.name, row.now or database_now()
    recent, noted_lately = recent_runs([name])[name], _notes(name)
    job = registry.get(name) if registry.is_known(name) else None
    return {
        "job": job,
        "is_ours": name.startswith(OURS),
        "failure": _failure(recent),
        "next_slots": [moment(slot, row.now, _zone(row)) for slot in next_slots(row, NEXT_SLOTS)],
        "operators_schedule": facts(row),
        "misses": [*islice(_misses(name, noted_lately, _zone(row) or UTC), MISSES)],
        "notes": [_note(note, at) for note in noted_lately[:NOTES]],
        "mean": duration(row.mean_duration),
        "plot": _plot(row, recent, job.max_runtime if job else None, at) if recent else "",
        "recent": [(run, last_run(run, at)) for run in reversed(recent[-RUNS:])],
        "one_offs": [*_one_offs(name)],
        "options": [*_options(job)] if job else [],
    }


def _failure(recent: Sequence[PastRun]) -> dict[str, Any] | None:
    """What went wrong in the last run, with a link to it; ``None`` if it did not fail."""
    ended = [run for run in recent if run.status != "running"]
    if not ended or ended[-1].status not in FAILURES:
        return None
    run = runs().only("error", "origin").filter(pk=ended[-1].pk).first()
    found = failure_of(run.error, "", run.origin) if run else None
    if run is None or found is None:
        return None
    return {"run": link("jobrun", run.pk, f"#{run.pk}"), "error": first_line(found.error), "frame": found.frame}


def last_run(run: PastRun, now: datetime | None) -> SafeString:
    """How a run ended, when it began, how long it took, and what went wrong."""
    shown = noted(badge(run.status, label(run.status)), when(run, now))
    return noted(shown, breakable(first_line(run.error)))


def _zone(row: JobStatus) -> ZoneInfo | None:
    schedule = schedule_of(row)
    return ZoneInfo(schedule.time_zone) if schedule else None


def _plot(row: Any, recent: Sequence[PastRun], max_runtime: timedelta | None, at: datetime) -> SafeString:
    return plot(recent, row.mean_duration, _limit(row), max_runtime=max_runtime, now=at)


def _limit(row: JobStatus) -> timedelta | None:
    """How long a run may take before it is overrunning, or ``None`` if there were too few runs."""
    mean = mean_of(row)
    return saturated(mean, options().overrun_factor) if mean else None


def _one_offs(name: str) -> Iterator[tuple[Any, object, SafeString | str]]:
    waiting = one_offs().filter(job_name=name, status__in=["waiting", "in_progress"]).order_by("run_after")
    # Not the arguments, which may be long.
    soon: list[Any] = [*waiting.only("status", "run_after").annotate(**NOW)[:ONE_OFFS]]
    dead = dead_one_offs([row.pk for row in soon if row.status == "in_progress"])
    for row in soon:
        shown = label(STALE) if row.pk in dead else row.get_status_display()
        yield row, shown, moment(row.run_after, row.now)


# --- notes


def _notes(name: str) -> list[JobNote]:
    """The newest ones."""
    return [*notes().filter(job_name=name).order_by("-at", "-pk")[: NOTES + MISSES]]


def _note(note: JobNote, at: datetime) -> tuple[object, str, str, str]:
    """What, when, by whom, and why."""
    number = f" ({note.number})" if note.number else ""
    return f"{note.get_kind_display()}{number}", moment(note.at, at), shown(note.by), shown(cut(note.reason, 200))


def _misses(name: str, found: Sequence[JobNote], zone: Any) -> Iterator[tuple[SafeString, SafeString]]:
    """The slots that were given up, each with a link to the page that says why."""
    for note in found:
        if note.kind == NoteKind.MISSED and note.last_slot:
            slot = note.last_slot.astimezone(zone)
            url = f"{address('overview_why')}?{urlencode({'job': name, 'at': slot.isoformat()})}"
            others = f" ({note.number})" if note.number and note.number > 1 else ""
            yield (
                format_html("{}{}", clock_time(slot, zone), others),
                format_html('<a href="{}">{}</a>', url, _("Why?")),
            )


# --- its options


def _options(job: Job) -> Iterator[tuple[str, str]]:
    """The options that are not the default, and where the function is."""
    yield _("Defined in"), shown(cut(job.place, 300))
    for name, value in options_of(job).items():
        yield name, shown(cut(_in_words(value), 200))


def _in_words(value: object) -> str:
    if isinstance(value, timedelta):
        return duration_in_words(value)
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
