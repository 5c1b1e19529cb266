"""The servers that ask for what is due. The rows decide nothing: monitoring writes and reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from django_singlejob.database.transactions import alias
from django_singlejob.models.rows import Row, in_range, whether
from django_singlejob.models.unreadable import RowQuerySet
from django_singlejob.process.clock import DBNow
from django_singlejob.process.holder import HOSTNAME_LENGTH

if TYPE_CHECKING:
    from datetime import datetime

RELEASE_LENGTH = 64


def passes() -> WorkerPassQuerySet:
    """The servers that ask, on the database that decides."""
    return WorkerPassQuerySet(WorkerPass, using=alias())


class WorkerPassQuerySet(RowQuerySet["WorkerPass"]):
    """The servers that ask: one row for each, and each set of queues that it serves."""

    def judged(self, recently: Q) -> WorkerPassQuerySet:
        """With ``now``, and ``is_recent``: whether this condition holds."""
        facts = {"now": DBNow(), "is_recent": whether(recently)}
        return self.annotate(**facts)


class WorkerPass(Row):
    """A server that asks for what is due: one row for each set of queues that it serves. Decides nothing."""

    key = models.CharField(
        _("key"), max_length=64, primary_key=True, help_text=_("A hash of the host name and the queues.")
    )
    queues = models.JSONField(
        _("queues"), default=list, blank=True, help_text=_("The queues that it serves; empty: all queues.")
    )
    hostname = models.CharField(_("host name"), max_length=HOSTNAME_LENGTH)
    pid = models.PositiveBigIntegerField(_("process id"))
    is_once = models.BooleanField(_("pass"), default=True, help_text=_("Whether it was a pass, which ends by itself."))
    first_seen_at = models.DateTimeField(_("first seen at"))
    seen_at = models.DateTimeField(_("seen at"))
    gap = models.DurationField(
        _("gap"), null=True, blank=True, help_text=_("The longest time lately that it had not been seen.")
    )
    release = models.CharField(
        _("release"),
        max_length=RELEASE_LENGTH,
        blank=True,
        default="",
        help_text=_("Which code runs there; blank if that is not known."),
    )
    clock_error = models.DurationField(
        _("clock error"), null=True, blank=True, help_text=_("How far its clock is ahead of the database's.")
    )
    trouble = models.TextField(
        _("trouble"),
        blank=True,
        default="",
        help_text=_("Why not everything that is due runs there; blank if it does."),
    )

    objects = WorkerPassQuerySet.as_manager()

    if TYPE_CHECKING:  # annotated by WorkerPassQuerySet.judged
        now: datetime
        is_recent: bool

    class Meta:
        verbose_name = _("worker pass")
        verbose_name_plural = _("worker passes")
        default_permissions = ()
        constraints: ClassVar[list[models.BaseConstraint]] = []

    Meta.constraints.append(in_range("singlejob_pass_in_range", vars()))

    def __str__(self) -> str:
        return self.holder

    @property
    def holder(self) -> str:
        """For people: ``web-1, pid 4711``."""
        return f"{self.hostname}, pid {self.pid}"
