"""What the databases' error codes mean: whether a retry may work, and whether the statement was undone. A code that is
not here is an error in the statement itself."""

import re
from enum import Enum

from django.db import (
    DatabaseError,
    DataError,
    Error,
    IntegrityError,
    InterfaceError,
    InternalError,
    OperationalError,
    connections,
)

from django_singlejob.exceptions import DatabaseUnusable, JobInterrupted, JobTimeout, Lack, LeaseLost

# Of what a driver says of an error.
WORDS_LENGTH = 500


class Meaning(Enum):
    """What an error means for the sender of the statement; the value is for people."""

    TRANSIENT = "transient: rolled back, so a retry may work"
    CANCELLED = "transient, but the outcome of a COMMIT is unknown"
    LOST = "connection lost, outcome unknown"
    YOURS = "permanent: a retry does not help"


# SQLSTATEs of PostgreSQL and of connection poolers, or their classes; error numbers of MySQL, MariaDB and their client
# library; names of SQLite's result codes, without what makes them extended ones.
MEANINGS: dict[Meaning, frozenset[str | int]] = {
    # Others were in the way: a deadlock, a serialization failure, a lock time-out.
    Meaning.TRANSIENT: frozenset(
        {
            *("40000", "40001", "40P01", "55006", "55P03"),
            *(1020, 1205, 1206, 1213, 1613, 1614, 3058, 3101, 3572),
            *("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_PROTOCOL", "SQLITE_SCHEMA"),
        }
    ),
    # A statement took too long, or somebody cancelled it.
    Meaning.CANCELLED: frozenset({"57014", 1317, 1969, 3024, "SQLITE_INTERRUPT"}),
    Meaning.LOST: frozenset(
        {
            *("08", "53", "57", "58"),  # the connection, resources, the operator, the system
            "XX",  # an internal error: some poolers send it if they have lost the server, and with it the answer
            "25006",  # a standby or a read-only server, as after a failover: a new connection may reach another server
            *("25P03", "25P04", "40003"),  # a session or a transaction that was idle for too long
            *(1021, 1037, 1038, 1041, 1114, 1135, 1040, 1203, 1226),  # no space, memory, threads or connections
            *(1042, 1043, 1047, 1053, 1129, 1152, *range(1077, 1081), *range(1154, 1162), 1184, 1927),
            *(1180, 1181, 3032, 3100, 3168, 3169, 4031),
            *(1290, 1792, 1836),  # read-only
            *range(2000, 2020),
            *(2026, 2027, 2055, 5013, 5014, 5015),
            *("SQLITE_NOMEM", "SQLITE_IOERR", "SQLITE_FULL", "SQLITE_CANTOPEN"),  # memory, the disk, the file
        }
    ),
}
LACKS: dict[Lack, frozenset[str | int]] = {
    Lack.TABLES: frozenset({"42P01", "42703", "3F000", 1054, 1146}),
    Lack.DATABASE: frozenset({"3D000", 1049, "SQLITE_NOTADB"}),
    Lack.LOGIN: frozenset({"28000", "28P01", 1045, 1698}),
    Lack.RIGHTS: frozenset({"42501", 1044, 1142, 1143, 1227, 1370, "SQLITE_PERM", "SQLITE_AUTH"}),
    Lack.WRITES: frozenset({"25006", 1290, 1792, 1836, "SQLITE_READONLY"}),
}
# The codes that report a full disk or table: the connection may still work, but not for writes.
OUT_OF_ROOM: frozenset[str | int] = frozenset({"53100", 1021, 1114, "SQLITE_FULL"})
# The codes that PostgreSQL, or a compatible service, sends if it lacks a function or does not let us call it.
REFUSED: frozenset[str | int] = frozenset({"0A000", "42501", "42883", "55000"})
# MySQL's codes for DDL that was carried out before: a table, column, index or constraint is there already, or gone.
DONE_BEFORE: frozenset[str | int] = frozenset({1022, 1050, 1051, 1060, 1061, 1091, 1826, 3822})

# What drivers and Django raise if a row has a value that its column's type does not have.
OF_A_ROW = (DataError, ValueError, TypeError, AttributeError, ArithmeticError, RecursionError)


