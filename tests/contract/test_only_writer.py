"""Fenced transactions on SQLite, where one that has written blocks all other writes, even heartbeats."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from django.contrib.admin.models import LogEntry
from django.db import IntegrityError, OperationalError, connection, transaction

from django_singlejob import Lease, LeaseLost
from django_singlejob.locking.clear import clear
from tests.app.models import Counter
from tests.contract.acts import HOUR, MINUTE, age, expire, lock, take
from tests.databases import APPS
from tests.waiting import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.children import Spawn
    from tests.contract.conftest import Elsewhere

pytestmark = [
    pytest.mark.django_db(transaction=True, available_apps=APPS),
    pytest.mark.on_database("sqlite"),
]

Execute = Any


def raising_at(start: str, error: BaseException) -> Callable[..., Any]:
    """Raise an interrupt once, just before a statement that starts like this is sent."""
    raised: list[str] = []

    def wrapper(execute: Execute, sql: str, params: Any, many: bool, context: Any) -> Any:
        if sql.startswith(start) and not raised:
            raised.append(sql)
            raise error
        return execute(sql, params, many, context)

    return wrapper


@pytest.mark.parametrize("error", [ZeroDivisionError(), KeyboardInterrupt(), LeaseLost("reported by the heartbeats")])
def test_a_heartbeat_that_fails_does_not_replace_what_the_block_raised(error: BaseException) -> None:
    """Interrupts above all: a job that handles an OperationalError would otherwise go on."""
    lease = take()
    broken = connection.execute_wrapper(raising_at('UPDATE "django_singlejob_joblock"', OperationalError("disk")))
    with pytest.raises(type(error)), broken, lease.atomic():
        raise error


COMMIT_FAILS = """
import sqlite3
from django.db import connection
from tests.contract.acts import take

lease = take()
connection.ensure_connection()
reader = sqlite3.connect(connection.settings_dict["NAME"]).execute("SELECT * FROM sqlite_master")
reader.fetchone()  # it goes on reading, so nobody else can commit
try:
    with lease.atomic():
        raise KeyboardInterrupt
except BaseException as error:
    print("raised", type(error).__name__)
"""


def test_a_commit_that_fails_does_not_replace_what_the_block_raised(spawn: Spawn, plain_sqlite: dict[str, str]) -> None:
    """With Django's default SQLite connection, a reader keeps others from committing."""
    child = spawn.code(COMMIT_FAILS, **plain_sqlite)
    child.wait_for("raised KeyboardInterrupt")


def test_hooks_behind_the_commit_do_not_run_with_a_suspended_deadline() -> None:
    """Other processes can pass the gate by then."""
    lease = take()
    reported: list[object] = []

    def hook() -> None:
        age(lease, MINUTE)
        reported.append(lease.lost)

    with lease.atomic():
        transaction.on_commit(hook)
    assert reported == [True]


def test_a_hook_that_fails_does_not_undo_the_heartbeat() -> None:
    lease = expired()
    with suppress(ZeroDivisionError), lease.atomic():
        transaction.on_commit(lambda: 1 / 0)
    assert not lock().is_stale
    lease.check()


def expired() -> Lease:
    """A lease that has expired, by the row and by its holder's clock, but nobody has taken over."""
    lease = take()
    expire()
    age(lease, MINUTE)
    return lease


def test_a_transaction_that_the_database_has_ended_suspends_no_deadline(elsewhere: Elsewhere) -> None:
    """SQLite rolls back the whole transaction when the disk is full, and then others can pass the gate."""
    lease = expired()
    with suppress(LeaseLost, OperationalError), lease.atomic():
        fill_the_disk()
        elsewhere(take, lease=HOUR).result(PATIENCE)
        assert lease.lost


def fill_the_disk() -> None:
    with connection.cursor() as cursor:
        cursor.execute("PRAGMA page_count")
        (pages,) = cursor.fetchone()
        cursor.execute(f"PRAGMA max_page_count = {pages}")
        try:
            with suppress(OperationalError):
                cursor.execute(f"INSERT INTO {Counter._meta.db_table} VALUES (hex(zeroblob(3000000)), 1)")
        finally:
            cursor.execute("PRAGMA max_page_count = 1073741823")


def test_a_connection_that_the_block_closes_is_no_loss() -> None:
    lease = take()
    with suppress(LeaseLost), lease.atomic():
        connection.close()
    lease.check()
    assert not lease.lost


def test_a_statement_that_ends_the_transaction_opens_no_gap(elsewhere: Elsewhere) -> None:
    lease = expired()
    with suppress(LeaseLost, OperationalError), lease.atomic():
        with connection.cursor() as cursor:
            cursor.execute("COMMIT")
        elsewhere(take, lease=HOUR).result(PATIENCE)
        assert lease.lost


def test_a_block_whose_commit_fails_renews_the_lease_too() -> None:
    """For example, because of a foreign key to a row that does not exist."""
    lease = expired()
    with suppress(IntegrityError), lease.atomic():
        LogEntry.objects.create(user_id=4711, object_repr="", action_flag=1)
    assert not lock().is_stale
    lease.check()


def test_to_clear_beside_a_fenced_transaction_takes_one_timeout(elsewhere: Elsewhere) -> None:
    """A worker does this in its main thread, which also has other work and must notice signals."""
    lease = take()
    expire()
    seen = lock()

    locked: list[str] = []

    def note(execute: Execute, sql: str, *others: Any) -> Any:
        try:
            return execute(sql, *others)
        except OperationalError:
            locked.append(sql)
            raise

    def clear_impatiently() -> bool:
        with connection.cursor() as cursor:
            cursor.execute("PRAGMA busy_timeout = 1")
        with connection.execute_wrapper(note):
            return clear(seen)

    with lease.atomic():
        assert not elsewhere(clear_impatiently).result(PATIENCE)
    assert len(locked) <= 1
