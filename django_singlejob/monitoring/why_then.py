"""Why a slot of a job ran or did not."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from django.db.models import Q
from django.utils.translation import gettext

from django_singlejob.jobs.schedule import MINUTE, Schedule, latest_slot, next_slot, slots_between
from django_singlejob.models.jobs import MILLISECOND
from django_singlejob.models.notes import NoteKind
from django_singlejob.models.runs import runs
from django_singlejob.monitoring.causes import (
    NO_MARKS,
    RAN_LATE,
    WORDS,
    Answer,
    Cause,
)
from django_singlejob.monitoring.evidence import Gap, changes, gap_of, misses, pauses
from django_singlejob.monitoring.job_facts import MOST, JobFacts, is_real, named
from django_singlejob.monitoring.why_now import held_now, not_registered
from django_singlejob.monitoring.workers import Server
from django_singlejob.process.escaping import listed

if TYPE_CHECKING:
    from django_singlejob.models import JobRun

# A server is marked every five minutes: it may have asked that long after its last mark.
MARKED_EVERY = timedelta(minutes=5)
# What may run again is run within this time, if cron begins passes each minute.
RUN_WITHIN = timedelta(minutes=2)
# A run that began this long after its slot was late.
LATE = timedelta(minutes=2)
ERROR_LENGTH = 200

Step = Callable[[JobFacts, datetime, datetime], Answer | None]


def answer_at(known: JobFacts, at: datetime) -> Answer:
    """Why it ran or did not at its slot in this minute: the first reason that is proven."""
    if not is_real(at):
        return _not_due(known, at, Cause.SKIPPED_HOUR)
    at = at.astimezone(UTC)  # of a wall clock, a sum is wrong where clocks change
    slot = _slot_at(known, at)
    attempts = _runs_of(known, slot or at, MILLISECOND if slot else MINUTE - 2 * MILLISECOND)
    if slot is None and not attempts:
        return _not_due(known, at)
    return answer_of(known, slot or at, attempts)


def answer_of(known: JobFacts, slot: datetime, attempts: "Sequence[JobRun]" = ()) -> Answer:
    """Why this slot of its schedule ran or did not. ``attempts``: its runs, the oldest first."""
    if attempts:
        return _ran(known, attempts)
    if slot > known.now:
        return known.say(Cause.TO_COME, slot=slot, time=slot - known.now)
    steps: tuple[Step, ...] = (
        _no_record,
        _paused,
        _nobody,
        _held,
        _elsewhere,
        _given_up,
        _together,
    )
    moved_at = _moved_at(known, slot)
    found = next(filter(None, (step(known, slot, moved_at) for step in steps)), None) or not_registered(known)
    return found or known.say(Cause.NOT_KNOWN, None if known.servers and not known.has_lines else NO_MARKS, slot=slot)


def _runs_of(known: JobFacts, at: datetime, length: timedelta) -> "list[JobRun]":
    span = (at - MILLISECOND, at + length)
    rows = runs().filter(Q(slot__range=span) | Q(retried_slot__range=span), job_name=known.name)
    return [*rows.order_by("pk")[:MOST]]


def _ran(known: JobFacts, attempts: "Sequence[JobRun]") -> Answer:
    last = attempts[-1]
    slot = last.slot or last.retried_slot
    facts: dict[str, Any] = {"slot": slot, "started": last.started_at, "server": last.hostname}
    if last.status == "successful":
        return _late(known, attempts[0]) or known.say(Cause.RAN, evidence=attempts, **facts)
    if last.status == "running" and known.lock and known.lock.token == last.token:
        return held_now(known) or known.say(Cause.RAN, evidence=attempts, **facts)
    for note in known.notes:
        if note.kind == NoteKind.STOPPED and note.details == str(last.token):
            return known.say(
                Cause.STOPPED, by=note.by or None, finished=last.finished_at, evidence=[*attempts, note], **facts
            )
    if known.is_used_up(last) and len(attempts) > 1:
        return known.say(Cause.USED_UP, slot=last.slot, number=last.attempt, evidence=attempts)
    facts |= {"status": last.get_status_display(), "error": last.error[:ERROR_LENGTH]}
    return known.say(Cause.FAILED, evidence=attempts, **facts)


def _late(known: JobFacts, first: "JobRun") -> Answer | None:
    """If it began late, and another run held the lock until then."""
    slot = first.slot
    other = _holder(known, slot, first.started_at) if slot and first.started_at > slot + LATE else None
    if slot is None or other is None:
        return None
    facts: dict[str, Any] = {"late": first.started_at - slot, "other": other.job_name, "lock": other.lock}
    facts |= {"since": other.started_at, "until": other.finished_at, "server": first.hostname}
    return known.say(Cause.RAN, RAN_LATE, slot=slot, started=first.started_at, evidence=[first, other], **facts)


def _slot_at(known: JobFacts, at: datetime) -> datetime | None:
    """The slot in this minute, of the schedule that the job had then."""
    schedule = _schedule_at(known, at)
    if schedule is None:
        return None
    return next(slots_between(schedule, at - MILLISECOND, at + MINUTE - MILLISECOND), None)


def _schedule_at(known: JobFacts, at: datetime) -> Schedule | None:
    later = next((change for change in changes(known.notes) if change.at > at), None)
    return later.before or known.schedule if later else known.schedule


def _not_due(known: JobFacts, at: datetime, cause: Cause = Cause.NOT_DUE) -> Answer:
    schedule = _schedule_at(known, at)
    if schedule is None:
        return known.say(Cause.NO_SCHEDULE)
    around: dict[str, Any] = {"before": latest_slot(schedule, at), "after": next_slot(schedule, at)}
    return known.say(cause, slot=at, wall=f"{at:%Y-%m-%d %H:%M}", **around)


def _moved_at(known: JobFacts, slot: datetime) -> datetime:
    """When the schedule moved past the slot; now, if it has not."""
    if note := misses(known.notes, slot):
        return note.at
    later = known.next_run(slot)
    return later.started_at if later else known.now


def _no_record(known: JobFacts, slot: datetime, moved_at: datetime) -> Answer | None:
    for change in changes(known.notes):
        begin = change.note.first_slot
        if not change.texts[0] and begin and change.at - MINUTE <= slot < min(change.at, begin - MILLISECOND):
            return known.say(Cause.NO_RECORD, slot=slot, since=begin)  # it had no schedule yet
    noted = known.notes[:1] if known.has_all_runs else []
    begins = [*([known.first_own] if known.first_own else []), *(note.at for note in noted)]
    is_due_still = known.status and known.status.next_slot and known.status.next_slot <= slot
    if is_due_still or misses(known.notes, slot) or (begins and slot >= min(begins) - MINUTE):
        return None
    return known.say(Cause.NO_RECORD, slot=slot, since=min(begins, default=None))


def _paused(known: JobFacts, slot: datetime, moved_at: datetime) -> Answer | None:
    for begin, end, note, last in pauses(known.notes):
        if begin <= slot < (end or moved_at) and (last or moved_at) > moved_at - RUN_WITHIN:
            words = WORDS[Cause.PAUSED]
            facts: dict[str, Any] = {"since": begin, "until": end or gettext("now"), "by": note.by or None}
            facts["reason"] = note.reason or gettext("without a reason")
            words = words._replace(remedy="") if end else words
            return known.say(Cause.PAUSED, words, slot=slot, evidence=[note], **facts)
    return None


def _held(known: JobFacts, slot: datetime, moved_at: datetime) -> Answer | None:
    run = _holder(known, slot, moved_at)
    if run is None:
        return None
    cause = Cause.HELD_BY_ITSELF if run.job_name == known.name else Cause.HELD_BY_OTHER
    facts: dict[str, Any] = {"started": run.started_at, "finished": run.finished_at, "lock": run.lock}
    facts |= {"other": run.job_name, "server": run.hostname}
    return known.say(cause, slot=slot, evidence=[run], **facts)


def _holder(known: JobFacts, slot: datetime, moved_at: datetime) -> "JobRun | None":
    """The run that held the lock from the slot on, until its schedule moved on or was about to."""
    # What began after the schedule had moved on has prevented nothing. If the lock was free for long before that,
    # the slot would have been run. Nobody knows until when a holder lived that died.
    latest, held_until = min(slot + MINUTE / 2, moved_at), max(slot, moved_at - RUN_WITHIN)
    alive = known.lock.token if known.lock and not known.lock.is_suspected else None
    for run in known.runs_of_lock(held_until, latest):
        is_dead = run.status == "running" and run.token != alive
        is_later = run.slot is not None and run.slot > slot
        if not (is_dead or is_later) and (run.finished_at or known.now) > held_until:
            return run
    return None


def _nobody(known: JobFacts, slot: datetime, moved_at: datetime) -> Answer | None:
    gaps = _gaps(known, slot)
    if not gaps or _asking_at(known, slot) or known.has_lines:
        return None
    since, until = max(gap.since for gap in gaps), min(gap.until for gap in gaps)
    if runs().filter(started_at__gt=since + MARKED_EVERY, started_at__lt=until).exists():
        return None  # a server that is forgotten by now
    facts: dict[str, Any] = {"since": since, "until": until}
    servers = listed(sorted({gap.hostname for gap in gaps}))
    return known.say(Cause.NOBODY, slot=slot, servers=servers, evidence=gaps, **facts)


def _asking_at(known: JobFacts, slot: datetime) -> list[Server]:
    away = {(gap.hostname, gap.queues) for gap in _gaps(known, slot)}
    there = [each for each in known.servers if each.first_seen_at <= slot + MARKED_EVERY]
    return [each for each in there if (each.hostname, each.queues) not in away]


def _gaps(known: JobFacts, slot: datetime) -> list[Gap]:
    """Of each server that is known to have been silent then. After its last mark it may have asked for a while."""
    back = map(gap_of, known.comebacks(slot))
    silent = (Gap(each.hostname, each.queues, each.seen_at, known.now) for each in known.servers)
    return [gap for gap in (*back, *silent) if gap.since + MARKED_EVERY < slot < gap.until]


def _elsewhere(known: JobFacts, slot: datetime, moved_at: datetime) -> Answer | None:
    asked = _asking_at(known, slot)
    if known.job is None or not known.job.on or not asked or known.may_run_on(asked) or known.has_lines:
        return None
    facts: dict[str, Any] = {"on": listed(known.job.on), "servers": named(asked)}
    return known.say(Cause.NOT_HERE, slot=slot, evidence=asked, **facts)


def _given_up(known: JobFacts, slot: datetime, moved_at: datetime) -> Answer | None:
    note = misses(known.notes, slot)
    if note is None:
        return None
    is_replaced = note.details == "coalesced"
    outcome = gettext("a later slot was run in its place") if is_replaced else gettext("not run")
    return known.say(Cause.GIVEN_UP, slot=slot, since=note.at, outcome=outcome, evidence=[note])


def _together(known: JobFacts, slot: datetime, moved_at: datetime) -> Answer | None:
    later = known.next_run(slot)
    if later is None or later.started_at > slot + known.grace + MINUTE or (known.job and known.job.catch_up == "all"):
        return None
    facts: dict[str, Any] = {"later": later.slot, "started": later.started_at, "server": later.hostname}
    return known.say(Cause.TAKEN_TOGETHER, slot=slot, evidence=[later], **facts)
