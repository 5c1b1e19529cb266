"""Forgetting a name: what is refused, and that fences never go back."""

from __future__ import annotations

import threading
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from django.db import connection, transaction

from django_singlejob import job_lock, singleton_job, timeline
from django_singlejob.clock import DBNow
from django_singlejob.exceptions import LockHeld
from django_singlejob.locking.acquire import Acquisition
from django_singlejob.locking.forgetting import Obstacle, forget_name
from django_singlejob.one_offs.enqueue import Order
from django_singlejob.querysets.jobs import FORGOTTEN, JobStatusQuerySet, gates
from django_singlejob.querysets.one_offs import one_offs
from django_singlejob.querysets.rows import delete_rows
from django_singlejob.querysets.runs import runs
from tests.contract.acts import MINUTE, all_at_once, closing, expire, gate, in_thread, nth_fence, start_run, take
from tests.waiting import PATIENCE

if TYPE_CHECKING:
    from django_singlejob.models import JobStatus

pytest_plugins = "tests.fixtures"
pytestmark = [
    pytest.mark.usefixtures("fresh_process"),
    pytest.mark.django_db(transaction=True, available_apps=["django_singlejob"]),
]


def is_known(name: str = "nightly") -> bool:
    return gates().filter(name=name).exists()


def use(name: str = "nightly", times: int = 1) -> int:
    """Acquire and release the lock this often. Returns the last fence."""
    fences = []
    for _ in range(times):
        with job_lock(name) as lease:
            fences.append(lease.fence)
    return fences[-1]


def start_long_ago() -> None:
    """The last run of the job started long enough ago to be forgotten."""
    gates().filter(name="nightly").update(last_started_at=DBNow() - 6 * MINUTE)


def test_a_name_that_was_mistyped_once_is_forgotten() -> None:
    use()
    assert forget_name("nightly") is None
    assert not is_known()
    assert forget_name("nightly") == Obstacle.UNKNOWN


def test_fences_never_go_back() -> None:
    assert use(times=3) == nth_fence(3)
    assert forget_name("nightly") is None
    assert use() == nth_fence(4)
    assert use("hourly") == nth_fence(4)  # a name that is new starts above all that were forgotten
    assert forget_name("hourly") is None
    assert use() == nth_fence(5)


def test_the_highest_fence_counts_not_the_last() -> None:
    use("often", times=4)
    use("seldom")
    assert forget_name("often") is None
    assert forget_name("seldom") is None
    assert use("seldom") == nth_fence(5)


def test_new_names_start_at_a_fence_that_was_written_by_hand() -> None:
    """As in an empty database after the loss of the former one."""
    gates().create(name=FORGOTTEN, fence=nth_fence(1_000_000))
    assert use() == nth_fence(1_000_001)


def test_the_gate_that_keeps_the_fence_cannot_be_forgotten() -> None:
    use()
    assert forget_name(FORGOTTEN) == Obstacle.UNKNOWN
    assert is_known(FORGOTTEN)


def test_a_lock_that_is_held_is_not_forgotten() -> None:
    lease = take("nightly")
    assert forget_name("nightly") == Obstacle.HELD
    with lease.atomic():
        pass
    lease.release()
    assert forget_name("nightly") is None


def test_nor_a_job_that_holds_another_lock() -> None:
    lease = take("shop", job_name="nightly")
    assert forget_name("nightly") == Obstacle.HELD
    assert forget_name("shop") == Obstacle.HELD
    assert gate("nightly").last_started_at is not None
    lease.release()
    start_long_ago()
    assert forget_name("nightly") is None


def test_nor_the_lock_of_a_dead_holder() -> None:
    take("nightly")
    expire("nightly")
    assert forget_name("nightly") == Obstacle.HELD
    assert is_known()


def test_nor_a_job_of_this_release() -> None:
    job = singleton_job("nightly")(lambda: None)
    job()
    assert forget_name("nightly") == Obstacle.REGISTERED
    assert is_known()


@pytest.mark.parametrize("status", ["waiting", "in_progress"])
def test_nor_a_job_with_one_offs(status: str) -> None:
    use()
    row = Order(job_name="nightly", max_attempts=1).enqueue()
    one_offs().filter(pk=row.pk).update(status=status)
    assert forget_name("nightly") == Obstacle.DUE
    assert is_known()
    one_offs().filter(pk=row.pk).update(status="done")
    assert forget_name("nightly") is None


@pytest.mark.parametrize("schedule", ["@hourly", ""])
def test_nor_a_job_that_ran_just_now(schedule: str) -> None:
    """A server with the release that has it would repeat the slot, or not heed the interval between two starts."""
    start_run().release()
    gates().filter(name="nightly").update(schedule=schedule, next_slot=DBNow() - timedelta(days=3))
    assert forget_name("nightly") == Obstacle.RECENT
    start_long_ago()
    assert forget_name("nightly") is None


@pytest.mark.on_database("postgresql")
def test_nor_a_lock_just_after_a_failover(monkeypatch: pytest.MonkeyPatch) -> None:
    """The failover may have lost the lock of a holder that is alive."""
    use()
    monkeypatch.setattr(timeline, "_SQL", "7")
    assert forget_name("nightly") == Obstacle.FAILOVER
    start_run("hourly").release()
    assert forget_name("nightly") == Obstacle.FAILOVER
    gates().filter(name="hourly").update(last_started_at=DBNow() - 6 * MINUTE)
    assert forget_name("nightly") is None


