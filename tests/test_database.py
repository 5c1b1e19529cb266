"""Transactions on the locks' database. What its errors mean: see test_database_errors.py."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor, wait
from datetime import timedelta
from functools import partial
from threading import Event
from time import sleep
from typing import TYPE_CHECKING, Any

import pytest
from django.db import Error, connection, connections, transaction

from django_singlejob import UnsafeTransaction
from django_singlejob.clock import local_now
from django_singlejob.database import (
    LOCK_TIMEOUT,
    _milliseconds,
    alias,
    closed_if_abandoned,
    durable,
    in_turn,
    is_private,
    refuse_open_transaction,
    roll_back,
)
from django_singlejob.models import JobStatus
from django_singlejob.querysets import gates
from tests.contract.acts import closing, in_thread, take

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_django import Settings

    from django_singlejob import Lease

SECOND = timedelta(seconds=1)


pytest_plugins = "tests.fixtures"
pytestmark = pytest.mark.django_db(transaction=True, available_apps=["django_singlejob"])
breaks_connection = pytest.mark.usefixtures("breakable_connection")


def ask(question: str) -> Any:
    with connection.cursor() as cursor:
        cursor.execute(question)
        return cursor.fetchone()[0]


class SendWritesElsewhere:
    def db_for_write(self, model: type, **hints: object) -> str:
        return "elsewhere"


def test_where_the_locks_are(settings: Settings) -> None:
    assert alias() == "default"
    settings.DATABASE_ROUTERS = [SendWritesElsewhere()]
    assert alias() == "elsewhere"
    settings.SINGLEJOB = {"DATABASE": "named"}
    assert alias() == "named"


# --- what is open when a lock is asked for


def test_without_a_transaction_all_is_well() -> None:
    refuse_open_transaction("default")


def test_inside_a_transaction_is_refused() -> None:
    with transaction.atomic(), pytest.raises(UnsafeTransaction, match=r"is open on the database 'default'.*on_commit"):
        refuse_open_transaction("default")


@breaks_connection
def test_with_autocommit_off_is_refused() -> None:
    transaction.set_autocommit(False)
    with pytest.raises(UnsafeTransaction, match="Autocommit is off on the database 'default'"):
        refuse_open_transaction("default")


@pytest.mark.django_db
def test_inside_a_test_case_all_is_well_but_not_in_a_transaction_inside_it(
    django_assert_num_queries: Callable[..., Any],
) -> None:
    with django_assert_num_queries(0):
        refuse_open_transaction("default")
    assert is_private("default")
    with transaction.atomic(), pytest.raises(UnsafeTransaction):
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


def test_it_is_committed_at_its_end() -> None:
    with durable("default"):
        gates().create(name="nightly")
    assert in_thread(gates().count) == 1


def test_it_is_rolled_back_by_an_exception() -> None:
    with pytest.raises(Error), durable("default"):
        gates().bulk_create([JobStatus(name="nightly")] * 2)
    assert not gates().exists()


def test_it_can_be_rolled_back_without_one() -> None:
    with durable("default"):
        gates().create(name="nightly")
        roll_back("default")
    assert not gates().exists()


def test_it_is_nobodys_part() -> None:
    with transaction.atomic(), pytest.raises(RuntimeError, match="durable"), durable("default"):
        pytest.fail("it would be rolled back with the outer one")


@pytest.mark.on_database("postgresql")
def test_postgresql_bounds_it_and_nothing_after_it() -> None:
    names = ["synchronous_commit", "idle_in_transaction_session_timeout", "lock_timeout"]
    usual = [ask(f"SHOW {name}") for name in names]
    ask("SELECT set_config('synchronous_commit', 'off', false)")
    with durable("default"):
        assert [ask(f"SHOW {name}") for name in names] == ["on", "10s", "2s"]
    with durable("default", lock_timeout=None, idle_timeout=7 * SECOND):
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


@pytest.mark.on_database("mysql")
@pytest.mark.parametrize(("timeout", "seconds"), [(7 * SECOND, 7), (SECOND / 10, 1)])
def test_mysql_ends_a_session_that_is_silent_for_long_and_no_other(timeout: timedelta, seconds: int) -> None:
    usual = ask("SELECT @@SESSION.wait_timeout")
    with closed_if_abandoned("default", timeout):
        assert ask("SELECT @@SESSION.wait_timeout") == seconds
    assert ask("SELECT @@SESSION.wait_timeout") == usual


@breaks_connection
@pytest.mark.on_database("mysql")
@pytest.mark.parametrize("is_noticed", [True, False])
def test_mysql_that_went_away_is_no_error(is_noticed: bool) -> None:
    with closed_if_abandoned("default", SECOND):
        (connection if is_noticed else connection.connection).close()


@pytest.mark.on_database("sqlite", "postgresql")
def test_the_others_need_no_such_limit(django_assert_num_queries: Callable[..., Any]) -> None:
    with django_assert_num_queries(0), closed_if_abandoned("default", SECOND):
        pass


# --- turns, which SQLite does not keep


def write_until(stop: Event) -> int:
    """How often one of many got through."""
    count = 0
    while not stop.is_set():
        with durable("default"):
            gates().knock("a")
        sleep(0.001)
        count += 1
    return count


@pytest.mark.on_database("sqlite")
def test_of_many_threads_that_write_none_starves() -> None:
    gates().remember("a")
    stop = Event()
    with ThreadPoolExecutor(20) as pool:
        futures = [pool.submit(closing, write_until, stop) for _ in range(20)]
        sleep(2)
        stop.set()
    counts = [future.result() for future in futures]
    assert max(counts) < 2 * min(counts)


def waits_for_its_turn(write: Callable[[], object]) -> bool:
    with ThreadPoolExecutor() as pool:
        with in_turn("default"):
            writing = pool.submit(closing, write)
            _, waiting = wait([writing], timeout=0.3)
        writing.result()
    return bool(waiting)


def take_and_release() -> None:
    take().release()


@pytest.mark.on_database("sqlite")
def test_what_waits_for_its_turn() -> None:
    lease = take()
    assert waits_for_its_turn(lease.renew)
    assert waits_for_its_turn(lease.release)
    assert waits_for_its_turn(take_and_release)


def fenced(lease: Lease) -> None:
    with lease.atomic():
        pass


@pytest.mark.on_database("sqlite")
def test_a_fenced_transaction_waits_for_none_since_it_lasts_as_long_as_the_job_likes() -> None:
    lease = take()
    assert not waits_for_its_turn(partial(fenced, lease))
    lease.release()


@pytest.mark.on_database("postgresql", "mysql")
def test_where_the_server_lets_them_queue_they_do_not() -> None:
    assert not waits_for_its_turn(take_and_release)


@pytest.mark.on_database("sqlite")
def test_who_never_ends_their_turn_is_waited_for_once() -> None:
    gates().remember("a")
    lost = in_turn("default")
    lost.__enter__()
    begun_at = local_now()
    for _ in range(3):
        with durable("default"):
            gates().knock("a")
    assert LOCK_TIMEOUT <= timedelta(seconds=local_now() - begun_at) < 2 * LOCK_TIMEOUT


@pytest.mark.on_database("sqlite")
def test_who_comes_back_late_ends_nobody_elses_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_singlejob.database.LOCK_TIMEOUT", timedelta(0))
    late = in_turn("default")
    late.__enter__()
    with in_turn("default"):
        pass
    late.__exit__(None, None, None)
    monkeypatch.undo()
    assert waits_for_its_turn(take_and_release)
