"""What the tables share: rows are read from the database that decides, deleted in one statement, and in UTC."""

from __future__ import annotations

from contextlib import contextmanager
from datetime import UTC
from typing import TYPE_CHECKING, Any, TypeVar

from django.db import DataError, connections, models
from django.db.models import BooleanField, ExpressionWrapper, Q, QuerySet

from django_singlejob.database.transactions import alias
from django_singlejob.exceptions import UnreadableRow
from django_singlejob.process.escaping import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_PROBLEM_LENGTH = 200


class Row(models.Model):
    """A row that is reloaded from the database it came from, whatever a router says about reads."""

    class Meta:
        abstract = True

    def refresh_from_db(
        self,
        using: str | None = None,
        fields: Iterable[str] | None = None,
        from_queryset: models.QuerySet[Any] | None = None,
    ) -> None:
        """Reload the row, or a deferred field, from the database it came from. A new row has none: it is read from the
        database that holds the locks. A router could send the read to a replica, whose data may be old."""
        if using is None and from_queryset is None:
            using = self._state.db or alias()
        super().refresh_from_db(using, fields, from_queryset)


def allowed(name: str, **values: Any) -> models.CheckConstraint:
    """What the database lets anybody write."""
    return models.CheckConstraint(condition=models.Q(**values), name=name)


_INSTANTS = (
    "now",
    "slot",
    "next_slot",
    "last_slot",
    "last_finished_at",
    "last_success_at",
    "paused_until",
    "acquired_at",
    "heartbeat_at",
    "expires_at",
    "sent_at",
    "seen_at",
)


AnyRow = TypeVar("AnyRow", bound=Row)


def in_utc(row: AnyRow) -> AnyRow:
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
