"""The history: one row for each attempt. It decides nothing."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

from django.db.models import Q

from django_singlejob.clock import DBNow
from django_singlejob.querysets.jobs import gates
from django_singlejob.querysets.rows import AttemptQuerySet, rows

if TYPE_CHECKING:
    from collections.abc import Mapping

    from django_singlejob.models import JobRun  # noqa: F401  (named below)


def runs() -> JobRunQuerySet:
    """The history, on the database that decides."""
    return cast("JobRunQuerySet", rows("JobRun"))


class JobRunQuerySet(AttemptQuerySet["JobRun"]):
    """The history: one row an attempt."""

    def running(self) -> JobRunQuerySet:
        """Those that have not ended yet."""
        return self.filter(status="running")

    def start(self, facts: Mapping[str, Any]) -> int:
        """Record that an attempt begins, now unless the facts say when. Returns the row's key."""
        # Not create(): a receiver of its signals that swallows a database error would have the grant, which is in the
        # same transaction, rolled back by a COMMIT that says nothing.
        (run,) = self.bulk_create([self.model(**{"started_at": DBNow(), "status": "running", **facts})])
        # MySQL does not tell the keys of several rows.
        return run.pk or self.key_of(run.token) or 0

    def key_of(self, token: UUID) -> int | None:
        """The key of the attempt's row; ``None``: it has none."""
        return self.filter(token=token).values_list("pk", flat=True).first()

    def finish(self, token: UUID | str, result: Mapping[str, Any]) -> bool:
        """Record how an attempt ended, now unless the result says when. ``False``: it has ended, as abandoned, or has
        no row."""
        return self.running().filter(token=token).update(**{"finished_at": DBNow(), **result}) == 1

    def abandon_orphans(self, error: str) -> int:
        """End every attempt whose lock is gone, as after a DELETE by hand. Returns how many."""
        tokens = self.running().orphan_tokens()
        # Read last: what ends meanwhile is kept by its gate, or is no longer running.
        kept = {str(end.get("token")) for end in gates().kept_ends().values()}
        orphans = self.running().filter(token__in=[token for token in tokens if str(token) not in kept])
        return orphans.update(status="abandoned", finished_at=DBNow(), error=error)

    def surplus(self, age: timedelta, keep: int) -> JobRunQuerySet:
        """Those that ended and began longer ago than ``age``, and of each job those beyond its newest ``keep``."""
        too_many = Q(pk__in=[])
        # Not the gates': a job's may be gone.
        for name in self.values_list("job_name", flat=True).distinct():
            if (newest_surplus := self._newest_beyond(name, keep)) is not None:
                too_many |= Q(job_name=name, pk__lte=newest_surplus)
        return self.exclude(status="running").filter(Q(started_at__lt=DBNow() - age) | too_many)

    def _newest_beyond(self, job_name: str, keep: int) -> int | None:
        return self.filter(job_name=job_name).order_by("-pk").values_list("pk", flat=True)[keep : keep + 1].first()
