"""The notes: what happened to a job beside its runs. They decide nothing, and say what, not why."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from django.db import models
from django.utils.translation import gettext_lazy as _

from django_singlejob.database.transactions import alias
from django_singlejob.jobs.names import NAME_LENGTH, REASON_LENGTH
from django_singlejob.models.rows import Row, allowed, in_range
from django_singlejob.models.unreadable import RowQuerySet
from django_singlejob.process.clock import DBNow
from django_singlejob.process.holder import USER_LENGTH

if TYPE_CHECKING:
    from datetime import timedelta
    from typing import Self

DETAILS_LENGTH = 1_000


def notes() -> JobNoteQuerySet:
    """The notes, on the database that decides."""
    return JobNoteQuerySet(JobNote, using=alias())


class JobNoteQuerySet(RowQuerySet["JobNote"]):
    """The notes: one row for each event."""

    def surplus(self, age: timedelta) -> Self:
        """Those that are older. Edits of schedules are kept: they may still be in force."""
        return self.filter(at__lt=DBNow() - age).exclude(kind=NoteKind.SCHEDULE_EDITED)


class NoteKind(models.TextChoices):
    PAUSED = "paused", _("paused")
    RESUMED = "resumed", _("resumed")
    MISSED = "missed", _("missed")
    SCHEDULE_CHANGED = "schedule_changed", _("schedule changed")
    SCHEDULE_EDITED = "schedule_edited", _("schedule edited")
    STOPPED = "stopped", _("stopped")
    CLEARED = "cleared", _("cleared")
    ACKNOWLEDGED = "acknowledged", _("acknowledged")
    SERVER_BACK = "server_back", _("server back")


class JobNote(Row):
    """An event: a job was paused, slots were missed, a server was back. Decides nothing."""

    Kind = NoteKind

    job_name = models.CharField(
        _("job"), max_length=NAME_LENGTH, blank=True, default="", help_text=_("Blank if it is about a server.")
    )
    kind = models.CharField(_("kind"), max_length=20, choices=Kind)
    at = models.DateTimeField(_("at"))
    by = models.CharField(_("by"), max_length=USER_LENGTH, blank=True, default="")
    reason = models.CharField(_("reason"), max_length=REASON_LENGTH, blank=True, default="")
    until = models.DateTimeField(
        _("until"), null=True, blank=True, help_text=_("When a pause ends by itself, or an acknowledgement.")
    )
    first_slot = models.DateTimeField(
        _("first slot"), null=True, blank=True, help_text=_("Of the slots that were missed; of a server, since when.")
    )
    last_slot = models.DateTimeField(_("last slot"), null=True, blank=True)
    number = models.PositiveBigIntegerField(_("number"), null=True, blank=True, help_text=_("How many slots."))
    details = models.TextField(_("details"), blank=True, default="")

    objects = JobNoteQuerySet.as_manager()

    class Meta:
        verbose_name = _("note")
        verbose_name_plural = _("notes")
        default_permissions = ()
        indexes: ClassVar[list[models.Index]] = [
            models.Index(fields=["job_name", "at"], name="singlejob_note_job_at"),
            models.Index(fields=["at"], name="singlejob_note_at"),
        ]
        constraints: ClassVar[list[models.BaseConstraint]] = [allowed("singlejob_note_kind", kind__in=NoteKind.values)]

    Meta.constraints.append(in_range("singlejob_note_in_range", vars()))

    def __str__(self) -> str:
        return f"{self.job_name or self.details}: {self.get_kind_display()}"
