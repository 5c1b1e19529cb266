"""What a job's body leaves open or broken on its connection."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from django.db import connection, connections, transaction

from django_singlejob.database.transactions import (
    drop,
    durable,
    leave_no_transaction,
    refuse_open_transaction,
)
from django_singlejob.models.jobs import gates
from django_singlejob.tasks.pool import drop_dead

if TYPE_CHECKING:
    from collections.abc import Callable

pytest_plugins = "tests.fixtures"
pytestmark = pytest.mark.django_db(transaction=True, available_apps=["django_singlejob"])
breaks_connection = pytest.mark.usefixtures("breakable_connection")


def enter_atomic() -> None:
    transaction.atomic().__enter__()


def turn_autocommit_off() -> None:
    transaction.set_autocommit(False)


def begin_by_hand() -> None:
    with connection.cursor() as cursor:
        cursor.execute("BEGIN")


def break_connection() -> None:
    connection.connection.close()


def do_nothing() -> None: ...


def close() -> None:
    connection.close()


LEFTOVERS = [enter_atomic, turn_autocommit_off, begin_by_hand]


@breaks_connection
@pytest.mark.parametrize("leave_open", LEFTOVERS)
def test_an_open_transaction_is_rolled_back(leave_open: Callable[[], None]) -> None:
    leave_open()
    gates().create(name="nightly")
    leave_no_transaction("default")
    refuse_open_transaction("default")
    with durable("default"):
        assert not gates().exists()


@pytest.mark.parametrize("do", [do_nothing, close])
def test_where_nothing_is_open_nothing_is_done(do: Callable[[], None]) -> None:
    do()
    leave_no_transaction("default")
    assert not gates().exists()


@breaks_connection
@pytest.mark.parametrize("break_it", [do_nothing, break_connection])
@pytest.mark.parametrize("leave_open", [*LEFTOVERS, do_nothing])
def test_a_dropped_connection_is_a_new_one(leave_open: Callable[[], None], break_it: Callable[[], None]) -> None:
    leave_open()
    gates().create(name="nightly")
    break_it()
    drop("default")
    refuse_open_transaction("default")
    assert gates().count() == (leave_open is do_nothing)


@pytest.mark.parametrize("break_it", [do_nothing, break_connection])
@pytest.mark.parametrize("leave_open", [*LEFTOVERS, do_nothing])
def test_its_wrapper_stays(leave_open: Callable[[], None], break_it: Callable[[], None]) -> None:
    """A test runner closes the wrapper that it began with, and then drops the database."""
    before = connections["default"]
    leave_open()
    assert not gates().exists()
    break_it()
    drop("default")
    assert not gates().exists()
    assert connections["default"] is before


@breaks_connection
@pytest.mark.parametrize("break_it", [do_nothing, break_connection])
def test_what_was_to_be_done_after_the_commit_is_never_done(break_it: Callable[[], None]) -> None:
    done: list[str] = []
    enter_atomic()
    transaction.on_commit(lambda: done.append("the dropped one"))
    # As if the connection was lost just after a COMMIT.
    connection.run_commit_hooks_on_set_autocommit_on = True
    break_it()
    drop("default")
    with durable("default"):
        transaction.on_commit(lambda: done.append("the next one"))
    assert done == ["the next one"]


@breaks_connection
def test_a_block_that_ends_after_its_connection_was_dropped_commits_nothing() -> None:
    with transaction.atomic(), transaction.atomic():
        gates().create(name="nightly")
        drop("default")
    assert not gates().exists()
    with durable("default"):
        gates().create(name="nightly")
    assert gates().exists()


@breaks_connection
def test_a_connection_that_never_was_can_be_dropped() -> None:
    close()
    drop("default")
    assert not gates().exists()


@breaks_connection
def test_a_connection_that_was_closed_inside_a_transaction_can_be_dropped() -> None:
    enter_atomic()
    close()
    drop("default")
    assert not gates().exists()


@breaks_connection
def test_of_many_connections_only_the_dead_are_dropped() -> None:
    assert not gates().exists()
    living = connection.connection
    drop_dead()
    assert connection.connection is living
    if connection.vendor != "sqlite":  # a file is always there
        break_connection()
        drop_dead()
        assert not gates().exists()


@pytest.mark.django_db
def test_the_transaction_of_a_test_case_stays() -> None:
    gates().create(name="nightly")
    leave_no_transaction("default")
    drop("default")
    assert gates().exists()
