"""The alerts: which findings were mailed, and which are acknowledged. They decide nothing."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.utils.translation import gettext_lazy as _

from django_singlejob.database.transactions import alias
from django_singlejob.jobs.names import NAME_LENGTH, REASON_LENGTH
from django_singlejob.models.rows import Row, in_range
from django_singlejob.models.unreadable import RowQuerySet
from django_singlejob.process.holder import HOSTNAME_LENGTH, USER_LENGTH


def alerts() -> JobAlertQuerySet:
    """The alerts, on the database that decides."""
    return JobAlertQuerySet(JobAlert, using=alias())


class JobAlertQuerySet(RowQuerySet["JobAlert"]):
    """The alerts: one row for each thing and each kind of finding."""


class JobAlert(Row):
    """Whether a finding was mailed or acknowledged. Decides nothing."""

    subject = models.CharField(
        _("subject"), max_length=max(NAME_LENGTH, HOSTNAME_LENGTH), help_text=_("The job, the queue or the server.")
    )
    kind = models.CharField(_("kind"), max_length=20)
    sent_at = models.DateTimeField(_("sent at"), null=True, blank=True, help_text=_("When it was last sent."))
    is_sent = models.BooleanField(_("sent"), default=False, help_text=_("Whether a mail was sent."))
    acknowledged_at = models.DateTimeField(_("acknowledged at"), null=True, blank=True)
    acknowledged_until = models.DateTimeField(_("acknowledged until"), null=True, blank=True)
    acknowledged_by = models.CharField(_("acknowledged by"), max_length=USER_LENGTH, blank=True, default="")
    reason = models.CharField(_("reason"), max_length=REASON_LENGTH, blank=True, default="")

    objects = JobAlertQuerySet.as_manager()

    class Meta:
        verbose_name = _("alert")
        verbose_name_plural = _("alerts")
        default_permissions = ()
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(fields=["subject", "kind"], name="singlejob_alert_subject_kind")
        ]

    Meta.constraints.append(in_range("singlejob_alert_in_range", vars()))

    def __str__(self) -> str:
        return f"{self.subject}: {self.kind}"
