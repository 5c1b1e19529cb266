"""The gates: one row for each job and each lock. To get a lock, every caller must change its gate first."""

from __future__ import annotations

from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.db import connections, models
from django.db.models import (
    Case,
    DurationField,
    F,
    Func,
    Max,
    Q,
    Value,
    When,
)
from django.db.models.functions import Coalesce, Least
from django.db.models.lookups import Exact, GreaterThan
from django.utils.text import format_lazy
from django.utils.translation import gettext_lazy as _

from django_singlejob.conf import ZERO
from django_singlejob.database.timeline import GRANT_BITS, Timeline, ask_with_timeline
from django_singlejob.database.transactions import alias, durable
from django_singlejob.jobs.names import NAME_LENGTH, REASON_LENGTH
from django_singlejob.models.rows import Row, allowed, in_range, in_utc, whether
from django_singlejob.models.runs import JobRun, RunStatus
from django_singlejob.models.unreadable import RowQuerySet
from django_singlejob.process.clock import DBNow
from django_singlejob.process.escaping import printable
from django_singlejob.process.holder import USER_LENGTH

if TYPE_CHECKING:
    from collections.abc import Mapping

    from django.db.backends.base.base import BaseDatabaseWrapper
    from django.db.models import Expression
    from django.db.models.sql.compiler import SQLCompiler

    from django_singlejob.models.locks import JobLock

MILLISECOND = timedelta(milliseconds=1)


def gates() -> JobStatusQuerySet:
    """The gates, on the database that decides."""
    return JobStatusQuerySet(JobStatus, using=alias())


def database_now() -> datetime:
    """The time by the database's clock, in UTC."""
    # Django has no SELECT without a table. This one reads no row, but returns the time.
    found: datetime = gates().filter(pk="").aggregate(now=Coalesce(Max("next_slot"), DBNow()))["now"]
    return found.astimezone(UTC)


