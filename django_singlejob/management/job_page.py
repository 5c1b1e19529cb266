"""The page of a job, in the terminal: ``singleton_status JOB``."""

from collections.abc import Iterator
from datetime import datetime, timedelta, tzinfo
from typing import TYPE_CHECKING

from django_singlejob.management.tables import distance, printable, table
from django_singlejob.models.runs import FAILURES, runs
from django_singlejob.monitoring.findings import roughly
from django_singlejob.monitoring.health import Health, next_slots
from django_singlejob.monitoring.job_facts import JobFacts, options_of
from django_singlejob.monitoring.verdict import Verdict
from django_singlejob.process.clock import instant_in_words
from django_singlejob.process.escaping import shown
from django_singlejob.process.progress import Progress
from django_singlejob.running.failed_run import own_line

if TYPE_CHECKING:
    from django_singlejob.jobs.registry import Job
    from django_singlejob.models import JobLock, JobRun

NEXT_SLOTS, LAST_RUNS, LAST_LINES, LAST_NOTES = 5, 10, 10, 5
# An error, or a line of output, is cut to this length; in a table, to the second.
LENGTH, SHORT = 200, 40


def job_page(verdict: Verdict) -> Iterator[str]:
    """The lines of the page of the only job in the verdict."""
    health = verdict.healths[0]
    known = JobFacts.read(health.name)
    yield f"{printable(health.name)}: {_state(verdict, health, known.zone)}"
    for found in verdict.findings:
        yield printable(f"  {found.level.name}: {found.what_happened} {found.what_to_do}")
    yield from _facts(known, health)
    if health.lock:
        yield from _now(health.lock)
    yield from _last_runs(known)
    yield from _last_error(known)
    yield from _notes(known)
    if known.job:
        yield from _definition(known.job)


def _state(verdict: Verdict, health: Health, zone: tzinfo) -> str:
    """``failing since 2026-11-28 17:04:36 UTC, 3 failures in a row``."""
    begun = [found.since for found in verdict.findings if found.kind is health.state and found.since]
    since = begun or [lock.acquired_at for lock in [health.lock] if lock]
    words = f"{health.state.label} since {instant_in_words(since[0], zone)}" if since else str(health.state.label)
    count = health.status.consecutive_failures if health.status else 0
    return f"{words}, {count} {'failure' if count == 1 else 'failures'} in a row" if count else words


def _facts(known: JobFacts, health: Health) -> Iterator[str]:
    yield f"Schedule: {printable(health.schedule) or 'none'}"
    status = health.status
    if status is None:
        return
    success = runs().filter(job_name=known.name, status="successful").order_by("-started_at").first()
    ended = success.finished_at if success else None
    yield f"Last success: {_at(known, ended) if ended else 'none is known'}"
    if status.is_paused:
        until = instant_in_words(status.paused_until, known.zone) if status.paused_until else "it is resumed"
        why = f": {status.pause_reason}" if status.pause_reason else ""
        yield printable(f"Paused until {until}, by {status.paused_by or 'somebody'}{why}")
    slots = [_at(known, slot) for slot in next_slots(status, NEXT_SLOTS)]
    yield from (f"{'Next slots: ' if number == 0 else ' ' * 12}{slot}" for number, slot in enumerate(slots))


def _at(known: JobFacts, instant: datetime) -> str:
    return f"{instant_in_words(instant, known.zone)}, {distance(known.now, instant)}"


def _now(lock: "JobLock") -> Iterator[str]:
    progress = Progress.read(lock.progress)
    yield ""
    yield printable(f"Now: held by {lock.holder} for {roughly(lock.now - lock.acquired_at)} ({lock.command})")
    if progress.in_words:
        yield printable(f"Progress: {' '.join(filter(None, (progress.percentage, progress.in_words)))}")
    lines = progress.output.splitlines()[-LAST_LINES:]
    yield f"Last heartbeat: {distance(lock.now, lock.heartbeat_at)}{', with the end of its output:' if lines else ''}"
    yield from (f"    {shown(line[:LENGTH])}" for line in lines)


def _last_runs(known: JobFacts) -> Iterator[str]:
    newest = runs().filter(job_name=known.name).defer("traceback", "output", "origin").order_by("-started_at", "-pk")
    rows = (
        (f"#{run.pk}", run.get_status_display(), _began(known, run), _took(run), run.hostname, run.error[:SHORT])
        for run in newest[:LAST_RUNS]
    )
    yield from table(("RUN", "STATUS", "BEGAN", "TOOK", "SERVER", "ERROR"), rows)


def _began(known: JobFacts, run: "JobRun") -> str:
    return instant_in_words(run.started_at, known.zone)


def _took(run: "JobRun") -> str:
    return "" if run.duration is None else f"{run.duration.total_seconds():.1f} s"


def _last_error(known: JobFacts) -> Iterator[str]:
    failed = runs().filter(job_name=known.name, status__in=FAILURES).exclude(error="").defer("traceback", "output")
    run = failed.order_by("-started_at", "-pk").first()
    if run is None:
        return
    yield ""
    yield printable(f"Last error (run #{run.pk}): {run.error[:LENGTH]}")
    if line := own_line(run):
        yield f"    {printable(line)}"


def _notes(known: JobFacts) -> Iterator[str]:
    newest = known.notes[-LAST_NOTES:]
    rows = (
        (instant_in_words(note.at, known.zone), note.get_kind_display(), note.by, note.reason)
        for note in reversed(newest)
    )
    yield from table(("NOTED", "WHAT", "BY", "BECAUSE"), rows)


def _definition(job: "Job") -> Iterator[str]:
    yield ""
    yield printable(f"Defined in {job.place}")
    yield printable(
        f"Options: {', '.join(f'{name}={_value(value)}' for name, value in options_of(job).items()) or 'as usual'}"
    )


def _value(value: object) -> str:
    """A duration is as people read it."""
    return roughly(value) if isinstance(value, timedelta) else repr(value)
