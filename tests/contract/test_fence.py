"""The fence: it only grows, and no late write gets past it."""

from __future__ import annotations

import time
from contextlib import suppress
from datetime import timedelta
from threading import Event
from typing import TYPE_CHECKING

import pytest
from django.db import OperationalError, connection, transaction

from django_singlejob import LeaseLost, UnsafeTransaction, job_lock
from django_singlejob.clock import local_now
from django_singlejob.locking.clear import clear
from django_singlejob.locking.liveness import Watch
from django_singlejob.locking.request import Reason, Refusal
from django_singlejob.querysets.locks import locks
from tests.app.models import Counter
from tests.contract.acts import BEAT, ask, everything, expire, gate, lock, lose, nth_fence, pass_gate, start_run, take
from tests.databases import APPS

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from django_singlejob.models import JobLock
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


@pytest.mark.slow
@pytest.mark.parametrize(
    "terms",
    [{}, {"job_name": "nightly", "trigger": "call"}, {"job_name": "orders", "trigger": "call"}],
    ids=["block", "job", "job with a shared lock"],
)
def test_a_grant_in_between_is_never_given_the_same_fence(terms: dict[str, str], ahead: Ahead) -> None:
    """Another process passes the gate and is gone again, just after we looked at the gate."""
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


@pytest.mark.on_database("postgresql", "mysql")
def test_a_connection_that_died_while_it_was_idle_is_replaced(elsewhere: Elsewhere) -> None:
    lease = take()
    elsewhere(end_session, session()).result(10)
    with lease.atomic():
        Counter.objects.create(name="orders")
    assert Counter.objects.exists()


def session() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()" if connection.vendor == "postgresql" else "SELECT CONNECTION_ID()")
        return int(cursor.fetchone()[0])


def end_session(number: int) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(%s)" if connection.vendor == "postgresql" else "KILL %s", [number])
    time.sleep(0.2)


@pytest.mark.on_database("postgresql", "mysql")
@pytest.mark.parametrize("is_robbed", [True, False], ids=["by a successor", "by others"])
def test_a_conflict_behind_the_fence_is_a_loss_if_it_is_with_a_successor(elsewhere: Elsewhere, is_robbed: bool) -> None:
    """For example between two nodes of a cluster, when the gate that one node holds is passed on the other."""
    lease = take()
    with pytest.raises(LeaseLost if is_robbed else OperationalError), lease.atomic():
        conflict_in_the_block(elsewhere, is_robbed=is_robbed)
    assert lease.lost is is_robbed


def conflict_in_the_block(elsewhere: Elsewhere, *, is_robbed: bool) -> None:
    give_up_the_gate()
    if is_robbed:
        elsewhere(pass_gate).result(10)
    conflict()


@pytest.mark.on_database("postgresql", "mysql")
def test_a_conflict_is_told_at_once_though_somebody_else_is_at_the_gate(elsewhere: Elsewhere) -> None:
    lease, inside, leave = take(), Event(), Event()

    def stay() -> None:
        with lease.atomic():
            inside.set()
            leave.wait(20)

    stayed = elsewhere(stay)
    assert inside.wait(10)
    began_at = time.monotonic()
    with pytest.raises(OperationalError), lease._explained("default"):
        conflict()
    assert time.monotonic() - began_at < 10
    leave.set()
    stayed.result(10)


def give_up_the_gate() -> None:
    with connection.cursor() as cursor:
        cursor.execute("ROLLBACK")
        cursor.execute("BEGIN")


def conflict() -> None:
    """Raise the error of a database that has rolled back a transaction in favor of another."""
    failures = {
        "postgresql": "DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '40001'; END $$",
        "mysql": "SIGNAL SQLSTATE '40001' SET MYSQL_ERRNO = 1213",
    }
    with connection.cursor() as cursor:
        cursor.execute(failures[connection.vendor])


@pytest.mark.slow
@pytest.mark.parametrize("is_committed", [True, False])
def test_a_transaction_of_three_leases_costs_a_healthy_holder_nothing(elsewhere: Elsewhere, is_committed: bool) -> None:
    """A rival asks the whole time. On SQLite, the transaction lets no heartbeat through, and the lease expires."""
    done = Event()
    with job_lock("nightly", lease=timedelta(seconds=1)) as lease:
        rival: Future[list[object]] = elsewhere(keep_asking, done)
        try:
            with lease.atomic():
                Counter.objects.create(name="orders")
                for _ in range(30):
                    time.sleep(0.1)
                    assert not lease.lost
                transaction.set_rollback(not is_committed)
            time.sleep(0.5)  # long enough for a rival to have watched a dead holder
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


def watch(seen: JobLock) -> bool:
    """Watch a row that does not change until its holder counts as dead."""
    watch = Watch()
    deadline = time.monotonic() + 60 * BEAT.total_seconds()
    while watch.look(seen, local_now()) != timedelta():
        assert time.monotonic() < deadline
        time.sleep(watch.pause(seen))
    return True


