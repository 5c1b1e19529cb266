"""What the querysets share: rows on the database that decides, deletes in one statement, and instants in UTC."""

from __future__ import annotations

from contextlib import contextmanager
from datetime import UTC
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

from django.apps import apps
from django.db import DataError, connections
from django.db.models import BooleanField, ExpressionWrapper, Model, Q, QuerySet

from django_singlejob.database.transactions import alias
from django_singlejob.exceptions import UnreadableRow
from django_singlejob.process.escaping import printable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django_singlejob.models import JobLock, JobStatus, WorkerPass

_PROBLEM_LENGTH = 200

Row = TypeVar("Row", "JobLock", "JobStatus", "WorkerPass")
AnyModel = TypeVar("AnyModel", bound=Model)


def rows(model: str) -> QuerySet[Any]:
    """The model's rows, on the database that decides."""
    # Looked up when used: this module may be imported before the apps are ready, but the models may not.
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
    # The database returns instants in its connection's time zone, and Python compares two of one zone by wall clock.
    for name in _INSTANTS:
        if instant := getattr(row, name, None):
            setattr(row, name, instant.astimezone(UTC))
    return row


def delete_rows(rows: QuerySet[Any]) -> int:
    """Delete these rows in one conditional statement. Returns the number of rows deleted."""
    # If any app listens to post_delete, delete() reads the rows first and then deletes them by primary key alone: it
    # would forget the token in between.
    return rows._raw_delete(rows.db)


def whether(condition: Q) -> ExpressionWrapper[Q]:
    """The condition, as a column."""
    return ExpressionWrapper(condition, output_field=BooleanField())


@contextmanager
def readable(model: str) -> Iterator[None]:
    """Raise ``UnreadableRow`` if the block reads a row of this model that somebody wrote past Django, with a value that
    its column's type does not have."""
    connections[alias()].ensure_connection()  # an error of this is not the row's
    try:
        yield
    except (DataError, ValueError, TypeError, ArithmeticError, RecursionError) as error:
        problem = printable(f"{type(error).__name__}: {error}", _PROBLEM_LENGTH)
        raise UnreadableRow(f"A row of {model} cannot be read ({problem}). Correct it in the database.") from error


class AttemptQuerySet(QuerySet[AnyModel]):
    """Rows of attempts, each under the token of its lock: runs and one-offs."""

    def orphan_tokens(self) -> set[UUID | None]:
        """The tokens of attempts whose lock is gone, as after a manual DELETE."""
        # Two reads, in this order: an attempt that begins between them is not among the first.
        tokens = set(self.values_list("token", flat=True))
        if not tokens:
            return tokens
        return tokens - set(rows("JobLock").values_list("token", flat=True))

    def prune(self, batch: int = 1000) -> int:
        """Delete all these rows, in batches: one huge DELETE would hold up everybody. Returns the number of rows
        deleted."""
        pruned = 0
        # In two statements, because MySQL has no LIMIT in a subquery. A row that has changed in between is left alone.
        while keys := list(self.order_by("pk").values_list("pk", flat=True)[:batch]):
            pruned += delete_rows(self.filter(pk__in=keys))
        return pruned
