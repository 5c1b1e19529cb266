"""The one database that holds the locks: short durable transactions on it, and connections that it has lost."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from math import ceil
from typing import Any

from django.apps import apps
from django.db import (
    DEFAULT_DB_ALIAS,
    Error,
    connections,
    router,
    transaction,
)
from django.db.backends.base.base import BaseDatabaseWrapper
from django.utils.connection import ConnectionDoesNotExist

from django_singlejob.conf import options
from django_singlejob.database import errors
from django_singlejob.exceptions import UnsafeTransaction
from django_singlejob.process.clock import local_now, utc_now, wait

# How long a statement waits for a row before the whole transaction is retried. SQLite uses its `timeout`.
LOCK_TIMEOUT = timedelta(seconds=2)
# A statement that has a time-out of its own waits for a row for at most this part of it.
_PART_OF_A_STATEMENT = 3 / 4
# A process that is suspended during a short transaction blocks others for at most this long.
IDLE_TIMEOUT = timedelta(seconds=10)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# What MySQL calls these limits of PostgreSQL's. It counts in seconds; this is the most that it accepts.
_ON_MYSQL = {"idle_in_transaction_session_timeout": "wait_timeout", "lock_timeout": "innodb_lock_wait_timeout"}
LONGEST_WAIT_TIMEOUT = 31_536_000


def alias() -> str:
    """The database for every statement, including reads: a router may send reads to a replica, which lags behind.

    Raises ``ConnectionDoesNotExist`` if ``DATABASES`` has no such alias.
    """
    found, source = options().database, "SINGLEJOB['DATABASE'] is"
    if found is None and router.routers:
        # Not cached: a router's answer may change at any time.
        found = router.db_for_write(apps.get_model("django_singlejob", "JobLock"))
        source = "The routers send JobLock to"
    found = found or DEFAULT_DB_ALIAS
    if found not in connections:
        raise ConnectionDoesNotExist(
            f"{source} {found!r}, but DATABASES has no such alias. Use one of: {', '.join(connections)}."
        )
    return found


def outside_requests(view: Callable[..., Any]) -> Callable[..., Any]:
    """The view, which no ``ATOMIC_REQUESTS`` puts into a transaction: its changes must not wait for the end of the
    request, and it can answer if a database does not."""
    for name in connections:
        view = transaction.non_atomic_requests(using=name)(view)
    return view


def is_on_one_host(alias: str) -> bool:
    """Whether the database and all its clients are on one machine, and so share its clocks."""
    return connections[alias].vendor == "sqlite"


def sent_now() -> datetime:
    """The sender's time for a heartbeat: the time of day. On one host it is the clock that never steps, counted from
    1970, because all processes share that clock."""
    return EPOCH + timedelta(seconds=local_now()) if is_on_one_host(alias()) else utc_now()


def is_private(alias: str) -> bool:
    """Whether no other thread or process can see what this one writes: in a ``TestCase`` or an in-memory database."""
    connection = connections[alias]
    is_in_memory = getattr(connection, "is_in_memory_db", lambda: False)
    return connection.in_atomic_block or is_in_memory()


def has_one_writer(alias: str) -> bool:
    """Whether an open transaction that has written blocks all other writers, in every table."""
    return connections[alias].vendor == "sqlite"


def keeps_long_integers(alias: str) -> bool:
    """Whether JSON keeps an integer of more than 64 bits. MySQL turns it into a floating-point number."""
    connection: Any = connections[alias]
    return connection.vendor != "mysql" or bool(connection.mysql_is_mariadb)


def is_in_transaction(connection: BaseDatabaseWrapper) -> bool:
    """Whether SQLite's own driver has an open transaction. Any thread may call this."""
    try:
        return connection.connection is not None and connection.connection.in_transaction
    except connection.Database.ProgrammingError:  # type: ignore[attr-defined]  # the connection was closed
        return False


