"""One-offs that are inserted by one statement, on PostgreSQL. Django's own takes several times the processor time."""

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from django.db import connections, transaction

from django_singlejob.database import transactions
from django_singlejob.models import OneOffJob
from django_singlejob.running.enqueue import Call, closed_if_lost, in_batches

# What each row has of its own is sent as JSON, for all rows together.
OWN = ("args", "kwargs")


def insert_at_once(alias: str, columns: Mapping[str, Any], calls: Sequence[Call]) -> list[OneOffJob] | None:
    """See ``running.enqueue.insert``. ``None``: the portable way has to."""
    connection: Any = connections[alias]
    has_expression = any(hasattr(value, "resolve_expression") for value in columns.values())
    if connection.vendor != "postgresql" or has_expression or len([*in_batches(calls)]) > 1:
        return None
    fields = {field.name: field for field in OneOffJob._meta.concrete_fields}
    usual = [field for field in fields.values() if not field.generated and (field.has_default() or field.null)]
    known: dict[str, Any] = {field.name: field.get_default() for field in usual} | dict(columns)
    shared = [name for name in known if name not in OWN and (name in columns or not fields[name].has_db_default())]
    returned = [name for name in fields if name not in known]
    values = [fields[name].get_db_prep_save(known[name], connection) for name in shared]
    sql = _statement(connection, [fields[name] for name in shared], returned)
    # As after any failed INSERT of Django's, the caller's transaction is rolled back.
    caller = transaction.atomic(using=alias, savepoint=False) if connection.in_atomic_block else closed_if_lost(alias)
    with caller, transactions.synchronous(alias, is_statement=True), connection.cursor() as cursor:
        cursor.execute(sql, [*values, json.dumps(calls)])
        found = cursor.fetchall()
    return [*_rows(alias, known, returned, calls, found)]


def _statement(connection: Any, shared: Sequence[Any], returned: Sequence[str]) -> str:
    columns = ", ".join(field.column for field in shared)
    values = ", ".join(f"%s::{field.db_type(connection)}" for field in shared)
    return (
        f"INSERT INTO {OneOffJob._meta.db_table} ({columns}, {', '.join(OWN)}) "  # noqa: S608  (no value is in it)
        f"SELECT {values}, own -> 0, own -> 1 "
        "FROM jsonb_array_elements(%s::jsonb) WITH ORDINALITY AS calls (own, number) ORDER BY number "
        f"RETURNING {', '.join(returned)}"
    )


def _rows(
    alias: str, known: Mapping[str, Any], returned: Sequence[str], calls: Sequence[Call], found: Sequence[Sequence[Any]]
) -> Iterator[OneOffJob]:
    names = [field.name for field in OneOffJob._meta.concrete_fields]
    usual, places = [known.get(name) for name in names], [*map(names.index, (*OWN, *returned))]
    for call, answer in zip(calls, found, strict=True):
        values = usual.copy()
        for place, value in zip(places, (call.args, call.kwargs, *answer), strict=True):
            values[place] = value.astimezone(UTC) if isinstance(value, datetime) else value
        yield OneOffJob.from_db(alias, names, values)
