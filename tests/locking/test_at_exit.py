from __future__ import annotations

from threading import Event, Thread
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from django_singlejob import Lease, status
from django_singlejob.locking import at_exit
from django_singlejob.models.jobs import gates
from tests.contract.acts import (
    ask_for_slot,
    closing,
    fall_behind,
    is_free,
    last_run,
    lock,
    lose,
    run_slot,
    scheduled,
    slots_run,
    start_run,
    take,
)
from tests.waiting import PATIENCE, eventually

if TYPE_CHECKING:
    from tests.fixtures import Away, Elsewhere

pytest_plugins = "tests.fixtures"
pytestmark = [
    pytest.mark.usefixtures("fresh_process"),
    pytest.mark.django_db(transaction=True, available_apps=["django_singlejob"]),
]


def test_what_is_still_held_is_released_and_its_run_interrupted() -> None:
    take("block")
    start_run()
    at_exit.release_at_exit()
    assert is_free()
    assert is_free("block")
    assert (last_run().status, last_run().error) == ("interrupted", "The process exited.")
    assert at_exit._granted == {}


@pytest.mark.parametrize(("most", "outcome"), [(3, "successful"), (1, "skipped")])
def test_the_slot_of_a_run_that_has_not_begun_is_run_again_as_after_a_death(most: int, outcome: str) -> None:
    job = scheduled(max_attempts=most)
    fall_behind(job)
    lease = ask_for_slot(job)
    assert isinstance(lease, Lease)
    at_exit.announce(lease.token, lease.name)
    at_exit.release_at_exit()
    assert is_free()
    assert [found.kind for found in status().findings] == ["failing"]
    assert run_slot(job).status == outcome
    assert slots_run()[0][1:] == (1, "interrupted")


def test_the_slot_of_a_run_that_may_have_begun_is_not() -> None:
    job = scheduled()
    fall_behind(job)
    ask_for_slot(job)
    at_exit.release_at_exit()
    assert run_slot(job).status == "skipped"


def test_what_was_released_is_forgotten() -> None:
    take().release()
    assert at_exit._granted == {}


def test_a_successor_is_left_alone() -> None:
    zombie, successor = lose()
    at_exit.forget(successor.token)
    assert [*at_exit._granted] == [zombie.token]
    at_exit.release_at_exit()
    assert lock().token == successor.token


def test_a_row_of_ours_behind_which_somebody_passed_the_gate_is_left_alone() -> None:
    lease = start_run()
    gates().update(token=uuid4())
    at_exit.release_at_exit()
    assert lock().token == lease.token
    assert last_run().status == "running"


def test_what_was_never_announced_is_not_released() -> None:
    lease = take()
    at_exit.forget(lease.token)
    at_exit.release_granted(lease.token)
    assert lock().token == lease.token


def test_what_cannot_be_released_is_left_to_expire(database_away: Away, caplog: pytest.LogCaptureFixture) -> None:
    take()
    with database_away():
        at_exit.release_at_exit()
    assert "The lock 'nightly' could not be released, and is left to expire: " in caplog.text
    assert [record.getMessage().count("\n") for record in caplog.records] == [0]
    assert not is_free()


def test_what_another_thread_may_go_on_with_is_left_to_expire(elsewhere: Elsewhere) -> None:
    done = Event()

    def hold() -> None:
        take()
        assert done.wait(PATIENCE)

    holding = elsewhere(hold)
    try:
        eventually(lambda: not is_free())
        at_exit.release_at_exit()
        assert not is_free()
    finally:
        done.set()
        holding.result(PATIENCE)


def test_but_not_what_a_dead_thread_has_left() -> None:
    thread = Thread(target=closing, args=[take])
    thread.start()
    thread.join(PATIENCE)
    at_exit.release_at_exit()
    assert is_free()
