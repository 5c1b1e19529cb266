"""How rows are inserted: with how many statements, all of them or none, and returned as they were stored."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from django.db import Error, OperationalError, connection, transaction

from django_singlejob.models.one_offs import one_offs
from django_singlejob.process.clock import DBNow
from django_singlejob.running import enqueue
from django_singlejob.running.enqueue import Order, place
from tests.app.models import Counter
from tests.contract.acts import HOUR, in_thread
from tests.databases import APPS

if TYPE_CHECKING:
    from collections.abc import Callable

    from django_singlejob.models import OneOffJob
    from django_singlejob.running.enqueue import AnyCall

pytestmark = pytest.mark.django_db(transaction=True, available_apps=APPS)

ORDERS = [
    Order(job_name="mail", max_attempts=3),
    Order(task_path="shop.tasks.mail", backend="default", priority=-7, queue_name="slow"),
    Order(job_name="mail", run_after=datetime(2030, 1, 1, 12, 30, 15, 123456, tzinfo=UTC)),
]
#: Texts of many lengths, so that no database derives a column's type from the first of them.
CALLS: list[tuple[list[Any], dict[str, Any]]] = [
    ([], {}),
    ([1.5, None, True], {"a": "h\u00e9 \U0001f600 'quoted' %s \\\\"}),
    (["x" * 70_000], {"long": ["y" * 70_000]}),
    ([2**62], {"": {}}),
]


def columns_of(row: OneOffJob) -> dict[str, Any]:
    return {field.attname: row.__dict__[field.attname] for field in row._meta.concrete_fields}


@pytest.mark.parametrize("order", ORDERS, ids=["job", "task", "later"])
def test_what_is_returned_is_what_was_stored(order: Order) -> None:
    rows = [order.enqueue(1, two="3"), *order.enqueue_many(CALLS)]
    assert [(row.args, row.kwargs) for row in rows] == [([1], {"two": "3"}), *CALLS]
    stored = list(one_offs().order_by("pk"))
    assert [columns_of(row) for row in rows] == [columns_of(row) for row in stored]
    assert rows == stored


def test_other_columns_may_be_values_and_expressions() -> None:
    row = place(ORDERS[0], [], {}, status="done", requested_by="ada", finished_at=DBNow() - HOUR)
    assert columns_of(row) == columns_of(one_offs().get())
    assert (row.status, row.requested_by) == ("done", "ada")
    assert row.finished_at
    assert row.created_at - row.finished_at == HOUR


# --- statements


def test_one_takes_a_statement(django_assert_num_queries: Any) -> None:
    is_told = connection.features.can_return_rows_from_bulk_insert
    with transaction.atomic(), django_assert_num_queries(1 if is_told else 2):
        ORDERS[0].enqueue(1)


def inserts(act: Callable[[], object]) -> int:
    """How many INSERTs it takes."""
    verbs: list[str] = []

    def note(execute: Callable[..., Any], sql: str, *others: Any) -> Any:
        verbs.append(sql.split(maxsplit=1)[0])
        return execute(sql, *others)

    with connection.execute_wrapper(note):
        act()
    return verbs.count("INSERT")


def test_five_hundred_take_a_few_statements() -> None:
    if not connection.features.can_return_rows_from_bulk_insert:
        pytest.skip("MySQL returns no keys")
    most = 1 if connection.features.max_query_params is None else 20  # SQLite limits the parameters
    calls: list[AnyCall] = [(("x" * (number % 7), number), {}) for number in range(500)]
    rows: list[OneOffJob] = []
    assert inserts(lambda: rows.extend(ORDERS[0].enqueue_many(calls))) <= most
    assert [tuple(row.args) for row in rows] == [args for args, _ in calls]
    assert [(row.pk, row.args) for row in rows] == list(one_offs().order_by("pk").values_list("pk", "args"))


def test_each_is_returned_with_its_own_key_however_long_its_arguments_are() -> None:
    """MariaDB reads long rows in another order."""
    rows = ORDERS[0].enqueue_many([(["x" * 5000 if number % 10 == 0 else "x", number], {}) for number in range(1000)])
    assert [(row.pk, row.args) for row in rows] == list(one_offs().order_by("pk").values_list("pk", "args"))


@pytest.mark.on_database("sqlite")  # a thousand rows have fewer than a server accepts, and Django 5.2 asks none
def test_a_statement_has_no_more_parameters_than_the_database_accepts(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: list[int] = []

    def note(execute: Callable[..., Any], sql: str, params: Any, *others: Any) -> Any:
        lengths.append(len(params or ()))
        return execute(sql, params, *others)

    monkeypatch.setattr(type(connection.features), "max_query_params", 60)
    monkeypatch.delitem(vars(connection.features), "max_query_params", raising=False)  # of a cached property
    with connection.execute_wrapper(note):
        rows = ORDERS[0].enqueue_many([((number,), {}) for number in range(50)])
    assert 20 < max(lengths) <= 60
    assert [row.args for row in one_offs().order_by("pk")] == [row.args for row in rows] == [[n] for n in range(50)]


def test_a_statement_is_hardly_longer_than_for_one_with_the_longest_arguments() -> None:
    if not connection.features.can_return_rows_from_bulk_insert:
        pytest.skip("MySQL returns no keys")
    assert inserts(lambda: ORDERS[0].enqueue_many([(["x" * 400_000], {})] * 5)) == 3


# --- all of them or none


def fail_at_the_second() -> Callable[..., Any]:
    found: list[str] = []

    def execute_or_fail(execute: Callable[..., Any], sql: str, *others: Any) -> Any:
        if sql.startswith("INSERT"):
            found.append(sql)
            if len(found) == 2:
                raise OperationalError("The server is tired.")
        return execute(sql, *others)

    return execute_or_fail


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enqueue, "MOST_ROWS", 2)


def enqueue_in_vain() -> None:
    with connection.execute_wrapper(fail_at_the_second()), pytest.raises(OperationalError, match="tired"):
        ORDERS[0].enqueue_many([((), {})] * 6)


@pytest.mark.usefixtures("small_batches")
def test_if_a_statement_fails_nothing_stays_of_those_before_it() -> None:
    enqueue_in_vain()
    assert not one_offs().exists()


@pytest.mark.usefixtures("small_batches")
def test_nor_in_a_transaction_whose_own_writes_stay() -> None:
    with transaction.atomic():
        Counter.objects.create(name="order")
        enqueue_in_vain()
    assert Counter.objects.filter(name="order").exists()
    assert not one_offs().exists()


def test_a_transaction_in_which_the_only_statement_failed_is_rolled_back() -> None:
    """As after any failed INSERT of Django's."""
    with suppress(transaction.TransactionManagementError), transaction.atomic():
        Counter.objects.create(name="order")
        with pytest.raises(OperationalError), connection.execute_wrapper(always_fail):
            ORDERS[0].enqueue()
    assert not Counter.objects.filter(name="order").exists()


