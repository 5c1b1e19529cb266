"""What the databases' error codes mean: whether a retry may work, and whether the statement was undone. A code that is
not here is an error in the statement itself."""

from enum import Enum


class Meaning(Enum):
    """What an error means for the sender of the statement; the value is for people."""

    TRANSIENT = "transient: rolled back, so a retry may work"
    CANCELLED = "transient, but the outcome of a COMMIT is unknown"
    LOST = "connection lost, outcome unknown"
    YOURS = "permanent: a retry does not help"


class Lack(Enum):
    """What is missing before the database can be used. A retry does not help. The value is for people."""

    TABLES = "a table or a column is missing"
    DATABASE = "the database does not exist, or the file is not a database"
    LOGIN = "the user may not connect"
    RIGHTS = "the user lacks a privilege"
    WRITES = "the database is read-only"


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
