"""Why a job runs or does not, now or at a slot: one sentence, what proves it, and what to do. It only reads.

A reason is never stored: it is found in notes, runs, locks and the marks of servers when somebody asks. What none of
them proves is not known, and the answer says what would show it.
"""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from functools import cached_property
from typing import TYPE_CHECKING, Any

from django.db.models import Q
from django.utils.text import format_lazy
from django.utils.translation import gettext

from django_singlejob.conf import ZERO, options
from django_singlejob.jobs import registry
from django_singlejob.jobs.discovery import remedy_for, why_not_registered
from django_singlejob.jobs.registry import Job
from django_singlejob.jobs.schedule import MINUTE, Schedule, latest_slot, next_slot, slots_between
from django_singlejob.jobs.slots import MISFIRE_GRACE
from django_singlejob.locking.position import is_ahead
from django_singlejob.models.jobs import MILLISECOND, database_now, gates
from django_singlejob.models.locks import locks
from django_singlejob.models.notes import NoteKind, notes
from django_singlejob.models.one_offs import one_offs
from django_singlejob.models.runs import runs
from django_singlejob.monitoring.causes import (
    HELD_NOW,
    NO_MARKS,
    NOBODY_NOW,
    NOT_HERE_NOW,
    NOT_KNOWN_NOW,
    PAUSED_NOW,
    WORDS,
    Answer,
    Cause,
    Words,
)
from django_singlejob.monitoring.evidence import Gap, changes, gap_of, misses, pauses
from django_singlejob.monitoring.findings import KINDS, roughly
from django_singlejob.monitoring.health import State, schedule_of
from django_singlejob.monitoring.marks import DISABLED, marks
from django_singlejob.monitoring.verdict import UnknownName
from django_singlejob.monitoring.workers import REMEMBERED, Server, servers, serves, workers
from django_singlejob.process.clock import instant_in_words
from django_singlejob.process.escaping import listed, shown

if TYPE_CHECKING:
    from django_singlejob.models import JobLock, JobNote, JobRun, JobStatus

# No job has more notes that matter, and no slot more runs.
MOST = 1_000
# A server is marked every five minutes: it may have asked that long after its last mark.
MARKED_EVERY = timedelta(minutes=5)
# What may run again is run within this time, if cron begins passes each minute.
RUN_WITHIN = timedelta(minutes=2)
MOST_COUNTED = 50_000
# A clock that is wrong by less delays nothing.
WRONG = timedelta(seconds=5)
ERROR_LENGTH = 200

Step = Callable[[datetime, datetime], Answer | None]


def why(name: str, at: datetime | None = None, *, has_one_offs: bool = True) -> list[Answer]:
    """Why the job runs or does not now, or why it did or did not at its slot in the minute ``at``. A naive instant is
    in the job's zone; an hour that a change of clocks repeats has two answers. Raises ``UnknownName``."""
    facts = Facts(name, has_one_offs=has_one_offs)
    if at is None:
        return [facts.answer_now()]
    both = [at] if at.tzinfo else [at.replace(tzinfo=facts.zone, fold=fold) for fold in (0, 1)]
    # Of a skipped hour, both are the same wall clock of no instant.
    once = {instant.astimezone(UTC): instant for instant in both if _is_real(instant)} or {both[0]: both[0]}
    return [facts.answer_at(instant) for instant in once.values()]


def _is_real(instant: datetime) -> bool:
    """Whether its wall clock has shown this time, which it does not if clocks were set forward then."""
    return instant.astimezone(UTC).astimezone(instant.tzinfo).replace(tzinfo=None) == instant.replace(tzinfo=None)


