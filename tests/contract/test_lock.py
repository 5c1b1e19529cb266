"""What a lock is: the first to ask gets it, all others learn this at once, and it is released once."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from django.db import transaction

from django_singlejob import InvalidName, LeaseLost, LockHeld, job_lock, singleton_job
from django_singlejob.locking.request import Reason, Refusal
from django_singlejob.models.jobs import gates
from django_singlejob.models.locks import locks
from tests.app.models import Counter
from tests.contract.acts import MINUTE, ask, everything, gate, is_free, lock, lose, nth_fence, take, win
from tests.databases import APPS
from tests.waiting import PATIENCE, a_moment, seconds_of

if TYPE_CHECKING:
    from typing import Any

    from tests.contract.conftest import Ahead, Elsewhere

pytestmark = pytest.mark.django_db(transaction=True, available_apps=APPS)


def test_a_free_lock_is_granted() -> None:
    lease = take()
    assert (lock().token, gate().token) == (lease.token, lease.token)
    assert lease.fence == gate().fence == nth_fence(1)
    assert not lease.lost


def test_the_lease_knows_the_databases_times() -> None:
    lease = take(lease=timedelta(minutes=5))
    tolerance = timedelta(minutes=1)
    assert abs(lease.acquired_at - lock().acquired_at) < tolerance
    assert abs(lease.expires_at - lock().expires_at) < tolerance


def test_the_second_is_refused_at_once_and_writes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    take()
    before = everything()
    monkeypatch.setattr("django_singlejob.locking.acquire.sleep", pytest.fail)
    answer = ask()
    assert isinstance(answer, Refusal)
    assert (answer.reason, answer.lock) == (Reason.HELD, lock())
    assert everything() == before


def test_two_names_are_held_together() -> None:
    leases = take("nightly"), take("hourly")
    assert all(lease.release() for lease in leases)


def test_ten_cycles_without_a_pause() -> None:
    for cycle in range(1, 11):
        lease = take()
        assert isinstance(ask(), Refusal)
        assert lease.release()
        assert lease.fence == nth_fence(cycle)


def test_releasing_twice_frees_nobody_else() -> None:
    first = take()
    assert first.release()
    second = take()
    assert not first.release()
    assert lock().token == second.token


def test_a_late_release_cannot_free_the_successor_on_the_same_host_with_the_same_pid() -> None:
    zombie, successor = lose()
    assert not zombie.release()
    assert lock().token == successor.token
    assert successor.release()


def test_a_renewal_moves_the_end_and_counts() -> None:
    lease = take()
    locks().update(expires_at=lease.acquired_at)
    lease.renew()
    assert lock().heartbeats == 1
    assert abs(lock().expires_at - lease.expires_at) < timedelta(seconds=30)


def test_a_released_lease_is_good_for_nothing() -> None:
    lease = take()
    lease.release()
    assert lease.lost
    for use in lease.check, lease.renew, lease.atomic().__enter__:
        with pytest.raises(LeaseLost, match="released"):
            use()
    assert is_free()


def test_a_block_holds_the_lock_and_gives_it_back_whatever_happens() -> None:
    with job_lock("nightly") as lease:
        assert lock().token == lease.token
        with pytest.raises(LockHeld, match=r"'nightly' has been held by .*, pid \d+ since"), job_lock("nightly"):
            pytest.fail("both are in")
    assert is_free()
    with pytest.raises(ZeroDivisionError), job_lock("nightly"):
        _ = 1 / 0
    assert is_free()


@pytest.mark.slow
def test_who_waits_gets_it_when_it_is_released(elsewhere: Elsewhere) -> None:
    first = take()
    second = elsewhere(take, wait=MINUTE)
    a_moment()
    assert not second.done()
    first.release()
    assert second.result(PATIENCE).fence == nth_fence(2)


@pytest.mark.slow
def test_patience_ends() -> None:
    take()
    answers: list[object] = []
    assert seconds_of(lambda: answers.append(ask(wait=timedelta(seconds=0.3)))) >= 0.3
    assert [type(answer) for answer in answers] == [Refusal]


@pytest.mark.slow
def test_a_race_lost_by_a_hair_is_quiet_and_leaves_the_connection_usable(
    ahead: Ahead, caplog: pytest.LogCaptureFixture
) -> None:
    take().release()
    caplog.set_level(logging.DEBUG)
    winner = ahead(win)
    assert isinstance(ask(), Refusal)
    assert [record for record in caplog.records if record.levelno > logging.INFO] == []
    with transaction.atomic():
        Counter.objects.create(name="still usable")
    winner.result()
    assert gate().fence == nth_fence(2)


BAD_NAMES = [
    *("", "Nightly", "NIGHTLY", "n" * 201, "nächtlich", "nightly\0", "nightly ", "nightly\n", " nightly", "\n"),
    *("night ly", "_nightly", "nightly\N{NO-BREAK SPACE}", "\N{FULLWIDTH LATIN SMALL LETTER N}ightly", None, 5),
]


@pytest.mark.parametrize("name", BAD_NAMES, ids=ascii)
def test_bad_names_are_refused_alike(name: Any) -> None:
    with pytest.raises(InvalidName, match="use 1 to 200 of the characters"), job_lock(name):
        pytest.fail("it was granted")
    with pytest.raises(InvalidName):
        singleton_job("nightly", lock=name or " ")(print)
    if name is not None:
        with pytest.raises(InvalidName):
            singleton_job(name)(print)
    assert not gates().exists()


def test_the_longest_and_the_shortest_names_are_kept_apart() -> None:
    names = ["n" * 200, "n" * 199, "n", "n.", "n:", "n-", "n_", "0"]
    for name in names:
        take(name)
    assert sorted(locks().values_list("name", flat=True)) == sorted(names)