def always_fail(*_: Any) -> Any:
    raise OperationalError("The server is tired.")


# --- after a lost connection


@pytest.mark.on_database("postgresql", "mysql")
@pytest.mark.parametrize("count", [1, 5])
@pytest.mark.usefixtures("small_batches")
def test_the_next_one_opens_a_new_connection(count: int) -> None:
    """In a thread that enqueues without ever ending a request."""
    end_session()
    with pytest.raises(Error):
        ORDERS[0].enqueue_many([((), {})] * count)
    ORDERS[0].enqueue_many([((), {})] * count)
    assert one_offs().count() == count


def end_session() -> None:
    own, kill = {
        "postgresql": ("pg_backend_pid()", "SELECT pg_terminate_backend({})"),
        "mysql": ("CONNECTION_ID()", "KILL {}"),
    }[connection.vendor]
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {own}")
        (session,) = cursor.fetchone()
    in_thread(partial(execute, kill.format(session)))


def execute(statement: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)


# --- without RETURNING


@pytest.mark.on_database("mysql")
def test_without_returning_each_row_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on MySQL: MariaDB has RETURNING."""
    monkeypatch.setattr(type(connection.features), "can_return_rows_from_bulk_insert", False)
    rows = [ORDERS[0].enqueue(0), *ORDERS[0].enqueue_many([((1,), {}), ((2,), {})])]
    assert [columns_of(row) for row in rows] == [columns_of(row) for row in one_offs().order_by("pk")]
    assert [row.args for row in rows] == [[0], [1], [2]]


@pytest.mark.on_database("postgresql")
def test_they_may_be_bound_by_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(connection.settings_dict["OPTIONS"], "server_side_binding", True)
    connection.close()
    try:
        rows = [*ORDERS[2].enqueue_many(CALLS), ORDERS[1].enqueue("100 %s", x=None)]
        assert [columns_of(row) for row in rows] == [columns_of(row) for row in one_offs().order_by("pk")]
    finally:
        connection.close()
