"""What the querysets have in common: rows on the database that decides, deleted in one statement, in UTC."""

from __future__ import annotations

from datetime import UTC
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

from django.apps import apps
from django.db.models import BooleanField, ExpressionWrapper, Model, Q, QuerySet

from django_singlejob.database import alias

if TYPE_CHECKING:
    from django_singlejob.models import JobLock, JobStatus, WorkerPass

Row = TypeVar("Row", "JobLock", "JobStatus", "WorkerPass")
AnyModel = TypeVar("AnyModel", bound=Model)


def rows(model: str) -> QuerySet[Any]:
    """The model's, on the database that decides."""
    # Looked up at use: this module may be imported before the apps are ready, the models may not.
    found: QuerySet[Any] = apps.get_model("django_singlejob", model)._default_manager.using(alias())
    return found


_INSTANTS = (
    "now",
    "slot",
    "next_slot",
    "last_slot",
    "acquired_at",
    "heartbeat_at",
    "expires_at",
    "sent_at",
    "seen_at",
)


def in_utc(row: Row) -> Row:
    """The row, with its instants in UTC."""
    # A connection's own time zone comes back with every instant, and two of one zone are compared by their wall clocks.
    for name in _INSTANTS:
        if instant := getattr(row, name, None):
            setattr(row, name, instant.astimezone(UTC))
    return row


def delete_rows(rows: QuerySet[Any]) -> int:
    """Delete them, in one conditional statement. Returns how many it were."""
    # delete() would first read the rows and then delete by primary key alone, as soon as any app listens to
    # post_delete: it would forget the token in between.
    return rows._raw_delete(rows.db)


def whether(condition: Q) -> ExpressionWrapper[Q]:
    """The condition, as a column."""
    return ExpressionWrapper(condition, output_field=BooleanField())


class AttemptQuerySet(QuerySet[AnyModel]):
    """Rows of attempts, each under the token of its lock: runs and one-offs."""

    def orphan_tokens(self) -> set[UUID | None]:
        """The tokens of those whose lock is gone, as after a DELETE by hand."""
        # Two reads, in this order: an attempt that begins between them is not among the first.
        tokens = set(self.values_list("token", flat=True))
        return tokens - set(rows("JobLock").values_list("token", flat=True)) if tokens else tokens

    def prune(self, batch: int = 1000) -> int:
        """Delete all of these, a batch at a time: one huge DELETE would hold up everybody. Returns how many it were."""
        pruned = 0
        # MySQL has no LIMIT in a subquery. One that was changed since it was read is left alone.
        while keys := list(self.order_by("pk").values_list("pk", flat=True)[:batch]):
            pruned += delete_rows(self.filter(pk__in=keys))
        return pruned
