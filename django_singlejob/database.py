"""The one database that holds the locks: short durable transactions on it, and what its errors mean."""

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from datetime import timedelta

from django.apps import apps
from django.db import (
    DatabaseError,
    Error,
    IntegrityError,
    InterfaceError,
    InternalError,
    OperationalError,
    connections,
    router,
    transaction,
)
from django.db.backends.base.base import BaseDatabaseWrapper

from django_singlejob.conf import options
from django_singlejob.exceptions import UnsafeTransaction

# How long a statement waits for a row before the whole transaction is tried again (PostgreSQL; SQLite: its `timeout`).
LOCK_TIMEOUT = timedelta(seconds=2)
# A process that is stopped in the middle of a short transaction holds up the others no longer than this.
IDLE_TIMEOUT = timedelta(seconds=10)
# What MySQL takes, in seconds.
LONGEST_WAIT_TIMEOUT = 31_536_000


def alias() -> str:
    """Where every statement goes, reads too: a router may send reads to a replica, which lags behind."""
    return options().database or router.db_for_write(apps.get_model("django_singlejob", "JobLock"))


def is_private(alias: str) -> bool:
    """Whether no other thread or process can see what this one writes: in a ``TestCase``, in an in-memory database."""
    connection = connections[alias]
    is_in_memory = getattr(connection, "is_in_memory_db", lambda: False)
    return connection.in_atomic_block or is_in_memory()


def refuse_open_transaction(alias: str) -> None:
    """Raise ``UnsafeTransaction`` where a grant would not be committed at once. Inside ``TestCase`` is fine."""
    connection = connections[alias]
    if connection.in_atomic_block:
        _refuse_atomic_block(alias)
    elif not _autocommits(connection):
        # durable=True alone does not notice this.
        raise UnsafeTransaction(
            f"Autocommit is off on the database {alias!r}, so what is done to a lock now would not be committed. "
            "Turn autocommit on around the call."
        )


def _autocommits(connection: BaseDatabaseWrapper) -> bool:
    # get_autocommit() would connect first, and fail here if the database is away.
    if connection.connection is None:
        return bool(connection.settings_dict.get("AUTOCOMMIT", True))
    return connection.autocommit


def _refuse_atomic_block(alias: str) -> None:
    try:
        # Django allows a durable block inside a TestCase's, and sends nothing for one without a savepoint.
        with transaction.atomic(using=alias, savepoint=False, durable=True):
            pass
    except RuntimeError as error:
        raise UnsafeTransaction(
            f"A transaction is open on the database {alias!r}: what is done to a lock inside it could be rolled back, "
            "and nobody would see it before the commit. Do it after the block (transaction.on_commit), or outside "
            "ATOMIC_REQUESTS."
        ) from error


@contextmanager
def durable(
    alias: str, *, lock_timeout: timedelta | None = LOCK_TIMEOUT, idle_timeout: timedelta = IDLE_TIMEOUT
) -> Iterator[None]:
    """A transaction of its own, which is on the disk once it is committed, and holds up nobody for ever."""
    connection = connections[alias]
    is_outermost = not connection.in_atomic_block
    # One that may wait for as long as it takes is a fenced one, and lasts as long as the job likes.
    turns = nullcontext() if lock_timeout is None else in_turn(alias)
    with turns, transaction.atomic(using=alias, durable=True):
        if connection.vendor == "postgresql" and is_outermost:
            _limit(connection, lock_timeout, idle_timeout)
        yield


class _Turnstile:
    """Lets the threads of this process through one by one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    @contextmanager
    def passed(self, patience: timedelta) -> Iterator[None]:
        """Wait for one's turn, but no longer than that."""
        lock = self._lock
        is_ours = lock.acquire(timeout=patience.total_seconds())
        if not is_ours:
            # Who is inside may never leave: interrupted in between, or a thread of the process we were forked from.
            self._lock = threading.Lock()
        try:
            yield
        finally:
            if is_ours:
                lock.release()


_turnstile = _Turnstile()


def in_turn(alias: str) -> AbstractContextManager[None]:
    """The writes of this process come one after the other inside, on SQLite.

    SQLite keeps no queue: whoever waits asks again, and the longer they have waited the less often. Where many threads
    write, one of them may starve, and its lease expire.
    """
    connection = connections[alias]
    if connection.vendor != "sqlite" or connection.in_atomic_block:
        return nullcontext()
    return _turnstile.passed(LOCK_TIMEOUT)


def _limit(connection: BaseDatabaseWrapper, lock_timeout: timedelta | None, idle_timeout: timedelta) -> None:
    # SET LOCAL, never SET: a session's setting leaks through a connection pooler to somebody else.
    limits = {
        "synchronous_commit": "on",
        "idle_in_transaction_session_timeout": f"{_milliseconds(idle_timeout)}ms",
    }
    if lock_timeout is not None:
        limits["lock_timeout"] = f"{_milliseconds(lock_timeout)}ms"
    settings = "; ".join(f"SET LOCAL {name} = '{value}'" for name, value in limits.items())
    with connection.cursor() as cursor:
        cursor.execute(settings)


