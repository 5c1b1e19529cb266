"""The meaning of errors, by their codes and, where possible, by real errors of the database."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from threading import Barrier, Event
from typing import TYPE_CHECKING, Any

import pytest
from django.db import (
    DatabaseError,
    Error,
    IntegrityError,
    InterfaceError,
    InternalError,
    OperationalError,
    connection,
)

from django_singlejob.database.errors import is_connection_lost, is_duplicate, is_transient, is_undone
from django_singlejob.database.transactions import durable, fenced
from django_singlejob.models.jobs import gates
from django_singlejob.models.runs import runs
from tests.contract.acts import in_thread
from tests.waiting import PATIENCE, eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fixtures import Away, Elsewhere

pytest_plugins = "tests.fixtures"

committed = pytest.mark.django_db(transaction=True, available_apps=["django_singlejob"])

QUICKLY = {"sqlite": "PRAGMA busy_timeout = 10", "mysql": "SET SESSION innodb_lock_wait_timeout = 1"}


def verdict(error: BaseException) -> list[str]:
    return [judge.__name__ for judge in (is_transient, is_undone, is_connection_lost, is_duplicate) if judge(error)]


def meanings(act: Callable[[], object]) -> list[str]:
    """What the error means that `act` raises on a connection of its own."""
    with pytest.raises(Error) as caught:
        in_thread(act)
    return verdict(caught.value)


def execute(statement: str) -> Any:
    with connection.cursor() as cursor:
        cursor.execute(statement)
        return cursor.fetchone()[0] if cursor.description else None


def touch(name: str = "nightly") -> None:
    gates().filter(name=name).update(paused=True)


# --- by code


class DriversError(Exception):
    sqlstate: str | None = None


def an_error(code: object, kind: type[Error] = OperationalError) -> Error:
    """An error as Django raises it, with the driver's own error as its cause."""
    error, cause = kind("whatever it says"), DriversError(code)
    cause.sqlstate = code if isinstance(code, str) else None
    error.__cause__ = cause
    return error


UNDONE: list[object] = ["40000", "40001", "40P01", "55P03", 1020, 1205, 1206, 1213, 1614, 3058, 3101, 3572]
CANCELLED: list[object] = ["57014", 1317, 1969, 3024]
LOST: list[object] = [
    *("08000", "08001", "08003", "08004", "08006", "08007", "08P01", "08ABC"),
    *("25006", "25P03", "25P04", "40003", "53000", "53100", "53200", "53300", "53400"),
    *("57000", "57P01", "57P02", "57P03", "57P04", "57P05", "58000", "58030", "XX000", "XX001"),
    *(1021, 1037, 1040, 1041, 1042, 1043, 1047, 1053, 1077, 1079, 1080, 1114, 1129, 1152, *range(1154, 1162)),
    *(1180, 1181, 1184, 1203, 1226, 1290, 1792, 1836, 1927, 3168, 3169, 4031),
    *(2002, 2003, 2005, 2006, 2012, 2013, 2014, 2026, 2027, 2055, 5013, 5014),
]
YOURS: list[object] = [
    *("22001", "23505", "25P02", "28P01", "40002", "42601", "55000", "55P02", "55P04"),
    *(1044, 1045, 1062, 1064, 1146, 1153, 1189, 1190, 1218, 2020),
]

by_any_name = pytest.mark.parametrize("kind", [OperationalError, DatabaseError, InternalError])


@pytest.mark.parametrize("code", UNDONE)
@by_any_name
def test_who_was_in_the_way_is_told_by_the_code(code: object, kind: type[Error]) -> None:
    assert verdict(an_error(code, kind)) == ["is_transient", "is_undone"]


@pytest.mark.parametrize("code", CANCELLED)
@by_any_name
def test_what_was_cancelled_may_have_been_a_commit(code: object, kind: type[Error]) -> None:
    assert verdict(an_error(code, kind)) == ["is_transient"]