class JobStatusQuerySet(RowQuerySet["JobStatus"]):
    """The gates: to get a lock, a caller must first change its gate. The fence on a gate only grows."""

    def remember(self, *names: str) -> None:
        """Make sure that these gates exist."""
        # An INSERT of one that exists would wait for any transaction on it.
        known = set(self.filter(name__in=names).values_list("name", flat=True))
        # One at a time: two transactions that insert the same rows in a different order would deadlock.
        for name in sorted({*names} - known):
            # In a transaction of its own if possible: it does not wait for ever for another one that inserts the row.
            with nullcontext() if connections[self.db].in_atomic_block else durable(self.db):
                self.bulk_create([self.model(name=name)], ignore_conflicts=True)

    def look_up(self, names: set[str], min_interval: timedelta) -> dict[str, JobStatus]:
        """Read these gates as ``startable``, by name."""
        found = ask_with_timeline(self.db, lambda: self.startable(min_interval).in_bulk(names))
        return {name: in_utc(status) for name, status in found.items()}

    def startable(self, min_interval: timedelta | Expression) -> JobStatusQuerySet:
        """With ``now``, ``timeline`` and ``started_recently`` (within ``min_interval``): what decides whether a job may
        start. Read it inside ``ask_with_timeline``."""
        recently = whether(_recently(min_interval))
        facts = {"now": DBNow(), "started_recently": recently, "timeline": Timeline()}
        return self.annotate(**facts)

    def of_jobs(self) -> JobStatusQuerySet:
        """The gates of jobs that have run, have a schedule or are paused. There may be many more that belong only to a
        lock."""
        # Not "=": see `OneOffJobQuerySet.exclusive`.
        return self.filter(of_job__in=[True])

    def scheduled(self) -> JobStatusQuerySet:
        """The gates of jobs that have a schedule."""
        return self.of_jobs().exclude(schedule="")

    def survey(self, most: int | None = None) -> dict[str, JobStatus]:
        """Read these rows, by name, with ``now``: all, or the first ``most``."""
        facts = {"now": DBNow()}
        return {status.name: in_utc(status) for status in self.annotate(**facts)[:most]}

    def unchanged(self, seen: JobStatus) -> JobStatusQuerySet:
        """The row, if its schedule is where it was seen and no run has begun since."""
        # Each start and each move of a schedule raises the fence. The other conditions catch edits by hand.
        rows = self.filter(**{name: getattr(seen, name) for name in ("name", "fence", "schedule", "time_zone")})
        if seen.next_slot is None:
            return rows.filter(next_slot=None)
        # Not "=", because instants written by SQLite's own clock have fewer digits.
        return rows.filter(next_slot__gt=seen.next_slot - MILLISECOND, next_slot__lt=seen.next_slot + MILLISECOND)

    def grantable(self, seen: JobStatus) -> JobStatusQuerySet:
        """The row, if it is ``unchanged`` and on the database server where it was seen: another one grants other
        fences."""
        return self.unchanged(seen).filter(Exact(Timeline(), seen.timeline))

    def have_started_on(self, timeline: int, ago: timedelta) -> bool:
        """Whether a job started on this timeline ``ago`` or earlier, so that the timeline is at least that old."""
        return self.of_jobs().filter(fence__gte=timeline << GRANT_BITS, last_started_at__lte=DBNow() - ago).exists()

    def passed(self, name: str, token: UUID) -> JobStatusQuerySet:
        """The row, if no other caller has passed the gate since the grant of this token."""
        return self.filter(name=name, token=token)

    def pass_through(self, seen: JobStatus, token: UUID) -> bool:
        """Pass the gate. Returns ``False`` if another caller was faster: look again."""
        return self.grantable(seen).update(fence=seen.next_fence, token=token, hidden=False) == 1

    def pass_and_start(self, seen: JobStatus, min_interval: timedelta, changes: Mapping[str, Any]) -> bool:
        """Pass the gate of a job and record its start. Returns ``False`` if the row is not ``grantable``, or if the job
        may not start."""
        return self.grantable(seen).start(min_interval, changes)

    def start(self, min_interval: timedelta, changes: Mapping[str, Any]) -> bool:
        """Record the start of a job. Returns ``False`` if the row has changed, or if the job is paused or last started
        less than ``min_interval`` ago."""
        return self.ready(min_interval).update(last_started_at=DBNow(), hidden=False, **changes) == 1

    def is_at_hand(self, name: str) -> bool:
        """Whether no process is inside a transaction on this gate, as far as the database can tell without waiting."""
        has_skip_locked = connections[self.db].features.has_select_for_update_skip_locked
        rows = self.select_for_update(skip_locked=True) if has_skip_locked else self
        return rows.filter(name=name).values_list("pk").first() is not None

    def move_on(self, seen: JobStatus, changes: Mapping[str, Any], *, unless_due: bool = False) -> bool:
        """Move the schedule without a run. Returns ``False`` if another caller was faster, or if its next slot has
        become due: look again."""
        rows = self.unchanged(seen)
        if unless_due:
            rows = rows.exclude(next_slot__lte=DBNow())
        return rows.update(fence=seen.fence + 1, hidden=False, **changes) == 1

    def paused(self, *, lately: timedelta = ZERO) -> JobStatusQuerySet:
        """The gates of jobs that are paused, or whose pause ended by itself less than ``lately`` ago."""
        return self.of_jobs().filter(_is_paused(lately))

    def pause(
        self, name: str, *, until: datetime | None = None, reason: str = "", by: str = "", with_all: bool = False
    ) -> bool:
        """Prevent new runs of the job ``until`` then, or, if it is ``None``, until it is resumed. If the job is paused
        already, change its pause; ``with_all``, not that of a job that was paused by itself. Returns ``False`` if
        nothing was changed, if ``until`` has passed, or if there is no such row."""
        # Only this package writes these, so they can be compared with "=".
        same = {"paused_until": until, "pause_reason": printable(reason, REASON_LENGTH), "paused_with_all": with_all}
        left = Q(**same) | Q(paused_with_all=False) if with_all else Q(**same)
        rows = self.filter(name=name).exclude(_is_paused() & left)
        if until is not None:
            rows = rows.filter(_is_ahead(until))
        return rows.update(paused=True, paused_by=printable(by, USER_LENGTH), **same) == 1

    def resume(self, name: str, *, with_all: bool = False) -> bool:
        """Allow new runs of the job again; ``with_all``, only if it was paused so. Returns ``False`` if it was not."""
        rows = self.filter(_is_paused(), name=name, paused_with_all__in={with_all, True})
        nothing = {"paused_until": None, "pause_reason": "", "paused_by": "", "paused_with_all": False}
        return rows.update(paused=False, **nothing) == 1

    def hide(self, name: str) -> bool:
        """Leave the job out of lists and monitoring until it is requested again. Returns ``False`` if it was hidden
        already, or if there is no such row."""
        return self.filter(name=name, hidden=False).update(hidden=True) == 1

    def show(self, name: str) -> bool:
        """Show the job again. Returns ``False`` if it was not hidden."""
        return self.filter(name=name, hidden=True).update(hidden=False) == 1

    def due(self) -> JobStatusQuerySet:
        """Gates with a slot that is due, or whose run was cut off, oldest first."""
        rows = self.of_jobs().filter(Q(next_slot__lte=DBNow()) | Q(abandoned=True), is_active())
        return rows.order_by("next_slot")

    def ready(self, min_interval: timedelta) -> JobStatusQuerySet:
        """Gates of jobs that may start: not paused, and last started longer than ``min_interval`` ago."""
        ready = self.filter(is_active())
        return ready.exclude(_recently(min_interval)) if min_interval else ready

    def hold(self, name: str, token: UUID) -> bool:
        """Keep all others from passing the gate until this transaction ends. Returns ``False`` if another caller has
        passed it already."""
        # An UPDATE, because SQLite ignores SELECT FOR UPDATE. It must change the row, because Galera replicates nothing
        # else: without a change, a successor on another node would not conflict with this transaction.
        return self.passed(name, token).update(hold_count=F("hold_count") + 1) == 1

    def touch(self, name: str) -> None:
        """Wait until the gate can be changed: until then, a live process is inside a transaction on it."""
        self.filter(name=name).update(fence=F("fence"))

    def finish(
        self, name: str, token: UUID, status: str, duration: timedelta, *, failures: Any = 0, own_name: str = ""
    ) -> bool:
        """Record how a run ended. ``failures``: by how much that raises the number of consecutive failures.
        ``own_name``: the job's own gate, if it is not the lock's. Returns ``False`` if another caller has passed the
        lock's gate since, or if the own gate was deleted by hand."""
        # On MySQL, an expression sees what was assigned before it.
        changes: dict[str, Any] = {"consecutive_failures": F("consecutive_failures") + failures} if failures else {}
        if status == "successful":
            changes |= {"consecutive_failures": 0, "mean_duration": mean_with(duration)}
        changes |= {"last_status": status, "last_finished_at": DBNow(), "run_count": F("run_count") + 1}
        if own_name in ("", name):
            return self.passed(name, token).update(**changes) == 1
        # The job's own gate may be another lock's, so its token is not ours: hold the lock's gate meanwhile.
        return self.hold(name, token) and self.filter(name=own_name).update(**changes) == 1

    def abandon(self, dead: JobLock) -> None:
        """Record that the holder of a job's run died. Its slot will be run again, unless a later one has begun."""
        self.filter(name=dead.job_name).update(
            run_count=F("run_count") + 1,
            last_status="abandoned",
            consecutive_failures=F("consecutive_failures") + 1,
        )
        if dead.slot:
            self.put_back(dead.job_name, dead.slot, dead.attempt)

    def put_back(self, name: str, slot: datetime, attempt: int) -> None:
        """Have the slot of this attempt run again, unless a later one has begun, or the job has left its schedule."""
        self.at_attempt(name, slot, attempt).update(abandoned=True)

    def undo_start(self, name: str, slot: datetime | None, attempt: int, before: Mapping[str, Any]) -> bool:
        """Record that the run of this attempt has not begun, so that it has used neither its slot nor the attempt.
        ``before``: other columns, as they were before. Returns ``False`` if the row was deleted by hand."""
        if slot:
            self.at_attempt(name, slot, attempt).update(abandoned=True, last_attempt=attempt - 1)
        return self.filter(name=name).update(**before) == 1

    def at_attempt(self, name: str, slot: datetime, attempt: int) -> JobStatusQuerySet:
        """The row, if this attempt at this slot is the last that has begun, and the job has not left its schedule."""
        # Only this package writes these, so they can be compared with "=".
        return self.filter(name=name, last_slot=slot, last_attempt=attempt, next_slot__isnull=False)

    def revoke(self, name: str) -> bool:
        """Take the gate from its holder, so that no later write of that holder finds its token. Returns ``False`` if
        there is no such row."""
        return self.filter(name=name).update(fence=F("fence") + 1, token=None) == 1


