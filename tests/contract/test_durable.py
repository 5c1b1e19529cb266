"""What was acknowledged is on disk and on a synchronous standby, whatever the role's settings."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import pytest
from django.db import OperationalError, connection, transaction

from django_singlejob import Lease, singleton_job
from django_singlejob.database import transactions
from django_singlejob.locking.acquire import Acquisition
from django_singlejob.locking.request import LockRequest
from django_singlejob.process.holder import this_process
from django_singlejob.running import enqueue
from django_singlejob.running.enqueue import Order
from tests.contract.acts import MINUTE, die_running, expire, fall_behind, scheduled, take, ticked
from tests.databases import APPS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [
    pytest.mark.django_db(transaction=True, available_apps=APPS),
    pytest.mark.on_database("postgresql"),
]


@contextmanager
def writes() -> Iterator[list[tuple[str, str]]]:
    """Every write of this thread, with the setting under which it is committed, as ("UPDATE", "on")."""
    found: list[tuple[str, str]] = []

    def note(execute: Callable[..., Any], sql: str, params: Any, many: bool, context: dict[str, Any]) -> Any:
        if (verb := sql.split(maxsplit=1)[0]) not in ("INSERT", "UPDATE", "DELETE"):
            return execute(sql, params, many, context)
        # A statement that is a transaction by itself may bring the setting along.
        around = connection.connection.transaction() if connection.get_autocommit() else nullcontext()
        with around, connection.connection.cursor() as cursor:
            done = execute(sql, params, many, context)
            cursor.execute("SHOW synchronous_commit")
            found.append((verb, cursor.fetchone()[0]))
        return done

    with connection.cursor() as cursor:
        cursor.execute("SET synchronous_commit = off")
    try:
        with connection.execute_wrapper(note):
            yield found
    finally:
        connection.close()


def order() -> Order:
    return Order(job_name="nightly")


def test_a_heartbeat_is_durable() -> None:
    lease = take()
    with writes() as found:
        lease.renew()
    assert found == [("UPDATE", "on")]


def test_a_grant_that_is_adopted_is_durable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The grant may be only on this server, because its COMMIT was cut off."""
    terms: dict[str, Any] = {"lease": MINUTE, "heartbeat_interval": None, "holder": this_process()}
    acquisition, usual, cuts = Acquisition(LockRequest(name="nightly", **terms)), transactions.durable, [None]

    @contextmanager
    def cut(alias: str, **limits: Any) -> Iterator[None]:
        with usual(alias, **limits):
            yield
        if cuts:
            raise OperationalError("The connection was lost behind the COMMIT.", cuts.pop())

    monkeypatch.setattr(transactions, "durable", cut)
    assert isinstance(acquisition.ask(), float)
    with writes() as found:
        assert isinstance(acquisition.ask(), Lease)
    assert found == [("UPDATE", "on")]


def test_an_order_that_stands_alone_is_durable() -> None:
    with writes() as found:
        order().enqueue()
    assert found == [("INSERT", "on")]


@pytest.mark.parametrize("most_rows", [1000, 2])
def test_many_orders_are_durable(most_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enqueue, "MOST_ROWS", most_rows)
    with writes() as found:
        order().enqueue_many([((), {})] * 4)
    assert found == [("INSERT", "on")] * -(-4 // most_rows)


def test_an_order_in_the_callers_transaction_is_as_durable_as_that() -> None:
    with writes() as found, transaction.atomic():
        order().enqueue()
    assert found == [("INSERT", "off")]


def test_an_order_is_the_callers_where_autocommit_is_off() -> None:
    with writes() as found:
        transaction.set_autocommit(False)
        order().enqueue()
        transaction.rollback()
        transaction.set_autocommit(True)
    assert found == [("INSERT", "off")]


def test_all_that_decides_is_durable() -> None:
    """A run, a takeover, and a schedule that moves on. Not the gate of a new name, which a crash may lose."""
    nightly = singleton_job("nightly")(lambda: None)
    hourly = scheduled("hourly")
    nightly()
    take("shop")
    expire("shop")
    fall_behind(hourly, slots=3)
    die_running(hourly)
    with writes() as found:
        nightly()
        take("shop")
        ticked()
    assert found
    assert {setting for _, setting in found} == {"on"}
