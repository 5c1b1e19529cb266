"""Batches of one-offs: claimed, performed and recorded, even if the database's answer is lost on its way."""

from __future__ import annotations

import os
from contextlib import contextmanager
from datetime import timedelta
from importlib import import_module
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from django.db import OperationalError, connection
from django.test.utils import CaptureQueriesContext

from django_singlejob.database import transactions
from django_singlejob.exceptions import LeaseLost
from django_singlejob.locking.clear import clear
from django_singlejob.models import OneOffJob
from django_singlejob.models.one_offs import one_offs
from django_singlejob.process.holder import this_process
from django_singlejob.process.received_signals import deferred_signals
from django_singlejob.running.enqueue import Order
from django_singlejob.tasks.batches import Batches, Claimed, _alike, task_rows
from tests.contract.acts import lock, take

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytest_plugins = "tests.fixtures"
pytestmark = [pytest.mark.usefixtures("fresh_process"), pytest.mark.django_db]


@pytest.fixture
def batches() -> Batches:
    return Batches(take("django_singlejob.worker.1"))


@pytest.fixture
def disturb(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Disturbs the next short transaction, before or behind its COMMIT."""
    moments: list[str] = []
    usual = transactions.durable

    @contextmanager
    def disturbed(*arguments: Any, **others: Any) -> Iterator[None]:
        moment = moments.pop() if moments else ""
        with usual(*arguments, **others):
            yield
            if moment == "before":
                raise OperationalError
        if moment == "behind":
            raise OperationalError

    monkeypatch.setattr(transactions, "durable", disturbed)
    # The test's connection must stay open.
    monkeypatch.setattr(transactions, "drop", lambda alias: None)
    return moments.append


def enqueue(count: int, **order: Any) -> None:
    for number in range(count):
        asked: dict[str, Any] = {
            "task_path": "tests.app.django_tasks.plain",
            "max_attempts": 3,
            "backend": "default",
            **order,
        }
        Order(**asked).enqueue(number)


def perform(batches: Batches, claimed: list[Claimed]) -> None:
    for task in claimed:
        batches.hand_in(task, task())


def rows() -> list[tuple[str, int]]:
    return list(one_offs().order_by("pk").values_list("status", "attempt"))


def test_many_that_nobody_knows_take_few_queries(batches: Batches) -> None:
    for number in range(300):
        enqueue(1, task_path=f"tests.app.gone.task_{number}", priority=10)
        enqueue(1, task_path=f"elsewhere.task_{number}", priority=10)
    enqueue(3)
    with CaptureQueriesContext(connection) as queries:
        assert [task.row.args for task in batches.record_and_claim(1)] == [[0]]
    assert len(queries) < 100
    assert rows()[:600] == [("waiting", 0)] * 600
    assert [status for status, _ in rows()[600:]] == ["in_progress", "waiting", "waiting"]


def test_what_was_not_begun_is_released(batches: Batches) -> None:
    enqueue(2)
    claimed = batches.record_and_claim(2)
    batches.release(claimed[1:])
    perform(batches, claimed[:1])
    batches.record_and_claim(0)
    assert rows() == [("done", 1), ("waiting", 0)]
    perform(batches, batches.record_and_claim(1))
    batches.record_all()
    assert rows() == [("done", 1)] * 2


def test_one_that_ends_puts_back_what_it_may_have_claimed(batches: Batches, disturb: Callable[[str], None]) -> None:
    enqueue(1)
    disturb("behind")
    with pytest.raises(OperationalError):
        batches.record_and_claim(1)
    assert rows() == [("in_progress", 1)]
    batches.record_all()
    assert rows() == [("waiting", 0)]


@pytest.mark.parametrize("moment", ["before", "behind"])
def test_a_claim_whose_answer_was_lost_is_not_lost(
    batches: Batches, disturb: Callable[[str], None], moment: str
) -> None:
    enqueue(1)
    perform(batches, batches.record_and_claim(1))
    batches.record_and_claim(0)
    enqueue(3)
    disturb(moment)
    with pytest.raises(OperationalError):
        batches.record_and_claim(2)
    perform(batches, batches.record_and_claim(2))
    perform(batches, batches.record_and_claim(2))
    batches.record_all()
    assert rows() == [("done", 1)] * 4


@pytest.mark.parametrize("moment", ["before", "behind"])
def test_an_end_whose_answer_was_lost_is_recorded_once(
    batches: Batches, disturb: Callable[[str], None], moment: str, caplog: pytest.LogCaptureFixture
) -> None:
    enqueue(2)
    perform(batches, batches.record_and_claim(2))
    disturb(moment)
    with pytest.raises(OperationalError):
        batches.record_and_claim(0)
    batches.record_and_claim(0)
    assert rows() == [("done", 1)] * 2
    assert {row.version for row in one_offs()} == {2}
    assert "changed by hand" not in caplog.text


def test_the_end_is_recorded_even_if_the_database_is_away_for_a_while(
    batches: Batches, disturb: Callable[[str], None], caplog: pytest.LogCaptureFixture
) -> None:
    enqueue(1)
    perform(batches, batches.record_and_claim(1))
    disturb("before")
    batches.record_all()
    assert rows() == [("done", 1)]
    assert "could not be recorded and will be retried" in caplog.text


def test_after_a_second_signal_it_does_not_wait_for_the_database(
    batches: Batches, disturb: Callable[[str], None]
) -> None:
    enqueue(1)
    perform(batches, batches.record_and_claim(1))
    disturb("before")
    with deferred_signals() as signals:
        signals.is_repeated = True
        batches.record_all()
    assert rows() == [("in_progress", 1)]


def test_a_forked_child_that_returns_from_a_task_does_not_end_it(
    batches: Batches, monkeypatch: pytest.MonkeyPatch
) -> None:
    enqueue(1)
    (task,) = batches.record_and_claim(1)
    with monkeypatch.context() as patch:
        patch.setattr(app_tasks(), "body", lambda number: patch.setattr(os, "getpid", lambda: 0))
        task()
        assert task.result is None
    perform(batches, [task])


@pytest.mark.parametrize(("most", "status"), [(1, "failed"), (2, "waiting")])
def test_the_last_attempt_fails_if_the_lease_was_lost_during_it(
    batches: Batches, monkeypatch: pytest.MonkeyPatch, most: int, status: str
) -> None:
    def lose_it(number: int) -> None:
        raise LeaseLost

    monkeypatch.setattr(app_tasks(), "body", lose_it)
    enqueue(1, max_attempts=most)
    perform(batches, batches.record_and_claim(1))
    batches.record_and_claim(0)
    assert rows() == [(status, 1)]


def test_an_outcome_that_the_database_refuses_keeps_no_other_from_being_recorded(
    batches: Batches, caplog: pytest.LogCaptureFixture
) -> None:
    enqueue(3)
    perform(batches, batches.record_and_claim(3))
    poisoned = list(batches._performed)[1]
    assert poisoned.result
    poisoned.result["queue_name"] = None
    enqueue(1)
    perform(batches, batches.record_and_claim(1))
    batches.record_all()
    assert rows() == [("done", 1), ("failed", 1), ("done", 1), ("done", 1)]
    assert one_offs().get(status="failed").error.startswith("IntegrityError: ")
    assert "cannot be recorded as it is" in caplog.text


def test_one_that_is_retried_is_so_although_the_database_refuses_its_error(
    batches: Batches, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(number: int) -> None:
        raise ConnectionError

    monkeypatch.setattr(app_tasks(), "body", fail)
    enqueue(1, task_path="tests.app.django_tasks.delivered")
    (claimed,) = batches.record_and_claim(1)
    perform(batches, [claimed])
    assert claimed.result
    claimed.result["queue_name"] = None
    batches.record_all()
    row = one_offs().get()
    assert (row.status, row.attempt, row.error.partition(":")[0]) == ("waiting", 1, "IntegrityError")
    assert row.started_at
    assert row.run_after > row.started_at


def test_many_that_are_retried_take_one_statement(batches: Batches, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(number: int) -> None:
        raise ConnectionError

    monkeypatch.setattr(app_tasks(), "body", fail)
    enqueue(20, task_path="tests.app.django_tasks.delivered")
    perform(batches, batches.record_and_claim(20))
    with CaptureQueriesContext(connection) as queries:
        batches.record_all()
    assert rows() == [("waiting", 1)] * 20
    assert len(queries) < 10


def test_results_that_are_equal_are_not_the_same(batches: Batches, monkeypatch: pytest.MonkeyPatch) -> None:
    results = [True, 1, 1.0, None, None]
    monkeypatch.setattr(app_tasks(), "body", lambda number: results[number])
    enqueue(5)
    perform(batches, batches.record_and_claim(5))
    batches.record_all()
    assert [repr(row.result) for row in one_offs().order_by("pk")] == [repr(result) for result in results]


class CountedError(str):
    """Counts how often it is compared with another error."""

    __slots__ = ()
    comparisons = 0

    def __eq__(self, other: object) -> bool:
        type(self).comparisons += 1
        return str(self) == other

    __hash__ = str.__hash__


def test_grouping_equal_outcomes_takes_linear_time(batches: Batches) -> None:
    """Each is compared with at most one other, whether all end alike or no two do."""
    enqueue(1)
    (claimed,) = batches.record_and_claim(1)
    alike = CountedError("the same")
    for errors, groups in ([alike] * 1000, 1), ([CountedError(number) for number in range(1000)], 1000):
        CountedError.comparisons = 0
        performed = [Claimed(claimed.row, claimed.lease, {"status": "failed", "error": error}) for error in errors]
        assert len(_alike(performed)) == groups
        assert CountedError.comparisons <= 1100
    perform(batches, [claimed])


@pytest.mark.parametrize("most", [0, 1])
def test_without_its_lock_a_worker_neither_records_nor_claims(batches: Batches, most: int) -> None:
    enqueue(2)
    claimed = batches.record_and_claim(1)
    assert clear(lock("django_singlejob.worker.1"), force=True)
    assert rows() == [("waiting", 1), ("waiting", 0)]
    perform(batches, claimed)
    with pytest.raises(LeaseLost, match="taken over, cleared"):
        batches.record_and_claim(most)
    assert rows() == [("waiting", 1), ("waiting", 0)]


def test_one_that_has_not_begun_when_the_lease_is_lost_burns_no_attempt(
    batches: Batches, monkeypatch: pytest.MonkeyPatch
) -> None:
    enqueue(1)
    claimed = batches.record_and_claim(1)
    with monkeypatch.context() as patch:
        patch.setattr(claimed[0].lease, "is_private", False)
        patch.setattr(claimed[0].lease._state, "proven_at", float("-inf"))
        perform(batches, claimed)
    batches.record_and_claim(0)
    assert rows() == [("waiting", 0)]


def app_tasks() -> Any:
    return import_module("tests.app.django_tasks")


def test_it_does_not_end_what_another_worker_has_begun_since(batches: Batches) -> None:
    enqueue(1)
    ours = batches.record_and_claim(1)
    one_offs().update(status="waiting")  # by hand
    other = Batches(take("django_singlejob.worker.2"))
    theirs = other.record_and_claim(1)
    perform(batches, ours)
    batches.record_and_claim(0)
    assert rows() == [("in_progress", 2)]
    perform(other, theirs)
    other.record_all()
    assert rows() == [("done", 2)]


def test_nor_what_it_has_itself_begun_again(batches: Batches) -> None:
    enqueue(1)
    former = batches.record_and_claim(1)
    one_offs().update(status="waiting")  # by hand
    latter = batches.record_and_claim(1)
    perform(batches, former)
    batches.record_and_claim(0)
    assert rows() == [("in_progress", 2)]
    perform(batches, latter)
    batches.record_and_claim(0)
    assert rows() == [("done", 2)]


def test_nor_what_now_has_another_token(batches: Batches) -> None:
    enqueue(1)
    claimed = batches.record_and_claim(1)
    one_offs().update(token=uuid4())  # by hand
    perform(batches, claimed)
    batches.record_and_claim(0)
    assert rows() == [("in_progress", 1)]


def test_what_was_claimed_since_it_was_seen_cannot_be_claimed(batches: Batches) -> None:
    enqueue(2)
    seen = list(one_offs().waiting())
    claimed = batches.record_and_claim(1)
    taken = [row for row in seen if row.pk == claimed[0].row.pk]
    assert not task_rows().claim_locked(taken, uuid4(), this_process())
    assert {row.token for row in one_offs().in_progress()} == {claimed[0].row.token}
    assert not task_rows().claim_locked(seen, uuid4(), this_process())
    perform(batches, claimed)


def test_later_ones_of_a_higher_priority_hold_up_nothing(batches: Batches) -> None:
    enqueue(2, priority=5)
    one_offs().update(run_after=OneOffJob.objects.earliest("pk").created_at + timedelta(hours=1))
    enqueue(2)
    claimed = batches.record_and_claim(4)
    assert [task.row.priority for task in claimed] == [0, 0]
    perform(batches, claimed)


# --- suspects


def suspect(*numbers: int) -> None:
    OneOffJob.objects.filter(args__0__in=numbers).update(suspect=True)


def claim(batches: Batches, most: int) -> list[int]:
    return [task.row.args[0] for task in batches.record_and_claim(most)]


def test_a_suspect_is_claimed_alone(batches: Batches) -> None:
    enqueue(3)
    suspect(0)
    assert claim(batches, 3) == [0]
    assert (batches.runs_suspect, batches.has_spared) == (True, True)
    perform(batches, batches.claimed)
    assert claim(batches, 3) == [1, 2]
    assert not batches.runs_suspect


def test_one_behind_others_waits_for_their_end(batches: Batches) -> None:
    enqueue(4)
    suspect(1, 3)
    assert claim(batches, 4) == [0]
    assert claim(batches, 4) == [2]
    perform(batches, batches.claimed[:1])
    assert claim(batches, 4) == []
    perform(batches, batches.claimed)
    assert claim(batches, 4) == [1]
    perform(batches, batches.claimed)
    assert claim(batches, 4) == [3]
    assert [row.suspect for row in one_offs()] == [False] * 4


def test_one_that_was_passed_over_for_long_is_the_next_to_begin(
    batches: Batches, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("django_singlejob.tasks.batches.LONGEST_PASS", 0.0)
    enqueue(4)
    assert claim(batches, 2) == [0, 1]
    suspect(2)
    assert claim(batches, 1) == []
    perform(batches, batches.claimed)
    assert claim(batches, 2) == [2]
    perform(batches, batches.claimed)
    assert claim(batches, 2) == [3]


def test_to_pass_suspects_over_takes_no_other_statement(batches: Batches) -> None:
    enqueue(4)
    counts = []
    for suspects in [], [1, 2]:
        suspect(*suspects)
        batches.record_and_claim(1)
        with CaptureQueriesContext(connection) as queries:
            batches.record_and_claim(1)
        counts.append(len(queries))
        perform(batches, batches.claimed)
        batches.record_all()
        enqueue(4)
    assert counts[0] == counts[1]


def crashed(batches: Batches, error: str = "It crashed.") -> None:
    task_rows().filter(token=batches._lease.token).suspect(error)


def test_those_that_a_crash_has_ended_have_used_no_attempt_and_keep_why(batches: Batches) -> None:
    enqueue(2)
    batches.record_and_claim(2)
    OneOffJob.objects.filter(args__0=1).update(stopped_by="ada")
    crashed(batches)
    assert list(one_offs().order_by("pk").values_list("status", "attempt", "suspect", "error")) == [
        ("waiting", 0, True, "It crashed."),
        ("cancelled", 0, False, "It crashed."),
    ]


def test_what_is_recorded_is_not_run_again_by_a_crash(batches: Batches) -> None:
    """Its row still has the token."""
    enqueue(2)
    claimed = batches.record_and_claim(2)
    perform(batches, claimed[:1])
    batches.record_all()
    task_rows().filter(pk__in=[task.row.pk for task in claimed]).suspect("It crashed.")
    assert list(one_offs().order_by("pk").values_list("status", "suspect")) == [("done", False), ("waiting", True)]


@pytest.mark.parametrize(("most", "expected"), [(1, ("failed", 1, False)), (2, ("waiting", 1, True))])
def test_the_one_that_ran_alone_is_blamed(batches: Batches, most: int, expected: tuple[str, int, bool]) -> None:
    enqueue(1, max_attempts=most)
    batches.record_and_claim(1)
    one_offs().filter(token=batches._lease.token).put_back("It crashed.", suspect=True)
    assert one_offs().values_list("status", "attempt", "suspect").get() == expected


def test_a_suspect_that_is_cancelled_is_none_any_more(batches: Batches) -> None:
    enqueue(1)
    suspect(0)
    assert one_offs().cancel() == 1
    assert one_offs().values_list("status", "suspect").get() == ("cancelled", False)
