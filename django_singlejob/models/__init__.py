"""The tables: the lease (``JobLock``), the gate (``JobStatus``), the history (``JobRun``) and one-offs
(``OneOffJob``)."""

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from django.db import models
from django.utils.text import format_lazy
from django.utils.translation import gettext_lazy as _

from django_singlejob.conf import ZERO, options
from django_singlejob.database.transactions import alias
from django_singlejob.jobs.names import COMMAND_LENGTH, HOSTNAME_LENGTH, NAME_LENGTH, PATH_LENGTH, USER_LENGTH
from django_singlejob.models.jobs import JobStatusQuerySet
from django_singlejob.models.locks import LONGEST_LEASE, JobLockQuerySet
from django_singlejob.models.one_offs import PRIORITIES, OneOffJobQuerySet
from django_singlejob.models.passes import WorkerPassQuerySet
from django_singlejob.models.rows import whether
from django_singlejob.models.runs import JobRunQuerySet


class Row(models.Model):
    """A row that is reloaded from the database it came from, whatever a router says about reads."""

    class Meta:
        abstract = True

    def refresh_from_db(
        self,
        using: str | None = None,
        fields: Iterable[str] | None = None,
        from_queryset: models.QuerySet[Any] | None = None,
    ) -> None:
        """Reload the row, or a deferred field, from the database it came from. A new row has none: it is read from the
        database that holds the locks. A router could send the read to a replica, whose data may be old."""
        if using is None and from_queryset is None:
            using = self._state.db or alias()
        super().refresh_from_db(using, fields, from_queryset)


class RunStatus(models.TextChoices):
    RUNNING = "running", _("running")
    SUCCESSFUL = "successful", _("successful")
    FAILED = "failed", _("failed")
    ABANDONED = "abandoned", _("abandoned")
    INTERRUPTED = "interrupted", _("interrupted")


class RunTrigger(models.TextChoices):
    CALL = "call", _("call")
    COMMAND = "command", _("command")
    SCHEDULE = "schedule", _("schedule")
    ONE_OFF = "one_off", _("one-off")
    MANUAL = "manual", _("by hand")


class OneOffStatus(models.TextChoices):
    WAITING = "waiting", _("waiting")
    IN_PROGRESS = "in_progress", _("in progress")
    DONE = "done", _("done")
    FAILED = "failed", _("failed")
    CANCELLED = "cancelled", _("cancelled")


def _allowed(name: str, **values: Any) -> models.CheckConstraint:
    """What the database lets anybody write."""
    return models.CheckConstraint(condition=models.Q(**values), name=name)


class JobRun(Row):
    """One attempt to run a job."""

    Status, Trigger = RunStatus, RunTrigger

    job_name = models.CharField(_("job"), max_length=NAME_LENGTH)
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
            _allowed("singlejob_run_status", status__in=RunStatus.values),
            _allowed("singlejob_run_trigger", trigger__in=RunTrigger.values),
            _allowed("singlejob_run_attempt", attempt__gte=1),
        ]

    def __str__(self) -> str:
        return f"{self.job_name} #{self.pk} ({self.get_status_display()})"


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
    next_slot = models.DateTimeField(_("next slot"), null=True, blank=True)
    last_slot = models.DateTimeField(
        _("last slot"), null=True, blank=True, help_text=_("The last slot for which a run was started.")
    )
    last_attempt = models.PositiveIntegerField(
        _("last attempt"), default=1, help_text=_("Attempt number at the last slot.")
    )
    abandoned = models.BooleanField(
        _("abandoned"), default=False, help_text=_("The last slot's holder died, and the slot has not been rerun.")
    )
    paused = models.BooleanField(_("paused"), default=False)
    hidden = models.BooleanField(
        _("hidden"), default=False, help_text=_("Left out of lists and monitoring until it is requested again.")
    )
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

    if TYPE_CHECKING:  # annotated by JobStatusQuerySet.look_up
        now: datetime
        started_recently: bool | None
        is_ill: bool
        timeline: int

    class Meta:
        verbose_name = _("job")
        verbose_name_plural = _("jobs")
        # Pausing and hiding a job needs the change permission.
        permissions = [("run_jobstatus", _("Can run jobs now"))]
        indexes = [models.Index(fields=["next_slot"], name="singlejob_status_next_slot")]
        constraints = [
            _allowed("singlejob_status_last_status", last_status__in=["", *RunStatus.values]),
            _allowed("singlejob_status_attempt", last_attempt__gte=1),
        ]

    def __str__(self) -> str:
        return self.name


