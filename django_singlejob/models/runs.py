"""The history: one row for each attempt. It decides nothing."""

from __future__ import annotations

from datetime import timedelta
from functools import reduce
from itertools import islice
from operator import or_
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

from django.db.models import Q

from django_singlejob.models.rows import AttemptQuerySet, rows
from django_singlejob.process.clock import DBNow

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from django_singlejob.models import JobRun  # noqa: F401  (named below)

# SQLite refuses a statement with a thousand conditions.
_JOBS_AT_ONCE = 100


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
        return run.pk or self.values_list("pk", flat=True).get(token=run.token)  # MySQL does not return it

    def key_of(self, token: UUID) -> int | None:
        """The key of the attempt's row, or ``None`` if it has no row."""
        return self.filter(token=token).values_list("pk", flat=True).first()

    def finish(self, token: UUID | str, result: Mapping[str, Any]) -> bool:
        """Record how an attempt ended: now, unless ``result`` has another ``finished_at``. Returns ``False`` if it has
        ended already, as abandoned, or has no row."""
        return self.running().filter(token=token).update(**{"finished_at": DBNow(), **result}) == 1

    def abandon_orphans(self, error: str) -> int:
        """End every attempt whose lock is gone, as after a manual DELETE. Returns the number of rows changed."""
        tokens = [token for token in self.running().orphan_tokens() if token]
        return self.running().filter(token__in=tokens).update(status="abandoned", finished_at=DBNow(), error=error)

    def surplus(self, age: timedelta, keep: int) -> Iterator[JobRunQuerySet]:
        """Runs that ended and began longer ago than ``age``, then the other ended runs beyond the newest ``keep`` of
        each job: a query set for the former, and one for every ``_JOBS_AT_ONCE`` jobs that have some of the latter."""
        ended, old = self.exclude(status="running"), Q(started_at__lt=DBNow() - age)
        yield ended.filter(old)
        # Not the names of the gates: a job's gate may be gone.
        names = list(self.order_by().values_list("job_name", flat=True).distinct())
        beyond = ((name, self._newest_beyond(name, keep)) for name in names)
        conditions = (Q(job_name=name, pk__lte=newest) for name, newest in beyond if newest is not None)
        while some := list(islice(conditions, _JOBS_AT_ONCE)):
            yield ended.exclude(old).filter(reduce(or_, some))

    def _newest_beyond(self, job_name: str, keep: int) -> int | None:
        return self.filter(job_name=job_name).order_by("-pk").values_list("pk", flat=True)[keep : keep + 1].first()
