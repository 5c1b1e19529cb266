"""When a worker that ends by itself was last seen. It decides nothing; monitoring reads it."""

from __future__ import annotations

import json
from datetime import timedelta
from hashlib import sha256
from typing import TYPE_CHECKING, Any, ClassVar

from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from django_singlejob.database.transactions import alias
from django_singlejob.models.rows import Row, in_range, in_utc
from django_singlejob.models.unreadable import RowQuerySet
from django_singlejob.process.clock import DBNow
from django_singlejob.process.holder import HOSTNAME_LENGTH

if TYPE_CHECKING:
    from collections.abc import Iterable

    from django_singlejob.process.holder import Holder

# Every server's cron begins a pass each minute. One mark each half minute is enough for all of them.
MARK_EVERY = timedelta(seconds=30)


def passes() -> WorkerPassQuerySet:
    """The passes, on the database that decides."""
    return WorkerPassQuerySet(WorkerPass, using=alias())


class WorkerPassQuerySet(RowQuerySet["WorkerPass"]):
    """The passes: one row for each set of queues, with the last pass that was seen."""

    def recent(self, within: timedelta) -> WorkerPassQuerySet:
        """Those that were seen within this time, by the database's clock."""
        return self.filter(_seen(within))

    def survey(self) -> list[WorkerPass]:
        """Read all of these."""
        return [in_utc(row) for row in self]

    def mark(self, queues: Iterable[str], holder: Holder) -> bool:
        """Record that a pass over these queues begins. ``False``: one was seen a moment ago, nothing was written."""
        names = sorted({*queues})
        mine = self.filter(key=_key(names))
        if mine.recent(MARK_EVERY).exists():
            return False  # the usual case on all servers but one, which takes no lock
        facts: dict[str, Any] = {"hostname": holder.hostname, "pid": holder.pid, "seen_at": DBNow()}
        if mine.exclude(_seen(MARK_EVERY)).update(**facts):
            return True
        # There is no row yet, or another server was faster: then this changes nothing.
        self.bulk_create([self.model(key=_key(names), queues=names, **facts)], ignore_conflicts=True)
        return True


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
        constraints: ClassVar[list[models.BaseConstraint]] = []

    Meta.constraints.append(in_range("singlejob_pass_in_range", vars()))

    def __str__(self) -> str:
        return self.holder

    @property
    def holder(self) -> str:
        """For people: ``web-1, pid 4711``."""
        return f"{self.hostname}, pid {self.pid}"


def _seen(within: timedelta) -> Q:
    # A pass in the future means that the clock was set back since.
    return Q(seen_at__gt=DBNow() - within, seen_at__lte=DBNow() + within)


def _key(queues: list[str]) -> str:
    return sha256(json.dumps(queues).encode()).hexdigest()
