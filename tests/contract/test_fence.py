"""The fence: it only grows, and nothing that is written behind it can come too late."""

from __future__ import annotations

import time
from datetime import timedelta
from threading import Event
from typing import TYPE_CHECKING

import pytest
from django.db import connection, transaction

from django_singlejob import LeaseLost, UnsafeTransaction, job_lock
from django_singlejob.acquisition import Refusal
from django_singlejob.clearing import clear
from django_singlejob.querysets import locks
from django_singlejob.watch import Watch
from tests.app.models import Counter
from tests.contract.acts import BEAT, ask, everything, expire, gate, lock, lose, pass_gate, start_run, take
from tests.databases import APPS

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from tests.children import Spawn
    from tests.contract.conftest import Ahead, Elsewhere

pytestmark = pytest.mark.django_db(transaction=True, available_apps=APPS)


def test_the_fence_grows_whatever_becomes_of_the_lock(spawn: Spawn) -> None:
    fences = [take().fence]
    expire()
    fences.append(take().fence)
    locks().filter(name="nightly").delete()
    fences.append(take().fence)
    clear(lock(), force=True)
    lease = take()
    fences.append(lease.fence)
    lease.release()
    child = spawn.code("from tests.contract.acts import take; print(take().fence)")
    assert child.finish() == 0
    fences += [int(child.output), take().fence]
    assert sorted(set(fences)) == fences


@pytest.mark.parametrize(
    "terms",
    [{}, {"job_name": "nightly", "trigger": "call"}, {"job_name": "orders", "trigger": "call"}],
    ids=["block", "job", "job with a shared lock"],
)
def test_a_grant_in_between_is_never_given_the_same_fence(terms: dict[str, str], ahead: Ahead) -> None:
    """Somebody passes the gate, and is gone again, just after we looked at it."""
    before = take(**terms)
    before.release()
    ahead(pass_gate)
    assert take(**terms).fence == before.fence + 2


def test_what_is_written_behind_the_fence_is_committed() -> None:
    lease = take()
    with lease.atomic():
        Counter.objects.create(name="orders", value=1)
    assert Counter.objects.get().value == 1
    lease.check()


def test_what_fails_behind_the_fence_is_rolled_back() -> None:
    lease = take()
    with pytest.raises(ZeroDivisionError), lease.atomic():
        Counter.objects.create(name="orders", value=1 / 0)
    assert not Counter.objects.exists()
    lease.check()


def test_who_was_robbed_writes_nothing() -> None:
    zombie, _ = lose()
    before = everything()
    with pytest.raises(LeaseLost, match="taken over"), zombie.atomic():
        pytest.fail("it came in")
    assert everything() == before
    assert zombie.lost


def test_who_was_cleared_writes_nothing() -> None:
    lease = take()
    assert clear(lock(), force=True)
    with pytest.raises(LeaseLost), lease.atomic():
        pytest.fail("it came in")


@pytest.mark.parametrize("is_committed", [True, False])
def test_a_transaction_of_three_leases_costs_a_healthy_holder_nothing(elsewhere: Elsewhere, is_committed: bool) -> None:
    """A rival tries the whole time. On SQLite no heartbeat gets through meanwhile, and the lease expires."""
    done = Event()
    with job_lock("nightly", lease=timedelta(seconds=1)) as lease:
        rival: Future[list[object]] = elsewhere(keep_asking, done)
        try:
            with lease.atomic():
                Counter.objects.create(name="orders")
                time.sleep(3)
                assert not lease.lost
                transaction.set_rollback(not is_committed)
            time.sleep(0.5)  # a rival that had seen a dead holder would have watched it for long enough now
        finally:
            done.set()
        answers = rival.result(30)
        lease.check()
    assert answers
    assert all(isinstance(answer, Refusal) for answer in answers)
    assert Counter.objects.exists() is is_committed


def keep_asking(done: Event) -> list[object]:
    answers: list[object] = []
    while not done.wait(0.01):
        answers.append(ask())
    return answers


@pytest.mark.on_database("postgresql", "mysql")
def test_heartbeats_pass_the_fence(elsewhere: Elsewhere) -> None:
    with job_lock("nightly", lease=timedelta(seconds=0.6)) as lease, lease.atomic():
        time.sleep(0.4)
        assert elsewhere(lock).result().heartbeats >= 2


def test_a_watch_does_not_begin_during_a_fenced_transaction(elsewhere: Elsewhere) -> None:
    """Where heartbeats cannot get through meanwhile, standing still is no sign of death."""
    lease = take(heartbeat_interval=BEAT)
    expire()
    seen = lock()
    watch = Watch()
    with lease.atomic():
        # It waits, or looks again and again.
        looks = [elsewhere(watch.is_over, seen)]
        for _ in range(4):
            time.sleep(BEAT.total_seconds())
            if looks[-1].done():
                looks.append(elsewhere(watch.is_over, seen))
    assert [look.result(30) for look in looks] == [False] * len(looks)
    assert not watch.is_over(seen)


def test_a_fenced_transaction_is_followed_by_the_heartbeat_that_was_due() -> None:
    lease = take(heartbeat_interval=BEAT)
    expire()
    with lease.atomic():
        time.sleep(2 * BEAT.total_seconds())
    assert not lock().is_stale
    assert lock().heartbeats == 1


def test_a_fenced_transaction_is_its_own() -> None:
    lease = take()
    with transaction.atomic(), pytest.raises(UnsafeTransaction), lease.atomic():
        pytest.fail("it came in")
    with lease.atomic(), pytest.raises(UnsafeTransaction), lease.atomic():
        pytest.fail("it came in")
    assert gate().token == lease.token


@pytest.mark.on_database("postgresql", "mysql")
def test_a_statement_that_ends_the_transaction_opens_no_gap(elsewhere: Elsewhere) -> None:
    """As DDL does on MySQL: from there on somebody else may come in, and then nothing more is committed."""
    lease = take()
    expire()
    with pytest.raises(LeaseLost), lease.atomic():
        end_transaction_and_write(lambda: elsewhere(take).result(10))
    assert not Counter.objects.exists()
    assert not lease.release()


def end_transaction_and_write(be_robbed: Callable[[], object]) -> None:
    with connection.cursor() as cursor:
        cursor.execute("COMMIT")
    be_robbed()
    Counter.objects.create(name="orders")


def test_nobody_takes_over_while_a_fenced_transaction_is_open(elsewhere: Elsewhere) -> None:
    """Not even from a holder that sends no heartbeats: what it writes is committed before the next one begins."""
    lease = take()
    expire()
    with lease.atomic():
        successor = elsewhere(take)
        time.sleep(0.4)
        assert not successor.done()
        Counter.objects.create(name="orders")
    assert successor.result(10).fence == 2
    with pytest.raises(LeaseLost), lease.atomic():
        pytest.fail("it came in")


@pytest.mark.on_database("postgresql", "mysql")
@pytest.mark.parametrize("force", [True, False])
def test_nobody_clears_a_lock_while_a_fenced_transaction_is_open(elsewhere: Elsewhere, force: bool) -> None:
    """Who tries gives up after a while, and may try again: on MySQL it would wait for almost a minute."""
    lease = start_run()
    expire()
    seen = lock()
    before = everything()
    with lease.atomic():
        Counter.objects.create(name="orders")
        assert elsewhere(clear, seen, force=force).result(30) is False
    assert everything() == before
    assert Counter.objects.exists()
    assert clear(seen, force=force)
    with pytest.raises(LeaseLost), lease.atomic():
        pytest.fail("it came in")
