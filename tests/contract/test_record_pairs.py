"""The history and a second fault: a receiver, a lost answer, a busy gate, or a COMMIT."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from django.db import Error, OperationalError, connection, transaction
from django.db.models.signals import post_save

from django_singlejob import current_run, job_lock, singleton_job
from django_singlejob.database import transactions
from django_singlejob.locking import recording
from django_singlejob.locking.acquire import Acquisition
from django_singlejob.locking.clear import clear
from django_singlejob.locking.endings import Ending
from django_singlejob.models import JobRun
from django_singlejob.models.locks import locks
from django_singlejob.models.passes import passes
from django_singlejob.models.runs import runs
from django_singlejob.process.clock import DBNow
from django_singlejob.worker import pruning
from django_singlejob.worker.loop import Worker
from django_singlejob.worker.tick import Plan
from tests.contract.acts import (
    MINUTE,
    SECOND,
    expire,
    is_free,
    last_run,
    lock,
    start_run,
    statements,
    take,
)
from tests.contract.broken_history import History, history
from tests.contract.test_record import reported
from tests.databases import APPS
from tests.waiting import work_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fixtures import Elsewhere

__all__ = ["history", "reported"]

pytest_plugins = "tests.fixtures"
pytestmark = [
    pytest.mark.django_db(transaction=True, available_apps=APPS),
    pytest.mark.usefixtures("fresh_process", "breakable_connection"),
]


# --- receivers


@pytest.fixture
def receive() -> Iterator[Any]:
    receivers = []

    def connect(receiver: Any) -> None:
        receivers.append(receiver)
        post_save.connect(receiver, sender=JobRun)

    yield connect
    for receiver in receivers:
        post_save.disconnect(receiver, sender=JobRun)


def swallow_orm(**_: Any) -> None:
    with suppress(Error):
        JobRun.objects.create()  # not even a name


def swallow_raw(**_: Any) -> None:
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT no_such_column FROM django_singlejob_jobrun")
    except Error:
        pass


def raise_after_commit(**_: Any) -> None:
    def fail() -> None:
        raise ZeroDivisionError

    transaction.on_commit(fail)


def nest(**_: Any) -> None:
    with transaction.atomic():
        runs().exists()


@pytest.mark.parametrize("receiver", [swallow_orm, swallow_raw, raise_after_commit, nest])
def test_a_receiver_cannot_undo_or_fail_a_grant(receive: Any, receiver: Any) -> None:
    receive(receiver)
    held = []

    @singleton_job
    def nightly() -> str:
        held.append(not is_free())
        return "done"

    assert nightly() == "done"
    assert held == [True]
    assert is_free()
    assert last_run().status == "successful"


# --- a lost answer


def test_a_run_that_is_adopted_has_the_row_that_was_committed(monkeypatch: pytest.MonkeyPatch, reported: Any) -> None:
    """The server still carries out the grant's COMMIT after its answer is lost. The next attempt comes too early."""
    grant_once = Acquisition._grant_once
    answers = iter(["lost", "raced"])

    def flaky(self: Any, sight: Any, start: Any, writer: Any) -> Any:
        answer = next(answers, None)
        if answer == "lost":
            grant_once(self, sight, start, writer)
            monkeypatch.setattr(type(locks()), "look_up", lambda rows, name: None)
            raise OperationalError("the answer is lost")
        if answer == "raced":
            monkeypatch.undo()
        return grant_once(self, sight, start, writer)

    monkeypatch.setattr(Acquisition, "_grant_once", flaky)
    job = singleton_job("nightly")(lambda: "done")
    outcome = job.run()
    assert outcome.value == "done"
    assert [run.status for run in runs().all()] == ["successful"]
    assert outcome.run_id == last_run().pk
    assert not reported()


@pytest.mark.slow
def test_a_run_that_is_adopted_without_a_row_is_recorded_at_its_end(
    monkeypatch: pytest.MonkeyPatch, reported: Any
) -> None:
    """The history was unavailable, and the answer to the grant's COMMIT was lost."""
    grant_once = Acquisition._grant_once
    answers = iter(["lost"])

    def flaky(self: Any, sight: Any, start: Any, writer: Any) -> Any:
        if next(answers, None):
            grant_once(self, sight, start, recording.Writer(None))
            raise OperationalError("the answer is lost")
        return grant_once(self, sight, start, writer)

    monkeypatch.setattr(Acquisition, "_grant_once", flaky)
    inside = []

    @singleton_job
    def nightly() -> str:
        inside.append(runs().count())
        work_for(0.3)
        return "done"

    assert nightly() == "done"
    run = last_run()
    assert run.started_at <= run.finished_at - timedelta(seconds=0.2)  # type: ignore[operator]
    assert inside == [0]
    assert not reported()


# --- a gate that is in use


@pytest.mark.on_database("postgresql")
def test_a_clear_that_waits_for_the_jobs_own_gate_is_put_off(elsewhere: Elsewhere) -> None:
    """On MySQL it waits longer, and is put off too."""
    start_run("nightly", name="shared")
    expire("shared")
    with job_lock("nightly") as lease, lease.atomic():
        assert elsewhere(lambda: clear(lock("shared"))).result() is False


@pytest.mark.on_database("postgresql", "mysql")
def test_many_clears_wait_for_it_once(history: History) -> None:
    for number in range(4):
        start_run(f"job{number}")
        expire(f"job{number}")
    with history.broken("locked"):
        assert clear(lock("job0"))
        with statements("jobrun") as sent:
            for number in range(1, 4):
                assert clear(lock(f"job{number}"))
    assert not sent