#: One more failure if the run before was interrupted too.
IF_SECOND = Case(When(last_status="interrupted", then=1), default=0)


_IS_OF_JOB = Q(last_started_at__isnull=False) | ~Q(schedule="") | Q(paused=True) | Q(consecutive_failures__gt=0)


class JobStatus(Row):
    """The gate: one row for each job name and each lock name. It is never pruned.

    A process that wants the lock must change this row first. The row stores the fence and how the job has been doing.
    """

    name = models.CharField(_("name"), max_length=NAME_LENGTH, primary_key=True)
    fence = models.BigIntegerField(_("fence"), default=0, help_text=_("Increases with each grant."))
    token = models.UUIDField(_("token"), null=True, blank=True, help_text=_("Token of the last grant."))
    hold_count = models.PositiveBigIntegerField(
        _("holds"), default=0, help_text=_("How many times a holder has kept others from this gate.")
    )
    schedule = models.CharField(_("schedule"), max_length=200, blank=True, default="")
    time_zone = models.CharField(_("time zone"), max_length=64, blank=True, default="")
    own_schedule = models.CharField(
        _("own schedule"),
        max_length=200,
        blank=True,
        default="",
        db_default="",
        help_text=_("In place of the code's; empty: the code's."),
    )
    own_time_zone = models.CharField(_("own time zone"), max_length=64, blank=True, default="", db_default="")
    schedule_until = models.DateTimeField(
        _("schedule until"),
        null=True,
        blank=True,
        help_text=_("When another schedule took its place, if slots that were due by then come first."),
    )
    next_slot = models.DateTimeField(_("next slot"), null=True, blank=True)
    last_slot = models.DateTimeField(
        _("last slot"), null=True, blank=True, help_text=_("The last slot for which a run was started.")
    )
    last_attempt = models.PositiveIntegerField(
        _("last attempt"), default=1, help_text=_("Attempt number at the last slot.")
    )
    abandoned = models.BooleanField(
        _("abandoned"), default=False, help_text=_("The last slot's run was cut off, and the slot has not been rerun.")
    )
    paused = models.BooleanField(_("paused"), default=False)
    paused_until = models.DateTimeField(
        _("paused until"),
        null=True,
        blank=True,
        help_text=_("When the job resumes by itself; empty: not before somebody resumes it."),
    )
    pause_reason = models.CharField(_("reason of the pause"), max_length=REASON_LENGTH, blank=True, default="")
    paused_by = models.CharField(_("paused by"), max_length=USER_LENGTH, blank=True, default="")
    paused_with_all = models.BooleanField(
        _("paused with all"), default=False, help_text=_("Paused with all jobs, and resumed with all jobs.")
    )
    hidden = models.BooleanField(
        _("hidden"), default=False, help_text=_("Left out of lists and monitoring until it is requested again.")
    )
    # For the index: there may be very many gates that belong only to a lock.
    of_job = models.GeneratedField(expression=whether(_IS_OF_JOB), output_field=models.BooleanField(), db_persist=True)
    last_started_at = models.DateTimeField(_("last started at"), null=True, blank=True)
    last_finished_at = models.DateTimeField(_("last finished at"), null=True, blank=True)
    last_status = models.CharField(
        _("last status"),
        max_length=20,
        choices=JobRun.Status,
        blank=True,
        default="",
        help_text=_("Status of the last finished run; blank while an abandoned run is retried."),
    )
    consecutive_failures = models.PositiveIntegerField(_("consecutive failures"), default=0)
    run_count = models.PositiveBigIntegerField(
        _("runs"), default=0, help_text=_("Finished runs, whatever their status.")
    )
    mean_duration = models.DurationField(
        _("mean duration"), null=True, blank=True, help_text=_("Average of about the last 20 successful runs.")
    )
    misfire_count = models.PositiveBigIntegerField(_("misfires"), default=0)
    coalesced_count = models.PositiveBigIntegerField(
        _("coalesced slots"),
        default=0,
        help_text=_("Slots that were still in time when a later slot ran in their place."),
    )

    objects = JobStatusQuerySet.as_manager()

    if TYPE_CHECKING:  # annotated by JobStatusQuerySet.startable and survey, and by monitoring.health
        now: datetime
        last_error: str | None
        last_success_at: datetime | None
        failing_since: datetime | None
        started_recently: bool | None
        is_ill: bool
        timeline: int

    @property
    def is_paused(self) -> bool:
        """Whether the job was paused ``now``, when this was read."""
        return self.paused and (self.paused_until is None or self.paused_until > self.now)

    @property
    def next_fence(self) -> int:
        """The fence of the next grant. It is greater than all earlier ones, including those that a failover lost."""
        return max(self.fence, self.timeline << GRANT_BITS) + 1

    @property
    def is_from_failover(self) -> bool:
        """Whether the last grant that the gate knows was made on an older timeline."""
        return self.token is not None and self.fence >> GRANT_BITS < self.timeline

    class Meta:
        verbose_name = _("job")
        verbose_name_plural = _("jobs")
        # Pausing and hiding a job needs the change permission.
        permissions = [
            ("run_jobstatus", _("Can run jobs now")),
            ("change_schedule_jobstatus", _("Can change schedules")),
        ]
        indexes = [models.Index(fields=["of_job", "next_slot"], name="singlejob_status_next_slot")]
        constraints = [
            allowed("singlejob_status_last_status", last_status__in=["", *RunStatus.values]),
        ]

    Meta.constraints.append(in_range("singlejob_status_in_range", vars()))

    def __str__(self) -> str:
        return self.name


