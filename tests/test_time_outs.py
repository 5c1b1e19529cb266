"""Each entry point, on servers whose roles have their own time-outs. database/test_errors.py tests the meanings of the
error codes."""

from __future__ import annotations

import re
import time
from datetime import timedelta
from functools import partial
from io import StringIO
from threading import Event
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from django.apps import apps
from django.core.management import CommandError, call_command
from django.db import Error, connection, transaction

from django_singlejob import LockHeld, job_lock, singleton_job
from django_singlejob.database.errors import is_transient
from django_singlejob.locking.endings import ending
from django_singlejob.models.jobs import gates
from tests.contract.acts import committing, expire, fall_behind, gate, is_free, last_run, scheduled, start_run, take

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future

    from tests.fixtures import Elsewhere
    from tests.proxy import Proxy

pytest_plugins = "tests.fixtures"
pytestmark = [
    pytest.mark.django_db(transaction=True, available_apps=["django_singlejob"]),
    pytest.mark.on_database("postgresql", "mysql"),
    pytest.mark.usefixtures("fresh_process"),
]

SECOND = timedelta(seconds=1)
# The gate is busy for this long; the servers' time-outs are shorter.
BUSY = 1.5

# Like ALTER ROLE ... SET, but only for the test's sessions.
STATEMENT_TIMEOUT = {
    "postgresql": {"options": "-c statement_timeout=500ms"},
    "mysql": {"init_command": "SET SESSION max_statement_time = 0.5"},
}
LOCK_TIMEOUT = {
    "postgresql": {"options": "-c lock_timeout=500ms"},
    "mysql": {"init_command": "SET SESSION innodb_lock_wait_timeout = 1"},
}
SILENCE_TIMEOUT = {
    "postgresql": {"options": "-c idle_session_timeout=1s -c idle_in_transaction_session_timeout=1s"},
    "mysql": {"init_command": "SET SESSION wait_timeout = 1, idle_transaction_timeout = 1"},
}
# Silence may be longer here: a busy machine may itself stop for a second between two statements.
EVERY_TIMEOUT = {
    "postgresql": {
        "options": "-c statement_timeout=500ms -c lock_timeout=500ms -c idle_session_timeout=2s "
        "-c idle_in_transaction_session_timeout=2s"
    },
    "mysql": {
        "init_command": "SET SESSION max_statement_time = 0.5, innodb_lock_wait_timeout = 1, wait_timeout = 2, "
        "idle_transaction_timeout = 2"
    },
}


@pytest.fixture
def limit() -> Iterator[Callable[[dict[str, dict[str, str]]], None]]:
    """Set these limits for every new connection from now on, including this thread's."""
    with pytest.MonkeyPatch.context() as patch:

        def limit(limits: dict[str, dict[str, str]]) -> None:
            limited = limits[connection.vendor]
            if connection.vendor == "mysql" and not connection.mysql_is_mariadb:  # type: ignore[attr-defined]
                limited = {name: as_mysql_has_it(option) for name, option in limited.items()}
            options = {**connection.settings_dict["OPTIONS"], **limited}
            patch.setitem(connection.settings_dict, "OPTIONS", options)
            connection.close()

        yield limit
    connection.close()


def as_mysql_has_it(option: str) -> str:
    """The same time-outs: its one for statements counts milliseconds, and it has none for idle transactions."""
    option = option.replace("max_statement_time = 0.5", "max_execution_time = 500")
    return re.sub(r", idle_transaction_timeout = \d+", "", option)


@pytest.fixture
def busy(elsewhere: Elsewhere, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Future[None]]:
    """Keep another transaction on the gate for a while, however long that becomes on a busy machine."""
    monkeypatch.setattr("django_singlejob.locking.acquire.PERSEVERANCE", 30.0)

    def busy(name: str = "nightly", duration: float = BUSY) -> Future[None]:
        gates().remember(name)
        begun = Event()

        def touch() -> None:
            if connection.vendor == "mysql":  # it must not be cut off itself
                execute("SET SESSION wait_timeout = 60")
                if connection.mysql_is_mariadb:  # type: ignore[attr-defined]
                    execute("SET SESSION idle_transaction_timeout = 60")
            gates().touch(name)

        keeper = elsewhere(partial(committing, touch, begun, duration=duration))
        assert begun.wait(10)
        return keeper

    return busy


