from __future__ import annotations

import threading
import time
from collections import deque
from threading import Event
from typing import TYPE_CHECKING

import pytest
from django.db import connections

from django_singlejob.locking import crew as crew_module
from django_singlejob.locking.crew import Crew
from tests.locking.keeping import PATIENCE, threads, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from django.db.backends.base.base import BaseDatabaseWrapper

pytestmark = pytest.mark.django_db(transaction=True, available_apps=["django_singlejob"])

SOON = 0.1
LATE = 60.0


class Errands:
    """Work for a crew: each errand is a call."""

    def __init__(self, most: int = 6) -> None:
        self.left: deque[Callable[[], object]] = deque()
        self.crew = Crew("errands", self._run_one, lambda: bool(self.left), most)

    def add(self, errand: Callable[[], object], patience: float = SOON) -> float:
        self.left.append(errand)
        return self.crew.see_to_it(patience)

    def _run_one(self) -> None:
        try:
            errand = self.left.popleft()
        except IndexError:
            return
        errand()


@pytest.fixture
def errands(monkeypatch: pytest.MonkeyPatch) -> Iterator[Errands]:
    monkeypatch.setattr(crew_module, "IDLE", 0.2)
    yield Errands()
    wait_until(lambda: not threads("errands"))


def test_without_work_there_is_no_thread(errands: Errands) -> None:
    assert errands.crew.see_to_it(SOON) == float("inf")
    assert threads("errands") == []


def test_one_thread_does_one_errand_after_another_and_ends_when_there_is_nothing_to_do(errands: Errands) -> None:
    done: list[str] = []
    for number in range(5):
        errands.add(lambda: done.append(threading.current_thread().name))
        wait_until(lambda number=number: len(done) > number)  # type: ignore[misc]
        time.sleep(0.02)
    assert set(done) == {"errands 1"}
    wait_until(lambda: not threads("errands"))
    errands.add(lambda: done.append(threading.current_thread().name))
    wait_until(lambda: done[-1] == "errands 2")


def test_a_thread_without_work_has_no_connection(errands: Errands) -> None:
    wrappers: list[BaseDatabaseWrapper] = []

    def connect() -> None:
        wrappers.append(connections["default"])
        connections["default"].ensure_connection()

    errands.add(connect)
    wait_until(lambda: any(hand.is_idle for hand in errands.crew._hands))
    assert [wrapper.connection for wrapper in wrappers] == [None]


def test_another_thread_joins_only_when_all_have_been_away_for_long_enough(errands: Errands) -> None:
    go_on, done = Event(), Event()
    errands.add(lambda: go_on.wait(PATIENCE))
    wait_until(lambda: not errands.left)
    errands.add(done.set, LATE)
    assert threads("errands") == ["errands 1"]
    time.sleep(2 * SOON)
    errands.crew.see_to_it(SOON)
    assert done.wait(PATIENCE)
    go_on.set()


def test_it_says_when_to_look_again(errands: Errands) -> None:
    go_on = Event()
    first_at = errands.add(lambda: go_on.wait(PATIENCE), LATE)
    wait_until(lambda: not errands.left)
    again_at = errands.add(go_on.set, LATE)
    assert abs(again_at - first_at) < 1
    go_on.set()


def test_there_are_never_more_threads_than_allowed() -> None:
    errands, go_on = Errands(most=2), Event()
    for _ in range(4):
        errands.add(lambda: go_on.wait(PATIENCE), 0.0)
        time.sleep(0.02)
    assert len(threads("errands")) == 2
    go_on.set()
    wait_until(lambda: not errands.left)
    wait_until(lambda: not threads("errands"))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_an_error_ends_is_replaced(errands: Errands) -> None:
    done = Event()
    errands.add(lambda: 1 / 0)
    wait_until(lambda: not threads("errands"))
    errands.add(done.set)
    assert done.wait(PATIENCE)


def test_a_thread_that_does_not_heed_its_call_counts_as_away(errands: Errands) -> None:
    done = Event()
    errands.add(lambda: None)
    wait_until(lambda: any(hand.is_idle for hand in errands.crew._hands))
    (hand,) = errands.crew._hands
    hand._called = Event()  # it waits for the one that it had
    errands.add(done.set, 0.01)
    assert not hand.is_idle
    time.sleep(0.02)
    errands.crew.see_to_it(0.01)
    assert done.wait(PATIENCE)


@pytest.mark.slow
def test_no_errand_is_left_behind_when_a_thread_is_about_to_end(
    errands: Errands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crew_module, "IDLE", 0.001)
    for number in range(300):
        done = Event()
        errands.add(done.set, LATE)
        assert done.wait(5), number
        time.sleep(0.00001 * number)