def refuse_open_transaction(alias: str, *, is_of_job: bool = False) -> None:
    """Raise ``UnsafeTransaction`` if a grant would not be committed at once. Inside a ``TestCase`` it is allowed.
    ``is_of_job``: whether a job is called, which may be enqueued instead."""
    connection = connections[alias]
    if connection.in_atomic_block:
        _refuse_atomic_block(alias, is_of_job=is_of_job)
    elif not _autocommits(connection):
        # durable=True alone does not notice this.
        raise UnsafeTransaction(
            f"Autocommit is off on the database {alias!r}, so a change to a lock would not be committed. Turn "
            "autocommit on around the call."
        )


def _autocommits(connection: BaseDatabaseWrapper) -> bool:
    # get_autocommit() would connect first, and fail if the database is unreachable.
    if connection.connection is None:
        return bool(connection.settings_dict.get("AUTOCOMMIT", True))
    return connection.autocommit


_INSTEAD_OF_JOB = (
    "Call the job's .enqueue() instead, which is part of the transaction; or call the job after it "
    "(transaction.on_commit)"
)
_INSTEAD_OF_LOCK = "Take the lock first, and begin the transaction inside its block"


def _refuse_atomic_block(alias: str, *, is_of_job: bool) -> None:
    try:
        # Django allows a durable block inside a TestCase's, and sends no SQL for a block without a savepoint.
        with transaction.atomic(using=alias, savepoint=False, durable=True):
            pass
    except RuntimeError as error:
        raise UnsafeTransaction(
            f"A transaction is open on the database {alias!r}, so a change to a lock could be rolled back, and other "
            f"processes would not see it before the commit. {_INSTEAD_OF_JOB if is_of_job else _INSTEAD_OF_LOCK}; or "
            "take the view out of ATOMIC_REQUESTS (@transaction.non_atomic_requests)."
        ) from error


@contextmanager
def durable(
    alias: str, *, statement_timeout: timedelta | None = None, lock_timeout: timedelta = LOCK_TIMEOUT
) -> Iterator[None]:
    """Run the block in a transaction of its own, which is on disk once committed and never blocks others for ever.

    ``lock_timeout``: how long a statement waits for a row, at most; MySQL counts whole seconds. ``statement_timeout``
    limits each statement on PostgreSQL. For the other databases, use ``time_limits.limited``.
    """
    # The lock time-out, not the statement time-out, must end a wait for a row: only then is the outcome certain.
    if statement_timeout:
        lock_timeout = min(lock_timeout, statement_timeout * _PART_OF_A_STATEMENT)
    limits = {
        "idle_in_transaction_session_timeout": IDLE_TIMEOUT,
        "lock_timeout": min(lock_timeout, LOCK_TIMEOUT),
        "statement_timeout": statement_timeout,
    }
    with in_turn(alias), _transaction(alias, _limits_of(alias, **limits)):
        yield


def fenced(alias: str, idle_timeout: timedelta) -> AbstractContextManager[None]:
    """Run the block in a transaction that waits for rows as long as it takes, and lasts as long as the job likes. The
    server ends it if it is silent for ``idle_timeout``."""
    return _transaction(alias, _limits_of(alias, idle_in_transaction_session_timeout=idle_timeout))


@contextmanager
def _transaction(alias: str, limits: AbstractContextManager[None]) -> Iterator[None]:
    connection = connections[alias]
    is_outermost = not connection.in_atomic_block
    with transaction.atomic(using=alias, durable=True):
        if is_outermost:
            with closed_if_lost(connection), limits:
                yield
        else:
            yield


@contextmanager
def synchronous(alias: str, *, is_statement: bool = False) -> Iterator[None]:
    """Make what the block writes durable when the block ends, whatever the role's settings. Inside the caller's own
    transaction, durability is up to the caller. ``is_statement``: the block sends one statement, and so it needs no
    transaction around it."""
    connection = connections[alias]
    if connection.vendor != "postgresql" or connection.in_atomic_block or not _autocommits(connection):
        yield
        return
    with nullcontext() if is_statement else transaction.atomic(using=alias), _limits(connection):
        yield


