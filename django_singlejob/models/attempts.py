"""What the rows of attempts share, runs and one-offs: each carries the token of its lock."""

from __future__ import annotations

from typing import TypeVar
from uuid import UUID

from django.db.models import Model, QuerySet

from django_singlejob.models.locks import locks
from django_singlejob.models.rows import delete_rows

AnyModel = TypeVar("AnyModel", bound=Model)


class AttemptQuerySet(QuerySet[AnyModel]):
    """Rows of attempts, each under the token of its lock: runs and one-offs."""

    def orphan_tokens(self) -> set[UUID | None]:
        """The tokens of attempts whose lock is gone, as after a manual DELETE."""
        # Two reads, in this order: an attempt that begins between them is not among the first.
        tokens = set(self.values_list("token", flat=True))
        if not tokens:
            return tokens
        return tokens - set(locks().values_list("token", flat=True))

    def prune(self, batch: int = 1000) -> int:
        """Delete all these rows, in batches: one huge DELETE would hold up everybody. Returns the number of rows
        deleted."""
        pruned = 0
        # In two statements, because MySQL has no LIMIT in a subquery. A row that has changed in between is left alone.
        while keys := list(self.order_by("pk").values_list("pk", flat=True)[:batch]):
            pruned += delete_rows(self.filter(pk__in=keys))
        return pruned
