"""Limits how long a statement may take that only reports."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from functools import partial
from math import ceil
from typing import Any

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from django_singlejob.process.clock import local_now

# How many steps SQLite takes between two looks at the clock: about a millisecond.
_STEPS = 100_000


def limited(alias: str, patience: timedelta) -> AbstractContextManager[object]:
    """Make a statement in the block fail if it takes longer than ``patience``. The connection may be lost with it.

    On PostgreSQL this does nothing, because ``database.durable`` sets the limit when the transaction begins, which
    saves a round trip. MySQL limits only how long a statement waits for a change of the table, in whole seconds. For a
    row, it waits as long as ``innodb_lock_wait_timeout`` says.
    """
    connection = connections[alias]
    if connection.vendor == "sqlite":
        return _limited_by_steps(connection, patience)
    if connection.vendor == "mysql":
        on = _on_mariadb if connection.mysql_is_mariadb else _on_mysql  # type: ignore[attr-defined]
        return connection.execute_wrapper(partial(_execute_limited, partial(on, patience.total_seconds())))
    return nullcontext()


@contextmanager
def _limited_by_steps(connection: BaseDatabaseWrapper, patience: timedelta) -> Iterator[None]:
    connection.ensure_connection()
    give_up_at = local_now() + patience.total_seconds()
    connection.connection.set_progress_handler(lambda: local_now() > give_up_at, _STEPS)
    try:
        yield
    finally:
        connection.connection.set_progress_handler(None, 0)


def _execute_limited(
    limit: Callable[[str], str], execute: Callable[..., Any], sql: str, params: Any, many: bool, context: dict[str, Any]
) -> Any:
    return execute(limit(sql), params, many, context)


def _on_mariadb(seconds: float, sql: str) -> str:
    return f"SET STATEMENT max_statement_time = {seconds} FOR {sql}"


def _on_mysql(seconds: float, sql: str) -> str:
    verb, _, rest = sql.partition(" ")
    return f"{verb} /*+ SET_VAR(lock_wait_timeout = {ceil(seconds)}) */ {rest}"
