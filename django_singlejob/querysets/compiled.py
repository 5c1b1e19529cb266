"""Statements whose SQL Django builds once, because building it takes longer than executing it.

The arguments of a statement decide its *shape*: one that is empty (``None``, zero, no text), or true, becomes part of
the SQL, and the SQL has a place for any other. So there is one SQL for each database and shape.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from inspect import signature
from typing import TYPE_CHECKING, Any, Concatenate, Generic, NamedTuple, ParamSpec, TypeVar, cast

from django.db import connections, transaction
from django.db.models import AutoField, Field, Model, QuerySet, Value
from django.db.models.sql import DeleteQuery, InsertQuery, UpdateQuery

from django_singlejob.timeline import sql_on

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from django.db.backends.base.base import BaseDatabaseWrapper
    from django.db.models.sql.compiler import SQLCompiler

AnyModel = TypeVar("AnyModel", bound=Model)
P = ParamSpec("P")
Rows = TypeVar("Rows", bound=QuerySet[Any])


class Given(Value):
    """Stands for an argument of this name: its value is known only when the statement is executed."""

    def __init__(self, name: str, field: Field[Any, Any]) -> None:
        super().__init__(name, output_field=field)

    def as_sql(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper) -> tuple[str, tuple[Any, ...]]:
        return "%s", (_Place(str(self.value), self.output_field, self.for_save),)


class _Place(NamedTuple):
    name: str
    field: Field[Any, Any]
    is_stored: bool

    def filled(self, given: Mapping[str, Any], connection: BaseDatabaseWrapper) -> Any:
        prepared = self.field.get_db_prep_save if self.is_stored else self.field.get_db_prep_value
        return prepared(given[self.name], connection=connection)


class Statement(NamedTuple):
    """SQL, with a place for each ``Given`` among its parameters."""

    sql: str
    params: Sequence[Any]

    def filled(self, given: Mapping[str, Any], connection: BaseDatabaseWrapper) -> list[Any]:
        """The parameters, with these values in their places."""
        return [param.filled(given, connection) if isinstance(param, _Place) else param for param in self.params]


def conditional(
    **fields: Field[Any, Any],
) -> Callable[[Callable[Concatenate[Rows, P], Any]], Callable[Concatenate[Rows, P], bool]]:
    """Make a method that describes an UPDATE or a DELETE execute it, and return whether it changed exactly one row.

    The method returns the rows and their changes or, to delete them, the rows. It must not compute anything from its
    arguments. An argument, or a value in an argument that is a dict, is one of the model's field of that name, or
    of ``fields``.
    """

    def decorate(describe: Callable[Concatenate[Rows, P], Any]) -> Callable[Concatenate[Rows, P], bool]:
        compiled = _Compiled(describe, _change, fields)

        @wraps(describe)
        def write(rows: Rows, *args: P.args, **kwargs: P.kwargs) -> bool:
            with compiled.executed(rows, args, kwargs) as cursor:
                return bool(cursor.rowcount == 1)

        return cast("Callable[Concatenate[Rows, P], bool]", write)

    return decorate


def inserting(describe: Callable[Concatenate[Rows, P], Any]) -> Callable[Concatenate[Rows, P], int]:
    """Make a method that describes an INSERT, by the row's values, execute it, and return the row's key."""
    compiled = _Compiled(describe, _insertion, {})

    @wraps(describe)
    def insert(rows: Rows, *args: P.args, **kwargs: P.kwargs) -> int:
        with compiled.executed(rows, args, kwargs) as cursor:
            returns = connections[rows.db].features.can_return_columns_from_insert  # MySQL cannot
            return int(cursor.fetchone()[0] if returns else cursor.lastrowid)

    return cast("Callable[Concatenate[Rows, P], int]", insert)


class _Compiled:
    """A statement, built once for each shape of its arguments."""

    def __init__(
        self,
        describe: Callable[..., Any],
        build: Callable[[QuerySet[Any], Any], Statement],
        fields: Mapping[str, Field[Any, Any]],
    ) -> None:
        self._describe, self._build, self._fields = describe, build, fields
        self._names = [*signature(describe).parameters][1:]
        self._known: dict[object, Statement] = {}

    @contextmanager
    def executed(self, rows: QuerySet[Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[Any]:
        """The cursor that has executed it."""
        arguments = {**dict(zip(self._names, args, strict=False)), **kwargs}
        given = dict(_flat(arguments))
        statement, connection = self._statement(rows, arguments, given), connections[rows.db]
        with transaction.mark_for_rollback_on_error(rows.db), connection.cursor() as cursor:
            cursor.execute(statement.sql, statement.filled(given, connection))
            yield cursor

    def _statement(self, rows: QuerySet[Any], arguments: Mapping[str, Any], given: Mapping[str, Any]) -> Statement:
        # Rows that are filtered already, and what the database computes, are another statement each time.
        if rows.query.where or any(hasattr(value, "resolve_expression") for value in given.values()):
            return self._build(rows, self._describe(rows, **arguments))
        shaping = ((name, repr(value) if _is_shaping(value) else None) for name, value in given.items())
        shape = (rows.db, sql_on(rows.db), *shaping)
        if shape not in self._known:
            stand_ins = _stand_ins(arguments, rows.model, self._fields)
            self._known[shape] = self._build(rows, self._describe(rows, **stand_ins))
        return self._known[shape]


def _flat(arguments: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in arguments.items():
        if isinstance(value, Mapping):
            for key, item in value.items():
                yield f"{name}.{key}", item
        else:
            yield name, value


def _is_shaping(value: object) -> bool:
    return value is True or not value


def _stand_ins(
    arguments: Mapping[str, Any], model: type[Model], fields: Mapping[str, Field[Any, Any]]
) -> dict[str, Any]:
    def stand_in(value: object, place: str, name: str) -> Any:
        if _is_shaping(value):
            return value
        field: Any = fields.get(name) or model._meta.get_field(name)
        return Given(place, field)

    return {
        name: {key: stand_in(item, f"{name}.{key}", key) for key, item in value.items()}
        if isinstance(value, Mapping)
        else stand_in(value, name, name)
        for name, value in arguments.items()
    }


def _change(rows: QuerySet[Any], described: Any) -> Statement:
    changed, changes = described if isinstance(described, tuple) else (described, None)
    if changes is None:
        return Statement(*changed.query.chain(DeleteQuery).get_compiler(rows.db).as_sql())
    query = changed.query.chain(UpdateQuery)
    query.add_update_values(changes)
    return Statement(*query.get_compiler(rows.db).as_sql())


def _insertion(rows: QuerySet[Any], values: Mapping[str, Any]) -> Statement:
    query, model = InsertQuery(rows.model), rows.model
    fields = [field for field in model._meta.concrete_fields if not isinstance(field, AutoField)]
    query.insert_values(fields, [model(**values)])
    compiler = query.get_compiler(rows.db)
    compiler.returning_fields = [model._meta.pk]
    ((sql, params),) = compiler.as_sql()
    return Statement(sql, params)


class Reading(Generic[AnyModel]):
    """The SELECT of these rows, and how to make them of what the database returns."""

    def __init__(self, rows: QuerySet[AnyModel]) -> None:
        compiler = rows.query.get_compiler(rows.db)
        self.statement = Statement(*compiler.as_sql())
        selected = [column for column, *_ in compiler.select]
        own: list[int] = compiler.klass_info["select_fields"]
        self.width = len(selected)
        self._model, self._alias = rows.model, rows.db
        self._fields = {selected[position].target.attname: position for position in own}
        self._annotations: dict[str, int] = dict(compiler.annotation_col_map)
        self._columns = selected
        # Converters belong to a connection, and that to a thread: they must not keep it open when the thread has ended.
        self._of_thread = threading.local()

    def row(self, values: Sequence[Any]) -> AnyModel | None:
        """The row that has these values, one for each column; ``None`` if an outer join found no row."""
        if values[self._fields[self._model._meta.pk.attname]] is None:
            return None
        read = self._read(values)
        row = self._model.from_db(self._alias, [*self._fields], [read[place] for place in self._fields.values()])
        for name, place in self._annotations.items():
            setattr(row, name, read[place])
        return row

    def _read(self, values: Sequence[Any]) -> list[Any]:
        read, connection = list(values), connections[self._alias]
        for place, column, converters in self._converters(connection):
            for convert in converters:
                read[place] = convert(read[place], column, connection)
        return read

    def _converters(self, connection: BaseDatabaseWrapper) -> Sequence[tuple[int, Any, Sequence[Any]]]:
        own: dict[str, Any] = vars(self._of_thread)
        if own.get("connection") is not connection:
            own["converters"] = [
                (place, column, [*connection.ops.get_db_converters(column), *column.get_db_converters(connection)])
                for place, column in enumerate(self._columns)
            ]
            own["connection"] = connection
        found: Sequence[tuple[int, Any, Sequence[Any]]] = own["converters"]
        return found