@pytest.mark.on_database("postgresql", "mysql")
@pytest.mark.parametrize("is_committed", [True, False])
def test_a_holder_that_trusts_itself_after_its_block_is_not_robbed_by_a_watch_from_before(
    elsewhere: Elsewhere, is_committed: bool
) -> None:
    """The heartbeats continued during the block, so this is not the row that was watched."""
    with job_lock("nightly", lease=6 * BEAT) as lease:
        expire()
        seen = lock()
        assert elsewhere(watch, seen).result(30)
        with lease.atomic():
            wait_for_heartbeats(elsewhere, seen.heartbeats + 2)
            transaction.set_rollback(not is_committed)
        before = lock()
        assert not elsewhere(locks().take_over, seen, {"pid": 5}).result(30)
        assert elsewhere(clear, seen).result(30) is False
        lease.check()
        assert lock().token == before.token


def wait_for_heartbeats(elsewhere: Elsewhere, count: int) -> None:
    deadline = time.monotonic() + 30
    while elsewhere(lock).result(30).heartbeats < count:
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.slow
@pytest.mark.on_database("sqlite")
@pytest.mark.parametrize("ends", ["commits", "is rolled back", "fails"])
def test_where_no_heartbeat_gets_through_the_block_is_one_itself(elsewhere: Elsewhere, ends: str) -> None:
    """A watch that finished before or during the block does not rob the holder right after it."""
    lease = take(heartbeat_interval=BEAT)
    expire()
    seen = lock()
    with suppress(ZeroDivisionError), lease.atomic():
        Counter.objects.create(name="orders")
        assert elsewhere(watch, seen).result(30)
        rival = elsewhere(locks().take_over, seen, {"pid": 5})
        transaction.set_rollback(ends == "is rolled back")
        lease.check()
        if ends == "fails":
            raise ZeroDivisionError
    lease.check()
    assert rival.result(30) is False
    assert not lock().is_stale
    assert lock().heartbeats == seen.heartbeats + 1
    assert lease.deadline < float("inf")
    assert Counter.objects.exists() is (ends == "commits")


def delete_its_row_and_write() -> None:
    locks().all()._raw_delete("default")
    Counter.objects.create(name="orders")


@pytest.mark.on_database("sqlite")
def test_a_block_without_its_row_commits_nothing() -> None:
    lease = take()
    with pytest.raises(LeaseLost), lease.atomic():
        delete_its_row_and_write()
    assert not Counter.objects.exists()
    assert lease.lost


@pytest.mark.on_database("postgresql", "mysql")
def test_a_holder_that_sends_no_heartbeats_distrusts_itself_inside_the_block_too() -> None:
    lease = take(lease=3 * BEAT)
    with lease.atomic():
        lease.check()
        time.sleep(3 * BEAT.total_seconds())
        with pytest.raises(LeaseLost, match="was not renewed"):
            lease.check()


def test_a_fenced_transaction_is_its_own() -> None:
    lease = take()
    with transaction.atomic(), pytest.raises(UnsafeTransaction), lease.atomic():
        pytest.fail("it came in")
    with lease.atomic(), pytest.raises(UnsafeTransaction), lease.atomic():
        pytest.fail("it came in")
    assert gate().token == lease.token


@pytest.mark.on_database("postgresql", "mysql")
def test_a_statement_that_ends_the_transaction_opens_no_gap(elsewhere: Elsewhere) -> None:
    """DDL on MySQL does this. From then on another process may take over, and then nothing more is committed."""
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


@pytest.mark.slow
def test_nobody_takes_over_while_a_fenced_transaction_is_open(elsewhere: Elsewhere) -> None:
    """This also holds for a holder without heartbeats: its writes are committed before the next holder begins."""
    lease = take()
    expire()
    with lease.atomic():
        rival = elsewhere(ask)
        time.sleep(0.4)
        assert not rival.done()
        Counter.objects.create(name="orders")
    if connection.vendor == "sqlite":  # the block has renewed the lease
        assert isinstance(rival.result(10), Refusal)
        lease.check()
        return
    assert rival.result(10).fence == nth_fence(2)
    with pytest.raises(LeaseLost), lease.atomic():
        pytest.fail("it came in")


@pytest.mark.on_database("postgresql", "mysql")
def test_who_would_take_over_does_not_wait_for_the_end_of_a_fenced_transaction(elsewhere: Elsewhere) -> None:
    """On MySQL each attempt would wait for almost a minute."""
    lease = take()
    expire()
    with lease.atomic():
        answer = elsewhere(ask).result(20)
    assert isinstance(answer, Refusal)
    assert answer.reason == Reason.UNDECIDED


@pytest.mark.on_database("postgresql", "mysql")
@pytest.mark.parametrize("force", [True, False])
def test_nobody_clears_a_lock_while_a_fenced_transaction_is_open(elsewhere: Elsewhere, force: bool) -> None:
    """Clearing gives up after a while and may be retried. On MySQL it would otherwise wait for almost a minute."""
    lease = start_run()
    expire()
    seen = lock()
    with lease.atomic():
        Counter.objects.create(name="orders")
        held = everything()
        assert elsewhere(clear, seen, force=force).result(30) is False
        assert everything() == held
    assert lock() == seen
    assert Counter.objects.exists()
    assert clear(seen, force=force)
    with pytest.raises(LeaseLost), lease.atomic():
        pytest.fail("it came in")


@pytest.mark.on_database("postgresql", "mysql")
def test_it_says_that_somebody_is_inside_a_fenced_transaction(elsewhere: Elsewhere) -> None:
    lease = take()
    expire()
    with lease.atomic():
        answer = elsewhere(ask).result(60)
    assert isinstance(answer, Refusal)
    assert answer.reason == Reason.UNDECIDED
    assert "or are inside a fenced transaction" in answer.detail
