"""What is known of a job, and how the ledger and ``why`` tell it. It only reads."""

from collections.abc import Collection, Sequence
from dataclasses import fields
from datetime import UTC, datetime, timedelta, tzinfo
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

from django.db.models import Q
from django.utils.text import format_lazy
from django.utils.translation import gettext

from django_singlejob.conf import ZERO
from django_singlejob.jobs import registry
from django_singlejob.jobs.registry import Job
from django_singlejob.jobs.schedule import Schedule
from django_singlejob.jobs.slots import MISFIRE_GRACE
from django_singlejob.models.jobs import database_now, gates
from django_singlejob.models.locks import locks
from django_singlejob.models.notes import NoteKind, notes
from django_singlejob.models.runs import runs
from django_singlejob.monitoring.causes import (
    WORDS,
    Answer,
    Cause,
    Words,
)
from django_singlejob.monitoring.evidence import Gap
from django_singlejob.monitoring.findings import roughly
from django_singlejob.monitoring.health import schedule_of
from django_singlejob.monitoring.marks import marks
from django_singlejob.monitoring.verdict import UnknownName
from django_singlejob.monitoring.workers import REMEMBERED, Server, servers
from django_singlejob.process.clock import instant_in_words, saturated
from django_singlejob.process.escaping import listed, shown

if TYPE_CHECKING:
    from django_singlejob.models import JobLock, JobNote, JobRun, JobStatus
    from django_singlejob.models.runs import JobRunQuerySet

# No job has more notes that matter, and no slot more runs.
MOST = 1_000
MOST_COUNTED = 50_000
# Runs of the same lock follow one another.
MOST_HOLDING = 50
DAY = timedelta(days=1)
# A clock that is wrong by less delays nothing.
WRONG = timedelta(seconds=5)


class Shared:
    """What one job has in common with others. Each part is read when a job is the first to need it.

    Attributes:
        lock_names: the locks of these jobs.
        since: from when on their slots are asked for; ``None``: that is not known.
    """

    def __init__(self, lock_names: Collection[str] = (), since: datetime | None = None) -> None:
        self.lock_names, self.since = lock_names, since

    def runs_of_locks(self, names: Collection[str], since: datetime, until: datetime) -> "list[JobRun]":
        """The last runs that began before ``until`` and may have held these locks at ``since``, the newest first."""
        if self.since and self.since <= since and len(self._runs_of_locks) <= MOST_COUNTED:
            return [run for run in self._runs_of_locks if run.lock in names and run.started_at <= until]
        return [*_holding(names).filter(started_at__lte=until)[:MOST_HOLDING]]

    @cached_property
    def _runs_of_locks(self) -> "list[JobRun]":
        # No index has the lock. One that took longer than a day, and has ended, is seen only if its job is asked alone.
        lately = Q(started_at__gte=self.since - DAY) if self.since else Q()
        return [*_holding(self.lock_names).filter(lately | Q(status="running"))[: MOST_COUNTED + 1]]

    @cached_property
    def locks(self) -> "dict[str, JobLock]":
        """Those that are held now, by name."""
        return {lock.name: lock for lock in locks().filter(name__in=self.lock_names).survey()}

    @cached_property
    def servers(self) -> list[Server]:
        """Those that ask, or asked lately."""
        return servers(marks(REMEMBERED))

    def comebacks(self, slot: datetime) -> "list[JobNote]":
        """The notes of servers that came back after this slot."""
        if len(self.comebacks_read) < MOST:
            return [note for note in self.comebacks_read if note.last_slot and note.last_slot >= slot]
        return [*notes().filter(kind=NoteKind.SERVER_BACK, last_slot__gte=slot)[:MOST]]

    @cached_property
    def comebacks_read(self) -> "list[JobNote]":
        """Of all servers, but not more than ``MOST``."""
        return [*notes().filter(kind=NoteKind.SERVER_BACK)[:MOST]]