class Facts:
    """What is known of a job."""

    def __init__(self, name: str, *, has_one_offs: bool = True) -> None:
        """``has_one_offs``: whether its one-offs may be shown. Raises ``UnknownName``."""
        self.name, self.now, self.has_one_offs = name, database_now(), has_one_offs
        self.job: Job | None = registry.get(self.name) if registry.is_known(self.name) else None
        self.status: JobStatus | None = gates().filter(name=self.name).survey().get(self.name)
        if not (self.job or self.status):
            raise UnknownName(
                f"There is no job {self.name!r}: none of that name is registered, and none has run. Check the name: "
                "singleton_status lists them."
            )

    @cached_property
    def schedule(self) -> Schedule | None:
        """In the database, or else in the code."""
        found = schedule_of(self.status) if self.status else None
        return found or (self.job.policy.schedule if self.job and self.job.policy else None)

    @property
    def zone(self) -> tzinfo:
        """The zone of its schedule, or UTC."""
        return self.schedule.zone if self.schedule else UTC

    @cached_property
    def notes(self) -> "list[JobNote]":
        """The newest, the oldest first."""
        return [*reversed(notes().filter(job_name=self.name).order_by("-at", "-pk")[:MOST])]

    @cached_property
    def lock_names(self) -> set[str]:
        """Its lock's name, now and in its newest run."""
        newest = runs().filter(job_name=self.name).exclude(lock="").order_by("-started_at")
        return {self.job.lock if self.job else self.name, *newest.values_list("lock", flat=True)[:1]}

    @cached_property
    def lock(self) -> "JobLock | None":
        """The lock, if it is held now."""
        return next(iter(locks().filter(name=self.job.lock if self.job else self.name).survey(1)), None)

    @cached_property
    def servers(self) -> list[Server]:
        """Those that ask, or asked lately."""
        return servers(marks(REMEMBERED))

    @property
    def grace(self) -> timedelta:
        """How late a slot may run."""
        return self.job.policy.misfire_grace if self.job and self.job.policy else MISFIRE_GRACE

    @cached_property
    def has_all_runs(self) -> bool:
        """Whether no run was pruned."""
        count = self.status.run_count if self.status else 0
        ended = runs().filter(job_name=self.name).exclude(status="running")
        return count <= MOST_COUNTED and ended[: count + 1].count() >= count

    @cached_property
    def has_lines(self) -> bool:
        """Whether lines of ``run_singleton`` ask for it, too, which leave no mark."""
        return runs().filter(job_name=self.name, trigger="command").exists()

    # --- now

    def answer_now(self) -> Answer:
        """Why it runs or does not now: the first reason that applies."""
        steps = (
            self._held_now,
            self._not_registered,
            self._disabled,
            self._paused_now,
            self._ahead,
            self._late_now,
            self._one_off,
            self._not_due_now,
        )
        return next(filter(None, (step() for step in steps)), None) or self.say(Cause.NO_SCHEDULE)

    def _not_registered(self) -> Answer | None:
        if self.job:
            return None
        for error in registry.failures.values():
            return self.say(Cause.BROKEN, problem=why_not_registered(error), remedy=remedy_for(error))
        return self.say(Cause.UNKNOWN, started=self.status and self.status.last_started_at)

    def _disabled(self) -> Answer | None:
        return None if options().enabled else self.say(Cause.DISABLED)

    def _held_now(self) -> Answer | None:
        if self.lock is None:
            return None
        other = self.lock.job_name or self.lock.name
        facts: dict[str, Any] = {"lock": self.lock.name, "other": other, "holder": self.lock.holder}
        facts |= {"since": self.lock.acquired_at, "silence": self.now - self.lock.heartbeat_at}
        if other == self.name and not self.lock.is_suspected:
            return self.say(Cause.RUNNING, **facts)
        words = Words(*KINDS[State.STALE]) if self.lock.is_suspected else HELD_NOW
        return self.say(Cause.HELD_BY_ITSELF if other == self.name else Cause.HELD_BY_OTHER, words, **facts)

    def _paused_now(self) -> Answer | None:
        if self.status is None or not self.status.is_paused:
            return None
        made = [note for note in self.notes if note.kind == NoteKind.PAUSED][-1:]
        reason = self.status.pause_reason or gettext("without a reason")
        facts: dict[str, Any] = {"by": self.status.paused_by or None, "reason": reason}
        facts |= {"since": made[0].at if made else None, "until": self.status.paused_until or gettext("it is resumed")}
        return self.say(Cause.PAUSED, PAUSED_NOW, evidence=made, **facts)

    def _ahead(self) -> Answer | None:
        if self.status and self.schedule and is_ahead(self.status, self.schedule):
            return self.say(Cause.CLOCK, slot=self.status.next_slot)
        return None

    def _late_now(self) -> Answer | None:
        slot, started = (self.status.next_slot, self.status.last_started_at) if self.status else (None, None)
        if slot is None or slot > self.now:
            return None
        interval = self.job.min_interval if self.job else None
        if interval and started and self.now - started < interval:
            return self.say(Cause.STARTED_RECENTLY, started=started, time=interval)
        asking = [server for server in self.servers if server.is_asking and server.trouble != DISABLED]
        if not asking:
            return self._nobody_now(slot)
        if self.job and self.job.on and not (self._may_run_on(asking) or self.has_lines):
            facts: dict[str, Any] = {"on": listed(self.job.on), "servers": _named(asking)}
            return self.say(Cause.NOT_HERE, NOT_HERE_NOW, slot=slot, **facts)
        return self._busy(slot) or self.say(Cause.NOT_KNOWN, NOT_KNOWN_NOW, slot=slot, evidence=asking)

    def _may_run_on(self, asking: Sequence[Server]) -> bool:
        return self.job is None or any(self.job.is_for(server.hostname) for server in asking)

    def _nobody_now(self, slot: datetime) -> Answer:
        if not self.servers or self.has_lines:
            return self.say(Cause.NOT_KNOWN, NOT_KNOWN_NOW._replace(remedy=NO_MARKS.remedy), slot=slot)
        last = max(server.seen_at for server in self.servers)
        facts: dict[str, Any] = {"since": last, "servers": _named(self.servers)}
        return self.say(Cause.NOBODY, NOBODY_NOW, slot=slot, evidence=self.servers, **facts)

    def _busy(self, since: datetime) -> Answer | None:
        """If each worker that stays runs something."""
        alive = {worker.holder for worker in workers() if worker.is_live and not worker.is_once}
        held = [lock for lock in locks().exclude(job_name="").survey(MOST) if lock.holder in alive]
        if not alive or {lock.holder for lock in held} != alive:
            return None
        others = listed(
            gettext("%(job)s on %(holder)s") % {"job": lock.job_name, "holder": lock.holder} for lock in held
        )
        return self.say(Cause.BUSY, since=since, others=others)

    def _one_off(self) -> Answer | None:
        """What waits for it beside its schedule."""
        row = one_offs().filter(job_name=self.name, status="waiting").order_by("run_after", "pk").first()
        if row is None or not self.has_one_offs:
            return None
        if row.run_after > self.now:
            is_retry = row.attempt > 0
            until, time = row.run_after, row.run_after - self.now
            return self.say(Cause.RETRY, until=until) if is_retry else self.say(Cause.TO_COME, slot=until, time=time)
        facts: dict[str, Any] = {"since": row.run_after, "queue": row.queue_name}
        if not any(worker.is_live and serves(worker, row.queue_name) for worker in workers()):
            return self.say(Cause.NO_WORKER, **facts)
        others = one_offs().in_queues([row.queue_name]).due().exclude(job_name=self.name)
        number = others.filter(Q(priority__gt=row.priority) | Q(priority=row.priority, pk__lt=row.pk)).count()
        if not number:
            return self._busy(row.run_after) or self.say(Cause.NOT_KNOWN, NOT_KNOWN_NOW, slot=row.run_after)
        return self._busy(row.run_after) or self.say(Cause.BEHIND, number=number, **facts)

    def _not_due_now(self) -> Answer | None:
        slot = self.status.next_slot if self.status else None
        if self.status is None or slot is None:
            return self._never_asked(self.schedule) if self.schedule else None
        last = [*runs().filter(job_name=self.name).order_by("-started_at", "-pk")[:1]]
        if last and self.is_used_up(last[0]):
            return self.say(Cause.USED_UP, slot=last[0].slot, number=last[0].attempt, evidence=last)
        return self.say(Cause.TO_COME, slot=slot, time=slot - self.now, evidence=last)

    def _never_asked(self, schedule: Schedule) -> Answer:
        """No server has ever asked for it."""
        if not any(server.is_asking for server in self.servers):
            return self._nobody_now(self.now)
        slot = next_slot(schedule, self.now)
        return self.say(Cause.TO_COME, slot=slot, time=slot - self.now)

    def is_used_up(self, run: "JobRun") -> bool:
        most = self.job.max_attempts if self.job else 1
        return run.slot is not None and run.status in ("abandoned", "interrupted") and run.attempt >= most

    # --- a slot

    def answer_at(self, at: datetime) -> Answer:
        """Why it ran or did not at its slot in this minute: the first reason that is proven."""
        if not _is_real(at):
            return self._not_due(at, Cause.SKIPPED_HOUR)
        at = at.astimezone(UTC)  # of a wall clock, a sum is wrong where clocks change
        slot = self._slot_at(at)
        attempts = self._runs_of(slot or at, MILLISECOND if slot else MINUTE - 2 * MILLISECOND)
        if slot is None and not attempts:
            return self._not_due(at)
        return self.answer_of(slot or at, attempts)

    def answer_of(self, slot: datetime, attempts: "Sequence[JobRun]" = ()) -> Answer:
        """Why this slot of its schedule ran or did not. ``attempts``: its runs, the oldest first."""
        if attempts:
            return self._ran(attempts)
        if slot > self.now:
            return self.say(Cause.TO_COME, slot=slot, time=slot - self.now)
        steps: tuple[Step, ...] = (
            self._no_record,
            self._paused,
            self._nobody,
            self._held,
            self._elsewhere,
            self._changed,
            self._given_up,
            self._together,
        )
        moved_at = self._moved_at(slot)
        found = next(filter(None, (step(slot, moved_at) for step in steps)), None)
        return found or self.say(Cause.NOT_KNOWN, None if self.servers and not self.has_lines else NO_MARKS, slot=slot)

    def _runs_of(self, at: datetime, length: timedelta) -> "list[JobRun]":
        span = (at - MILLISECOND, at + length)
        rows = runs().filter(Q(slot__range=span) | Q(retried_slot__range=span), job_name=self.name)
        return [*rows.order_by("pk")[:MOST]]

    def _ran(self, attempts: "Sequence[JobRun]") -> Answer:
        last = attempts[-1]
        slot = last.slot or last.retried_slot
        facts: dict[str, Any] = {"slot": slot, "started": last.started_at, "server": last.hostname}
        if last.status == "successful":
            return self.say(Cause.RAN, evidence=attempts, **facts)
        if last.status == "running" and self.lock and self.lock.token == last.token:
            return self._held_now() or self.say(Cause.RAN, evidence=attempts, **facts)
        for note in self.notes:
            if note.kind == NoteKind.STOPPED and note.details == str(last.token):
                return self.say(Cause.STOPPED, by=note.by or None, evidence=[*attempts, note], **facts)
        if self.is_used_up(last) and len(attempts) > 1:
            return self.say(Cause.USED_UP, slot=last.slot, number=last.attempt, evidence=attempts)
        facts |= {"status": last.get_status_display(), "error": last.error[:ERROR_LENGTH]}
        return self.say(Cause.FAILED, evidence=attempts, **facts)

    def _slot_at(self, at: datetime) -> datetime | None:
        """The slot in this minute, of the schedule that the job had then."""
        schedule = self._schedule_at(at)
        if schedule is None:
            return None
        return next(slots_between(schedule, at - MILLISECOND, at + MINUTE - MILLISECOND), None)

    def _schedule_at(self, at: datetime) -> Schedule | None:
        later = next((change for change in changes(self.notes) if change.at > at), None)
        return later.before or self.schedule if later else self.schedule

    def _not_due(self, at: datetime, cause: Cause = Cause.NOT_DUE) -> Answer:
        schedule = self._schedule_at(at)
        if schedule is None:
            return self.say(Cause.NO_SCHEDULE)
        around: dict[str, Any] = {"before": latest_slot(schedule, at), "after": next_slot(schedule, at)}
        return self.say(cause, slot=at, wall=f"{at:%Y-%m-%d %H:%M}", **around)

    def _moved_at(self, slot: datetime) -> datetime:
        """When the schedule moved past the slot; now, if it has not."""
        if note := misses(self.notes, slot):
            return note.at
        later = self._next_run(slot)
        return later.started_at if later else self.now

    def _next_run(self, slot: datetime) -> "JobRun | None":
        later = runs().filter(job_name=self.name, slot__gt=slot)
        return later.exclude(trigger="manual").order_by("slot").first()  # by hand, a slot takes no other one with it

    def _no_record(self, slot: datetime, moved_at: datetime) -> Answer | None:
        of_itself = runs().filter(job_name=self.name).exclude(trigger="manual", slot__isnull=False)
        first = of_itself.order_by("started_at").first()
        noted = self.notes[:1] if self.has_all_runs else []
        known = [*([first.slot or first.started_at] if first else []), *(note.at for note in noted)]
        is_due_still = self.status and self.status.next_slot and self.status.next_slot <= slot
        if is_due_still or misses(self.notes, slot) or (known and slot >= min(known) - MINUTE):
            return None
        return self.say(Cause.NO_RECORD, slot=slot, since=min(known, default=None))

    def _paused(self, slot: datetime, moved_at: datetime) -> Answer | None:
        for begin, end, note, last in pauses(self.notes):
            if begin <= slot < (end or moved_at) and (last or moved_at) > moved_at - RUN_WITHIN:
                words = WORDS[Cause.PAUSED]
                facts: dict[str, Any] = {"since": begin, "until": end or gettext("now"), "by": note.by or None}
                facts["reason"] = note.reason or gettext("without a reason")
                words = words._replace(remedy="") if end else words
                return self.say(Cause.PAUSED, words, slot=slot, evidence=[note], **facts)
        return None

    def _held(self, slot: datetime, moved_at: datetime) -> Answer | None:
        # What began after the schedule had moved on has prevented nothing. If the lock was free for long before that,
        # the slot would have been run. Nobody knows until when a holder lived that died.
        latest, held_until = min(slot + MINUTE / 2, moved_at), max(slot, moved_at - RUN_WITHIN)
        before = runs().filter(lock__in=self.lock_names, started_at__lte=latest).exclude(slot__gt=slot)
        alive = self.lock.token if self.lock and not self.lock.is_suspected else None
        proven = before.exclude(status="abandoned").exclude(Q(status="running") & ~Q(token=alive))
        for run in proven.order_by("-started_at")[:10]:
            if (run.finished_at or self.now) > held_until:
                cause = Cause.HELD_BY_ITSELF if run.job_name == self.name else Cause.HELD_BY_OTHER
                facts: dict[str, Any] = {"started": run.started_at, "finished": run.finished_at, "lock": run.lock}
                facts |= {"other": run.job_name, "server": run.hostname}
                return self.say(cause, slot=slot, evidence=[run], **facts)
        return None

    def _nobody(self, slot: datetime, moved_at: datetime) -> Answer | None:
        gaps = self._gaps(slot)
        if not gaps or self._asking_at(slot) or self.has_lines:
            return None
        since, until = max(gap.since for gap in gaps), min(gap.until for gap in gaps)
        if runs().filter(started_at__gt=since + MARKED_EVERY, started_at__lt=until).exists():
            return None  # a server that is forgotten by now
        facts: dict[str, Any] = {"since": since, "until": until}
        servers = listed(sorted({gap.hostname for gap in gaps}))
        return self.say(Cause.NOBODY, slot=slot, servers=servers, evidence=gaps, **facts)

    def _asking_at(self, slot: datetime) -> list[Server]:
        away = {(gap.hostname, gap.queues) for gap in self._gaps(slot)}
        known = [each for each in self.servers if each.first_seen_at <= slot + MARKED_EVERY]
        return [each for each in known if (each.hostname, each.queues) not in away]

    def _gaps(self, slot: datetime) -> list[Gap]:
        """Of each server that is known to have been silent then. After its last mark it may have asked for a while."""
        back = map(gap_of, notes().filter(kind=NoteKind.SERVER_BACK, last_slot__gte=slot)[:MOST])
        silent = (Gap(each.hostname, each.queues, each.seen_at, self.now) for each in self.servers)
        return [gap for gap in (*back, *silent) if gap.since + MARKED_EVERY < slot < gap.until]

    def _elsewhere(self, slot: datetime, moved_at: datetime) -> Answer | None:
        asked = self._asking_at(slot)
        if self.job is None or not self.job.on or not asked or self._may_run_on(asked) or self.has_lines:
            return None
        facts: dict[str, Any] = {"on": listed(self.job.on), "servers": _named(asked)}
        return self.say(Cause.NOT_HERE, slot=slot, evidence=asked, **facts)

    def _changed(self, slot: datetime, moved_at: datetime) -> Answer | None:
        for change in changes(self.notes):
            is_in_time = slot <= change.at <= slot + self.grace + MINUTE
            if is_in_time and all(change.texts) and misses(self.notes, slot):
                before, after = change.texts
                facts: dict[str, Any] = {"since": change.at, "before": before, "after": after}
                return self.say(Cause.SCHEDULE_CHANGED, slot=slot, evidence=[change.note], **facts)
        return None

    def _given_up(self, slot: datetime, moved_at: datetime) -> Answer | None:
        note = misses(self.notes, slot)
        if note is None:
            return None
        is_replaced = note.details == "coalesced"
        outcome = gettext("a later slot was run in its place") if is_replaced else gettext("not run")
        return self.say(Cause.GIVEN_UP, slot=slot, since=note.at, outcome=outcome, evidence=[note])

    def _together(self, slot: datetime, moved_at: datetime) -> Answer | None:
        later = self._next_run(slot)
        if later is None or later.started_at > slot + self.grace + MINUTE or (self.job and self.job.catch_up == "all"):
            return None
        facts: dict[str, Any] = {"later": later.slot, "started": later.started_at, "server": later.hostname}
        return self.say(Cause.TAKEN_TOGETHER, slot=slot, evidence=[later], **facts)

    # --- words

    def say(
        self,
        cause: Cause,
        words: Words | None = None,
        *,
        slot: datetime | None = None,
        evidence: Sequence[Any] = (),
        **facts: Any,
    ) -> Answer:
        """The answer, in ``words``; ``None``: as is usual for the cause. ``facts``: what these have in braces."""
        told = {name: self._in_words(fact) for name, fact in {"slot": slot, **facts}.items()}
        sentence, remedy = (" ".join(str(format_lazy(text, **told)).split()) for text in words or WORDS[cause])
        wrong = [each for each in self.servers if abs(each.clock_error or ZERO) >= WRONG]
        lines = [self._line(each) for each in evidence] + [self._clock(each) for each in wrong]
        return Answer(self.name, cause, slot, sentence, lines, remedy)

    def _in_words(self, fact: Any) -> str:
        match fact:
            case None:
                return gettext("unknown")
            case datetime():
                return instant_in_words(fact, self.zone)
            case timedelta():
                return roughly(fact)
        return shown(str(fact))

    def _line(self, each: Any) -> str:
        """What a row proves."""
        words = self._in_words
        if isinstance(each, Server):
            text = gettext("{server} was seen at {at}, with the release {release}.")
            return text.format(server=each.hostname, at=words(each.seen_at), release=words(each.release or None))
        if isinstance(each, Gap):
            text = gettext("{server} did not ask between {since} and {until}.")
            return text.format(server=each.hostname, since=words(each.since), until=words(each.until))
        if hasattr(each, "started_at"):
            text = gettext("Run {number} of {name} on {server}: {status}, from {since} to {until}.")
            facts = {"number": each.pk, "name": each.job_name, "server": each.hostname}
            facts |= {"status": each.get_status_display(), "since": words(each.started_at)}
            return text.format(**facts, until=words(each.finished_at))
        text = gettext("Note of {at}: {kind}, by {by}.")
        return text.format(at=words(each.at), kind=each.get_kind_display(), by=words(each.by or None))

    def _clock(self, server: Server) -> str:
        error = server.clock_error or ZERO
        fast, slow = gettext("The clock of {server} is {time} fast."), gettext("The clock of {server} is {time} slow.")
        return (fast if error > ZERO else slow).format(server=server.hostname, time=roughly(abs(error)))


def _named(asking: Sequence[Server]) -> str:
    return listed(dict.fromkeys(server.hostname for server in asking))
