"""The history: one row for each attempt. It decides nothing. And what it shares with the one-offs, which are attempts
too: each row carries the token of its lock."""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import reduce
from itertools import islice
from operator import or_
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

from django.db import models
from django.db.models import Min, Model, OuterRef, Q, Subquery
from django.utils.translation import gettext_lazy as _

from django_singlejob.conf import ZERO
from django_singlejob.database.transactions import alias
from django_singlejob.jobs.names import NAME_LENGTH
from django_singlejob.models.locks import locks
from django_singlejob.models.rows import Row, allowed, delete_rows, in_range
from django_singlejob.models.unreadable import RowQuerySet
from django_singlejob.process.clock import DBNow
from django_singlejob.process.holder import HOSTNAME_LENGTH, USER_LENGTH

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


AnyModel = TypeVar("AnyModel", bound=Model)

# SQLite refuses a statement with a thousand conditions.
_JOBS_AT_ONCE = 100


class AttemptQuerySet(RowQuerySet[AnyModel]):
    """Rows of attempts, each under the token of its lock: runs and one-offs."""

    def orphan_tokens(self) -> set[UUID | None]:
        """The tokens of attempts whose lock is gone, as after a manual DELETE."""
        # Two reads, in this order: an attempt that begins between them is not among the first.
        tokens = set(self.values_list("token", flat=True))
        if not tokens:
            return tokens
        return tokens - set(locks().values_list("token", flat=True))


def runs() -> JobRunQuerySet:
    """The history, on the database that decides."""
    return JobRunQuerySet(JobRun, using=alias())


class JobRunQuerySet(AttemptQuerySet["JobRun"]):
    """The history: one row for each attempt."""

    def running(self) -> JobRunQuerySet:
        """Runs that have not ended yet."""
        return self.filter(status="running")

    def start(self, facts: Mapping[str, Any]) -> int:
        """Record the start of an attempt: now, unless ``facts`` has another ``started_at``. Returns the row's key."""
        # Not create(): if a receiver of its signals swallows a database error, COMMIT silently rolls back the grant,
        # which is in the same transaction.
        (run,) = self.bulk_create([self.model(**{"started_at": DBNow(), "status": "running", **facts})])
        return run.pk or self.values_list("pk", flat=True).get(token=run.token)  # MySQL does not return it

    def key_of(self, token: UUID) -> int | None:
        """The key of the attempt's row, or ``None`` if it has no row."""
        return self.filter(token=token).values_list("pk", flat=True).first()

    def status_of(self, token: UUID) -> str | None:
        """The attempt's status, or ``None`` if it has no row."""
        return self.filter(token=token).values_list("status", flat=True).first()

    def has_succeeded(self, job_name: str, slot: datetime) -> bool:
        """Whether a run of this slot, or a retry, was successful."""
        # Only this package writes slots, so they can be compared with "=".
        mine = self.filter(job_name=job_name, status="successful")
        return mine.filter(Q(slot=slot) | Q(retried_slot=slot)).exists()

    def finish(self, token: UUID | str, result: Mapping[str, Any]) -> bool:
        """Record how an attempt ended: now, unless ``result`` has another ``finished_at``. Returns ``False`` if it has
        ended already, as abandoned, or has no row."""
        return self.running().filter(token=token).update(**{"finished_at": DBNow(), **result}) == 1

    def forget(self, token: UUID) -> int:
        """Delete the row of an attempt whose body has not begun. Returns the number of rows deleted."""
        return delete_rows(self.running().filter(token=token))

    def abandon_orphans(self, error: str) -> int:
        """End every attempt whose lock is gone, as after a manual DELETE. Returns the number of rows changed."""
        tokens = [token for token in self.running().orphan_tokens() if token]
        return self.running().filter(token__in=tokens).update(status="abandoned", finished_at=DBNow(), error=error)

    def surplus(self, age: timedelta, keep: int, spare: timedelta = ZERO) -> Iterator[JobRunQuerySet]:
        """Runs that ended and began longer ago than ``age``, then the other ended runs beyond the newest ``keep`` of
        each job, in several query sets. The latter do not have the runs of slots that are younger than ``spare``."""
        old, spared = Q(started_at__lt=DBNow() - age), Q(slot__isnull=False, started_at__gte=DBNow() - spare)
        yield self.exclude(status="running").filter(old)
        for rows in self.beyond(keep):
            yield rows.exclude(old | spared if spare else old)

    def beyond(self, keep: int) -> Iterator[JobRunQuerySet]:
        """The ended runs beyond the newest ``keep`` of each job: one query set for every ``_JOBS_AT_ONCE`` jobs that
        have some."""
        # Not the names of the gates: a job's gate may be gone.
        names = iter(list(self.order_by().values_list("job_name", flat=True).distinct()))
        while some := list(islice(names, _JOBS_AT_ONCE)):
            if beyond := [Q(job_name=name, pk__lte=newest) for name, newest in self._newest_beyond(some, keep)]:
                yield self.exclude(status="running").filter(reduce(or_, beyond))

    def _newest_beyond(self, names: Sequence[str], keep: int) -> Sequence[tuple[str, int]]:
        """The key of the newest run of each of these jobs that is not to be kept, for those that have one. One
        statement, which looks for it once in each job, as it would for one job."""
        newest = self.filter(job_name=OuterRef("job_name")).order_by("-pk").values("pk")[keep : keep + 1]
        firsts = self.filter(job_name__in=names).order_by().values("job_name").annotate(first=Min("pk")).values("first")
        found = self.filter(pk__in=firsts).order_by().annotate(newest=Subquery(newest))
        return list(found.filter(newest__isnull=False).values_list("job_name", "newest"))


