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
    """The history: one row for each attempt."""

    def running(self) -> JobRunQuerySet:
        """Runs that have not ended yet."""
        return self.filter(status="running")

    def start(self, facts: Mapping[str, Any]) -> int:
        """Record the start of an attempt: now, unless ``facts`` has another ``started_at``. Returns the row's key."""
        # Not create(): if a receiver of its signals swallows a database error, COMMIT silently rolls back the grant,
        # which is in the same transaction.
        (run,) = self.bulk_create([self.model(**{"started_at": DBNow(), "status": "running", **facts})])
        # MySQL does not return the keys of several rows.
        return run.pk or self.key_of(run.token) or 0

    def key_of(self, token: UUID) -> int | None:
        """The key of the attempt's row, or ``None`` if it has no row."""
        return self.filter(token=token).values_list("pk", flat=True).first()

    def finish(self, token: UUID | str, result: Mapping[str, Any]) -> bool:
        """Record how an attempt ended: now, unless ``result`` has another ``finished_at``. Returns ``False`` if it has
        ended already, as abandoned, or has no row."""
        return self.running().filter(token=token).update(**{"finished_at": DBNow(), **result}) == 1

    def abandon_orphans(self, error: str) -> int:
        """End every attempt whose lock is gone, as after a manual DELETE. Returns the number of rows changed."""
        tokens = self.running().orphan_tokens()
        # Read last: an attempt that ends meanwhile is kept by its gate, or is no longer running.
        kept = {str(end.get("token")) for end in gates().kept_ends().values()}
        orphans = self.running().filter(token__in=[token for token in tokens if str(token) not in kept])
        return orphans.update(status="abandoned", finished_at=DBNow(), error=error)

    def surplus(self, age: timedelta, keep: int) -> JobRunQuerySet:
        """Runs that ended and began longer ago than ``age``, and the ended runs beyond the newest ``keep`` of each
        job."""
        too_many = Q(pk__in=[])
        # Not the names of the gates: a job's gate may be gone.
        for name in self.values_list("job_name", flat=True).distinct():
            if (newest_surplus := self._newest_beyond(name, keep)) is not None:
                too_many |= Q(job_name=name, pk__lte=newest_surplus)
        return self.exclude(status="running").filter(Q(started_at__lt=DBNow() - age) | too_many)

    def _newest_beyond(self, job_name: str, keep: int) -> int | None:
        return self.filter(job_name=job_name).order_by("-pk").values_list("pk", flat=True)[keep : keep + 1].first()
