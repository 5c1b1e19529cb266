from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from django.db import DataError, Error, InterfaceError, connection, transaction
from django.db.models import Count, F

from django_singlejob.clock import DBNow, utc_now
from django_singlejob.exceptions import UnreadableRow
from django_singlejob.models import OneOffJob
from django_singlejob.one_offs.enqueue import Order, place
from django_singlejob.querysets import rows
from django_singlejob.querysets.locks import locks
from django_singlejob.querysets.one_offs import one_offs
from django_singlejob.querysets.rows import noticing
from django_singlejob.querysets.runs import runs
from tests.contract.acts import MINUTE, lock, take
from tests.impossible import spoil

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_django import DjangoAssertNumQueries

pytest_plugins = "tests.fixtures"
pytestmark = [pytest.mark.usefixtures("fresh_process"), pytest.mark.django_db]

DAY = timedelta(days=1)


def ended(ago: timedelta) -> None:
    place(Order(job_name="nightly"), [], {}, status="failed", attempt=1, finished_at=DBNow() - ago)


def test_pruning_goes_in_batches_and_deletes_nothing_else() -> None:
    for ago in 5 * [2 * DAY] + 2 * [MINUTE]:
        ended(ago)
    assert one_offs().surplus(DAY).prune(batch=2) == 5
    assert one_offs().count() == 2


def test_one_that_is_to_be_run_again_meanwhile_is_not_pruned() -> None:
    ended(2 * DAY)

    def retry_first(execute: Callable[..., Any], sql: str, *others: Any) -> Any:
        if sql.startswith("DELETE"):
            assert one_offs().retry() == 1
        return execute(sql, *others)

    with connection.execute_wrapper(retry_first):
        assert one_offs().surplus(DAY).prune() == 0
    assert one_offs().get().status == "waiting"


def test_those_whose_lock_is_gone_are_put_back_and_no_others() -> None:
    take("shop")
    for token in lock("shop").token, lock("shop").token, "00000000-0000-0000-0000-000000000001":
        place(Order(task_path="shop.tasks.mail", max_attempts=2), [], {}, status="in_progress", token=token, attempt=1)
    place(Order(job_name="nightly"), [], {}, status="done", token="00000000-0000-0000-0000-000000000002")
    assert one_offs().abandon_orphans("Its lock is gone.") == 1
    assert sorted(one_offs().values_list("status", flat=True)) == ["done", "in_progress", "in_progress", "waiting"]


def test_so_is_one_that_somebody_marked_as_in_progress_by_hand() -> None:
    """Such a row has no token at all."""
    place(Order(job_name="nightly", max_attempts=2), [], {}, status="in_progress", attempt=1)
    assert one_offs().abandon_orphans("Its lock is gone.") == 1


# --- rows that cannot be read


def spoiled(number: int = 1) -> Any:
    """One-offs that are due; the first ``number`` of them cannot be read. Only SQLite stores that."""
    found = [place(Order(job_name="nightly"), [], {}) for _ in range(4)]
    one_offs().update(run_after=DBNow() - MINUTE)
    for row in found[:number]:
        assert spoil(row, "run_after", "2026-02-31 00:00:00")
    return found


@pytest.mark.on_database("sqlite")
def test_a_row_that_cannot_be_read_is_passed_over_and_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    found = spoiled()
    with noticing() as passed_over:
        assert [row.pk for row in one_offs().order_by("pk")] == [row.pk for row in found[1:]]
    assert [row.key for row in passed_over.values()] == [found[0].pk]
    assert len(list(one_offs().values_list("run_after"))) == 3
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "cannot be read (ValueError: " in caplog.text
    assert "correct it in the database." in caplog.text


@pytest.mark.on_database("sqlite")
def test_the_next_ones_take_its_place() -> None:
    found = spoiled(2)
    assert [row.pk for row in one_offs().order_by("pk")[:2]] == [row.pk for row in found[2:]]
    first = one_offs().order_by("pk").first()
    assert first
    assert first.pk == found[2].pk
    assert [row.pk for row in one_offs().lock_due(2)] == [row.pk for row in found[2:]]


@pytest.mark.on_database("sqlite")
@pytest.mark.parametrize("number", [1, 2])
def test_but_no_more_of_them_than_were_asked_for(number: int) -> None:
    found = spoiled(number)
    assert [row.pk for row in one_offs().lock_due(1)] == [found[number].pk]
    assert [row.pk for row in one_offs().order_by("pk")[:1]] == [found[number].pk]
    assert [row.pk for row in one_offs().order_by("pk")[1:2]] == [found[max(number, 1)].pk]


@pytest.mark.on_database("sqlite")
def test_a_text_in_place_of_a_number_is_such_a_row() -> None:
    take("shop")
    assert spoil(lock("shop"), "pid", "nonsense")
    with pytest.raises(UnreadableRow, match=r"^The row 'shop' of the table django_singlejob_joblock cannot be read"):
        locks().look_up("shop")
    assert not locks().survey()