def test_the_history_keeps_its_runs() -> None:
    start_run().release()
    start_long_ago()
    count = runs().filter(job_name="nightly").count()
    assert count == 1
    assert forget_name("nightly") is None
    assert runs().filter(job_name="nightly").count() == count


@pytest.mark.on_database("postgresql", "mysql")
def test_a_gate_that_another_process_is_using_is_left_alone() -> None:
    use()
    inside, done = threading.Event(), threading.Event()

    def hold() -> None:
        with transaction.atomic():
            gates().touch("nightly")
            inside.set()
            assert done.wait(PATIENCE)

    thread = threading.Thread(target=closing, args=[hold])
    thread.start()
    assert inside.wait(PATIENCE)
    assert forget_name("nightly") == Obstacle.BUSY
    done.set()
    thread.join(PATIENCE)
    assert forget_name("nightly") is None


def test_a_grant_that_comes_first_is_not_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock is acquired between the look at the gate and its deletion."""
    use()
    look_up = JobStatusQuerySet.look_up

    def overtaken(rows: JobStatusQuerySet, *args: object) -> dict[str, JobStatus]:
        found = look_up(rows, *args)  # type: ignore[arg-type]
        monkeypatch.setattr(JobStatusQuerySet, "look_up", look_up)
        in_thread(use)
        return found

    monkeypatch.setattr(JobStatusQuerySet, "look_up", overtaken)
    assert forget_name("nightly") == Obstacle.BUSY
    assert use() == nth_fence(3)


@pytest.mark.on_database("postgresql", "mysql")
def test_the_first_name_ever_waits_for_nobody_for_long() -> None:
    """Another process is inserting the gate that keeps the fences, and is suspended."""
    use()
    delete_rows(gates().filter(name=FORGOTTEN))
    inside, done = threading.Event(), threading.Event()

    def hold() -> None:
        with transaction.atomic():
            gates().bulk_create([gates().model(name=FORGOTTEN)])
            inside.set()
            assert done.wait(PATIENCE)

    thread = threading.Thread(target=closing, args=[hold])
    thread.start()
    assert inside.wait(PATIENCE)
    if connection.vendor == "mysql":
        with connection.cursor() as cursor:
            cursor.execute("SET SESSION innodb_lock_wait_timeout = 2")
    try:
        assert forget_name("nightly") == Obstacle.BUSY
    finally:
        done.set()
        thread.join(PATIENCE)
    assert forget_name("nightly") is None


@pytest.mark.django_db(transaction=False)
def test_it_works_in_a_testcase() -> None:
    assert connection.in_atomic_block
    fence = use(times=2)
    assert forget_name("nightly") is None
    assert use() == fence + 1
    lease = take("held")
    assert forget_name("held") == Obstacle.HELD
    assert not connection.needs_rollback
    lease.release()
    assert is_known("held")


def test_a_caller_that_looked_before_looks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gate is forgotten between a caller's look at it and its grant."""
    use()
    plan = Acquisition._plan

    def forgotten_meanwhile(acquisition: Acquisition, *args: object) -> object:
        monkeypatch.undo()
        assert in_thread(lambda: forget_name("nightly")) is None
        return plan(acquisition, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(Acquisition, "_plan", forgotten_meanwhile)
    assert use() == nth_fence(2)


def test_a_gate_that_is_forgotten_as_soon_as_it_is_there_is_inserted_again(monkeypatch: pytest.MonkeyPatch) -> None:
    remember = JobStatusQuerySet.remember

    def remember_in_vain(rows: JobStatusQuerySet, *names: str) -> None:
        remember(rows, *names)
        monkeypatch.undo()
        assert in_thread(lambda: forget_name("nightly")) is None

    monkeypatch.setattr(JobStatusQuerySet, "remember", remember_in_vain)
    assert use() == nth_fence(1)


@pytest.mark.slow
def test_no_fence_is_given_out_twice_while_the_name_is_forgotten_again_and_again() -> None:
    """No caller is promised a turn: it may lose each race until it gives up. But if each thread forgets the name only
    once a grant, some caller wins. So this counts the grants of all callers together."""
    fences: list[int] = []
    forgotten: list[int] = []
    over = threading.Event()

    def run() -> None:
        while len(fences) < 50 or len(forgotten) <= 10:
            with suppress(LockHeld), job_lock("nightly", wait=timedelta(seconds=5)) as lease:
                fences.append(lease.fence)

    def forget() -> None:
        before = 0
        while not over.wait(0.001):
            granted = len(fences)
            if granted > before and forget_name("nightly") is None:
                before = granted
                forgotten.append(granted)

    def run_all() -> None:
        try:
            all_at_once([run, run, run])
        finally:
            over.set()

    all_at_once([run_all, forget, forget])
    assert len({*fences}) == len(fences)
    assert fences == sorted(fences)


def test_nor_a_name_of_the_package_itself() -> None:
    take("django_singlejob.worker.7").release()
    assert forget_name("django_singlejob.worker.7") == Obstacle.OURS
    assert gates().filter(name="django_singlejob.worker.7").exists()
