"""When a worker that ends by itself was last seen. It decides nothing; monitoring reads it."""

from __future__ import annotations

import json
from datetime import timedelta
from hashlib import sha256
from typing import TYPE_CHECKING, Any, cast

from django.db.models import Q, QuerySet

from django_singlejob.models.rows import in_utc, rows
from django_singlejob.process.clock import DBNow

if TYPE_CHECKING:
    from collections.abc import Iterable

    from django_singlejob.models import WorkerPass
    from django_singlejob.models.holder import Holder

# Every server's cron begins a pass each minute. One mark each half minute is enough for all of them.
MARK_EVERY = timedelta(seconds=30)


def passes() -> WorkerPassQuerySet:
    """The passes, on the database that decides."""
    return cast("WorkerPassQuerySet", rows("WorkerPass"))


class WorkerPassQuerySet(QuerySet["WorkerPass"]):
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


def _seen(within: timedelta) -> Q:
    # A pass in the future means that the clock was set back since.
    return Q(seen_at__gt=DBNow() - within, seen_at__lte=DBNow() + within)


def _key(queues: list[str]) -> str:
    return sha256(json.dumps(queues).encode()).hexdigest()
