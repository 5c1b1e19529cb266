"""One-off jobs: every write that decides about one, and every filter.

The row of an exclusive one-off is claimed by its status and version, in the transaction that grants the job's lock, and
ended in the one that releases the lock. So the process that holds the lock under the row's token is the one that runs
it, and when the lock is taken from a dead holder, the row is put back with it. Parallel one-offs are claimed under the
token of their worker's own lock, several at once (see ``tasks.batches``), and put back with that.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING, Any, Self

from django.db import connections, models, transaction
from django.db.models import Case, F, Q, Subquery, TextField, Value, When
from django.db.models.functions import Concat, Greatest, Lower, Right
from django.utils.translation import gettext_lazy as _

from django_singlejob.database.transactions import alias
from django_singlejob.exceptions import LeaseLost
from django_singlejob.jobs.names import NAME_LENGTH, PATH_LENGTH
from django_singlejob.models.rows import Row, allowed, delete_rows, in_range, whether
from django_singlejob.models.runs import AttemptQuerySet, RunTrigger
from django_singlejob.process.clock import DBNow
from django_singlejob.process.holder import HOSTNAME_LENGTH, USER_LENGTH

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from datetime import timedelta
    from uuid import UUID

    from django_singlejob.models.locks import JobLock
    from django_singlejob.process.holder import Holder

# A task that a user has stopped does not begin again.
AGAIN: Mapping[str, Any] = {
    "status": Case(When(stopped_by="", then=Value("waiting")), default=Value("cancelled")),
    "finished_at": Case(When(~Q(stopped_by=""), then=DBNow()), default=None),
}
RELEASED: Mapping[str, Any] = {**AGAIN, "attempt": Greatest(F("attempt"), Value(1)) - 1}
# What dies in this attempt has failed.
LAST = Q(attempt__gte=F("max_attempts")) | ~Q(stopped_by="")

ENDED = ("done", "failed", "cancelled")
UNSUCCESSFUL = ("failed", "cancelled")

PRIORITIES = range(-100, 101)
UNIQUE_LENGTH = NAME_LENGTH + 40
_FACTS = {"now": DBNow()}


def worker_id(holder: Holder) -> str:
    """The line that a row keeps for each attempt."""
    return f"{holder.hostname}:{holder.pid}\n"


# A row keeps the errors of its latest attempts, as far as they fit into this many characters.
ERRORS_LENGTH = 60_000


_OF_ERROR = ("error", "error_class", "traceback", "origin")


def line_of(error: Mapping[str, Any]) -> str:
    """The line that a row keeps of an attempt's error; empty if there was none."""
    if not error.get("error"):
        return ""
    return json.dumps({name: error.get(name, "") for name in _OF_ERROR}, ensure_ascii=False) + "\n"


def errors_in(text: str) -> Iterator[dict[str, str]]:
    """The errors in such lines, the oldest first. A line that was cut off, or was written by hand, is passed over."""
    for line in text.split("\n"):
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(found, dict) and all(isinstance(value, str) for value in found.values()):
            yield {**dict.fromkeys(_OF_ERROR, ""), **found}


def _stored(error: Mapping[str, Any]) -> dict[str, Any]:
    line = line_of(error)
    longer = Concat(F("errors"), Value(line), output_field=TextField())
    return {"errors": Right(longer, ERRORS_LENGTH)} if line else {}


def one_offs() -> OneOffJobQuerySet:
    """The one-off jobs, on the database that decides."""
    return OneOffJobQuerySet(OneOffJob, using=alias())


