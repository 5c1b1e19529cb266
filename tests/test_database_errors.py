"""What an error means: by its code, and where it can be had, from the real database."""

from __future__ import annotations

import sqlite3
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

from django_singlejob.database import durable, is_connection_lost, is_duplicate, is_transient
from django_singlejob.querysets import gates, runs
from tests.contract.acts import in_thread

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fixtures import Away, Elsewhere

pytest_plugins = "tests.fixtures"

committed = pytest.mark.django_db(transaction=True, available_apps=["django_singlejob"])

QUICKLY = {"sqlite": "PRAGMA busy_timeout = 10", "mysql": "SET SESSION innodb_lock_wait_timeout = 1"}


def verdict(error: BaseException) -> list[str]:
    return [judge.__name__ for judge in (is_transient, is_connection_lost, is_duplicate) if judge(error)]


def fate(act: Callable[[], object]) -> list[str]:
    """How the error is judged that this raises on a connection of its own."""
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
    """As Django raises it: with the driver's own error as its cause."""
    error, cause = kind("whatever it says"), DriversError(code)
    cause.sqlstate = code if isinstance(code, str) else None
    error.__cause__ = cause
    return error


@pytest.mark.parametrize("code", ["40001", "40P01", "55P03", 1205, 1213, 1020, 3572])
@pytest.mark.parametrize("kind", [OperationalError, DatabaseError, InternalError])
def test_who_was_in_the_way_is_told_by_the_code(code: object, kind: type[Error]) -> None:
    assert verdict(an_error(code, kind)) == ["is_transient"]


@pytest.mark.parametrize("code", [sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_BUSY_SNAPSHOT])
def test_sqlite_has_codes_of_its_own(code: int) -> None:
    error = OperationalError()
    error.sqlite_errorcode = code  # type: ignore[attr-defined]
    assert verdict(error) == ["is_transient"]


LOST: list[object] = ["57P01", "57P02", "57P03", "08000", "08003", "08006", "25P03", "53300", "53100", "53200", "25006"]
LOST_ON_MYSQL: list[object] = [2002, 2003, 2006, 2013, 4031, 1040, 1053, 1927, 1290, 1836]


@pytest.mark.parametrize("code", LOST + LOST_ON_MYSQL)
@pytest.mark.parametrize("kind", [OperationalError, InternalError])
def test_a_lost_connection_is_told_by_the_code(code: object, kind: type[Error]) -> None:
    assert verdict(an_error(code, kind)) == ["is_connection_lost"]


@pytest.mark.parametrize("error", [InterfaceError(0, ""), InterfaceError(), OperationalError("pool timeout")], ids=repr)
def test_a_server_that_says_nothing_is_lost(error: Error) -> None:
    assert verdict(error) == ["is_connection_lost"]


@pytest.mark.parametrize(
    "error",
    [an_error("57014"), an_error(1317), an_error(None, DatabaseError), ValueError(1205), OSError(2006)],
    ids=repr,
)
def test_any_other_error_is_just_an_error(error: BaseException) -> None:
    assert verdict(error) == []


# --- from the database: who was in the way


@committed
@pytest.mark.on_database("postgresql", "mysql")
def test_a_deadlock_is_transient(elsewhere: Elsewhere) -> None:
    gates().remember("nightly", "hourly")
    both = Barrier(2, timeout=10)

    def cross(first: str, second: str) -> None:
        with durable("default", lock_timeout=None):
            touch(first)
            both.wait()
            touch(second)

    ends = [elsewhere(cross, "nightly", "hourly"), elsewhere(cross, "hourly", "nightly")]
    [error] = [error for end in ends if (error := end.exception(20))]
    assert verdict(error) == ["is_transient"]


@committed
def test_waiting_for_a_row_in_vain_is_transient(elsewhere: Elsewhere) -> None:
    gates().remember("nightly")
    begun, enough = Event(), Event()

    def keep() -> None:
        with durable("default"):
            touch()
            begun.set()
            enough.wait(20)

    def want() -> None:
        execute(QUICKLY.get(connection.vendor, "SELECT 1"))
        with durable("default", lock_timeout=timedelta(milliseconds=10)):
            touch()

    def want_at_once() -> None:
        with durable("default"):
            gates().select_for_update(nowait=True).get()

    keeper = elsewhere(keep)
    assert begun.wait(10)
    assert fate(want) == ["is_transient"]
    if connection.features.has_select_for_update_nowait:
        assert fate(want_at_once) == ["is_transient"]
    enough.set()
    keeper.result(10)


@committed
@pytest.mark.on_database("postgresql")
def test_a_serialization_failure_is_transient() -> None:
    gates().remember("nightly")

    def be_late() -> None:
        with durable("default"):
            execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            gates().get()
            in_thread(touch)
            touch()

    assert fate(be_late) == ["is_transient"]


# --- from the database: who went away


def be_killed() -> None:
    who = {"postgresql": "SELECT pg_backend_pid()", "mysql": "SELECT CONNECTION_ID()"}
    kill = {"postgresql": "SELECT pg_terminate_backend({})", "mysql": "KILL {}"}
    in_thread(partial(execute, kill[connection.vendor].format(execute(who[connection.vendor]))))
    execute("SELECT 1")


def be_closed() -> None:
    execute("SELECT 1")
    connection.connection.close()
    execute("SELECT 1")


@pytest.mark.django_db
@pytest.mark.on_database("postgresql", "mysql")
@pytest.mark.parametrize("lose_connection", [be_killed, be_closed])
def test_a_connection_that_is_gone_is_lost(lose_connection: Callable[[], None]) -> None:
    assert fate(lose_connection) == ["is_connection_lost"]


@pytest.mark.django_db
@pytest.mark.on_database("postgresql")
def test_a_transaction_that_was_silent_for_too_long_is_lost() -> None:
    def be_silent() -> None:
        with durable("default", idle_timeout=timedelta(milliseconds=1)):
            Event().wait(0.1)
            execute("SELECT 1")

    assert fate(be_silent) == ["is_connection_lost"]


@committed
def test_a_server_out_of_reach_is_lost(database_away: Away) -> None:
    with database_away():
        assert fate(partial(execute, "SELECT 1")) == ["is_connection_lost"]


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
    assert fate(partial(execute, statement)) == []


@pytest.mark.django_db
@pytest.mark.on_database("postgresql", "mysql")
def test_a_value_that_does_not_fit_is_just_an_error() -> None:
    assert fate(lambda: runs().update(status="s" * 1000) or gates().create(name="n" * 1000)) == []
