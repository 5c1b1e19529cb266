"""Why a job runs or does not now."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Q
from django.utils.translation import gettext

from django_singlejob.conf import options
from django_singlejob.jobs import registry
from django_singlejob.jobs.discovery import remedy_for, why_not_registered
from django_singlejob.jobs.schedule import MINUTE, Schedule, next_slot
from django_singlejob.locking.position import is_ahead
from django_singlejob.models.jobs import gates
from django_singlejob.models.locks import locks
from django_singlejob.models.notes import NoteKind
from django_singlejob.models.one_offs import one_offs
from django_singlejob.models.runs import runs
from django_singlejob.monitoring.causes import (
    DISABLED_THERE,
    HELD_NOW,
    JUST_DUE,
    NO_MARKS,
    NOBODY_NOW,
    NOT_HERE_NOW,
    NOT_KNOWN_NOW,
    PAUSED_NOW,
    Answer,
    Cause,
    Words,
)
from django_singlejob.monitoring.findings import KINDS
from django_singlejob.monitoring.health import State
from django_singlejob.monitoring.job_facts import MOST, JobFacts, named
from django_singlejob.monitoring.marks import DISABLED
from django_singlejob.monitoring.workers import Server, serves, workers
from django_singlejob.process.escaping import listed

# A worker begins what is due within this time, if it has a process for it.
SOON = timedelta(seconds=10)


def answer_now(known: JobFacts) -> Answer:
    """Why it runs or does not now: the first reason that applies."""
    steps = (
        held_now,
        not_registered,
        _disabled,
        _paused_now,
        _ahead,
        _late_now,
        _one_off,
        _not_due_now,
    )
    return next(filter(None, (step(known) for step in steps)), None) or known.say(Cause.NO_SCHEDULE)


def not_registered(known: JobFacts) -> Answer | None:
    """If this release does not have it."""
    if known.job:
        return None
    for error in registry.failures.values():
        return known.say(Cause.BROKEN, problem=why_not_registered(error), remedy=remedy_for(error))
    return known.say(Cause.UNKNOWN, started=known.status and known.status.last_started_at)


def _disabled(known: JobFacts) -> Answer | None:
    return None if options().enabled else known.say(Cause.DISABLED)


def held_now(known: JobFacts) -> Answer | None:
    """If somebody holds its lock."""
    if known.lock is None:
        return None
    other = known.lock.job_name or known.lock.name
    facts: dict[str, Any] = {"lock": known.lock.name, "other": other, "holder": known.lock.holder}
    facts |= {"since": known.lock.acquired_at, "silence": known.now - known.lock.heartbeat_at}
    if other == known.name and not known.lock.is_suspected:
        return known.say(Cause.RUNNING, **facts)
    words = Words(*KINDS[State.STALE]) if known.lock.is_suspected else HELD_NOW
    return known.say(Cause.HELD_BY_ITSELF if other == known.name else Cause.HELD_BY_OTHER, words, **facts)


def _paused_now(known: JobFacts) -> Answer | None:
    if known.status is None or not known.status.is_paused:
        return None
    made = [note for note in known.notes if note.kind == NoteKind.PAUSED][-1:]
    reason = known.status.pause_reason or gettext("without a reason")
    facts: dict[str, Any] = {"by": known.status.paused_by or None, "reason": reason}
    facts |= {"since": made[0].at if made else None, "until": known.status.paused_until or gettext("it is resumed")}
    return known.say(Cause.PAUSED, PAUSED_NOW, evidence=made, **facts)


def _ahead(known: JobFacts) -> Answer | None:
    if known.status and known.schedule and is_ahead(known.status, known.schedule):
        return known.say(Cause.CLOCK, slot=known.status.next_slot)
    return None


def _late_now(known: JobFacts) -> Answer | None:
    slot = known.status.next_slot if known.status else None
    if slot is None or slot > known.now:
        return None
    asking = [server for server in known.servers if server.is_asking and server.trouble != DISABLED]
    if found := _recently(known):
        return found
    if not asking:
        return _nobody_now(known, slot)
    found = _elsewhere(known, slot, asking) or _just_due(known, slot) or _busy(known, slot)
    return found or known.say(Cause.NOT_KNOWN, NOT_KNOWN_NOW, slot=slot, evidence=asking)


def _recently(known: JobFacts) -> Answer | None:
    interval = known.job.min_interval if known.job else None
    started = known.status.last_started_at if known.status else None
    # As the gate sees it: a start that is further ahead was before the clock was set back, and holds up nothing.
    if interval and started and abs(known.now - started) < interval:
        return known.say(Cause.STARTED_RECENTLY, started=started, time=interval)
    return None


def _elsewhere(known: JobFacts, slot: datetime, asking: Sequence[Server]) -> Answer | None:
    if known.job is None or not known.job.on or not asking or known.may_run_on(asking) or known.has_lines:
        return None
    facts: dict[str, Any] = {"on": listed(known.job.on), "servers": named(asking)}
    return known.say(Cause.NOT_HERE, NOT_HERE_NOW, slot=slot, **facts)


def _just_due(known: JobFacts, slot: datetime) -> Answer | None:
    """If it is due for so short a time that nothing need be wrong."""
    is_any_resident = any(worker.is_live and not worker.is_once for worker in workers())
    patience = SOON if is_any_resident else MINUTE
    return known.say(Cause.TO_COME, JUST_DUE, slot=slot) if known.now - slot < patience else None


def _nobody_now(known: JobFacts, slot: datetime) -> Answer:
    if not known.servers or known.has_lines:
        return known.say(Cause.NOT_KNOWN, NOT_KNOWN_NOW._replace(remedy=NO_MARKS.remedy), slot=slot)
    disabled = [server for server in known.servers if server.is_asking]
    if disabled and known.may_run_on(disabled):
        return known.say(Cause.DISABLED, DISABLED_THERE, slot=slot, servers=named(disabled), evidence=disabled)
    last = max(server.seen_at for server in known.servers)
    facts: dict[str, Any] = {"since": last, "servers": named(known.servers)}
    return known.say(Cause.NOBODY, NOBODY_NOW, slot=slot, evidence=known.servers, **facts)


def _busy(known: JobFacts, since: datetime) -> Answer | None:
    """If each worker that stays runs something."""
    alive = {worker.holder for worker in workers() if worker.is_live and not worker.is_once}
    held = [lock for lock in locks().exclude(job_name="").survey(MOST) if lock.holder in alive]
    if not alive or {lock.holder for lock in held} != alive:
        return None
    others = listed(gettext("%(job)s on %(holder)s") % {"job": lock.job_name, "holder": lock.holder} for lock in held)
    return known.say(Cause.BUSY, since=since, others=others)


def _one_off(known: JobFacts) -> Answer | None:
    """What waits for it beside its schedule."""
    row = one_offs().filter(job_name=known.name, status="waiting").order_by("run_after", "pk").first()
    if row is None or not known.has_one_offs:
        return None
    if row.run_after > known.now:
        is_retry = row.attempt > 0
        until, time = row.run_after, row.run_after - known.now
        return known.say(Cause.RETRY, until=until) if is_retry else known.say(Cause.TO_COME, slot=until, time=time)
    facts: dict[str, Any] = {"since": row.run_after, "queue": row.queue_name}
    if not any(worker.is_live and serves(worker, row.queue_name) for worker in workers()):
        return known.say(Cause.NO_WORKER, **facts)
    asking = [each for each in known.servers if each.is_asking and serves(each, row.queue_name)]
    if found := _recently(known) or _elsewhere(known, row.run_after, asking):
        return found
    others = one_offs().in_queues([row.queue_name]).due().exclude(job_name=known.name)
    others = others.exclude(job_name__in=gates().paused().values("name"))
    number = others.filter(Q(priority__gt=row.priority) | Q(priority=row.priority, pk__lt=row.pk)).count()
    if number:
        return known.say(Cause.BEHIND, number=number, **facts)
    found = _just_due(known, row.run_after) or _busy(known, row.run_after)
    return found or known.say(Cause.NOT_KNOWN, NOT_KNOWN_NOW, slot=row.run_after)


def _not_due_now(known: JobFacts) -> Answer | None:
    slot = known.status.next_slot if known.status else None
    if known.status is None or slot is None:
        return _never_asked(known, known.schedule) if known.schedule else None
    last = [*runs().filter(job_name=known.name).order_by("-started_at", "-pk")[:1]]
    if last and known.is_used_up(last[0]):
        return known.say(Cause.USED_UP, slot=last[0].slot, number=last[0].attempt, evidence=last)
    return known.say(Cause.TO_COME, slot=slot, time=slot - known.now, evidence=last)


def _never_asked(known: JobFacts, schedule: Schedule) -> Answer:
    """No server has ever asked for it."""
    if not any(server.is_asking and server.trouble != DISABLED for server in known.servers):
        return _nobody_now(known, known.now)
    slot = next_slot(schedule, known.now)
    return known.say(Cause.TO_COME, slot=slot, time=slot - known.now)
