"""Columns that can always be read, whatever somebody has written into them by hand.

A database stores instants and durations that Python cannot hold, and JSON that Python refuses. One such row would make
each query over its table fail. These fields saturate instead: what lies beyond the first or the last instant, or beyond
a century, is read as that limit. Their limits leave room for any time zone, so no page and no comparison overflows.
To migrations they are Django's own fields.

PostgreSQL's driver fails before a field sees the value. Inside ``saturating``, the database itself saturates. That is
not the usual way, because a query that is ordered by such a column would not find its index.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import DateTimeField, DurationField, JSONField
from django.db.models.expressions import Col
from django.db.models.sql.compiler import SQLCompiler

from django_singlejob.clock import saturated

# Two days from what Python can hold.
FIRST = datetime.min.replace(tzinfo=UTC) + timedelta(days=2)
LAST = datetime.max.replace(tzinfo=UTC, microsecond=0) - timedelta(days=2)

# What is nested more deeply can be read, but not always written again: that takes more of Python's stack.
DEEPEST = 500

_is_saturating: ContextVar[bool] = ContextVar("django_singlejob_is_saturating", default=False)


@contextmanager
def saturating() -> Iterator[None]:
    """Have PostgreSQL saturate what the queries in the block select."""
    token = _is_saturating.set(True)
    try:
        yield
    finally:
        _is_saturating.reset(token)


class InstantField(DateTimeField):  # type: ignore[type-arg]  # (Django has no generic fields)
    """An instant from ``FIRST`` to ``LAST``. A zero date, or a text that is not an instant, is read as ``FIRST``."""

    def deconstruct(self) -> Any:
        """Django's own field, to migrations."""
        return _as_djangos(DateTimeField, super().deconstruct())

    def select_format(self, compiler: SQLCompiler, sql: str, params: Any) -> Any:
        """Inside ``saturating``: PostgreSQL has an infinity and years before Christ, which its driver cannot read."""
        return _within(compiler, sql, params, f"TIMESTAMPTZ '{FIRST}'", f"TIMESTAMPTZ '{LAST}'")

    def from_db_value(self, value: Any, expression: Any, connection: BaseDatabaseWrapper) -> Any:
        """Saturate."""
        if value is None:
            return FIRST if isinstance(expression, Col) and not self.null else None
        # Compared without their zones: to convert the first or the last instant to another zone would overflow.
        wall = value.replace(tzinfo=None)
        if wall < FIRST.replace(tzinfo=None):
            return FIRST
        return LAST if wall > LAST.replace(tzinfo=None) else value


class LengthField(DurationField):  # type: ignore[type-arg]
    """A duration of at most a century, forwards or backwards."""

    def deconstruct(self) -> Any:
        """Django's own field, to migrations."""
        return _as_djangos(DurationField, super().deconstruct())

    def select_format(self, compiler: SQLCompiler, sql: str, params: Any) -> Any:
        """Inside ``saturating``: PostgreSQL has intervals that are longer than its driver can read."""
        return _within(compiler, sql, params, "INTERVAL '-36525 days'", "INTERVAL '36525 days'")

    def from_db_value(self, value: Any, expression: Any, connection: BaseDatabaseWrapper) -> Any:
        """Saturate."""
        return None if value is None else saturated(value)


class DocumentField(JSONField):
    """JSON. If Python refuses it, because of its depth or the length of a number, it is read as its text."""

    def deconstruct(self) -> Any:
        """Django's own field, to migrations."""
        return _as_djangos(JSONField, super().deconstruct())

    def from_db_value(self, value: Any, expression: Any, connection: BaseDatabaseWrapper) -> Any:
        """Read the value, or its text."""
        try:
            read = super().from_db_value(value, expression, connection)
        except (ValueError, RecursionError):
            return value
        return value if isinstance(value, str) and _is_too_deep(value, read) else read


def _is_too_deep(text: str, read: object) -> bool:
    if text.count("[") + text.count("{") <= DEEPEST:
        return False
    level = [read]
    for _ in range(DEEPEST):
        nested = (item.values() if isinstance(item, dict) else item for item in level if isinstance(item, dict | list))
        level = [value for values in nested for value in values]
    return bool(level)


def _as_djangos(field: type, parts: Any) -> Any:
    name, _path, *rest = parts
    return name, f"django.db.models.{field.__name__}", *rest


def _within(compiler: SQLCompiler, sql: str, params: Any, least: str, most: str) -> Any:
    # A subquery is a text with spaces. What it selects has passed through here already.
    if not _is_saturating.get() or compiler.connection.vendor != "postgresql" or " " in sql:
        return sql, params
    # LEAST and GREATEST would turn NULL into a limit.
    return f"CASE WHEN {sql} < {least} THEN {least} WHEN {sql} > {most} THEN {most} ELSE {sql} END", [*params] * 3
