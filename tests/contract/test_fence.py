"""The fence: it only grows, and no late write gets past it."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from threading import Event
from typing import TYPE_CHECKING, Any

import pytest
from django.db import OperationalError, connection, transaction

from django_singlejob import LeaseLost, UnsafeTransaction
from django_singlejob.locking.clear import clear
from django_singlejob.locking.liveness import Watch
from django_singlejob.locking.request import Reason, Refusal
from django_singlejob.models.locks import locks
from django_singlejob.process.clock import local_now
from tests.app.models import Counter
from tests.contract.acts import (
    BEAT,
    MINUTE,
    SECOND,
    age,
    ask,
    everything,
    expire,
    gate,
    lock,
    lose,
    nth_fence,
    pass_gate,
    patient,
    start_run,
    take,
)
from tests.databases import APPS
from tests.locking.heartbeat_thread import renew_during
from tests.waiting import PATIENCE, a_moment, eventually, work_for

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
    elsewhere(end_session, session()).result(PATIENCE)
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
        eventually(lambda: not is_there(cursor, number))


def is_there(cursor: Any, session: int) -> bool:
    table, key = SESSIONS[connection.vendor]
    cursor.execute(f"SELECT count(*) FROM {table} WHERE {key} = %s", [session])
    return bool(cursor.fetchone()[0])


SESSIONS = {"postgresql": ("pg_stat_activity", "pid"), "mysql": ("information_schema.processlist", "id")}


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
        elsewhere(pass_gate).result(PATIENCE)
    conflict()


@pytest.mark.on_database("postgresql", "mysql")
def test_a_conflict_is_told_at_once_though_somebody_else_is_at_the_gate(elsewhere: Elsewhere) -> None:
    lease, inside, leave = take(), Event(), Event()

    def stay() -> None:
        with lease.atomic():
            inside.set()
            assert leave.wait(PATIENCE)

    stayed = elsewhere(stay)
    assert inside.wait(PATIENCE)
    with pytest.raises(OperationalError), patient(), lease._explained("default"):
        conflict()
    assert not stayed.done()
    leave.set()
    stayed.result(PATIENCE)


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
    lease, done = take(lease=10 * SECOND, heartbeat_interval=SECOND), Event()
    rival: Future[list[object]] = elsewhere(keep_asking, done)

    def write() -> None:
        expire()
        with lease.atomic():
            Counter.objects.create(name="orders")
            if connection.vendor == "sqlite":
                age(lease, 30 * SECOND)
            for _ in range(25):  # by then, the rival has watched for two intervals
                work_for(0.1)
                assert not lease.lost
            transaction.set_rollback(not is_committed)
        lease.check()

    try:
        renew_during(lease, write)
        lease.renew()
    finally:
        done.set()
    answers = rival.result(PATIENCE)
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
    lease = take()
    with lease.atomic():
        elsewhere(lease.renew).result(PATIENCE)
    assert lock().heartbeats == 1


def wait_for_heartbeats(elsewhere: Elsewhere, count: int) -> None:
    eventually(lambda: elsewhere(lock).result(PATIENCE).heartbeats >= count)


def watch(seen: JobLock) -> bool:
    """Watch a row that does not change until its holder counts as dead."""
    watch = Watch()
    return eventually(lambda: watch.look(seen, local_now()) == timedelta())


@pytest.mark.on_database("postgresql", "mysql")
@pytest.mark.parametrize("is_committed", [True, False])
def test_a_holder_that_trusts_itself_after_its_block_is_not_robbed_by_a_watch_from_before(
    elsewhere: Elsewhere, is_committed: bool
) -> None:
    """The heartbeats continued during the block, so this is not the row that was watched."""
    lease = take(heartbeat_interval=BEAT)

    def write() -> None:
        expire()
        seen = lock()
        assert elsewhere(watch, seen).result(PATIENCE)
        with lease.atomic():
            wait_for_heartbeats(elsewhere, seen.heartbeats + 2)
            transaction.set_rollback(not is_committed)
        assert not elsewhere(locks().take_over, seen, {"pid": 5}).result(PATIENCE)
        assert elsewhere(clear, seen).result(PATIENCE) is False
        lease.check()
        assert lock().token == lease.token

    renew_during(lease, write)


@pytest.mark.slow
@pytest.mark.on_database("sqlite")
@pytest.mark.parametrize("ends", ["commits", "is rolled back", "fails"])
def test_where_no_heartbeat_gets_through_the_block_is_one_itself(elsewhere: Elsewhere, ends: str) -> None:
    """A watch that finished before or during the block does not rob the holder right after it.

    Between a rollback and the heartbeat that follows, one that waits may be faster: then the holder knows that it has
    lost the lock."""
    lease = take(heartbeat_interval=BEAT)
    expire()
    seen, rivals = lock(), list[Any]()
    with suppress(ZeroDivisionError), lease.atomic():
        Counter.objects.create(name="orders")
        assert elsewhere(watch, seen).result(PATIENCE)
        if ends == "commits":
            rivals.append(elsewhere(locks().take_over, seen, {"pid": 5}))
        transaction.set_rollback(ends == "is rolled back")
        lease.check()
        if ends == "fails":
            raise ZeroDivisionError
    lease.check()
    assert not any(rival.result(PATIENCE) for rival in rivals)
    assert not locks().take_over(seen, {"pid": 5})
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
    lease = take()
    with lease.atomic():
        lease.check()
        age(lease, MINUTE)
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
        end_transaction_and_write(lambda: elsewhere(take).result(PATIENCE))
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
        rival = elsewhere(lambda: (ask(), Counter.objects.exists()))
        a_moment()
        Counter.objects.create(name="orders")
    answer, is_committed = rival.result(PATIENCE)
    assert is_committed
    if connection.vendor == "sqlite":  # the block has renewed the lease
        assert isinstance(answer, Refusal)
        lease.check()
        return
    assert answer.fence == nth_fence(2)
    with pytest.raises(LeaseLost), lease.atomic():
        pytest.fail("it came in")


@pytest.mark.on_database("postgresql", "mysql")
def test_who_would_take_over_does_not_wait_for_the_end_of_a_fenced_transaction(elsewhere: Elsewhere) -> None:
    """On MySQL each attempt would wait for almost a minute. If one waited, the answer would name the error."""
    lease = take()
    expire()
    with lease.atomic():
        answer = elsewhere(ask_impatiently).result(PATIENCE)
    assert isinstance(answer, Refusal)
    assert answer.reason == Reason.UNDECIDED
    assert "or are inside a fenced transaction" in answer.detail


def ask_impatiently() -> object:
    if connection.vendor == "mysql":
        with connection.cursor() as cursor:
            cursor.execute("SET SESSION innodb_lock_wait_timeout = 1")
    return ask()


def clear_patiently(seen: JobLock, *, force: bool) -> bool:
    with patient():
        return clear(seen, force=force)


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
        assert elsewhere(clear_patiently, seen, force=force).result(PATIENCE) is False
        assert everything() == held
    assert lock() == seen
    assert Counter.objects.exists()
    assert clear(seen, force=force)
    with pytest.raises(LeaseLost), lease.atomic():
        pytest.fail("it came in")