@contextmanager
def closed_if_lost(connection: BaseDatabaseWrapper) -> Iterator[None]:
    """Close a lost connection, so that the next statement opens a new one. Django would keep it until the next request,
    and at the end of a transaction it would reconnect to turn autocommit on, and would wait for that."""
    try:
        with connection.wrap_database_errors:  # it does not wrap all errors of a driver
            yield
    except Error as error:
        if errors.is_connection_lost(error):
            with suppress(Error):  # it may be closed already
                connection.close()
        raise


_turnstile = threading.Lock()


@contextmanager
def in_turn(alias: str) -> Iterator[None]:
    """On SQLite, let the threads of this process write one after another, but wait no longer than ``LOCK_TIMEOUT``.

    SQLite keeps no queue: a waiting writer polls, and polls less often the longer it has waited. If many threads write,
    one of them may starve until its lease expires.
    """
    global _turnstile  # noqa: PLW0603  (one for all threads)
    connection, turn = connections[alias], _turnstile
    if connection.vendor != "sqlite" or connection.in_atomic_block:
        yield
        return
    is_ours = wait(partial(turn.acquire, True), LOCK_TIMEOUT.total_seconds())
    if not is_ours:
        # The thread inside may never leave: it was interrupted, or it belongs to the process that forked this one.
        _turnstile = threading.Lock()
    try:
        yield
    finally:
        if is_ours:
            turn.release()


def _limits(connection: BaseDatabaseWrapper, **limits: timedelta | None) -> AbstractContextManager[None]:
    """Have PostgreSQL commit the block durably, and limit its statements. The limits travel with the first of these,
    which saves a round trip."""
    return connection.execute_wrapper(_Behind(_limiting(limits)))


def _limits_of(alias: str, **limits: timedelta | None) -> AbstractContextManager[None]:
    connection = connections[alias]
    if connection.vendor == "mysql":
        return _limits_on_mysql(connection, limits)
    return _limits(connection, **limits) if connection.vendor == "postgresql" else nullcontext()


def transaction_in_one_request(alias: str, patience: timedelta) -> AbstractContextManager[None]:
    """Have PostgreSQL carry out each statement of the block, in autocommit, as a transaction of its own with the limits
    of ``durable``."""
    lock_timeout = min(LOCK_TIMEOUT, patience * _PART_OF_A_STATEMENT)
    return _limits(connections[alias], lock_timeout=lock_timeout, statement_timeout=patience)


class _Behind:
    """Executes these statements and, behind them in the same request, the first one that comes through here. In
    autocommit, each one: a wrapper of the project's may send another one first, and what is set ends with that."""

    def __init__(self, statements: Sequence[str]) -> None:
        self._statements = statements
        self._is_first = True

    def __call__(self, execute: Callable[..., Any], sql: str, params: Any, many: bool, context: dict[str, Any]) -> Any:
        if not self._is_first:
            return execute(sql, params, many, context)
        connection = context["connection"]
        self._is_first = not connection.in_atomic_block
        if params is not None and connection.settings_dict["OPTIONS"].get("server_side_binding"):
            # If the server binds the parameters, a request is one statement. So this one has them in its text.
            sql, params = connection.ops.compose_sql(sql, params), None
        answer = execute("; ".join([*self._statements, sql]), params, many, context)
        if connection.Database.__name__ == "psycopg":  # psycopg2 goes to the last result by itself
            for _ in self._statements:
                context["cursor"].nextset()
        return answer