def execute(statement: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)


# --- the gate is busy


@pytest.mark.parametrize(
    "limits",
    [STATEMENT_TIMEOUT, LOCK_TIMEOUT, EVERY_TIMEOUT],
    ids=["statement_timeout", "lock_timeout", "every time-out"],
)
def test_a_lock_is_granted_when_the_gate_is_free_again(limit: Any, busy: Any, limits: Any) -> None:
    keeper = busy()
    limit(limits)
    with job_lock("nightly"):
        keeper.result(1)
    assert is_free()


def test_run_singleton_runs_the_job_then(limit: Any, busy: Any) -> None:
    singleton_job("nightly")(lambda: None)
    busy()
    limit(EVERY_TIMEOUT)
    call_command("run_singleton", "nightly", stdout=StringIO())
    assert last_run().status == "successful"


def test_a_tick_runs_the_slot_then(limit: Any, busy: Any) -> None:
    fall_behind(scheduled())
    busy()
    limit(EVERY_TIMEOUT)
    call_command("singleton_worker", "--once", stdout=StringIO())
    assert last_run().status == "successful"


def test_a_release_waits_for_the_gate(limit: Any, busy: Any) -> None:
    limit(EVERY_TIMEOUT)
    lease = take()
    keeper = busy()
    assert lease.release()
    keeper.result(10)
    assert is_free()


def test_a_fenced_transaction_waits_for_the_gate(limit: Any, busy: Any) -> None:
    limit(EVERY_TIMEOUT)
    lease = take()
    keeper = busy()
    with lease.atomic():
        keeper.result(1)
        gates().create(name="written")
    assert gates().filter(name="written").exists()
    lease.check()


def test_clear_stale_locks_leaves_a_busy_lock_alone(limit: Any, busy: Any) -> None:
    take()
    expire()
    limit(EVERY_TIMEOUT)
    busy(duration=1.0)
    output = StringIO()
    call_command("clear_stale_locks", stdout=output)
    assert is_free() == ("Cleared nightly" in output.getvalue())


def test_what_the_block_waits_for_is_bounded_as_its_role_wants(limit: Any, busy: Any) -> None:
    limit(EVERY_TIMEOUT)
    lease = take()
    keeper = busy("other")
    with pytest.raises(Error) as caught, lease.atomic():
        gates().touch("other")
    assert is_transient(caught.value)
    assert not keeper.done()
    keeper.result(10)
    lease.check()
    assert lease.release()


# --- a time-out that does not say whether another process was in the way


