"""A unique one-off: once in the queue, and no request for it is lost."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from django.core.management import call_command
from django.db import Error, connection, transaction

from django_singlejob import singleton_job
from django_singlejob.exceptions import InvalidOrder
from django_singlejob.models.one_offs import one_offs
from tests.contract.acts import HOUR, MINUTE, all_at_once, ask, in_thread, is_free, ticked
from tests.databases import APPS
from tests.waiting import PATIENCE, eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.contract.conftest import Elsewhere

pytest_plugins = "tests.fixtures"
pytestmark = pytest.mark.django_db(transaction=True, available_apps=APPS)

#: On SQLite, a transaction that writes keeps everybody else from writing.
locks_rows = pytest.mark.on_database("postgresql", "mysql")
TOKEN = UUID(int=4711)
LATER = datetime(2999, 1, 1, tzinfo=UTC)


@pytest.fixture
def calls() -> list[Any]:
    return []


@pytest.fixture
def mail(calls: list[Any]) -> Any:
    return singleton_job("mail")(lambda *args, **kwargs: calls.append((args, kwargs)))


def ran() -> int:
    """How many one-offs a pass has run."""
    return sum(outcome.refusal is None for outcome in ticked())


def asked_for() -> list[tuple[Any, int, str]]:
    return [*one_offs().order_by("pk").values_list("args", "asked", "status")]


# --- one waits


def test_a_second_request_returns_the_one_that_waits(mail: Any, calls: list[Any]) -> None:
    once = mail.using(unique=True)
    first, again = once.enqueue(1, language="it"), once.enqueue(1, language="it")
    assert (again.pk, again.asked, again.version) == (first.pk, 2, 0)
    assert once.enqueue(2).pk != first.pk
    assert asked_for() == [([1], 2, "waiting"), ([2], 1, "waiting")]
    assert ran() == 2
    assert calls == [((1,), {"language": "it"}), ((2,), {})]


@pytest.mark.parametrize("text", ["invoice:1", "Grüße", "%s {}"])
def test_a_text_stands_for_the_arguments(mail: Any, text: str) -> None:
    once = mail.using(unique=text)
    assert once.enqueue(1).pk == once.enqueue(2).pk == mail.using(unique=text, priority=1).enqueue(3).pk
    assert asked_for() == [([1], 3, "waiting")]
    assert text in one_offs().get().unique_key


def test_what_differs_waits_beside_it(mail: Any) -> None:
    other = singleton_job("other")(print)
    mail.using(unique="a").enqueue()
    for order in (mail.using(unique="A"), mail.using(unique=True), mail.using(unique="a", queue_name="b")):
        order.enqueue()
    other.using(unique="a").enqueue()
    mail.enqueue()
    mail.enqueue()
    assert [row.asked for row in one_offs().order_by("pk")] == [1, 1, 1, 1, 1, 0, 0]


def test_it_runs_as_early_and_as_urgently_as_anybody_asked(mail: Any) -> None:
    waits = mail.using(unique=True, run_after=LATER, priority=5).enqueue()
    sooner = mail.using(unique=True, run_after=LATER - HOUR).enqueue()
    assert (sooner.pk, sooner.run_after, sooner.priority) == (waits.pk, LATER - HOUR, 5)
    urgent = mail.using(unique=True, run_after=LATER, priority=7).enqueue()
    assert (urgent.run_after, urgent.priority) == (LATER - HOUR, 7)
    mail.using(unique=True).enqueue()
    assert ran() == 1


def test_many_are_enqueued_with_one_row_for_equal_calls(mail: Any) -> None:
    mail.using(unique=True).enqueue(3)
    rows = mail.using(unique=True).enqueue_many([((number,), {}) for number in (3, 1, 2, 1)])
    assert [row.args for row in rows] == [[3], [1], [2], [1]]
    assert rows[1].pk == rows[3].pk
    assert sorted(asked_for()) == [([1], 1, "waiting"), ([2], 1, "waiting"), ([3], 2, "waiting")]


@pytest.mark.parametrize("unique", ["", "a,b", " a", "a\0", "\ud800", "a" * 201, 1, None])
def test_another_value_is_refused(mail: Any, unique: Any) -> None:
    with pytest.raises(InvalidOrder, match="Invalid unique"):
        mail.using(unique=unique)


def test_a_text_is_refused_for_many_and_unique_among_the_arguments(mail: Any) -> None:
    with pytest.raises(InvalidOrder, match="unique=True"):
        mail.using(unique="a").enqueue_many([((), {})])
    job: Any = singleton_job("strict")(lambda: None)
    with pytest.raises(InvalidOrder, match="unique is an option of using"):
        job.enqueue(unique=True)


# --- nobody's request is lost


def test_one_that_has_begun_does_not_count(mail: Any, calls: list[Any]) -> None:
    job = singleton_job("again")(lambda *args: once.enqueue() if not args else None)
    once = job.using(unique="a")
    first = once.enqueue()
    assert ran() == 1
    first.refresh_from_db()
    assert first.status == "done"
    assert [row.status for row in one_offs().order_by("pk")] == ["done", "waiting"]


TOUCHES: dict[str, Callable[[Any], object]] = {
    "cancel": lambda rows: rows.cancel(),
    "retry": lambda rows: rows.update(status="failed", version=1) and rows.retry(),
    "put back": lambda rows: rows.update(status="in_progress", version=1) and rows.put_back("It died."),
    "release": lambda rows: rows.update(status="in_progress", version=1, token=TOKEN) and rows.release(TOKEN),
}


@pytest.mark.parametrize("touch", TOUCHES.values(), ids=TOUCHES)
def test_whatever_has_touched_it_a_second_one_waits_beside_it(mail: Any, touch: Callable[[Any], int]) -> None:
    first = mail.using(unique="a").enqueue()
    assert touch(one_offs().filter(pk=first.pk)) == 1
    second = mail.using(unique="a").enqueue()
    assert second.pk != first.pk
    assert mail.using(unique="a").enqueue().pk == second.pk
    # Nor does it collide with one that waits.
    assert one_offs().filter(pk=second.pk).update(status="in_progress", version=1) == 1
    third = mail.using(unique="a").enqueue()
    assert one_offs().filter(pk=second.pk).put_back("It died.") == 1
    assert third.pk not in (first.pk, second.pk)


def test_of_twenty_threads_all_get_the_same_row(mail: Any) -> None:
    found = all_at_once([lambda: mail.using(unique="a").enqueue(1).pk] * 20)
    assert len(set(found)) == 1
    assert asked_for() == [([1], 20, "waiting")]


def test_those_of_many_are_asked_for_in_one_order(mail: Any) -> None:
    calls: list[Any] = [((number,), {}) for number in range(20)]

    def enqueue(some: Any) -> None:
        with transaction.atomic():
            mail.using(unique=True).enqueue_many(some)

    all_at_once([partial(enqueue, calls[::step]) for step in (1, -1)] * 4)
    assert {asked for _args, asked, _status in asked_for()} == {8}


@locks_rows
def test_if_the_first_is_rolled_back_the_second_waits_for_that_and_has_a_row(mail: Any, elsewhere: Elsewhere) -> None:
    with transaction.atomic():
        mail.using(unique="a").enqueue(1)
        second = elsewhere(lambda: mail.using(unique="a").enqueue(2))
        eventually(is_somebody_waiting)
        transaction.set_rollback(True)
    assert second.result(PATIENCE).args == [2]
    assert asked_for() == [([2], 1, "waiting")]


@locks_rows
def test_what_a_transaction_has_asked_for_is_not_begun_before_its_commit(
    mail: Any, calls: list[Any], elsewhere: Elsewhere
) -> None:
    waits = mail.using(unique="a").enqueue()
    mail.enqueue("other")
    with transaction.atomic():
        assert mail.using(unique="a").enqueue().pk == waits.pk
        assert elsewhere(ran).result(PATIENCE) == 1  # it passes it by, and does not wait
        assert calls == [(("other",), {})]
    assert ran() == 1
    assert calls[1:] == [((), {})]


@locks_rows
def test_meanwhile_others_are_enqueued_and_run(calls: list[Any], elsewhere: Elsewhere) -> None:
    mail = singleton_job("mail", min_interval=MINUTE)(lambda *args: calls.append(args))
    other = singleton_job("other")(lambda *args: calls.append(args))
    once = mail.using(unique=True, priority=1)
    few: list[Any] = [((number,), {}) for number in range(5)]
    waiting = once.enqueue_many(few)
    with transaction.atomic():
        assert once.enqueue_many(few) == waiting
        for act in (mail.enqueue, mail.using(unique="b").enqueue, other.enqueue):
            elsewhere(act, "new").result(PATIENCE)
        elsewhere(call_command, "singleton_worker", drain=True, verbosity=0).result(PATIENCE)
    assert calls == [("new",), ("new",)]


@locks_rows
def test_nor_if_it_is_locked_between_the_look_and_the_claim(mail: Any, elsewhere: Elsewhere) -> None:
    waits = mail.using(unique="a").enqueue()
    seen = one_offs().get(pk=waits.pk)
    with transaction.atomic():
        mail.using(unique="a").enqueue()
        refused = elsewhere(ask, "mail", job_name="mail", trigger="one_off", one_off=seen).result(PATIENCE)
        assert refused.reason == "not_due"
    assert is_free("mail")
    assert ran() == 1


@locks_rows
def test_a_claim_before_the_request_leaves_a_second_one(mail: Any, calls: list[Any], elsewhere: Elsewhere) -> None:
    mail.using(unique="a").enqueue(1)
    assert ran() == 1
    with transaction.atomic():
        mail.using(unique="a").enqueue(2)
        assert elsewhere(ran).result(PATIENCE) == 0
    assert ran() == 1
    assert calls == [((1,), {}), ((2,), {})]


@locks_rows
def test_in_a_snapshot_from_before_the_claim_it_is_a_second_one_or_an_error(mail: Any, calls: list[Any]) -> None:
    mail.using(unique="a").enqueue(1)
    error: Error | None = None
    try:
        with transaction.atomic():
            with connection.cursor() as cursor:
                if connection.vendor == "postgresql":
                    cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            assert one_offs().waiting().count() == 1  # the snapshot
            assert in_thread(ran) == 1
            mail.using(unique="a").enqueue(2)
    except Error as problem:
        error = problem
    if error is None:
        assert ran() == 1
        assert calls == [((1,), {}), ((2,), {})]
    else:
        assert connection.vendor == "postgresql"
        assert "serialize" in str(error)
        assert mail.using(unique="a").enqueue(2).args == [2]


def is_somebody_waiting() -> bool:
    """Whether another transaction waits for a lock, or inserts."""
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute("SELECT count(*) FROM pg_locks WHERE NOT granted")
        else:
            cursor.execute("SELECT count(*) FROM information_schema.processlist WHERE info LIKE 'INSERT INTO %'")
        return bool(cursor.fetchone()[0])
