"""What the databases' error codes mean: whether a retry may work, and whether the statement was undone.

For PostgreSQL, this module lists the classes 08, 40, 53, 55, 57 and 58, and the codes of class 25 that end a session or
reject a write. For MariaDB and MySQL, it lists the codes about the connection, the server's state and concurrent
transactions. For SQLite, it lists every code. Any other code is an error in the statement itself.
"""

from enum import Enum


class Meaning(Enum):
    """What an error means for the sender of the statement; the value is for people."""

    TRANSIENT = "transient: rolled back, so a retry may work"
    CANCELLED = "transient, but the outcome of a COMMIT is unknown"
    LOST = "connection lost, outcome unknown"
    YOURS = "permanent: a retry does not help"


Codes = dict[Meaning, dict[int, str]]

POSTGRESQL: dict[Meaning, dict[str, str]] = {
    Meaning.TRANSIENT: {
        "40000": "transaction_rollback",
        "40001": "serialization_failure",
        "40P01": "deadlock_detected",
        "55006": "object_in_use",
        "55P03": "lock_not_available",
    },
    Meaning.CANCELLED: {
        "57014": "query_canceled",
    },
    Meaning.LOST: {
        "08000": "connection_exception",
        "08001": "sqlclient_unable_to_establish_sqlconnection",
        "08003": "connection_does_not_exist",
        "08004": "sqlserver_rejected_establishment_of_sqlconnection",
        "08006": "connection_failure",
        "08007": "transaction_resolution_unknown",
        "08P01": "protocol_violation",
        # A standby, for example after a failover: a new connection may reach another server.
        "25006": "read_only_sql_transaction",
        "25P03": "idle_in_transaction_session_timeout",
        "25P04": "transaction_timeout",
        "40003": "statement_completion_unknown",
        # The server is out of space or connections for now.
        "53000": "insufficient_resources",
        "53100": "disk_full",
        "53200": "out_of_memory",
        "53300": "too_many_connections",
        "57000": "operator_intervention",
        "57P01": "admin_shutdown",
        "57P02": "crash_shutdown",
        "57P03": "cannot_connect_now",
        "57P04": "database_dropped",
        "57P05": "idle_session_timeout",
        "58000": "system_error",
        "58030": "io_error",
    },
    Meaning.YOURS: {
        "40002": "transaction_integrity_constraint_violation",
        "53400": "configuration_limit_exceeded",
        "55000": "object_not_in_prerequisite_state",
        "55P02": "cant_change_runtime_param",
        "55P04": "unsafe_new_enum_value_usage",
        "58P01": "undefined_file",
        "58P02": "duplicate_file",
        "58P03": "file_name_too_long",
    },
}

MYSQL: Codes = {
    Meaning.TRANSIENT: {
        1020: "ER_CHECKREAD",
        1205: "ER_LOCK_WAIT_TIMEOUT",
        1206: "ER_LOCK_TABLE_FULL",
        # On Galera, also a conflict found at COMMIT.
        1213: "ER_LOCK_DEADLOCK",
        1613: "ER_XA_RBTIMEOUT",
        1614: "ER_XA_RBDEADLOCK",
        3058: "ER_USER_LOCK_DEADLOCK",
        # The same, on MySQL's Group Replication.
        3101: "ER_TRANSACTION_ROLLBACK_DURING_COMMIT",
        3572: "ER_LOCK_NOWAIT",
    },
    Meaning.CANCELLED: {
        1317: "ER_QUERY_INTERRUPTED",
        1969: "ER_STATEMENT_TIMEOUT",
        3024: "ER_QUERY_TIMEOUT",
    },
    Meaning.LOST: {
        # The server is out of space or connections for now.
        1021: "ER_DISK_FULL",
        1037: "ER_OUTOFMEMORY",
        1038: "ER_OUT_OF_SORTMEMORY",
        1041: "ER_OUT_OF_RESOURCES",
        1114: "ER_RECORD_FILE_FULL",
        1135: "ER_CANT_CREATE_THREAD",
        1040: "ER_CON_COUNT_ERROR",
        1203: "ER_TOO_MANY_USER_CONNECTIONS",
        1226: "ER_USER_LIMIT_REACHED",
        # The server rejects or ends the connection.
        1042: "ER_BAD_HOST_ERROR",
        1043: "ER_HANDSHAKE_ERROR",
        # From a Galera node that has lost the other nodes.
        1047: "ER_UNKNOWN_COM_ERROR",
        1053: "ER_SERVER_SHUTDOWN",
        1077: "ER_NORMAL_SHUTDOWN",
        1078: "ER_GOT_SIGNAL",
        1079: "ER_SHUTDOWN_COMPLETE",
        1080: "ER_FORCING_CLOSE",
        1129: "ER_HOST_IS_BLOCKED",
        1152: "ER_ABORTING_CONNECTION",
        1154: "ER_NET_READ_ERROR_FROM_PIPE",
        1155: "ER_NET_FCNTL_ERROR",
        1156: "ER_NET_PACKETS_OUT_OF_ORDER",
        1157: "ER_NET_UNCOMPRESS_ERROR",
        1158: "ER_NET_READ_ERROR",
        1159: "ER_NET_READ_INTERRUPTED",
        1160: "ER_NET_ERROR_ON_WRITE",
        1161: "ER_NET_WRITE_INTERRUPTED",
        1180: "ER_ERROR_DURING_COMMIT",
        1181: "ER_ERROR_DURING_ROLLBACK",
        1184: "ER_NEW_ABORTING_CONNECTION",
        1927: "ER_CONNECTION_KILLED",
        3032: "ER_SERVER_OFFLINE_MODE",
        3100: "ER_RUN_HOOK_ERROR",
        3168: "ER_SERVER_ISNT_AVAILABLE",
        3169: "ER_SESSION_WAS_KILLED",
        4031: "ER_CLIENT_INTERACTION_TIMEOUT",
        # A read-only server, for example after a failover: a new connection may reach another server.
        1290: "ER_OPTION_PREVENTS_STATEMENT",
        1792: "ER_CANT_EXECUTE_IN_READ_ONLY_TRANSACTION",
        1836: "ER_READ_ONLY_MODE",
        # From the client library.
        2000: "CR_UNKNOWN_ERROR",
        2001: "CR_SOCKET_CREATE_ERROR",
        2002: "CR_CONNECTION_ERROR",
        2003: "CR_CONN_HOST_ERROR",
        2004: "CR_IPSOCK_ERROR",
        2005: "CR_UNKNOWN_HOST",
        2006: "CR_SERVER_GONE_ERROR",
        2008: "CR_OUT_OF_MEMORY",
        2009: "CR_WRONG_HOST_INFO",
        2012: "CR_SERVER_HANDSHAKE_ERR",
        2013: "CR_SERVER_LOST",
        2014: "CR_COMMANDS_OUT_OF_SYNC",
        2026: "CR_SSL_CONNECTION_ERROR",
        2027: "CR_MALFORMED_PACKET",
        2055: "CR_SERVER_LOST_EXTENDED",
        5013: "CR_ERR_NET_READ",
        5014: "CR_ERR_NET_WRITE",
        5015: "CR_ERR_NET_UNCOMPRESS",
    },
    Meaning.YOURS: {
        1153: "ER_NET_PACKET_TOO_LARGE",
        # From a replica, about its source.
        1189: "ER_MASTER_NET_READ",
        1190: "ER_MASTER_NET_WRITE",
        1218: "ER_CONNECT_TO_MASTER",
        2020: "CR_NET_PACKET_TOO_LARGE",
    },
}