@pytest.mark.parametrize("code", LOST)
@by_any_name
def test_a_lost_connection_is_told_by_the_code(code: object, kind: type[Error]) -> None:
    assert verdict(an_error(code, kind)) == ["is_connection_lost"]


@pytest.mark.parametrize("code", YOURS)
@by_any_name
def test_an_error_of_yours_is_told_by_the_code(code: object, kind: type[Error]) -> None:
    assert verdict(an_error(code, kind)) == []


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("SQLITE_BUSY", ["is_transient", "is_undone"]),
        ("SQLITE_BUSY_SNAPSHOT", ["is_transient", "is_undone"]),
        ("SQLITE_LOCKED", ["is_transient", "is_undone"]),
        ("SQLITE_PROTOCOL", ["is_transient", "is_undone"]),
        ("SQLITE_INTERRUPT", ["is_transient"]),
        ("SQLITE_CANTOPEN_ISDIR", ["is_connection_lost"]),
        ("SQLITE_FULL", ["is_connection_lost"]),
        ("SQLITE_IOERR_FSYNC", ["is_connection_lost"]),
        ("SQLITE_NOMEM", ["is_connection_lost"]),
        ("SQLITE_CORRUPT", []),
        ("SQLITE_NOTADB", []),
        ("SQLITE_READONLY", []),
    ],
)
def test_sqlite_has_codes_of_its_own(name: str, expected: list[str]) -> None:
    error = OperationalError()
    error.sqlite_errorname = name  # type: ignore[attr-defined]
    assert verdict(error) == expected


@pytest.mark.parametrize(
    "error",
    [InterfaceError(0, ""), InterfaceError(), OperationalError("pool timeout"), OperationalError(0, "")],
    ids=repr,
)
def test_a_server_that_says_nothing_is_lost(error: Error) -> None:
    assert verdict(error) == ["is_connection_lost"]


@pytest.mark.parametrize(
    "error",
    [an_error(None, DatabaseError), ValueError(1205), ValueError(1969), OSError(2006)],
    ids=repr,
)
def test_any_other_error_is_just_an_error(error: BaseException) -> None:
    assert verdict(error) == []


# --- from the database: another transaction was in the way


@committed
@pytest.mark.on_database("postgresql", "mysql")
def test_a_deadlock_is_transient(elsewhere: Elsewhere) -> None:
    gates().remember("nightly", "hourly")
    both = Barrier(2, timeout=PATIENCE)

    def cross(first: str, second: str) -> None:
        with fenced("default", timedelta(hours=1)):
            touch(first)
            both.wait()
            touch(second)

    ends = [elsewhere(cross, "nightly", "hourly"), elsewhere(cross, "hourly", "nightly")]
    [error] = [error for end in ends if (error := end.exception(PATIENCE))]
    assert verdict(error) == ["is_transient", "is_undone"]


@pytest.mark.slow
@committed
def test_waiting_for_a_row_in_vain_is_transient(elsewhere: Elsewhere) -> None:
    gates().remember("nightly")
    begun, enough = Event(), Event()

    def keep() -> None:
        with durable("default"):
            touch()
            begun.set()
            assert enough.wait(PATIENCE)

    def want() -> None:
        execute(QUICKLY.get(connection.vendor, "SELECT 1"))
        with durable("default", statement_timeout=timedelta(seconds=1)):
            touch()

    def want_at_once() -> None:
        with durable("default"):
            gates().select_for_update(nowait=True).get()

    keeper = elsewhere(keep)
    assert begun.wait(PATIENCE)
    assert meanings(want) == ["is_transient", "is_undone"]
    if connection.features.has_select_for_update_nowait:
        assert meanings(want_at_once) == ["is_transient", "is_undone"]
    enough.set()
    keeper.result(PATIENCE)


@committed
@pytest.mark.on_database("postgresql")
def test_a_serialization_failure_is_transient() -> None:
    gates().remember("nightly")

    def be_late() -> None:
        with durable("default"):
            execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            gates().get(name="nightly")
            in_thread(touch)
            touch()

    assert meanings(be_late) == ["is_transient", "is_undone"]


