"""Inserts one-offs that differ only in their arguments: all of them or none."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

from django.db import connections, transaction

from django_singlejob.database import transactions
from django_singlejob.models.one_offs import one_offs
from django_singlejob.running.values import JSON_LENGTH

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from django_singlejob.models import OneOffJob

# A statement with more rows is hardly faster, and blocks others for longer.
MOST_ROWS = 1000


class Call(NamedTuple):
    """The arguments of a one-off, in JSON's own types."""

    args: list[Any]
    kwargs: dict[str, Any]


def insert(columns: Mapping[str, Any], calls: Sequence[Call]) -> list[OneOffJob]:
    """Insert a row for each call, all of them or none, and return the rows in the same order.

    ``columns`` are the other columns, which the rows share: values, or expressions. Once this returns, no crash loses
    the rows, unless they are part of the caller's transaction.
    """
    if not calls:
        return []
    alias, batches = transactions.alias(), list(_batches(calls))
    all_or_none = transaction.atomic(using=alias, savepoint=len(batches) > 1)
    with _closed_if_lost(alias), transactions.synchronous(alias), all_or_none:
        keys = [key for batch in batches for key in _inserted(alias, columns, batch)]
        found = one_offs().in_bulk(keys)  # with what only the database knows
    return [found[key] for key in keys]


def _closed_if_lost(alias: str) -> AbstractContextManager[None]:
    """Unless it is the caller's transaction that is lost: that has its own end."""
    connection = connections[alias]
    return nullcontext() if connection.in_atomic_block else transactions.closed_if_lost(connection)


def _batches(calls: Sequence[Call]) -> Iterator[list[Call]]:
    """The calls, in one part for each statement. A part has no more JSON than a single call may have, because servers
    limit the length of a statement."""
    batch, length = list[Call](), 0
    for call in calls:
        own = len(json.dumps(call))
        if batch and (len(batch) == MOST_ROWS or length + own > JSON_LENGTH):
            yield batch
            batch, length = [], 0
        batch.append(call)
        length += own
    if batch:
        yield batch


def _inserted(alias: str, columns: Mapping[str, Any], batch: Sequence[Call]) -> list[int]:
    """The keys of the rows."""
    rows = [one_offs().model(**columns, **call._asdict()) for call in batch]
    if connections[alias].features.can_return_rows_from_bulk_insert:
        one_offs().bulk_create(rows)
    else:  # MySQL
        for row in rows:
            row.save(using=alias, force_insert=True)
    return [row.pk for row in rows]
