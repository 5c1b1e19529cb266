"""Rows that somebody wrote past Django, with a value that no server writes: one that cannot be read takes no other with
it."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeVar

from django.db import connections
from django.db.models import Func, Model, QuerySet, TextField

from django_singlejob.database import errors
from django_singlejob.exceptions import UnreadableRow
from django_singlejob.models.rows import delete_rows
from django_singlejob.process.escaping import printable
from django_singlejob.process.logs import about

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Self

logger = logging.getLogger("django_singlejob")

AnyModel = TypeVar("AnyModel", bound=Model)

_PROBLEM_LENGTH = 200
# No more rows are remembered as logged, for somebody may have spoilt all.
_MOST_LOGGED = 1_000


class Unreadable(NamedTuple):
    """A row that cannot be read: its table, its key and the column to correct, if they are known, and why."""

    table: str
    key: str
    column: str
    problem: str

    def __str__(self) -> str:
        place = f"The row {self.key!r} of {self.table}" if self.key else f"A row of {self.table}"
        return f"{place} cannot be read{f', because of {self.column}' if self.column else ''} ({self.problem})."


def _log_once(row: Unreadable) -> None:
    if (row.table, row.key) not in _logged and len(_logged) < _MOST_LOGGED:
        _logged.add((row.table, row.key))
        logger.error("%s It is left out until you correct it in the database.", row, extra=about())


_logged: set[tuple[str, str]] = set()
_REPORT: ContextVar[Callable[[Unreadable], object]] = ContextVar("report", default=_log_once)


@contextmanager
def reporting(report: Callable[[Unreadable], object]) -> Iterator[None]:
    """Call ``report`` with each unreadable row that is left out in the block. By default it is logged."""
    token = _REPORT.set(report)
    try:
        yield
    finally:
        _REPORT.reset(token)


def refuse(row: Unreadable) -> NoReturn:
    """Raise ``UnreadableRow``: a row that decides may not be left out."""
    raise UnreadableRow(f"{row} Correct it in the database.")


class RowQuerySet(QuerySet[AnyModel]):
    """Rows. One that cannot be read is left out, and reported as ``reporting`` says.

    Attributes:
        left_out: how many rows were left out when these were read.
    """

    left_out = 0

    def _fetch_all(self) -> None:
        # All ways to read rows lead here.
        if self._result_cache is None:
            connections[self.db].ensure_connection()  # an error of this is not a row's
        try:
            super()._fetch_all()
        except Exception as error:
            if not errors.is_of_a_row(error):
                raise
            self._result_cache = self._halved(error)

    def _halved(self, error: Exception) -> list[Any]:
        size = self.count()  # raises if the connection, or the query, is to blame
        if size == 0:
            raise error
        halves = [self[: size // 2], self[size // 2 : size]] if size > 1 else []
        if size == 1:
            _REPORT.get()(_described(self, error))
        found = [row for half in halves for row in half]
        self.left_out = size - len(found)
        return found

    def batches(self, size: int = 1000) -> Iterator[Self]:
        """These rows, as several query sets: one huge UPDATE or DELETE would hold up everybody. No row comes twice,
        whatever becomes of it. A row that has changed meanwhile, so that it is none of these, is in none of them."""
        last = 0
        # In two statements, because MySQL has no LIMIT in a subquery.
        while keys := list(self.filter(pk__gt=last).order_by("pk").values_list("pk", flat=True)[:size]):
            last = keys[-1]
            yield self.filter(pk__in=keys)

    def prune(self, batch: int = 1000) -> int:
        """Delete all these rows, in batches. Returns the number of rows deleted."""
        return sum(map(delete_rows, self.batches(batch)))

    def first_readable(self, most: int) -> list[AnyModel]:
        """The first ``most`` that can be read."""
        part, stop = self[:most], most
        found = list(part)
        while part.left_out:
            part, stop = self[stop : stop + part.left_out], stop + part.left_out
            found += part
        return found


def _described(row: QuerySet[Any], error: Exception) -> Unreadable:
    meta, key, wrong = row.model._meta, "", list[str]()
    if not (row.query.combinator or row.query.distinct):
        alone: QuerySet[Any] = QuerySet(row.model, row.query.chain(), row.db)  # which leaves nothing out, but raises
        wrong = [field.attname for field in meta.concrete_fields if not _is_readable(alone, field.attname)]
        written = Func("pk", function="HEX", output_field=TextField()) if meta.pk.attname in wrong else "pk"
        key = "".join(map(str, alone.values_list(written, flat=True)))
    problem = printable(f"{type(error).__name__}: {error}", _PROBLEM_LENGTH)
    return Unreadable(str(meta.object_name), key, "".join(wrong[:1]), problem)


def _is_readable(row: QuerySet[Any], column: str) -> bool:
    try:
        list(row.values_list(column))
    except Exception as error:
        if not errors.is_of_a_row(error):
            raise
        return False
    return True