class RunStatus(models.TextChoices):
    RUNNING = "running", _("running")
    SUCCESSFUL = "successful", _("successful")
    FAILED = "failed", _("failed")
    ABANDONED = "abandoned", _("abandoned")
    INTERRUPTED = "interrupted", _("interrupted")
    SKIPPED = "skipped", _("skipped")


FAILURES = ("failed", "abandoned", "interrupted")


class RunTrigger(models.TextChoices):
    CALL = "call", _("call")
    COMMAND = "command", _("command")
    SCHEDULE = "schedule", _("schedule")
    ONE_OFF = "one_off", _("one-off")
    MANUAL = "manual", _("by hand")


class JobRun(Row):
    """One attempt to run a job."""

    Status, Trigger = RunStatus, RunTrigger

    job_name = models.CharField(_("job"), max_length=NAME_LENGTH)
    lock = models.CharField(_("lock"), max_length=NAME_LENGTH, blank=True, default="", db_default="")
    fence = models.BigIntegerField(
        _("fence"), help_text=_("Fencing token of the grant; later grants have higher ones.")
    )
    token = models.UUIDField(_("token"), unique=True, help_text=_("Token of the lock it ran under."))
    status = models.CharField(_("status"), max_length=20, choices=Status)
    trigger = models.CharField(_("trigger"), max_length=20, choices=Trigger)
    # Not a foreign key: users may live in another database, and the history outlives them.
    requested_by = models.CharField(
        _("requested by"),
        max_length=USER_LENGTH,
        blank=True,
        default="",
        help_text=_("The user who requested it in the admin; blank if nobody did."),
    )
    slot = models.DateTimeField(_("slot"), null=True, blank=True)
    retried_slot = models.DateTimeField(
        _("retried slot"), null=True, blank=True, help_text=_("The slot whose failed run this one retries.")
    )
    attempt = models.PositiveIntegerField(_("attempt"), default=1)
    hostname = models.CharField(_("host name"), max_length=HOSTNAME_LENGTH)
    pid = models.PositiveBigIntegerField(_("process ID"))
    started_at = models.DateTimeField(_("started at"))
    finished_at = models.DateTimeField(_("finished at"), null=True, blank=True)
    duration = models.DurationField(_("duration"), null=True, blank=True)
    acquire_duration = models.DurationField(
        _("lock cost"), null=True, blank=True, help_text=_("How long it took to acquire the lock.")
    )
    error = models.TextField(_("error"), blank=True, default="")
    traceback = models.TextField(_("traceback"), blank=True, default="")
    origin = models.TextField(
        _("origin"),
        blank=True,
        default="",
        help_text=_("The line of the project's own code that raised the error."),
    )

    output = models.TextField(
        _("output"),
        blank=True,
        default="",
        help_text=_("The last part of what it printed, with control characters escaped."),
    )

    objects = JobRunQuerySet.as_manager()

    class Meta:
        verbose_name = _("run")
        verbose_name_plural = _("runs")
        indexes = [
            models.Index(fields=["job_name", "started_at"], name="singlejob_run_job_started"),
            models.Index(fields=["started_at"], name="singlejob_run_started"),
            models.Index(fields=["status", "started_at"], name="singlejob_run_status_started"),
            # For the admin's filters: without these, looking for a rare server would scan the whole history.
            models.Index(fields=["hostname", "started_at"], name="singlejob_run_host_started"),
            models.Index(fields=["trigger", "started_at"], name="singlejob_run_trigger_started"),
        ]
        constraints = [
            allowed("singlejob_run_status", status__in=RunStatus.values),
            allowed("singlejob_run_trigger", trigger__in=RunTrigger.values),
            allowed("singlejob_run_attempt", attempt__gte=1),
        ]

    Meta.constraints.append(in_range("singlejob_run_in_range", vars()))

    def __str__(self) -> str:
        return f"{self.job_name} #{self.pk} ({self.get_status_display()})"