class Overview(JobStatus):
    """A proxy without rows of its own. It puts a link to the overview into the admin's index."""

    class Meta:
        proxy = True
        default_permissions = ()
        verbose_name = _("overview")
        # The admin sorts its menu by these names. No page shows the space, which comes before all letters.
        verbose_name_plural = format_lazy(" {}", _("Overview"))


# --- statistics

MEAN_RUNS = 20
# How many finished runs a job needs before its mean duration is used.
LEAST_RUNS = 5


def mean_of(status: JobStatus) -> timedelta | None:
    """The mean duration of the job's runs; ``None`` if it has not run often enough for it to be meaningful."""
    mean = status.mean_duration
    return mean if mean and mean > ZERO and status.run_count >= LEAST_RUNS else None


def mean_with(duration: timedelta | Expression) -> Coalesce:
    """The mean duration after a successful run that took ``duration``: an exponential moving average over about the
    last ``MEAN_RUNS`` runs."""
    # See also `single_statement`, which has this as SQL.
    value = Value(duration, output_field=DurationField()) if isinstance(duration, timedelta) else duration
    count = Least(F("run_count"), Value(MEAN_RUNS - 1)) + 1
    return Coalesce(_MovedMean(F("mean_duration"), value, count), value)


class _MovedMean(Func):
    """``mean + (value - mean) / count``. Django itself cannot divide durations."""

    output_field = DurationField()

    def as_sql(
        self, compiler: SQLCompiler, connection: BaseDatabaseWrapper, *_: Any, **__: Any
    ) -> tuple[str, tuple[str | int, ...]]:
        (mean, _), (value, of_value), (count, of_count) = map(compiler.compile, self.get_source_expressions())
        return f"{mean} + ({value} - {mean}) / {count}", (*of_value, *of_count)


# --- what decides


def _is_paused(lately: timedelta = ZERO) -> Q:
    """Whether a job is paused, or its pause ended by itself less than ``lately`` ago."""
    return Q(paused=True) & (Q(paused_until=None) | Q(paused_until__gt=_ago(lately)))


def is_active(since: timedelta = ZERO) -> Q:
    """The opposite. It is never null, so it can be sorted by."""
    return Q(paused=False) | Q(paused_until__isnull=False, paused_until__lte=_ago(since))


def _ago(length: timedelta) -> Any:
    return DBNow() - length if length else DBNow()


def _is_ahead(instant: datetime) -> GreaterThan:
    return GreaterThan(Value(instant, output_field=models.DateTimeField()), DBNow())


def _recently(min_interval: timedelta | Expression) -> Q:
    # See also `_STARTABLE` in `single_statement`.
    # A start in the future means that the clock has been set back since. It must not hold up the job until then.
    return Q(last_started_at__gt=DBNow() - min_interval, last_started_at__lte=DBNow() + min_interval)