class OneOffJobQuerySet(AttemptQuerySet["OneOffJob"]):
    """The one-off jobs: waiting, in progress, and ended. Those that ended are the log."""

    def waiting(self) -> Self:
        """One-offs that have not begun, or that are to begin again."""
        return self.filter(status="waiting")

    def in_progress(self) -> Self:
        """One-offs that are running."""
        return self.filter(status="in_progress")

    def ended(self) -> Self:
        """One-offs that are done, failed or cancelled."""
        return self.filter(status__in=ENDED)

    def unsuccessful(self) -> Self:
        """One-offs that failed or were cancelled."""
        return self.filter(status__in=UNSUCCESSFUL)

    def exclusive(self) -> Self:
        """One-offs that run under their job's lock."""
        # Not "=", which Django writes as `exclusive` or `NOT exclusive`: SQLite cannot use an index for that.
        return self.filter(exclusive__in=[True])

    def parallel(self) -> Self:
        """One-offs that run beside each other, under no lock but their worker's."""
        return self.filter(exclusive__in=[False])

    def in_queues(self, names: Sequence[str]) -> Self:
        """One-offs in these queues, or in all queues if no names are given."""
        return self.filter(queue_name__in=names) if names else self

    def due(self, until: datetime | None = None) -> Self:
        """One-offs that are due now, or that were due at ``until``."""
        return self.waiting().filter(run_after__lte=until or DBNow())

    def next_due(self, until: datetime | None = None) -> OneOffJob | None:
        """The next to run, with ``now``: the highest priority first, then the one that has been due the longest."""
        return next(iter(self._first_due(1, until)), None)

    def next_unlocked(self, until: datetime | None = None) -> OneOffJob | None:
        """The same, of those that no other transaction has locked."""
        with transaction.atomic(using=self.db):
            return next(iter(self._first_due(1, until, in_turn=True)), None)

    def _first_due(self, most: int, until: datetime | None, *, in_turn: bool = False) -> list[OneOffJob]:
        # One priority after the other, each found by an index. In a single query, the database would read past all
        # rows of a higher priority that are due later, however many there are.
        found: list[OneOffJob] = []
        waiting = self.waiting()
        for _priority in PRIORITIES:
            highest = waiting.order_by("-priority").values_list("priority", flat=True)[:1]
            due = self.due(until).filter(priority=Subquery(highest)).order_by("run_after", "pk").annotate(**_FACTS)
            rows = due.unlocked() if in_turn else due
            some = rows.first_readable(most - len(found))
            found += some
            if len(found) == most:
                return found
            passed = some[0].priority if some else highest.first()
            if passed is None:
                break
            waiting = self.waiting().filter(priority__lt=passed)
        return found

    def still_waiting(self) -> Self:
        """Those of these rows that still wait. MySQL must find them by their keys: by the status, it would come upon
        rows that others have locked, and wait for them."""
        return self.alias(state=Lower("status")).filter(state="waiting")

    def unlocked(self) -> Self:
        """Those that no other transaction has locked, to lock them. On SQLite, a transaction that has written locks
        everything."""
        has_skip_locked = connections[self.db].features.has_select_for_update_skip_locked
        return self.select_for_update(skip_locked=True) if has_skip_locked else self

    def claim(self, seen: OneOffJob, token: UUID, holder: Holder) -> bool:
        """Claim it, to run it. Returns ``False`` if another process has claimed it, if it was cancelled, or if a
        transaction that has asked for it once more is open."""
        found = self.filter(pk=seen.pk, version=seen.version).still_waiting()
        if seen.unique_key and found.unlocked().first() is None:
            return False
        return found.update(**self._claimed(token, holder)) == 1

    def _claimed(self, token: UUID, holder: Holder) -> dict[str, Any]:
        return {
            "status": "in_progress",
            "version": F("version") + 1,
            "attempt": F("attempt") + 1,
            "token": token,
            "hostname": holder.hostname,
            "pid": holder.pid,
            "worker_ids": Concat(F("worker_ids"), Value(worker_id(holder)), output_field=TextField()),
            "started_at": DBNow(),
            "finished_at": None,
            "stopped_by": "",
            "suspect": False,
        }

    def stop(self, by: str) -> int:
        """Mark tasks in progress, which find out when they ask. Returns the number of rows changed: those that are
        marked already, and jobs, which are stopped by their locks, are left alone."""
        # The version stays: by that, the end of the attempt is recorded.
        return self.in_progress().parallel().filter(stopped_by="").update(stopped_by=by)

    def stopped_by(self, attempt: OneOffJob) -> str:
        """The user who has asked to stop this attempt at a task; empty if nobody has, or if it is over."""
        found = self.in_progress().filter(pk=attempt.pk, version=attempt.version)
        return found.values_list("stopped_by", flat=True).first() or ""

    def finish(self, token: UUID, result: Mapping[str, Any]) -> bool:
        """Record how the run under that token ended. Returns ``False`` if it does not run a one-off, or no longer."""
        return self.in_progress().filter(token=token).update(**self._finished(result)) == 1

    def _finished(self, result: Mapping[str, Any]) -> dict[str, Any]:
        return {"version": F("version") + 1, **result, **_stored(result)}

    def release(self, token: UUID) -> int:
        """Put back what was interrupted under that token, as if it had never begun. Returns the number of rows
        changed."""
        return self.in_progress().filter(token=token).update(version=F("version") + 1, **RELEASED)

    def abandon(self, dead: JobLock, error: str) -> None:
        """Put back what a dead holder was running. If that was its last attempt, it has failed."""
        self.filter(token=dead.token).put_back(error)

    def abandon_orphans(self, error: str) -> int:
        """Put back those whose lock is gone, as after a manual DELETE. Returns the number of rows changed."""
        tokens = self.in_progress().orphan_tokens()
        are_orphans = Q(token__in=tokens)
        if None in tokens:  # not a run of ours: the row was edited by hand
            are_orphans |= Q(token=None)
        return self.filter(are_orphans).put_back(error)

    def put_back(self, error: str, kind: type[Exception] = LeaseLost, *, suspect: bool = False) -> int:
        """Put those in progress back to waiting; after their last attempt, or if a user has stopped them, they have
        failed instead. ``kind``: the class of the error. ``suspect``: whether they run alone next. Returns the number
        of rows changed."""
        ending = {"error": error, "error_class": f"{kind.__module__}.{kind.__name__}"}
        ending |= {"traceback": "", "origin": ""}
        changes = {
            "status": Case(When(LAST, then=Value("failed")), default=Value("waiting")),
            "finished_at": Case(When(LAST, then=DBNow()), default=None),
            "suspect": whether(~LAST) if suspect else False,
            "version": F("version") + 1,
            **ending,
            **_stored(ending),
        }
        return self.in_progress().update(**changes)

    def cancel(self) -> int:
        """Cancel those that have not begun. One that is in progress runs to its end. Returns the number of rows
        changed."""
        changes = {"status": "cancelled", "finished_at": DBNow(), "suspect": False}
        return self.waiting().update(version=F("version") + 1, **changes)

    def retry(self, requested_by: str = "") -> int:
        """Let failed or cancelled ones run at least once more. ``requested_by``: the user who requests this, if any.
        Returns the number of rows changed."""
        again = {
            "status": "waiting",
            "version": F("version") + 1,
            "run_after": DBNow(),
            "finished_at": None,
            "stopped_by": "",
        }
        most = Greatest(F("max_attempts"), F("attempt") + 1)
        return self.unsuccessful().update(max_attempts=most, requested_by=requested_by, **again)

    def will_retry(self, job_name: str, slot: datetime) -> bool:
        """Whether one that is not over retries this slot of the job."""
        return self.filter(job_name=job_name, retried_slot=slot).exclude(pk__in=self.ended()).exists()

    def discard(self) -> int:
        """Delete those that have ended. One that was retried meanwhile stays. Returns the number of rows deleted."""
        return delete_rows(self.ended())

    def surplus(self, age: timedelta) -> Self:
        """One-offs that ended longer ago than ``age``."""
        return self.ended().filter(finished_at__lt=DBNow() - age)