@pytest.mark.on_database("postgresql", "mysql")
def test_a_worker_that_may_have_to_prune_waits_for_no_lock_on_it(history: History) -> None:
    nightly = singleton_job("nightly")(lambda: "done")
    nightly()
    runs().update(started_at=DBNow() - timedelta(days=2))
    nightly.enqueue()
    with history.broken("locked"):
        reports = list(Worker(Plan(max_jobs=1)).work())
    assert [(report.name, report.error) for report in reports] == [("nightly", None)]
    assert passes().exists()


@pytest.mark.on_database("postgresql", "mysql")
def test_pruning_waits_for_no_lock_on_it(history: History) -> None:
    with history.broken("locked"), pytest.raises(recording.HistoryFailed):
        pruning.prune()


# --- at the COMMIT


AT_THE_COMMIT = {
    "slow": "PERFORM pg_sleep(3600);",
    "busy": "RAISE EXCEPTION 'busy' USING ERRCODE = 'lock_not_available';",
    "full": "RAISE EXCEPTION 'full' USING ERRCODE = 'disk_full';",
}


@pytest.mark.on_database("postgresql")
@pytest.mark.parametrize("body", AT_THE_COMMIT.values(), ids=AT_THE_COMMIT)
def test_what_is_deferred_holds_up_no_commit(history: History, body: str) -> None:
    deferred = {"kind": "CONSTRAINT TRIGGER", "when": "AFTER", "how": "DEFERRABLE INITIALLY DEFERRED"}
    with history._triggered(postgresql=body, **deferred):
        assert singleton_job("nightly")(lambda: "done")() == "done"
    assert is_free()


# --- a release in doubt: the answer to its COMMIT is lost


@pytest.mark.parametrize("is_a_run", [True, False])
def test_a_lock_that_was_cleared_by_force_was_not_released(
    history: History, monkeypatch: pytest.MonkeyPatch, *, is_a_run: bool
) -> None:
    """The COMMIT was not carried out, and the history does not show it."""
    lease = start_run() if is_a_run else take()

    def clear_it() -> None:
        monkeypatch.setattr(recording, "_away_until", float("inf"))
        assert clear(lock(), force=True)

    lose_answer(monkeypatch, carried_out=False, then=clear_it)
    assert not lease.finish(END if is_a_run else None)


def test_nor_if_somebody_has_it_by_now(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    lease = start_run()

    def clear_and_begin() -> None:
        assert clear(lock(), force=True)
        start_run()

    lose_answer(monkeypatch, carried_out=False, then=clear_and_begin)
    assert not lease.finish(END)


@pytest.mark.parametrize("is_a_run", [True, False])
def test_what_was_released_was_released_whoever_has_it_by_now(
    monkeypatch: pytest.MonkeyPatch, *, is_a_run: bool
) -> None:
    lease = start_run() if is_a_run else take()

    def begin_the_next() -> None:
        monkeypatch.setattr(recording, "_away_until", float("inf"))
        start_run()

    lose_answer(monkeypatch, carried_out=True, then=begin_the_next)
    assert lease.finish(END if is_a_run else None)


END = Ending(status="successful", duration=SECOND)


def lose_answer(monkeypatch: pytest.MonkeyPatch, *, carried_out: bool, then: Any) -> None:
    """Lose the answer to the next COMMIT, or to the next statement that commits itself."""
    usual, usual_request = transactions.durable, transactions.transaction_in_one_request
    first = iter([True])

    @contextmanager
    def lossy(alias: str, **limits: Any) -> Iterator[None]:
        is_lost = next(first, False)
        with usual(alias, **limits):
            yield
            if is_lost and not carried_out:
                transactions.roll_back(alias)
        if is_lost:
            then()
            raise OperationalError("the answer is lost")

    @contextmanager
    def lossy_request(*args: Any) -> Iterator[None]:
        is_lost = next(first, False)
        if carried_out or not is_lost:
            with usual_request(*args):
                yield
        if is_lost:
            then()
            raise OperationalError("the answer is lost")

    monkeypatch.setattr(transactions, "durable", lossy)
    monkeypatch.setattr(transactions, "transaction_in_one_request", lossy_request)


@pytest.mark.on_database("postgresql")
def test_a_release_has_its_time_however_little_of_the_lease_is_left() -> None:
    """The holder was stopped, and the lock has not been taken over. The limit for the history limits nothing else."""
    lease = start_run()
    lease._state.proven_at -= 60 * MINUTE.total_seconds()
    with connection.cursor() as cursor:
        cursor.execute(
            "CREATE FUNCTION dawdle() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN PERFORM pg_sleep(0.05); RETURN NEW; END $$; "
            "CREATE TRIGGER dawdle BEFORE UPDATE ON django_singlejob_jobstatus "
            "FOR EACH ROW EXECUTE FUNCTION dawdle()"
        )
        try:
            assert lease.finish(Ending(status="successful", duration=MINUTE))
        finally:
            cursor.execute("DROP TRIGGER dawdle ON django_singlejob_jobstatus; DROP FUNCTION dawdle")
    assert last_run().status == "successful"


def test_an_end_is_recorded_whatever_transaction_the_job_left_open() -> None:
    @singleton_job
    def nightly() -> None:
        run = current_run()
        assert run is not None
        assert run.lease.release()
        transaction.set_autocommit(False)

    nightly()
    transaction.set_autocommit(True)
    connection.close()
    assert last_run().status == "successful"
    assert recording._away_until == float("-inf")