def is_transient(error: BaseException) -> bool:
    """Whether a retry may work: another transaction was in the way (deadlock, lock time-out, serialization failure), or
    the server cancelled the statement. ``is_undone`` says whether it was undone."""
    return isinstance(error, DatabaseError) and _meaning(error) in (Meaning.TRANSIENT, Meaning.CANCELLED)


def is_undone(error: BaseException) -> bool:
    """Whether the transaction was certainly rolled back, even if its COMMIT raised the error."""
    return isinstance(error, DatabaseError) and _meaning(error) is Meaning.TRANSIENT


def is_connection_lost(error: BaseException) -> bool:
    """Whether the server went away or cannot be used for now. If so, it is unknown whether the last statement was
    executed."""
    return isinstance(error, InterfaceError) or (isinstance(error, DatabaseError) and _meaning(error) is Meaning.LOST)


def is_out_of_room(error: BaseException) -> bool:
    """Whether the disk or the table is full."""
    return bool(OUT_OF_ROOM & _codes(error))


def is_refused(error: BaseException) -> bool:
    """Whether PostgreSQL lacks this function, or does not allow us to call it."""
    return bool(REFUSED & _codes(error))


def is_duplicate(error: BaseException) -> bool:
    """Whether another process inserted the row first."""
    return isinstance(error, IntegrityError)


def is_done_before(error: BaseException) -> bool:
    """Whether MySQL refuses DDL because it was carried out before."""
    return bool(DONE_BEFORE & _codes(error))


def is_of_a_row(error: BaseException) -> bool:
    """Whether a value was read that its column's type does not have."""
    # Python's driver for SQLite has no code for text in another encoding.
    return isinstance(error, OF_A_ROW) or words_of(error).startswith("Could not decode to UTF-8")


def lack(error: BaseException) -> Lack | None:
    """What the database lacks, so that the same again does not work either; ``None``: nothing."""
    if not isinstance(error, DatabaseError):
        return None
    found = _codes(error)
    if "SQLITE_ERROR" in found and _MISSING.match(words_of(error)):
        return Lack.TABLES
    return next((lack for lack, those in LACKS.items() if those & found), None)


# SQLite has no code for it, but only that of every statement that makes no sense.
_MISSING = re.compile(r"no such (table|column)|table .* has no column")


def words_of(error: BaseException) -> str:
    """What the server, or its driver, says of it, in a line: without the statement."""
    cause = error.__cause__ if isinstance(error, Error) and error.__cause__ else error
    # MySQL's has its number as the first of two arguments.
    text = ": ".join(map(str, cause.args)) if len(cause.args) > 1 else str(cause)
    said = getattr(getattr(cause, "diag", None), "message_primary", None) or text
    return " ".join(said.split())[:WORDS_LENGTH]


def _meaning(error: DatabaseError) -> Meaning:
    if isinstance(error, DatabaseUnusable):
        return Meaning.LOST if error.lack and not error.is_lasting else Meaning.YOURS
    found = _codes(error)
    if not found and isinstance(error, OperationalError | InternalError):
        return Meaning.LOST  # without a code, it did not come from a server
    return next((meaning for meaning, those in MEANINGS.items() if those & found), Meaning.YOURS)


def _codes(error: BaseException) -> set[str | int]:
    """PostgreSQL's SQLSTATE and its class, the name of SQLite's result code and that without its extension, or MySQL's
    error number."""
    cause = error.__cause__ or error
    if sqlstate := getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None):
        return {sqlstate, sqlstate[:2]}
    if name := getattr(cause, "sqlite_errorname", None):
        return {name, "_".join(name.split("_")[:2])}
    number = cause.args[0] if isinstance(error, Error) and cause.args else None
    return {number} if isinstance(number, int) and number else set()


def interrupt_behind(error: BaseException) -> BaseException | None:
    """What has ended the body, if ``error`` is the driver's complaint about that; otherwise ``None``."""
    cause = error.__context__ if _is_of_a_database(error) else None
    while cause and not isinstance(cause, (JobInterrupted, JobTimeout, LeaseLost)):
        cause = cause.__context__
    return cause


def _is_of_a_database(error: BaseException) -> bool:
    # Django does not wrap a driver's error when it closes a cursor.
    drivers = {connection.Database.Error for connection in connections.all(initialized_only=True)}  # type: ignore[attr-defined]
    return isinstance(error, (Error, *drivers))