def _limiting(limits: Mapping[str, timedelta | None]) -> list[str]:
    # SET LOCAL, never SET: a connection pooler would leak a session's setting to other clients.
    settings = {"synchronous_commit": "on"}
    settings |= {name: f"{_milliseconds(limit)}ms" for name, limit in limits.items() if limit is not None}
    statements = [f"SET LOCAL {name} = '{value}'" for name, value in settings.items()]
    if limits.get("statement_timeout"):
        # Otherwise deferred constraints are checked by the COMMIT, which has no time-out and does not name the
        # statement.
        statements.append("SET CONSTRAINTS ALL IMMEDIATE")
    return statements


def _milliseconds(duration: timedelta) -> int:
    return min(max(1, duration // timedelta(milliseconds=1)), 2**31 - 1)


@contextmanager
def _limits_on_mysql(connection: BaseDatabaseWrapper, limits: Mapping[str, timedelta | None]) -> Iterator[None]:
    """Have MySQL limit how long a statement of the transaction waits for a row, and end this session if the transaction
    is idle for too long.

    MySQL has no setting that ends with a transaction. So these are set and reset inside the transaction, while no
    pooler can give the session to another client. If the process dies, the session ends with it.
    """
    seconds = {
        name: min(max(1, ceil(limit.total_seconds())), LONGEST_WAIT_TIMEOUT)
        for of_postgresql, name in _ON_MYSQL.items()
        if (limit := limits.get(of_postgresql)) is not None
    }
    back = ", ".join(f"@@SESSION.{name} = @singlejob_{name}" for name in seconds)
    usual = ", ".join(f"@singlejob_{name} = @@SESSION.{name}" for name in seconds)
    _set(connection, ", ".join([usual, *(f"@@SESSION.{name} = {limit}" for name, limit in seconds.items())]))
    try:
        yield
    except BaseException:
        with suppress(Error):  # the block's own error matters more
            _set(connection, back)
        raise
    _set(connection, back)


def _set(connection: BaseDatabaseWrapper, changes: str) -> None:
    try:
        # Not with Django's cursor, which rejects statements after an error in the block.
        with connection.wrap_database_errors, connection.connection.cursor() as cursor:
            cursor.execute(f"SET {changes}")
    except Error:
        connection.close()  # no other client may get the session in this state
        raise


def roll_back(alias: str) -> None:
    """Roll the open transaction back when it ends, without an exception."""
    transaction.set_rollback(True, using=alias)


def leave_no_transaction(alias: str) -> None:
    """Roll back a transaction that a job's body left open on its thread's connection, so that our statements do not
    join it."""
    connection = connections[alias]
    if connection.in_atomic_block or not _autocommits(connection):
        drop(alias)
    elif connection.connection is not None:
        connection.rollback()  # a BEGIN sent by hand is unknown to Django


def forget_queries() -> None:
    """Empty the log of queries that Django keeps for each connection of this thread if ``DEBUG`` is true. It does so
    itself at each request, but a worker has none."""
    for connection in connections.all(initialized_only=True):
        if not connection.force_debug_cursor:  # as in a test that counts them
            connection.queries_log.clear()


def is_in_testcase(connection: BaseDatabaseWrapper) -> bool:
    """Whether a ``TestCase`` has opened a transaction on it."""
    return any(getattr(block, "_from_testcase", False) for block in connection.atomic_blocks)


def drop(alias: str) -> None:
    """Forget this thread's connection, whatever state it is in. The next statement opens a new one.

    Django's wrapper around it stays. A test runner closes only the wrapper that it began with, and PostgreSQL refuses
    to drop a test database that is in use.
    """
    connection = connections[alias]
    if is_in_testcase(connection):
        return  # the test's data would be lost
    # Otherwise close() would leave the wrapper marked as inside a transaction until its block ends, which may be never.
    connection.in_atomic_block = False
    with suppress(Exception):  # drivers raise different errors if it is closed or busy
        connection.close()
    # What is left of an open transaction, connect() resets.
    connection.connection, connection.atomic_blocks, connection.savepoint_ids = None, [], []
