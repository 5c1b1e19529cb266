"""Transactions on the locks' database. database/test_errors.py tests the meanings of its errors."""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from threading import Event
from typing import TYPE_CHECKING, Any

import pytest
from django.db import Error, IntegrityError, connection, connections, transaction
from django.db.utils import ConnectionRouter
from django.utils.connection import ConnectionDoesNotExist

from django_singlejob import UnsafeTransaction, conf, singleton_job
from django_singlejob.database.errors import is_connection_lost
from django_singlejob.database.transactions import (
    LOCK_TIMEOUT,
    _milliseconds,
    alias,
    durable,
    fenced,
    in_turn,
    is_private,
    refuse_open_transaction,
    roll_back,
)
from django_singlejob.models.jobs import gates
from django_singlejob.models.locks import locks
from django_singlejob.process.clock import wait
from tests.contract.acts import closing, in_thread, take
from tests.waiting import PATIENCE, a_moment, eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from pytest_django import Settings

    from django_singlejob import Lease
    from tests.fixtures import AddDatabase

SECOND = timedelta(seconds=1)
pytest_plugins = "tests.fixtures"
pytestmark = pytest.mark.django_db(transaction=True, available_apps=["django_singlejob"])
breaks_connection = pytest.mark.usefixtures("breakable_connection")


def ask(question: str) -> Any:
    with connection.cursor() as cursor:
        cursor.execute(question)
        return cursor.fetchone()[0]


class SendWrites:
    def __init__(self, alias: str) -> None:
        self.alias = alias

    def db_for_write(self, model: type, **hints: object) -> str:
        return self.alias


def test_where_the_locks_are(settings: Settings, add_database: AddDatabase) -> None:
    for name in "elsewhere", "named":
        add_database(name)
    assert alias() == "default"
    settings.DATABASE_ROUTERS = [SendWrites("elsewhere")]
    assert alias() == "elsewhere"
    settings.SINGLEJOB = {"DATABASE": "named"}
    assert alias() == "named"


def test_a_router_that_has_changed_its_mind_is_heeded(settings: Settings, add_database: AddDatabase) -> None:
    """For example, a router that follows a failover, or treats threads differently."""
    for name in "primary", "standby":
        add_database(name)
    settings.DATABASE_ROUTERS = [changeable := SendWrites("primary")]
    assert alias() == "primary"
    changeable.alias = "standby"
    assert alias() == "standby"


def test_an_alias_that_is_not_there_is_refused_and_it_is_said_where_it_comes_from(settings: Settings) -> None:
    settings.DATABASE_ROUTERS = [SendWrites("gone")]
    with pytest.raises(ConnectionDoesNotExist, match=r"^The routers send JobLock to 'gone', but DATABASES has no such"):
        alias()
    settings.SINGLEJOB = {"DATABASE": "locks"}
    with pytest.raises(ConnectionDoesNotExist, match=r"^SINGLEJOB\['DATABASE'\] is 'locks', .+ Use one of: default\.$"):
        alias()


@pytest.mark.usefixtures("fresh_process")
def test_a_run_validates_no_settings_again_and_asks_no_router_if_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    job = singleton_job("nightly")(lambda: None)
    job()
    monkeypatch.setattr(conf, "problems", lambda given: pytest.fail("validated again"))
    monkeypatch.setattr(ConnectionRouter, "db_for_write", lambda *arguments, **hints: pytest.fail("asked"))
    assert job.run().status == "successful"


# --- what is open when a lock is requested


@breaks_connection
def test_with_autocommit_off_is_refused() -> None:
    transaction.set_autocommit(False)
    with pytest.raises(UnsafeTransaction, match="Autocommit is off on the database 'default'"):
        refuse_open_transaction("default")


def test_what_is_private() -> None:
    assert not is_private("default")
    with transaction.atomic():
        assert is_private("default")