class JobFacts:
    """What is known of a job."""

    def __init__(
        self,
        name: str,
        now: datetime,
        status: "JobStatus | None",
        *,
        has_one_offs: bool = True,
        shared: Shared | None = None,
    ) -> None:
        """``has_one_offs``: whether its one-offs may be shown. ``shared``: the servers, for several jobs. Raises
        ``UnknownName``."""
        self.name, self.now, self.status, self.has_one_offs = name, now, status, has_one_offs
        self._shared = shared or Shared()
        # All of a span of slots, if they were read with those of other jobs.
        self.read_runs: Sequence[JobRun] = ()
        self.job: Job | None = registry.get(self.name) if registry.is_known(self.name) else None
        if not (self.job or self.status):
            raise UnknownName(
                f"There is no job {self.name!r}: none of that name is registered, and none has run. Check the name: "
                "singleton_status lists them."
            )

    @classmethod
    def read(cls, name: str, *, has_one_offs: bool = True) -> Self:
        """Of one job. Raises ``UnknownName``."""
        return cls(name, database_now(), gates().filter(name=name).survey().get(name), has_one_offs=has_one_offs)

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
        now = self.job.lock if self.job else self.name
        return {now, self.newest_lock or now}

    @cached_property
    def lock(self) -> "JobLock | None":
        """The lock, if it is held now."""
        name = self.job.lock if self.job else self.name
        if name in self._shared.lock_names:
            return self._shared.locks.get(name)
        return next(iter(locks().filter(name=name).survey(1)), None)

    def runs_of_lock(self, since: datetime, until: datetime) -> "list[JobRun]":
        """The last runs that began before ``until`` and may have held its lock at ``since``, the newest first."""
        return self._shared.runs_of_locks(self.lock_names, since, until)

    @property
    def servers(self) -> list[Server]:
        """Those that ask, or asked lately."""
        return self._shared.servers

    def comebacks(self, slot: datetime) -> "list[JobNote]":
        """The notes of servers that came back after this slot."""
        return self._shared.comebacks(slot)

    @cached_property
    def first_own(self) -> datetime | None:
        """The slot of its first run, or when that began; ``None``: it has not run, or only by hand."""
        of_itself = runs().filter(job_name=self.name).exclude(trigger="manual", slot__isnull=False)
        first = of_itself.order_by("started_at").first()
        return (first.slot or first.started_at) if first else None

    def next_run(self, slot: datetime) -> "JobRun | None":
        """The run of the next slot after this one that ran. By hand, a slot takes no other one with it."""
        known = (run for run in self.read_runs if run.slot and run.slot > slot and run.trigger != "manual")
        found = min(known, key=lambda run: run.slot or slot, default=None)
        later = runs().filter(job_name=self.name, slot__gt=slot)
        return found or later.exclude(trigger="manual").order_by("slot").first()

    @cached_property
    def newest_lock(self) -> str | None:
        """The lock's name in its newest run."""
        newest = runs().filter(job_name=self.name).exclude(lock="").order_by("-started_at")
        return newest.values_list("lock", flat=True).first()

    @cached_property
    def first_slot(self) -> datetime | None:
        """The slot of its first run that had one; ``None``: there is none."""
        with_slot = runs().filter(job_name=self.name, slot__isnull=False).exclude(trigger="manual")
        return with_slot.order_by("started_at").values_list("slot", flat=True).first()

    @property
    def grace(self) -> timedelta:
        """How late a slot may run."""
        # It is added to instants.
        return saturated(self.job.policy.misfire_grace) if self.job and self.job.policy else MISFIRE_GRACE

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

    def is_used_up(self, run: "JobRun") -> bool:
        """Whether no attempt of its slot came to its end, and none will begin."""
        most = self.job.max_attempts if self.job else 1
        return run.slot is not None and run.status in ("abandoned", "interrupted") and run.attempt >= most

    def may_run_on(self, asking: Sequence[Server]) -> bool:
        """Whether it is for one of these."""
        return self.job is None or any(self.job.is_for(server.hostname) for server in asking)

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
            seen = text.format(server=each.hostname, at=words(each.seen_at), release=words(each.release or None))
            return f"{seen} {shown(each.trouble)}".strip()
        if isinstance(each, Gap):
            text = gettext("{server} did not ask between {since} and {until}.")
            return text.format(server=each.hostname, since=words(each.since), until=words(each.until))
        if hasattr(each, "started_at"):
            text = gettext("Run {number} of {name} on {server}: {status}, from {since} to {until}.")
            facts = {"number": each.pk, "name": each.job_name, "server": each.hostname}
            facts |= {"status": each.get_status_display(), "since": words(each.started_at)}
            return text.format(**facts, until=words(each.finished_at))
        text = gettext("Note of {at}: {kind}, by {by}.") if each.by else gettext("Note of {at}: {kind}.")
        return text.format(at=words(each.at), kind=each.get_kind_display(), by=words(each.by or None))

    def _clock(self, server: Server) -> str:
        error = server.clock_error or ZERO
        fast, slow = gettext("The clock of {server} is {time} fast."), gettext("The clock of {server} is {time} slow.")
        return (fast if error > ZERO else slow).format(server=server.hostname, time=roughly(abs(error)))


def _holding(names: Collection[str]) -> "JobRunQuerySet":
    """The runs that held these locks, and of which it is known until when, the newest first."""
    rows = runs().filter(lock__in=names).exclude(status="abandoned")
    return rows.defer("traceback", "output", "origin").order_by("-started_at")


def named(asking: Sequence[Server]) -> str:
    """The names of these servers."""
    return listed(dict.fromkeys(server.hostname for server in asking))


def is_real(instant: datetime) -> bool:
    """Whether its wall clock has shown this time, which it does not if clocks were set forward then."""
    return instant.astimezone(UTC).astimezone(instant.tzinfo).replace(tzinfo=None) == instant.replace(tzinfo=None)


def options_of(job: Job) -> dict[str, object]:
    """The job's options that are not the default, by name, besides its schedule. A secret is not among them."""
    given = {field.name: (getattr(job, field.name), field.default) for field in fields(job) if field.repr}
    elsewhere = ("name", "schedule", "time_zone", *(["lock"] if job.lock == job.name else []))
    return {name: value for name, (value, usual) in given.items() if name not in elsewhere and value != usual}
