"""A grant commits at once. Where it cannot, it is refused, except in a TestCase, where it works all the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from django.db import connection, transaction

from django_singlejob import SKIPPED, LockHeld, UnsafeTransaction, job_lock, singleton_job
from tests.app.models import Counter
from tests.contract.acts import ask, everything, is_free, last_run, lock, lose, start_run, take
from tests.databases import APPS

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.django_db(transaction=True, available_apps=APPS)

in_test_case = pytest.mark.django_db(transaction=False)


@pytest.fixture
def autocommit_off() -> Iterator[None]:
    transaction.set_autocommit(False)
    yield
    transaction.rollback()
    transaction.set_autocommit(True)


def refuse_job_and_block() -> None:
    @singleton_job
    def nightly() -> None:
        pytest.fail("it ran")

    with pytest.raises(UnsafeTransaction):
        nightly()
    with pytest.raises(UnsafeTransaction), job_lock("nightly"):
        pytest.fail("it was granted")
    assert everything() == []


def test_not_inside_a_transaction() -> None:
    with transaction.atomic():
        refuse_job_and_block()
    with transaction.atomic(durable=True):
        refuse_job_and_block()


def test_nor_is_a_lease_renewed_or_released_in_one() -> None:
    lease = take()
    before = everything()
    for use in lease.renew, lease.release:
        with transaction.atomic(), pytest.raises(UnsafeTransaction):
            use()
    assert everything() == before
    assert lease.release()


def test_not_with_autocommit_off(autocommit_off: None) -> None:
    refuse_job_and_block()


def test_the_error_says_what_to_do() -> None:
    with transaction.atomic(), pytest.raises(UnsafeTransaction, match=r"\.enqueue\(\).*on_commit.*non_atomic_requests"):
        ask(job_name="nightly", trigger="call")
    with transaction.atomic(), pytest.raises(UnsafeTransaction, match="Take the lock first"):
        ask()


def test_on_commit_is_late_enough() -> None:
    with transaction.atomic():
        transaction.on_commit(take)
    assert not is_free()


@in_test_case
def test_a_job_runs_inside_a_test_case() -> None:
    @singleton_job
    def nightly() -> str:
        Counter.objects.create(name="orders")
        assert nightly() is SKIPPED
        return "done"

    assert connection.in_atomic_block
    assert nightly() == "done"
    assert last_run().status == "successful"
    assert is_free()
    assert Counter.objects.exists()


@in_test_case
def test_a_lock_works_inside_a_test_case() -> None:
    with job_lock("nightly") as lease:
        with pytest.raises(LockHeld), job_lock("nightly"):
            pytest.fail("both are in")
        with lease.atomic():
            Counter.objects.create(name="orders")
        before = lock().heartbeats
        lease.renew()
        lease.check()
        assert lock().heartbeats == before + 1
    assert is_free()


@in_test_case
def test_a_takeover_and_its_loser_inside_a_test_case() -> None:
    zombie, successor = lose()
    assert not zombie.release()
    assert successor.release()


@in_test_case
def test_a_job_that_fails_inside_a_test_case_leaves_its_run() -> None:
    @singleton_job
    def nightly() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        nightly()
    assert last_run().status == "failed"
    assert is_free()


@in_test_case
def test_a_transaction_inside_a_test_case_is_still_one() -> None:
    with transaction.atomic(), pytest.raises(UnsafeTransaction):
        ask()
    assert start_run().release()