SQLITE: Codes = {
    Meaning.TRANSIENT: {
        5: "SQLITE_BUSY",
        6: "SQLITE_LOCKED",
        15: "SQLITE_PROTOCOL",
        17: "SQLITE_SCHEMA",
    },
    Meaning.CANCELLED: {
        9: "SQLITE_INTERRUPT",
    },
    Meaning.LOST: {
        7: "SQLITE_NOMEM",
        10: "SQLITE_IOERR",
        13: "SQLITE_FULL",
        14: "SQLITE_CANTOPEN",
    },
    Meaning.YOURS: {
        1: "SQLITE_ERROR",
        2: "SQLITE_INTERNAL",
        3: "SQLITE_PERM",
        4: "SQLITE_ABORT",
        8: "SQLITE_READONLY",
        11: "SQLITE_CORRUPT",
        12: "SQLITE_NOTFOUND",
        16: "SQLITE_EMPTY",
        18: "SQLITE_TOOBIG",
        19: "SQLITE_CONSTRAINT",
        20: "SQLITE_MISMATCH",
        21: "SQLITE_MISUSE",
        22: "SQLITE_NOLFS",
        23: "SQLITE_AUTH",
        24: "SQLITE_FORMAT",
        25: "SQLITE_RANGE",
        26: "SQLITE_NOTADB",
    },
}


def of_postgresql(sqlstate: str) -> Meaning:
    """What this SQLSTATE of PostgreSQL, or of a connection pooler, means."""
    usual = Meaning.LOST if sqlstate.startswith("08") else Meaning.YOURS
    return _POSTGRESQL.get(sqlstate, usual)


def of_mysql(number: int) -> Meaning:
    """What this error number of MariaDB, MySQL or their client library means."""
    return _MYSQL.get(number, Meaning.YOURS)


def of_sqlite(code: int) -> Meaning:
    """What this result code of SQLite, primary or extended, means."""
    return _SQLITE.get(code & 0xFF, Meaning.YOURS)


# The codes that report a full disk or table: the connection may still work, but not for writes.
OUT_OF_ROOM: frozenset[str | int | None] = frozenset({"53100", 1021, 1114, 13})


class Lack(Enum):
    """What is missing before the database can be used. A retry does not help. The value is for people."""

    TABLES = "a table or a column is missing"
    DATABASE = "the database does not exist, or the file is not a database"
    LOGIN = "the user may not connect"
    RIGHTS = "the user lacks a privilege"
    WRITES = "the database is read-only"


# SQLite's 1 is ambiguous: it is the code of any statement that does not fit the schema.
LACKS: dict[Lack, frozenset[str | int]] = {
    Lack.TABLES: frozenset({"42P01", "42703", "3F000", 1054, 1146, 1}),
    Lack.DATABASE: frozenset({"3D000", 1049, 26}),
    Lack.LOGIN: frozenset({"28000", "28P01", 1045, 1698}),
    Lack.RIGHTS: frozenset({"42501", 1044, 1142, 1143, 1227, 1370, 3, 23}),
    Lack.WRITES: frozenset({"25006", 1290, 1792, 1836, 8}),
}

# The codes that PostgreSQL, or a compatible service, sends if it lacks a function or does not let us call it.
REFUSED: frozenset[str | int | None] = frozenset({"0A000", "42501", "42883", "55000"})

_POSTGRESQL = {code: meaning for meaning, names in POSTGRESQL.items() for code in names}
_MYSQL = {code: meaning for meaning, names in MYSQL.items() for code in names}
_SQLITE = {code: meaning for meaning, names in SQLITE.items() for code in names}