class JobLock(Row):
    """The lease: the row exists exactly while a process holds the lock of its name."""

    name = models.CharField(_("name"), max_length=NAME_LENGTH, primary_key=True)
    token = models.UUIDField(_("token"), help_text=_("New for each acquisition; the holder's only identity."))
    hostname = models.CharField(_("host name"), max_length=HOSTNAME_LENGTH)
    pid = models.PositiveBigIntegerField(_("process ID"))
    command = models.CharField(_("command"), max_length=COMMAND_LENGTH, blank=True, default="")
    acquired_at = models.DateTimeField(_("acquired at"))
    heartbeat_at = models.DateTimeField(_("last heartbeat at"))
    heartbeats = models.PositiveBigIntegerField(_("heartbeats"), default=0)
    heartbeat_interval = models.DurationField(
        _("heartbeat interval"), null=True, blank=True, help_text=_("Blank if the holder sends no heartbeats.")
    )
    expires_at = models.DateTimeField(_("expires at"))
    sent_at = models.DateTimeField(
        _("last heartbeat sent at"), help_text=_("By the holder's clock; all other times are by the database's.")
    )
    job_name = models.CharField(_("job"), max_length=NAME_LENGTH, blank=True, default="")
    slot = models.DateTimeField(_("slot"), null=True, blank=True)
    attempt = models.PositiveIntegerField(_("attempt"), default=1)
    queues = models.JSONField(
        _("queues"), default=list, blank=True, help_text=_("The queues that a worker serves; empty: all queues.")
    )

    objects = JobLockQuerySet.as_manager()

    if TYPE_CHECKING:  # annotated by JobLockQuerySet.judged and, the timeline, by watched
        is_stale: bool
        is_impossible: bool
        now: datetime
        timeline: int

    class Meta:
        verbose_name = _("lock")
        verbose_name_plural = _("locks")
        permissions = [
            ("clear_joblock", _("Can clear stale locks")),
            ("force_joblock", _("Can clear locks whose holders may be alive")),
        ]
        constraints = [
            _allowed("singlejob_lock_attempt", attempt__gte=1),
            _allowed("singlejob_lock_interval", heartbeat_interval__gt=ZERO),
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def holder(self) -> str:
        """The holder as text for people: ``web-1, pid 4711``."""
        return f"{self.hostname}, pid {self.pid}"

    @property
    def lease(self) -> timedelta:
        """How far each heartbeat moves the expiry ahead. If the row was edited so that this is impossible: the lease of
        the settings, for such a row must not count as free, nor be held for ever."""
        lease = self.expires_at - self.heartbeat_at
        return lease if ZERO < lease <= LONGEST_LEASE else options().lease

    @property
    def is_too_long(self) -> bool:
        """Whether the lease expires later than any lease can."""
        return self.expires_at > self.now + LONGEST_LEASE

    @property
    def is_suspected(self) -> bool:
        """Whether the holder may be dead: its lease has expired, or is impossible."""
        return self.is_stale or self.is_impossible


class WorkerPass(Row):
    """When ``singleton_worker --once`` or ``--drain`` last began: one row for each set of queues. Decides nothing."""

    key = models.CharField(
        _("key"), max_length=64, primary_key=True, help_text=_("A hash of the queues, which can be long and many.")
    )
    queues = models.JSONField(
        _("queues"), default=list, blank=True, help_text=_("The queues that the pass served; empty: all queues.")
    )
    hostname = models.CharField(_("host name"), max_length=HOSTNAME_LENGTH)
    pid = models.PositiveBigIntegerField(_("process id"))
    seen_at = models.DateTimeField(_("seen at"))

    objects = WorkerPassQuerySet.as_manager()

    class Meta:
        verbose_name = _("worker pass")
        verbose_name_plural = _("worker passes")
        default_permissions = ()

    def __str__(self) -> str:
        return self.holder

    @property
    def holder(self) -> str:
        """For people: ``web-1, pid 4711``."""
        return f"{self.hostname}, pid {self.pid}"


class OneOffJob(Row):
    """A job, or one of Django's tasks, that is to run once, at or after an instant."""

    Status = OneOffStatus

    job_name = models.CharField(
        _("job"), max_length=NAME_LENGTH, blank=True, default="", help_text=_("The job to run, under its lock.")
    )
    task_path = models.CharField(
        _("task"),
        max_length=NAME_LENGTH,
        blank=True,
        default="",
        help_text=_("Dotted path of a task that is not a job. Such tasks run concurrently."),
    )
    # For the index: "any job" is a range of names, and after a range an index does not keep the priorities in order.
    exclusive = models.GeneratedField(
        expression=whether(~models.Q(job_name="")), output_field=models.BooleanField(), db_persist=True
    )
    args = models.JSONField(_("arguments"), default=list, blank=True)
    kwargs = models.JSONField(_("keyword arguments"), default=dict, blank=True)
    queue_name = models.CharField(_("queue"), max_length=NAME_LENGTH, default="default")
    priority = models.SmallIntegerField(_("priority"), default=0, help_text=_("-100 to 100; the highest runs first."))
    status = models.CharField(_("status"), max_length=20, choices=Status, default=Status.WAITING)
    run_after = models.DateTimeField(_("run after"))
    started_at = models.DateTimeField(_("started at"), null=True, blank=True)
    finished_at = models.DateTimeField(_("finished at"), null=True, blank=True)
    version = models.PositiveBigIntegerField(_("version"), default=0, help_text=_("Increases with each change."))
    token = models.UUIDField(_("token"), null=True, blank=True, help_text=_("Token of the lock it last ran under."))
    attempt = models.PositiveIntegerField(_("attempt"), default=0, help_text=_("How many times it was started."))
    max_attempts = models.PositiveIntegerField(_("maximum attempts"), default=1)
    backend = models.CharField(
        _("backend"),
        max_length=NAME_LENGTH,
        blank=True,
        default="",
        help_text=_("Alias of the task backend that enqueued it; blank if it is not a task."),
    )
    hostname = models.CharField(_("host name"), max_length=HOSTNAME_LENGTH, blank=True, default="")
    pid = models.PositiveBigIntegerField(_("process ID"), null=True, blank=True)
    worker_ids = models.TextField(
        _("workers"),
        blank=True,
        default="",
        help_text=_("Host name and process ID of each worker that started it, one line per attempt."),
    )
    result = models.JSONField(_("result"), null=True, blank=True)
    error = models.TextField(_("error"), blank=True, default="")
    error_class = models.CharField(_("error class"), max_length=PATH_LENGTH, blank=True, default="")
    traceback = models.TextField(_("traceback"), blank=True, default="")
    origin = models.TextField(
        _("origin"),
        blank=True,
        default="",
        help_text=_("The line of the project's own code that raised the error."),
    )
    errors = models.TextField(
        _("errors"),
        blank=True,
        default="",
        help_text=_("The error of each attempt that failed, one JSON object a line."),
    )
    created_at = models.DateTimeField(_("created at"))
    requested_by = models.CharField(
        _("requested by"),
        max_length=USER_LENGTH,
        blank=True,
        default="",
        help_text=_("The user who added or last retried it in the admin; blank if nobody did."),
    )

    objects = OneOffJobQuerySet.as_manager()

    if TYPE_CHECKING:  # annotated by OneOffJobQuerySet.next_due and lock_due
        now: datetime

    class Meta:
        verbose_name = _("one-off job")
        verbose_name_plural = _("one-off jobs")
        indexes = [
            # In this order: what to claim next, whether anything is due, what to prune.
            models.Index(fields=["status", "exclusive", "-priority", "run_after", "id"], name="singlejob_one_off_next"),
            models.Index(fields=["status", "run_after"], name="singlejob_one_off_due"),
            models.Index(fields=["status", "finished_at"], name="singlejob_one_off_finished"),
        ]
        constraints = [
            _allowed("singlejob_one_off_status", status__in=OneOffStatus.values),
            _allowed("singlejob_one_off_attempts", max_attempts__gte=1),
            _allowed("singlejob_one_off_priority", priority__range=(PRIORITIES[0], PRIORITIES[-1])),
        ]

    def __str__(self) -> str:
        return f"{self.name} #{self.pk} ({self.get_status_display()})"

    @property
    def name(self) -> str:
        """The job's name, or the task's path."""
        return self.job_name or self.task_path

    @property
    def trigger(self) -> RunTrigger:
        """The trigger of the run that it requests."""
        return RunTrigger.MANUAL if self.requested_by else RunTrigger.ONE_OFF


class Overview(JobStatus):
    """A proxy without rows of its own. It puts a link to the overview into the admin's index."""

    class Meta:
        proxy = True
        default_permissions = ()
        verbose_name = _("overview")
        # The admin sorts its menu by these names. No page shows the space, which comes before all letters.
        verbose_name_plural = format_lazy(" {}", _("Overview"))
