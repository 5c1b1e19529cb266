"""What the querysets share: rows on the database that decides, reading past a row that cannot be read, deletes in one
statement, and instants in UTC."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast
from uuid import UUID

from django.apps import apps
from django.db import DataError, Error
from django.db.models import BigIntegerField, BooleanField, ExpressionWrapper, F, Model, Q, QuerySet, Value
from django.db.models.functions import Least

from django_singlejob.database import alias, is_connection_lost
from django_singlejob.escaping import printable
from django_singlejob.exceptions import UnreadableRow
from django_singlejob.fields import saturating
from django_singlejob.logs import about

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from django.db.models.expressions import Combinable

    from django_singlejob.models import JobLock, JobStatus, WorkerPass

logger = logging.getLogger("django_singlejob")

# What drivers, Django's converters and Python raise for a value that is none of its column's type.
UNREADABLE = (DataError, ValueError, TypeError, ArithmeticError, RecursionError)
# In a list whose end is cut off, no more rows are looked at to fill the places of those that cannot be read.
_MOST = 10_000
# So many rows are read with one query, until there is one among them that cannot be read.
_AT_ONCE = 500
_PROBLEM_LENGTH = 200
# The most that every database stores in such a column.
MOST_COUNTED = {"PositiveIntegerField": 2**31 - 1, "PositiveBigIntegerField": 2**63 - 1, "BigIntegerField": 2**63 - 1}

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


class Unreadable(NamedTuple):
    """A row that cannot be read: its model, its primary key and why."""

    model: type[Model]
    key: object
    error: Exception

    @property
    def table(self) -> str:
        """The name of its table."""
        return self.model._meta.db_table

    def __str__(self) -> str:
        problem = printable(f"{type(self.error).__name__}: {self.error}", _PROBLEM_LENGTH)
        return f"The row {self.key!r:.{_PROBLEM_LENGTH}} of the table {self.table} cannot be read ({problem})."


_noticed: ContextVar[dict[tuple[str, object], Unreadable] | None] = ContextVar("django_singlejob_noticed", default=None)
# What was logged already: a worker reads the same rows every second.
_reported: set[tuple[str, object]] = set()


@contextmanager
def noticing() -> Iterator[dict[tuple[str, object], Unreadable]]:
    """Collect the rows that the block passes over because they cannot be read."""
    found: dict[tuple[str, object], Unreadable] = {}
    token = _noticed.set(found)
    try:
        yield found
    finally:
        _noticed.reset(token)


@contextmanager
def refusing_unreadable() -> Iterator[None]:
    """Raise ``UnreadableRow`` after a block that passed over a row: it must not count as gone."""
    with noticing() as found:
        yield
    for row in found.values():
        raise UnreadableRow(f"{row} {REMEDY}")


REMEDY = "It was written by hand or by another program: correct it in the database."


class RowQuerySet(QuerySet[AnyModel]):
    """Rows of a table. One that cannot be read is passed over and logged once, and the others are read all the same."""

    is_forgiving = True

    def _fetch_all(self) -> None:
        try:
            super()._fetch_all()
        except UNREADABLE as error:
            if not self.is_forgiving:
                raise
            self._fetch_with_care(error)

    def _fetch_with_care(self, error: Exception) -> None:
        try:
            with saturating():
                super()._fetch_all()
        except (Error, *UNREADABLE) as again:
            if not self._is_of_rows:
                raise _first_cause(error, again) from None
            self._result_cache = self._read_one_by_one(error)

    @property
    def _is_of_rows(self) -> bool:
        query = self.query
        return not (query.combinator or query.distinct or query.group_by)

    def _read_one_by_one(self, error: Exception) -> list[Any]:
        low, high = self.query.low_mark, self.query.high_mark
        wanted = None if high is None else high - low
        longer = self.all()
        # All rows, if all were asked for: one that is left out would count as gone.
        longer.query.high_mark = None if high is None else low + max(_MOST, high - low)
        keys = cast("RowQuerySet[AnyModel]", longer.values_list("pk", flat=True))
        keys.is_forgiving = False
        try:
            list(keys)
        except (Error, *UNREADABLE) as again:
            raise _first_cause(error, again) from None  # it was the query or the connection, not a row
        found: list[Any] = []
        # Few at once if few are wanted: a row may be huge.
        step = _AT_ONCE if wanted is None else min(wanted + 1, _AT_ONCE)
        for start in range(0, len(keys), step):
            if wanted is not None and len(found) >= wanted:
                break
            found += self._read_these(list(keys[start : start + step]))
        return found[:wanted]

    def _read_these(self, keys: Sequence[object]) -> list[Any]:
        """The rows of these keys, in their order. If one of them cannot be read, each half is read by itself."""
        some = self.all()
        some.query.clear_limits()
        rows = some.filter(pk__in=keys)
        rows.is_forgiving = False
        try:
            with saturating():
                return list(rows)
        except UNREADABLE as error:
            if len(keys) == 1:
                self._pass_over(Unreadable(self.model, keys[0], error))
                return []
        middle = len(keys) // 2
        return [*self._read_these(keys[:middle]), *self._read_these(keys[middle:])]

    def _pass_over(self, row: Unreadable) -> None:
        known = (row.table, row.key)
        if (noticed := _noticed.get()) is not None:
            noticed[known] = row
        if known not in _reported and len(_reported) < _MOST:
            _reported.add(known)
            logger.error("%s It is passed over. %s", row, REMEDY, extra=about(reason=row.error))


def _first_cause(error: Exception, again: Exception) -> Exception:
    """The error to raise if the second attempt failed as well."""
    # PostgreSQL refuses all queries after an error in a transaction. But a lost connection is a reason to ask again.
    return again if isinstance(again, Error) and is_connection_lost(again) else error


def raised(model: type[Model], name: str, by: int = 1) -> Combinable:
    """The counter, greater by ``by``, but no greater than its column allows: then an UPDATE would fail."""
    most = MOST_COUNTED[model._meta.get_field(name).get_internal_type()]
    return Least(F(name), Value(most - by, output_field=BigIntegerField())) + by


class AttemptQuerySet(RowQuerySet[AnyModel]):
    """Rows of attempts, each under the token of its lock: runs and one-offs."""

    def orphan_tokens(self) -> set[UUID | None]:
        """The tokens of attempts whose lock is gone, as after a manual DELETE. None while this is not known."""
        # Two reads, in this order: an attempt that begins between them is not among the first.
        tokens = set(self.values_list("token", flat=True))
        if not tokens:
            return tokens
        with noticing() as unreadable:
            held = set(rows("JobLock").values_list("token", flat=True))
        # Any of them may be that of a lock whose token cannot be read.
        return set() if unreadable else tokens - held

    def prune(self, batch: int = 1000) -> int:
        """Delete all these rows, in batches: one huge DELETE would hold up everybody. Returns the number of rows
        deleted."""
        pruned = 0
        # In two statements, because MySQL has no LIMIT in a subquery. A row that has changed in between is left alone.
        while keys := list(self.order_by("pk").values_list("pk", flat=True)[:batch]):
            pruned += delete_rows(self.filter(pk__in=keys))
        return pruned