def test_a_database_in_memory_is_private(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
    monkeypatch.setitem(connections.settings, "memory", connections["default"].settings_dict | memory)
    assert is_private("memory")
    del connections["memory"]


# --- a short transaction


def test_it_can_be_rolled_back_without_one() -> None:
    with durable("default"):
        gates().create(name="nightly")
        roll_back("default")
    assert not gates().exists()


def lose_connection() -> None:
    ask("SELECT 1")
    connection.connection.close()
    ask("SELECT 1")


@breaks_connection
@pytest.mark.on_database("postgresql", "mysql")
def test_if_its_connection_is_lost_there_is_none_until_it_is_needed() -> None:
    """Django itself would reconnect at the end of the block, and wait for that."""
    with pytest.raises(Error), durable("default"):
        lose_connection()
    assert connection.connection is None
    assert not gates().exists()


@pytest.mark.on_database("postgresql", "mysql")
def test_what_is_called_after_its_commit_may_begin_others() -> None:
    """Django's signals tell a project of the lock's row, and it waits for the commit before it does anything."""
    calls = []

    def call() -> None:
        with durable("default"):
            calls.append(connection.in_atomic_block)
        calls.append(connection.get_autocommit())

    with durable("default"):
        transaction.on_commit(call)
    assert calls == [True, True]


def test_it_is_nobodys_part() -> None:
    with transaction.atomic(), pytest.raises(RuntimeError, match="durable"), durable("default"):
        pytest.fail("it would be rolled back with the outer one")


@pytest.fixture
def server_side_binding(breakable_connection: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A request to PostgreSQL is one statement."""
    options = {**connection.settings_dict["OPTIONS"], "server_side_binding": True}
    with monkeypatch.context() as patch:
        patch.setitem(connection.settings_dict, "OPTIONS", options)
        connection.close()
        yield
    connection.close()


@pytest.mark.on_database("postgresql")
@pytest.mark.usefixtures("server_side_binding")
def test_postgresql_bounds_it_if_the_server_binds_the_parameters() -> None:
    test_postgresql_bounds_it_and_nothing_after_it()
    job = singleton_job("nightly")(lambda: ask("SHOW lock_timeout"))
    assert job() == ask("SHOW lock_timeout")
    assert gates().get(name="nightly").last_status == "successful"


@pytest.mark.on_database("postgresql")
def test_postgresql_bounds_it_and_nothing_after_it() -> None:
    names = ["synchronous_commit", "idle_in_transaction_session_timeout", "lock_timeout"]
    usual = [ask(f"SHOW {name}") for name in names]
    ask("SELECT set_config('synchronous_commit', 'off', false)")
    with durable("default"):
        assert [ask(f"SHOW {name}") for name in names] == ["on", "10s", "2s"]
    with fenced("default", 7 * SECOND):
        assert [ask(f"SHOW {name}") for name in names] == ["on", "7s", usual[2]]
    assert [ask(f"SHOW {name}") for name in names] == ["off", *usual[1:]]


def test_no_bound_is_zero_which_would_be_none() -> None:
    assert _milliseconds(timedelta(microseconds=1)) == 1
    assert _milliseconds(SECOND) == 1000


@pytest.mark.on_database("postgresql")
@pytest.mark.django_db
def test_postgresql_is_left_alone_inside_a_test_case() -> None:
    usual = ask("SHOW idle_in_transaction_session_timeout")
    with durable("default"):
        assert ask("SHOW idle_in_transaction_session_timeout") == usual


def fenced_for(timeout: timedelta) -> AbstractContextManager[None]:
    return fenced("default", timeout)


def wait_timeout() -> Any:
    return ask("SELECT @@SESSION.wait_timeout")


def lock_timeout() -> Any:
    """How long a statement waits for a row."""
    if connection.vendor == "mysql":
        return ask("SELECT @@SESSION.innodb_lock_wait_timeout")
    return ask("SHOW lock_timeout")


@pytest.mark.on_database("mysql")
@pytest.mark.parametrize(("timeout", "seconds"), [(7 * SECOND, 7), (SECOND / 10, 1)])
def test_mysql_bounds_a_fenced_transaction_and_nothing_after_it(timeout: timedelta, seconds: int) -> None:
    usual = wait_timeout(), lock_timeout()
    with fenced_for(timeout):
        assert (wait_timeout(), lock_timeout()) == (seconds, usual[1])
    assert (wait_timeout(), lock_timeout()) == usual


@pytest.mark.on_database("mysql")
def test_mysql_bounds_a_short_transaction_and_nothing_after_it() -> None:
    usual = wait_timeout(), lock_timeout()
    with durable("default"):
        assert (wait_timeout(), lock_timeout()) == (10, 2)
    assert (wait_timeout(), lock_timeout()) == usual


@pytest.mark.on_database("postgresql", "mysql")
@pytest.mark.parametrize(
    ("timeout", "limits"),
    [
        (timedelta(hours=1), {"postgresql": "2s", "mysql": 2}),
        (SECOND / 2, {"postgresql": "500ms", "mysql": 1}),
        (-SECOND, {"postgresql": "1ms", "mysql": 1}),
    ],
    ids=["long", "short", "none left"],
)
def test_a_statement_waits_for_a_row_no_longer_than_it_may(timeout: timedelta, limits: dict[str, Any]) -> None:
    with durable("default", lock_timeout=timeout):
        assert lock_timeout() == limits[connection.vendor]


@pytest.mark.on_database("mysql")
@pytest.mark.parametrize("block", [durable, partial(fenced, idle_timeout=SECOND)], ids=["durable", "fenced"])
@pytest.mark.parametrize("is_committed", [True, False])
def test_mysql_is_told_so_inside_the_transaction(
    monkeypatch: pytest.MonkeyPatch, is_committed: bool, block: Callable[[str], AbstractContextManager[None]]
) -> None:
    """A pooler that shares sessions between transactions then never hands on a session with our limit."""
    usual, seen = wait_timeout(), []
    is_mariadb = connection.mysql_is_mariadb  # type: ignore[attr-defined]
    inside = "@@in_transaction" if is_mariadb else "1"  # MySQL does not say it

    def see(end: Callable[[], None]) -> None:
        with connection.connection.cursor() as cursor:
            cursor.execute(f"SELECT {inside}, @@SESSION.wait_timeout")
            seen.append(cursor.fetchone())
        end()

    for end in "_commit", "_rollback":
        monkeypatch.setattr(connection, end, partial(see, getattr(connection, end)))
    with block("default"):
        gates().create(name="nightly")
        transaction.set_rollback(not is_committed)
    assert seen == [(1, usual)]
    assert gates().exists() == is_committed


@pytest.mark.on_database("mysql")
def test_mysql_has_its_usual_limit_again_when_the_block_is_broken() -> None:
    usual = wait_timeout()
    gates().create(name="nightly")
    with pytest.raises(IntegrityError), fenced_for(SECOND), transaction.atomic(savepoint=False):
        gates().create(name="nightly")
    assert wait_timeout() == usual


@breaks_connection
@pytest.mark.on_database("mysql")
@pytest.mark.parametrize("is_noticed", [True, False])
def test_mysql_that_went_away_in_a_fenced_transaction_is_an_error(is_noticed: bool) -> None:
    with pytest.raises(Error) as caught, fenced_for(SECOND):
        (connection if is_noticed else connection.connection).close()
    assert is_connection_lost(caught.value)
    assert not connection.in_atomic_block


@breaks_connection
@pytest.mark.on_database("mysql")
def test_what_went_wrong_in_the_block_matters_more_than_that() -> None:
    with pytest.raises(ZeroDivisionError), fenced_for(SECOND), contextlib.closing(connection.connection):
        raise ZeroDivisionError


@pytest.mark.on_database("mysql")
def test_mysql_ends_a_fenced_transaction_that_is_silent() -> None:
    def is_ended() -> bool:
        return not in_thread(lambda: ask(f"SELECT count(*) FROM information_schema.processlist WHERE id = {session}"))

    session = ask("SELECT CONNECTION_ID()")
    with pytest.raises(Error) as caught, fenced_for(SECOND):
        eventually(is_ended)
    assert is_connection_lost(caught.value)


# --- taking turns, which SQLite does not enforce


def write_until(stop: Event, counts: list[int], number: int) -> None:
    """Count how often this thread, one of many, was able to write."""
    while not stop.is_set():
        with durable("default"):
            gates().touch("a")
        counts[number] += 1


@pytest.mark.slow
@pytest.mark.on_database("sqlite")
def test_of_many_threads_that_write_none_starves() -> None:
    gates().remember("a")
    stop, counts = Event(), [0] * 20
    with ThreadPoolExecutor(20) as pool:
        writers = [pool.submit(closing, write_until, stop, counts, number) for number in range(20)]
        eventually(lambda: min(counts) >= 50 or any(writer.done() for writer in writers))
        stop.set()
    for writer in writers:
        writer.result()
    # Without turns, it was 36 times as often or more. With turns, it was 2 to 4 times.
    assert max(counts) < 12 * min(counts)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads wait for their turn as long as it takes."""
    monkeypatch.setattr("django_singlejob.database.transactions.LOCK_TIMEOUT", timedelta(hours=1))


def waits_for_its_turn(write: Callable[[], object]) -> bool:
    with ThreadPoolExecutor() as pool:
        with in_turn("default"):
            writing = pool.submit(closing, write)
            a_moment()
            is_waiting = not writing.done()
        writing.result(PATIENCE)
    return is_waiting


def write_in_the_turn_of_another(write: Callable[[], object]) -> None:
    """Raises ``TimeoutError`` if it waits for its own turn."""
    with ThreadPoolExecutor() as pool, in_turn("default"):
        pool.submit(closing, write).result(PATIENCE)


def take_and_release() -> None:
    take().release()


@pytest.mark.slow
@pytest.mark.on_database("sqlite")
@pytest.mark.usefixtures("patient")
def test_what_waits_for_its_turn() -> None:
    lease = take()
    assert waits_for_its_turn(lease.renew)
    assert waits_for_its_turn(lease.release)
    assert waits_for_its_turn(take_and_release)


def in_a_block(lease: Lease) -> None:
    with lease.atomic():
        pass


@pytest.mark.on_database("sqlite")
@pytest.mark.usefixtures("patient")
def test_a_fenced_transaction_waits_for_none_since_it_lasts_as_long_as_the_job_likes() -> None:
    lease = take()
    write_in_the_turn_of_another(partial(in_a_block, lease))
    assert lease.release()


@pytest.mark.on_database("postgresql", "mysql")
@pytest.mark.usefixtures("patient")
def test_where_the_server_lets_them_queue_they_do_not() -> None:
    write_in_the_turn_of_another(take_and_release)
    assert not locks().exists()


@pytest.mark.slow
@pytest.mark.on_database("sqlite")
def test_who_never_ends_their_turn_is_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def wait_and_tell(call: Callable[[float], bool], seconds: float) -> bool:
        assert seconds == LOCK_TIMEOUT.total_seconds()
        is_ours = wait(call, seconds)
        waits.append(is_ours)
        return is_ours

    waits: list[bool] = []
    gates().remember("a")
    lost = in_turn("default")
    lost.__enter__()
    monkeypatch.setattr("django_singlejob.database.transactions.wait", wait_and_tell)
    for _ in range(3):
        with durable("default"):
            gates().touch("a")
    assert waits == [False, True, True]


@pytest.mark.slow
@pytest.mark.on_database("sqlite")
def test_who_comes_back_late_ends_nobody_elses_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_singlejob.database.transactions.LOCK_TIMEOUT", timedelta(0))
    late = in_turn("default")
    late.__enter__()
    with in_turn("default"):
        pass
    late.__exit__(None, None, None)
    monkeypatch.undo()
    assert waits_for_its_turn(take_and_release)