class OneOffStatus(models.TextChoices):
    WAITING = "waiting", _("waiting")
    IN_PROGRESS = "in_progress", _("in progress")
    DONE = "done", _("done")
    FAILED = "failed", _("failed")
    CANCELLED = "cancelled", _("cancelled")


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
    run_after = models.DateTimeField(_("run after"), db_default=DBNow())
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
    created_at = models.DateTimeField(_("created at"), db_default=DBNow())
    requested_by = models.CharField(
        _("requested by"),
        max_length=USER_LENGTH,
        blank=True,
        default="",
        help_text=_("The user who added or last retried it in the admin; blank if nobody did."),
    )
    stopped_by = models.CharField(
        _("stopped by"),
        max_length=USER_LENGTH,
        blank=True,
        default="",
        help_text=_("The user who has asked to stop the task in this attempt; blank if nobody has."),
    )
    retried_slot = models.DateTimeField(
        _("retried slot"), null=True, blank=True, help_text=_("The slot whose failed run it retries.")
    )
    unique_key = models.CharField(
        _("unique key"),
        max_length=UNIQUE_LENGTH,
        blank=True,
        default="",
        db_default="",
        help_text=_("Of those with this key, only one waits; blank if any number may."),
    )
    asked = models.PositiveIntegerField(
        _("asked"),
        default=0,
        db_default=0,
        help_text=_("How many times it was enqueued; 0 if any number may wait beside it."),
    )
    # Only a row that nobody has touched counts: no claim, put-back or retry can collide with it.
    waiting_key = models.GeneratedField(
        expression=Case(When(~Q(unique_key=""), status="waiting", version=0, then=F("unique_key"))),
        output_field=models.CharField(max_length=UNIQUE_LENGTH, null=True),
        db_persist=True,
    )
    suspect = models.BooleanField(
        _("suspect"),
        default=False,
        db_default=False,
        help_text=_("Whether a process crashed that ran it, so that it runs alone next."),
    )

    objects = OneOffJobQuerySet.as_manager()

    if TYPE_CHECKING:  # annotated by OneOffJobQuerySet.next_due, and by tasks.batches
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
            models.UniqueConstraint(fields=["waiting_key"], name="singlejob_one_off_unique"),
            allowed("singlejob_one_off_status", status__in=OneOffStatus.values),
            allowed("singlejob_one_off_attempts", max_attempts__gte=1),
            allowed("singlejob_one_off_priority", priority__range=(PRIORITIES[0], PRIORITIES[-1])),
        ]

    Meta.constraints.append(in_range("singlejob_one_off_in_range", vars()))

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
