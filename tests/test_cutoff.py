"""A driver that would wait for ever: its connection is cut off."""

from __future__ import annotations

import os
import time
from threading import active_count, get_ident
from typing import TYPE_CHECKING

import pytest
from django.db import Error, connection, transaction

from django_singlejob.clock import local_now
from django_singlejob.cutoff import cut_off, cut_off_at
from django_singlejob.database import drop, is_connection_lost

if TYPE_CHECKING:
    from tests.proxy import Proxy

pytest_plugins = "tests.fixtures"
pytestmark = [
    pytest.mark.django_db(transaction=True, available_apps=["django_singlejob"]),
    pytest.mark.usefixtures("breakable_connection"),
]
with_a_server = pytest.mark.on_database("postgresql", "mysql")


def ask() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")


@pytest.fixture
def through_proxy(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> Proxy:
    connection.close()
    monkeypatch.setitem(connection.settings_dict, "HOST", "127.0.0.1")
    monkeypatch.setitem(connection.settings_dict, "PORT", proxy.port)
    ask()
    return proxy


@with_a_server
def test_what_waits_for_an_answer_fails_at_that_instant(through_proxy: Proxy) -> None:
    through_proxy.black_hole()
    begun_at = time.monotonic()
    with pytest.raises(Error) as caught, cut_off_at("default", local_now() + 0.5):
        ask()
    assert 0.4 < time.monotonic() - begun_at < 2
    assert is_connection_lost(caught.value)
    through_proxy.come_back()
    drop("default")
    ask()


@pytest.mark.slow
def test_whoever_is_answered_in_time_notices_nothing() -> None:
    threads = active_count()
    with cut_off_at("default", local_now() + 0.2):
        ask()
    time.sleep(0.3)
    ask()
    assert active_count() == threads


@with_a_server
def test_it_connects_so_that_there_is_something_to_cut() -> None:
    connection.close()
    with cut_off_at("default", local_now()):
        time.sleep(0.2)
        with pytest.raises(Error):
            ask()


@with_a_server
def test_a_connection_that_is_closed_already_is_not_cut() -> None:
    ask()
    connection.connection.close()
    threads = active_count()
    with cut_off_at("default", local_now() + 60):
        assert active_count() == threads  # no thread waits to cut anything


@with_a_server
def test_another_connection_under_the_same_number_is_not_cut() -> None:
    ask()
    with cut_off_at("default", local_now() + 0.3):
        number = connection.connection.fileno()
        connection.close()
        ask()
        assert connection.connection.fileno() in (number, number + 1, number + 2)
        time.sleep(0.5)
        ask()


@with_a_server
@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing forks here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_cuts_off_no_connection_of_its_parent() -> None:
    """Its threads may have the numbers of its parent's."""
    ask()
    child = os.fork()
    if not child:
        cut_off(get_ident())
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    ask()


def test_what_was_closed_inside_a_transaction_is_left_alone() -> None:
    with transaction.atomic():
        connection.close()
        with cut_off_at("default", local_now()):
            time.sleep(0.1)
    assert connection.connection is None
