from __future__ import annotations

import sys
import threading
import time
from contextlib import closing
from threading import Event, Thread
from typing import TYPE_CHECKING

import pytest
from django.db import connection, transaction

from django_singlejob import calls
from django_singlejob.calls import Calls, frame_of_call
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.django_db(transaction=True, available_apps=["django_singlejob"])


def test_a_thread_that_asks_no_database_is_in_no_call() -> None:
    assert frame_of_call(sys._getframe()) is None
    assert threading.get_ident() not in Calls().look()


def test_nor_is_one_in_a_hook_that_is_called_on_commit() -> None:
    found = []
    with transaction.atomic():
        transaction.on_commit(lambda: found.append(frame_of_call(sys._getframe())))
    assert found == [None]


def test_a_call_grows_older_until_it_returns(asking: Asking) -> None:
    seen = Calls()
    asking.begin()
    seen.look()
    time.sleep(0.1)
    assert seen.look()[asking.thread].age >= 0.1
    asking.end()
    eventually(lambda: asking.thread not in seen.look())


def test_another_call_begins_anew(asking: Asking) -> None:
    seen = Calls()
    asking.begin()
    first = seen.look()[asking.thread]
    asking.end()
    asking.begin()
    second = seen.look()[asking.thread]
    assert second.frame is not first.frame
    assert second.seen_at > first.seen_at
    asking.end()


class Asking:
    """A thread that makes database calls."""

    def __init__(self) -> None:
        self._turn, self._begun, self._goes_on = Event(), Event(), Event()
        self._is_over = False
        self._thread = Thread(target=self._work)
        self._thread.start()

    @property
    def thread(self) -> int:
        return self._thread.ident or 0

    def begin(self) -> None:
        self._turn.set()
        assert self._begun.wait(30)
        self._begun.clear()

    def end(self) -> None:
        self._goes_on.set()

    def leave(self) -> None:
        self._is_over = True
        self._turn.set()
        self._goes_on.set()
        self._thread.join()

    def _work(self) -> None:
        connection.ensure_connection()
        # Inside the call, like the driver.
        with closing(connection), connection.execute_wrapper(self._hang), connection.cursor() as cursor:
            while self._turn.wait() and not self._is_over:
                self._turn.clear()
                cursor.execute("SELECT 1")

    def _hang(self, execute: Callable[..., object], *call: object) -> object:
        self._begun.set()
        self._goes_on.wait(30)
        self._goes_on.clear()
        return execute(*call)


@pytest.fixture
def asking(monkeypatch: pytest.MonkeyPatch) -> Iterator[Asking]:
    monkeypatch.setattr(calls, "_DRIVERS", {__name__.partition(".")[0]})
    asking = Asking()
    yield asking
    asking.leave()
