"""What the tables share: rows are read from the database that decides, deleted in one statement, and in UTC; and what
their columns may contain."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from django.core.exceptions import FullResultSet
from django.db import models
from django.db.models import BooleanField, ExpressionWrapper, Func, Q, QuerySet

from django_singlejob.database.transactions import alias
from django_singlejob.process.clock import CENTURY, YEARS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from django.db.backends.base.base import BaseDatabaseWrapper
    from django.db.models.sql.compiler import SQLCompiler

# Of small and of large numbers. What people write is the types' own limit, to which no more can be added.
LARGEST, LARGEST_LARGE = 2**31 - 2**16, 2**63 - 2**32


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


def in_range(name: str, columns: Mapping[str, object]) -> models.CheckConstraint:
    """That each of these columns has a value that every database, and Python, can read and add to, or none."""
    of_table = {each: column for each, column in columns.items() if isinstance(column, models.Field)}
    fields = {each: field for each, field in of_table.items() if not field.generated}
    kinds = {each: field.get_internal_type() for each, field in fields.items()}
    ranges = {f"{each}__range": _RANGES[kind] for each, kind in kinds.items() if kind in _RANGES}
    own = [] if any(field.primary_key for field in fields.values()) else ["id"]
    return models.CheckConstraint(condition=Q(OfItsType(*own, *kinds), **ranges), name=name)


# Neither infinity nor a date before Christ is in it.
_RANGES: dict[str, tuple[object, object]] = {
    "DateTimeField": (datetime(YEARS[0], 1, 1, tzinfo=UTC), datetime(YEARS.stop, 1, 1, tzinfo=UTC)),
    "DurationField": (-CENTURY, CENTURY),
    "BooleanField": (False, True),
    "PositiveIntegerField": (0, LARGEST),
    "PositiveBigIntegerField": (0, LARGEST_LARGE),
    "BigIntegerField": (0, LARGEST_LARGE),
}


class OfItsType(Func):
    """Whether each of these columns has a value of its type, or none. SQLite stores anything anywhere, and MySQL may
    store dates that do not exist."""

    output_field = BooleanField()

    def as_sql(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper, *_: Any, **__: Any) -> NoReturn:
        raise FullResultSet  # there is nothing to check

    def as_mysql(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper, **_: Any) -> tuple[str, tuple[Any, ...]]:
        return self._checked(compiler, {"DateTimeField": "({name} IS NULL OR {name} + INTERVAL 0 DAY IS NOT NULL)"})

    def as_sqlite(
        self, compiler: SQLCompiler, connection: BaseDatabaseWrapper, **_: Any
    ) -> tuple[str, tuple[Any, ...]]:
        return self._checked(compiler, _SQLITE, _NUMBER)

    def _checked(
        self, compiler: SQLCompiler, checks: Mapping[str, str], otherwise: str = ""
    ) -> tuple[str, tuple[Any, ...]]:
        """``otherwise``: how to check a column of any other kind; empty: not at all."""
        found, values = list[str](), list[Any]()
        for column in self.get_source_expressions():
            if check := checks.get(column.output_field.get_internal_type(), otherwise):
                name, own = compiler.compile(column)  # or a value, if Django validates a row
                found.append(check.format(name=name))
                values += [*own] * check.count("{name}")
        return " AND ".join(found), tuple(values)


# Without blanks after commas: Django's inspection of a table takes what follows ", " for a column.
_TEXT, _NUMBER = (f"typeof({{name}}) IN ('{kind}','null')" for kind in ("text", "integer"))
_SQLITE = {
    **dict.fromkeys(("CharField", "TextField", "JSONField"), _TEXT),
    "UUIDField": f"{_TEXT} AND length({{name}}) = 32 AND {{name}} NOT GLOB '*[^0-9a-f]*'",
    # What is in no format of SQLite's is null.
    "DateTimeField": "strftime('%%Y-%%m-%%d %%H:%%M:%%S',{name}) IS substr({name},1,19)",
    # SQLite gives out no number after its greatest.
    "BigAutoField": f"{{name}} <= {LARGEST_LARGE}",
}

AnyRow = TypeVar("AnyRow", bound=Row)


def in_utc(row: AnyRow) -> AnyRow:
    """The row, with its instants in UTC."""
    # The database returns instants in its connection's time zone, and Python compares two of one zone by wall clock.
    for name, value in [*vars(row).items()]:
        if isinstance(value, datetime):
            setattr(row, name, value.astimezone(UTC))
    return row


def delete_rows(rows: QuerySet[Any]) -> int:
    """Delete these rows in one conditional statement. Returns the number of rows deleted."""
    # If any app listens to post_delete, delete() reads the rows first and then deletes them by primary key alone: it
    # would forget the token in between.
    return rows._raw_delete(rows.db)


def whether(condition: Q) -> ExpressionWrapper[Q]:
    """The condition, as a column."""
    return ExpressionWrapper(condition, output_field=BooleanField())
