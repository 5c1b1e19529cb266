"""One-off jobs: every write that decides about one, and every adjective.

A row is claimed by its status and version, in the transaction that grants the job's lock, and ended in the one that
gives the lock back. So who holds the lock under the row's token is who runs it, and when the lock is taken from a dead
holder, the row is put back with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from django.db.models import Case, F, Q, QuerySet, Value, When

from django_singlejob.clock import DBNow
from django_singlejob.querysets import delete_rows, locks, rows

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime, timedelta
    from uuid import UUID

    from django_singlejob.holder import Holder
    from django_singlejob.models import JobLock, OneOffJob

GIVEN_BACK: Mapping[str, Any] = {"status": "waiting", "attempt": F("attempt") - 1}


def one_offs() -> OneOffJobQuerySet:
    """The one-off jobs, on the database that decides."""
    return cast("OneOffJobQuerySet", rows("OneOffJob"))


class OneOffJobQuerySet(QuerySet["OneOffJob"]):
    """The one-off jobs: those that wait, those in progress, and those that have ended, which are the log."""

    def waiting(self) -> OneOffJobQuerySet:
        """Those that nobody has begun, or that are to be begun again."""
        return self.filter(status="waiting")

    def in_progress(self) -> OneOffJobQuerySet:
        """Those that somebody runs."""
        return self.filter(status="in_progress")

    def ended(self) -> OneOffJobQuerySet:
        """Those that are done, failed or cancelled."""
        return self.filter(status__in=["done", "failed", "cancelled"])

    def due(self) -> OneOffJobQuerySet:
        """Those to be run now, in their order: the highest priority first, then the one that is due for the longest."""
        return self.waiting().filter(run_after__lte=DBNow()).order_by("-priority", "run_after", "pk")

    def next_due(self, until: datetime | None, passed: set[str]) -> OneOffJob | None:
        """The next to be run, with ``now``: due at that instant (``None``: now), and of no job that was passed over."""
        facts = {"now": DBNow()}
        due = self.due().exclude(job_name__in=passed).annotate(**facts)
        row: OneOffJob | None = (due if until is None else due.filter(run_after__lte=until)).first()
        return row

    def in_queues(self, names: Sequence[str]) -> OneOffJobQuerySet:
        """Those of these queues; none named: of all."""
        return self.filter(queue_name__in=names) if names else self

    def claim(self, seen: OneOffJob, token: UUID, holder: Holder) -> bool:
        """Begin to run it. ``False``: somebody else has, or it was cancelled."""
        claimed = {
            "status": "in_progress",
            "version": F("version") + 1,
            "attempt": F("attempt") + 1,
            "token": token,
            "hostname": holder.hostname,
            "pid": holder.pid,
            "started_at": DBNow(),
            "heartbeat_at": DBNow(),
            "finished_at": None,
        }
        return self.waiting().filter(pk=seen.pk, version=seen.version).update(**claimed) == 1

    def finish(self, token: UUID, result: Mapping[str, Any]) -> bool:
        """Record how the run under that token ended. ``False``: it runs no one-off, or not any more."""
        return self.in_progress().filter(token=token).update(version=F("version") + 1, **result) == 1

    def give_back(self, token: UUID) -> None:
        """Put back what was interrupted under that token, as if nobody had begun it."""
        self.finish(token, GIVEN_BACK)

    def abandon(self, dead: JobLock, error: str) -> None:
        """Put back what a dead holder ran; it has failed if that was its last attempt."""
        self.filter(token=dead.token).put_back(error)

    def abandon_orphans(self, error: str) -> int:
        """Put back those whose lock is gone, as after a DELETE by hand. Returns how many."""
        # Two reads, in this order: one that begins between them is not among the first.
        tokens = dict(self.in_progress().values_list("pk", "token"))
        held = set(locks().values_list("token", flat=True)) if tokens else set()
        orphans = {pk: token for pk, token in tokens.items() if token not in held}
        return sum(self.filter(pk=pk, token=token).put_back(error) for pk, token in orphans.items())

    def put_back(self, error: str) -> int:
        """Have those that are in progress be begun again, unless it was their last attempt. Returns how many."""
        is_last = Q(attempt__gte=F("max_attempts"))
        changes = {
            "status": Case(When(is_last, then=Value("failed")), default=Value("waiting")),
            "finished_at": Case(When(is_last, then=DBNow()), default=None),
            "version": F("version") + 1,
            "error": error,
        }
        return self.in_progress().update(**changes)

    def cancel(self) -> int:
        """Cancel those that nobody has begun. Returns how many; one that is in progress runs to its end."""
        return self.waiting().update(status="cancelled", version=F("version") + 1, finished_at=DBNow())

    def surplus(self, age: timedelta) -> OneOffJobQuerySet:
        """Those that ended longer ago than ``age``."""
        return self.ended().filter(finished_at__lt=DBNow() - age)

    def prune(self, batch: int = 1000) -> int:
        """Delete all of these, a batch at a time. Returns how many it were."""
        pruned = 0
        while keys := list(self.order_by("pk").values_list("pk", flat=True)[:batch]):
            pruned += delete_rows(one_offs().ended().filter(pk__in=keys))
        return pruned
