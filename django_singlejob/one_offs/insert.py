"""Inserts one-offs that differ only in their arguments: all of them or none, with as few statements as possible."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

from django.db import connections, transaction

from django_singlejob import database
from django_singlejob.one_offs.values import JSON_LENGTH
from django_singlejob.querysets.one_offs import one_offs

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from django_singlejob.models import OneOffJob

# A statement with more rows is hardly faster, and blocks others for longer.
MOST_ROWS = 1000
# What `database.synchronous` does, in the statement itself.
_DURABLY = "set_config('synchronous_commit', 'on', true)"


class Call(NamedTuple):
    """The arguments of a one-off, in JSON's own types."""

    args: list[Any]
    kwargs: dict[str, Any]


def insert(columns: Mapping[str, Any], calls: Sequence[Call]) -> list[OneOffJob]:
    """Insert a row for each call, all of them or none, and return the rows in the same order.

    ``columns`` are the other columns, which the rows share: values, or expressions. Once this returns, no crash loses
    the rows, unless they are part of the caller's transaction.
    """
    alias = database.alias()
    statement = _Insert(alias, columns)
    batches = list(statement.batches(calls))
    with _closed_if_lost(alias), transaction.atomic(using=alias) if len(batches) > 1 else nullcontext():
        return [row for batch in batches for row in statement.execute(batch)]


def _closed_if_lost(alias: str) -> AbstractContextManager[None]:
    """Unless it is the caller's transaction that is lost: that has its own end."""
    connection = connections[alias]
    return nullcontext() if connection.in_atomic_block else database.closed_if_lost(connection)


class _Written(NamedTuple):
    """A call, and its JSON."""

    call: Call
    args: str
    kwargs: str

    @classmethod
    def of(cls, call: Call) -> _Written:
        return cls(call, json.dumps(call.args), json.dumps(call.kwargs))


class _Insert:
    """``INSERT ... RETURNING`` for rows that share most columns. What they share is sent once for all of them."""

    def __init__(self, alias: str, columns: Mapping[str, Any]) -> None:
        self._alias, self._connection = alias, connections[alias]
        # In the caller's transaction, durability is up to the caller.
        self._is_durable = self._connection.vendor == "postgresql" and transaction.get_autocommit(using=alias)
        self._model: type[OneOffJob] = one_offs().model
        self._compiler = one_offs().query.get_compiler(using=alias)
        own = ("id", "exclusive", *Call._fields)  # set by the database, or by each call
        fields: list[Any] = [field for field in self._model._meta.concrete_fields if field.name not in own]
        self._shared = {field: columns.get(field.name, field.get_default()) for field in fields}
        compiled = [self._compiled(field, value) for field, value in self._shared.items()]
        self._sql = ", ".join(sql for sql, _ in compiled)
        self._parameters = [parameter for _, parameters in compiled for parameter in parameters]
        # What only the database knows. It is the same for all rows of a statement.
        self._unknown = [field for field, value in self._shared.items() if _is_expression(value)]

    def _compiled(self, field: Any, value: Any) -> tuple[str, Sequence[Any]]:
        if not _is_expression(value):
            return "%s", [field.get_db_prep_save(value, self._connection)]
        resolved = value.resolve_expression(self._compiler.query, allow_joins=False, for_save=True)
        sql, parameters = self._compiler.compile(resolved)
        return sql, parameters

    # --- batches

    def batches(self, calls: Sequence[Call]) -> Iterator[list[_Written]]:
        """The calls, in one part for each statement. A part has no more JSON than a single call may have, because
        servers limit the length of a statement."""
        most, batch, length = self._most_rows(), list[_Written](), 0
        for written in map(_Written.of, calls):
            own = len(written.args) + len(written.kwargs)
            if batch and (len(batch) == most or length + own > JSON_LENGTH):
                yield batch
                batch, length = [], 0
            batch.append(written)
            length += own
        if batch:
            yield batch

    def _most_rows(self) -> int:
        if not self._returns_rows:
            return 1  # the driver knows one key only
        parameters = self._connection.features.max_query_params
        return MOST_ROWS if parameters is None else min(MOST_ROWS, (parameters - len(self._parameters)) // 2)

    @property
    def _returns_rows(self) -> bool:
        """Whether there is ``RETURNING``, which MySQL has not, unlike MariaDB."""
        return self._connection.features.can_return_rows_from_bulk_insert

    # --- the statement

    def execute(self, batch: Sequence[_Written]) -> list[OneOffJob]:
        """Insert these rows. On MySQL, a second statement reads the row."""
        varying = [text for written in batch for text in (written.args, written.kwargs)]
        with transaction.mark_for_rollback_on_error(using=self._alias), self._connection.cursor() as cursor:
            cursor.execute(self._statement(len(batch)), [*varying, *self._parameters])
            if not self._returns_rows:
                return [one_offs().get(pk=cursor.lastrowid)]
            return self._rows(batch, sorted(cursor.fetchall(), key=lambda returned: returned[0]))

    def _statement(self, count: int) -> str:
        table, columns = self._model._meta.db_table, [*Call._fields, *(field.column for field in self._shared)]
        into = f"INSERT INTO {self._quoted(table)} ({', '.join(map(self._quoted, columns))})"
        call = "%s::jsonb, %s::jsonb" if self._connection.vendor == "postgresql" else "%s, %s"
        if count == 1:
            rows = f"VALUES ({call}, {self._sql})"
        else:
            # Keys are given in the order of the SELECT, so the keys tell which row is whose call.
            calls = ", ".join(f"({number}, {call})" for number in range(count))
            rows = f"WITH calls (number, args, kwargs) AS (VALUES {calls}) "
            rows += f"SELECT args, kwargs, {self._sql} FROM calls ORDER BY number"  # noqa: S608
        return f"{into} {rows}{self._returning()}"

    def _returning(self) -> str:
        if not self._returns_rows:
            return ""
        columns = ["id", *(field.column for field in self._unknown)]
        return f" RETURNING {', '.join([*map(self._quoted, columns), *([_DURABLY] if self._is_durable else [])])}"

    def _quoted(self, name: str) -> str:
        return self._connection.ops.quote_name(name)

    # --- the rows

    def _rows(self, batch: Sequence[_Written], returned: Sequence[Sequence[Any]]) -> list[OneOffJob]:
        shared = {field: value for field, value in self._shared.items() if field not in self._unknown}
        values = {field.attname: field.to_python(value) for field, value in shared.items()}
        values |= zip((field.attname for field in self._unknown), self._read(returned[0]), strict=True)
        values["exclusive"] = bool(values["job_name"])
        names = [field.attname for field in self._model._meta.concrete_fields]
        return [
            self._model.from_db(self._alias, names, [own[name] for name in names])
            for written, (key, *_) in zip(batch, returned, strict=True)
            for own in [values | {"id": key} | written.call._asdict()]
        ]

    def _read(self, returned: Sequence[Any]) -> Sequence[Any]:
        """The values of the unknown columns, in Python's types."""
        converters = self._compiler.get_converters(
            [field.get_col(field.model._meta.db_table) for field in self._unknown]
        )
        values: Sequence[Any]
        (values,) = self._compiler.apply_converters([returned[1 : 1 + len(self._unknown)]], converters)
        return values


def _is_expression(value: object) -> bool:
    return hasattr(value, "as_sql")