def _milliseconds(duration: timedelta) -> int:
    return min(max(1, duration // timedelta(milliseconds=1)), 2**31 - 1)


def roll_back(alias: str) -> None:
    """Undo the open transaction at its end, without an exception."""
    transaction.set_rollback(True, using=alias)


@contextmanager
def closed_if_abandoned(alias: str, idle_timeout: timedelta) -> Iterator[None]:
    """Have MySQL end a session that is silent for so long (PostgreSQL has a limit of its own for it, see above)."""
    connection = connections[alias]
    if connection.vendor != "mysql":
        yield
        return
    usual = _swap_wait_timeout(connection, min(max(1, round(idle_timeout.total_seconds())), LONGEST_WAIT_TIMEOUT))
    try:
        yield
    finally:
        # A dead connection takes the setting with it.
        if connection.connection is not None and connection.is_usable():
            _swap_wait_timeout(connection, usual)


def _swap_wait_timeout(connection: BaseDatabaseWrapper, seconds: int) -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT @@SESSION.wait_timeout")
        (before,) = cursor.fetchone()
        cursor.execute("SET SESSION wait_timeout = %s", [seconds])
    return int(before)


def leave_no_transaction(alias: str) -> None:
    """Roll back what a job's body left open on its thread's connection, so that it does not join ours."""
    connection = connections[alias]
    if connection.in_atomic_block:
        if not _is_in_testcase(connection):
            drop(alias)
    elif not _autocommits(connection):
        drop(alias)
    elif connection.connection is not None:
        connection.rollback()  # a BEGIN sent by hand, which Django does not know of


def tidy_up() -> None:
    """What a body left of this thread's connections does not touch what is done next."""
    for connection in connections.all(initialized_only=True):
        try:
            leave_no_transaction(connection.alias)
        except Error:
            drop(connection.alias)
        else:
            if connection.errors_occurred and not _is_in_testcase(connection):
                connection.close_if_unusable_or_obsolete()


def _is_in_testcase(connection: BaseDatabaseWrapper) -> bool:
    return any(getattr(block, "_from_testcase", False) for block in connection.atomic_blocks)


def drop(alias: str) -> None:
    """Forget this thread's connection, whatever state it is in; the next statement opens a new one."""
    connection = connections[alias]
    if _is_in_testcase(connection):
        return  # the test's data would be gone with it
    with suppress(
        Exception
    ):  # it may be closed already, or in the middle of something: drivers differ in what they say
        if not connection.in_atomic_block:
            connection.close()
        elif connection.connection is not None:
            # close() would keep the wrapper marked as inside a transaction for ever. This is what it does inside:
            # it gives a pooled connection back.
            connection._close()  # type: ignore[attr-defined]
    # Whoever has the wrapper in hand finds no connection in it, rather than a closed one.
    connection.connection = None
    del connections[alias]


# --- what an error means, by its code and never by its text


def is_transient(error: BaseException) -> bool:
    """Somebody else was in the way (deadlock, lock timeout, serialization failure): the same again may work."""
    return isinstance(error, DatabaseError) and _code(error) in _TRANSIENT


def is_connection_lost(error: BaseException) -> bool:
    """The server went away, so it is not known whether the last statement was carried out."""
    if isinstance(error, InterfaceError):
        return True
    code = _code(error)
    return (isinstance(error, OperationalError | InternalError) and code is None) or (
        isinstance(error, DatabaseError) and (code in _CONNECTION_LOST or str(code).startswith("08"))
    )


def is_duplicate(error: BaseException) -> bool:
    """Somebody else inserted the row first."""
    return isinstance(error, IntegrityError)


def _code(error: BaseException) -> str | int | None:
    """PostgreSQL's sqlstate, MySQL's number, SQLite's primary result code; ``None``: the server said nothing."""
    cause = error.__cause__ or error
    for name in ("sqlstate", "pgcode"):
        if code := getattr(cause, name, None):
            return str(code)
    if (code := getattr(cause, "sqlite_errorcode", None)) is not None:
        return f"sqlite-{code & 0xFF}"
    number = cause.args[0] if cause.args else None
    return number if isinstance(number, int) else None


_TRANSIENT = {
    *("40001", "40P01", "55P03"),  # PostgreSQL: serialization failure, deadlock, lock timeout
    *(1205, 1213, 1020, 3572),  # MySQL: lock wait timeout, deadlock, record has changed, NOWAIT
    *("sqlite-5", "sqlite-6"),  # BUSY, LOCKED
}
_CONNECTION_LOST = {
    # PostgreSQL: shutdown, crash, starting up, idle in transaction too long, too many connections
    *("57P01", "57P02", "57P03", "25P03", "53300"),
    # no room for now; a standby, as after a fail-over: a new connection may lead to another server
    *("53100", "53200", "25006"),
    # MySQL: cannot connect, gone away, lost in a query, idle too long; too many connections, shutdown, killed
    *(2002, 2003, 2006, 2013, 4031, 1040, 1053, 1927),
    *(1290, 1836),  # it only reads
    "sqlite-14",  # CANTOPEN
}