def test_what_is_never_answered_in_time_is_not_held_but_unknown(
    limit: Any, busy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An attempt that cannot be decided is never "held"."""
    if connection.vendor == "mysql" and not connection.mysql_is_mariadb:  # type: ignore[attr-defined]
        pytest.skip("MySQL has a time-out for SELECTs only")
    monkeypatch.setattr("django_singlejob.locking.acquire.PERSEVERANCE", 1.0)
    busy(duration=6.0)
    limit(STATEMENT_TIMEOUT)
    # On PostgreSQL the transaction sets our own, longer time-outs, and the one for locks ends first.
    message = "It could not be decided" if connection.vendor == "postgresql" else "The database does not answer"
    with pytest.raises((Error, LockHeld), match=message), job_lock("nightly"):
        pytest.fail("it came in")


def test_who_is_in_the_way_for_too_long_holds_it(limit: Any, busy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_singlejob.locking.acquire.PERSEVERANCE", 1.0)
    busy(duration=6.0)
    limit(LOCK_TIMEOUT)
    with pytest.raises(LockHeld), job_lock("nightly"):
        pytest.fail("it came in")


# --- silence


def test_a_job_that_is_silent_for_long_comes_back_to_its_lock(limit: Any) -> None:
    """Its session is gone by then, but its heartbeats go on."""
    limit(SILENCE_TIMEOUT)
    with job_lock("nightly") as lease:
        time.sleep(1.5)
        with lease.atomic():
            gates().create(name="written")
        time.sleep(1.5)
    assert is_free()
    assert gates().filter(name="written").exists()


def test_whoever_waits_for_a_lock_outlives_its_session(limit: Any, elsewhere: Elsewhere) -> None:
    lease = take()
    limit(SILENCE_TIMEOUT)
    waiting = elsewhere(partial(take, wait=20 * SECOND))
    time.sleep(6)  # the pauses grow to more than a second
    lease.release()
    assert waiting.result(20).release()


def test_what_is_enqueued_is_an_insert_of_the_callers_own(limit: Any) -> None:
    job = singleton_job("nightly")(print)
    limit(EVERY_TIMEOUT)
    job.enqueue()
    connection.close()
    assert job.enqueue().status == "waiting"


# --- what the commands print


@pytest.mark.parametrize(
    "command",
    [["singleton_worker", "--once"], ["clear_stale_locks"], ["prune_singletons"], ["singleton_status"]],
    ids=lambda command: command[0],
)
def test_a_command_that_has_no_answer_in_time_says_so(limit: Any, elsewhere: Elsewhere, command: list[str]) -> None:
    """Another session changes the tables, as a migration does."""
    begun, enough = Event(), Event()
    migration = elsewhere(in_the_way_of_all, begun, enough)
    assert begun.wait(10)
    limit(EVERY_TIMEOUT)
    try:
        with pytest.raises(CommandError, match=r"The database (does not answer|cannot be asked)") as caught:
            call_command(*command, stdout=StringIO(), stderr=StringIO())
    finally:
        enough.set()
    assert caught.value.returncode == 69
    migration.result(10)


def in_the_way_of_all(begun: Event, enough: Event) -> None:
    tables = sorted({model._meta.db_table for model in apps.get_app_config("django_singlejob").get_models()})
    if connection.vendor == "mysql":
        execute("LOCK TABLES " + ", ".join(f"{table} WRITE" for table in tables))
        begun.set()
        enough.wait(20)
        return
    with transaction.atomic():
        execute("LOCK TABLE " + ", ".join(tables))
        begun.set()
        enough.wait(20)


# --- isolation


def test_a_fenced_transaction_begins_again_after_a_serialization_failure(limit: Any, busy: Any) -> None:
    """Under REPEATABLE READ, the gate has changed since the snapshot was taken, although nobody else was granted the
    lock."""
    isolation = {
        "postgresql": {"isolation_level": psycopg.IsolationLevel.REPEATABLE_READ},
        "mysql": {"isolation_level": "repeatable read"},
    }
    limit(isolation)
    lease = take()
    keeper = busy(duration=0.5)
    with lease.atomic():
        keeper.result(1)
    assert not lease.lost


# --- a second fault while the first is being handled


def test_a_release_that_was_carried_out_is_one_though_nobody_says_so_in_time(
    limit: Any, elsewhere: Elsewhere, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer to its COMMIT is lost, and the query about it is cancelled because the gate is busy by then."""
    begun, in_the_end = Event(), Event()

    def wait_for_the_gate() -> None:
        assert in_the_end.wait(10)
        committing(partial(gates().touch, "nightly"), begun, duration=1.5)

    monkeypatch.setitem(connection.settings_dict, "PORT", proxy.port)
    monkeypatch.setitem(connection.settings_dict, "HOST", "127.0.0.1")
    keeper = elsewhere(wait_for_the_gate)
    limit(STATEMENT_TIMEOUT | {"postgresql": {"sslmode": "disable", **STATEMENT_TIMEOUT["postgresql"]}})
    lease = start_run()

    def let_somebody_queue(execute: Any, sql: str, *others: Any) -> Any:
        answer = execute(sql, *others)
        if sql.startswith("DELETE") and not proxy.answer_cut.is_set():
            in_the_end.set()
            time.sleep(0.3)
            proxy.cut_answer_to(b"COMMIT")
        return answer

    with connection.execute_wrapper(let_somebody_queue):
        assert lease.finish(ending(None, duration=SECOND, acquire_duration=SECOND))
    assert proxy.answer_cut.is_set()
    keeper.result(10)
    assert is_free()
    assert gate().run_count == 1
    assert last_run().status == "successful"