def mysql_limit() -> str:
    is_mariadb = getattr(connection, "mysql_is_mariadb", False)
    return "SET SESSION max_statement_time = 0.01" if is_mariadb else "SET SESSION max_execution_time = 10"


@committed
@pytest.mark.on_database("postgresql", "mysql")
def test_a_statement_that_takes_too_long_may_have_been_a_commit() -> None:
    slow = {
        "postgresql": ["SET statement_timeout = 10", "SELECT pg_sleep(10)"],
        "mysql": [mysql_limit(), "SELECT * FROM information_schema.tables WHERE SLEEP(1)"],
    }

    def be_slow() -> None:
        for statement in slow[connection.vendor]:
            execute(statement)

    assert meanings(be_slow) == ["is_transient"]


# --- from the database: the connection is lost


def this_session() -> int:
    own = {"postgresql": "SELECT pg_backend_pid()", "mysql": "SELECT CONNECTION_ID()"}
    number: int = execute(own[connection.vendor])
    return number


def wait_until_ended(session: int) -> None:
    """Wait, in silence, until the server has ended this thread's session."""
    others = {
        "postgresql": "SELECT count(*) FROM pg_stat_activity WHERE pid = {}",
        "mysql": "SELECT count(*) FROM information_schema.processlist WHERE id = {}",
    }
    count = partial(execute, others[connection.vendor].format(session))
    eventually(lambda: in_thread(count) == 0)


def be_killed() -> None:
    kill = {"postgresql": "SELECT pg_terminate_backend({})", "mysql": "KILL {}"}
    in_thread(partial(execute, kill[connection.vendor].format(this_session())))
    execute("SELECT 1")


def be_closed() -> None:
    execute("SELECT 1")
    connection.connection.close()
    execute("SELECT 1")


@pytest.mark.django_db
@pytest.mark.on_database("postgresql", "mysql")
@pytest.mark.parametrize("lose_connection", [be_killed, be_closed])
def test_a_connection_that_is_gone_is_lost(lose_connection: Callable[[], None]) -> None:
    assert meanings(lose_connection) == ["is_connection_lost"]


@pytest.mark.django_db
@pytest.mark.on_database("postgresql")
def test_a_transaction_that_was_silent_for_too_long_is_lost() -> None:
    def be_silent() -> None:
        with fenced("default", timedelta(milliseconds=1)):
            wait_until_ended(this_session())
            execute("SELECT 1")

    assert meanings(be_silent) == ["is_connection_lost"]


@pytest.mark.django_db
@pytest.mark.on_database("postgresql", "mysql")
def test_a_session_that_was_silent_for_too_long_is_lost() -> None:
    soon = {"postgresql": "SET idle_session_timeout = 10", "mysql": "SET SESSION wait_timeout = 1"}

    def be_silent() -> None:
        session = this_session()
        execute(soon[connection.vendor])
        wait_until_ended(session)
        execute("SELECT 1")

    assert meanings(be_silent) == ["is_connection_lost"]


@committed
def test_a_server_out_of_reach_is_lost(database_away: Away) -> None:
    with database_away():
        assert meanings(partial(execute, "SELECT 1")) == ["is_connection_lost"]


# --- from the database: everything else


@pytest.mark.django_db
def test_a_second_row_of_one_key_is_a_duplicate() -> None:
    gates().create(name="nightly")
    with pytest.raises(IntegrityError) as caught:
        gates().create(name="nightly")
    assert verdict(caught.value) == ["is_duplicate"]


@pytest.mark.django_db
@pytest.mark.parametrize("statement", ["SELEKT 1", "SELECT nonsense", "SELECT 1 FROM no_such_table"])
def test_nonsense_is_just_an_error(statement: str) -> None:
    assert meanings(partial(execute, statement)) == []


@pytest.mark.django_db
@pytest.mark.on_database("postgresql", "mysql")
def test_a_value_that_does_not_fit_is_just_an_error() -> None:
    assert meanings(lambda: runs().update(status="s" * 1000) or gates().create(name="n" * 1000)) == []