@pytest.mark.on_database("sqlite")
def test_if_all_are_asked_for_none_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    found = spoiled(2)
    for limit in "_MOST", "_AT_ONCE":
        monkeypatch.setattr(rows, limit, 2)
    assert [row.pk for row in one_offs().order_by("pk")] == [row.pk for row in found[2:]]
    assert [row.pk for row in one_offs().order_by("-pk")[:3]] == [row.pk for row in reversed(found[2:])]


@pytest.mark.on_database("sqlite")
def test_it_takes_few_queries_to_find_it(django_assert_max_num_queries: DjangoAssertNumQueries) -> None:
    first = place(Order(job_name="nightly"), [], {})
    one_offs().bulk_create(
        [OneOffJob(job_name="nightly", run_after=utc_now(), created_at=utc_now()) for _ in range(1000)]
    )
    assert spoil(first, "run_after", "2026-02-31 00:00:00")
    with django_assert_max_num_queries(30):
        assert len(list(one_offs())) == 1000


@pytest.mark.on_database("sqlite")
def test_nothing_counts_as_an_orphan_beside_a_lock_whose_token_cannot_be_read() -> None:
    """It may be that of the lock, and its holder may be alive until its next heartbeat."""
    for name in "shop", "mail":
        take(name)
        order = Order(task_path="shop.tasks.mail", max_attempts=2)
        place(order, [], {}, status="in_progress", token=lock(name).token, attempt=1)
        runs().start({"job_name": name, "token": lock(name).token, "fence": 1, "hostname": "web-1", "pid": 1})
    seen = lock("shop")
    assert spoil(seen, "token", "nonsense")
    assert (one_offs().abandon_orphans("gone"), runs().abandon_orphans("gone")) == (0, 0)
    assert spoil(seen, "token", seen.token.hex)
    locks().filter(name="shop").delete()
    assert (one_offs().abandon_orphans("gone"), runs().abandon_orphans("gone")) == (1, 1)


@pytest.mark.on_database("sqlite")
@pytest.mark.timeout(20)
@pytest.mark.parametrize("is_due", [True, False])
@pytest.mark.parametrize("priority", [1.5, -1.5, 1e300, -1e300, 9e999, -9e999, 40_000, 10**18, "nonsense", b"x"])
def test_a_priority_that_is_none_holds_up_no_others(priority: object, is_due: bool) -> None:
    found = [place(Order(job_name="nightly"), [], {}) for _ in range(3)]
    one_offs().update(run_after=DBNow() - MINUTE)
    if not is_due:
        one_offs().filter(pk=found[0].pk).update(run_after=DBNow() + MINUTE)
    assert spoil(found[0], "priority", priority)
    is_first_read = is_due and isinstance(priority, int)
    expected = {row.pk for row in (found if is_first_read else found[1:])}
    due = [row.pk for row in one_offs().lock_due(5)]
    assert (sorted(due), len(due)) == (sorted(expected), len(expected))


def test_an_error_of_the_query_itself_is_raised() -> None:
    with pytest.raises(ValueError, match=r"expected a number"):
        list(one_offs().filter(attempt="nonsense"))


def test_a_connection_that_is_lost_while_rows_are_read_with_care_is_raised_as_that() -> None:
    """Then the caller asks again. After an error of the row itself it would give up."""
    take("shop")
    errors: list[Error] = [DataError("a value that cannot be read"), *3 * [InterfaceError("connection already closed")]]

    def lose(*_: Any) -> Any:
        raise errors.pop(0)

    with connection.execute_wrapper(lose), noticing() as passed_over, pytest.raises(InterfaceError):
        list(locks().all())
    assert not passed_over


@pytest.mark.on_database("postgresql")
def test_after_an_error_in_a_transaction_that_one_is_raised_and_not_that_of_the_look_after_it() -> None:
    """PostgreSQL refuses all queries until such a transaction is rolled back."""
    take("shop")
    with pytest.raises(DataError, match="division by zero"), transaction.atomic():
        list(locks().annotate(nonsense=F("pid") / 0))


TOGETHER: dict[str, Callable[[Any], Any]] = {
    "distinct": lambda rows: rows.distinct(),
    "a union": lambda rows: rows.union(rows, all=True),
    "counted": lambda rows: rows.annotate(Count("pk")),
}


@pytest.mark.on_database("sqlite")
@pytest.mark.parametrize("how", TOGETHER)
def test_if_the_values_are_not_those_of_single_rows_none_is_passed_over(how: str) -> None:
    spoiled()
    with noticing() as passed_over, pytest.raises(ValueError, match="day"):
        list(TOGETHER[how](one_offs().values_list("run_after")))
    assert not passed_over


def test_a_counter_does_not_grow_beyond_its_column() -> None:
    row = place(Order(job_name="nightly"), [], {}, status="failed", attempt=2**31 - 1)
    assert one_offs().retry() == 1
    row.refresh_from_db()
    assert row.max_attempts == 2**31 - 1
