from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from django.db import DatabaseError, connection, transaction

from django_singlejob.locking.request import Reason, Refusal
from django_singlejob.models.jobs import gates
from django_singlejob.models.locks import locks
from django_singlejob.models.one_offs import one_offs
from django_singlejob.models.runs import runs
from django_singlejob.process.clock import DBNow
from django_singlejob.running.enqueue import Order, place
from tests.contract.acts import MINUTE, ask, lock, start_run, take

if TYPE_CHECKING:
    from collections.abc import Callable


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


# --- rows that somebody wrote past Django

NOT_AN_INSTANT = {"sqlite": "2026-02-31 00:00:00", "postgresql": "infinity"}


@pytest.mark.on_database("sqlite", "postgresql")
@pytest.mark.parametrize(("table", "column"), [("JobLock", "sent_at"), ("JobStatus", "last_started_at")])
def test_a_lock_is_not_granted_if_its_rows_cannot_be_read(table: str, column: str) -> None:
    take("shop")
    if table == "JobStatus":
        locks().all().delete()
    with connection.cursor() as cursor:
        value = NOT_AN_INSTANT[connection.vendor]
        cursor.execute(f"UPDATE django_singlejob_{table.lower()} SET {column} = %s", [value])
    answer = ask("shop")
    assert isinstance(answer, Refusal)
    assert answer.reason == Reason.UNDECIDED
    assert answer.detail.startswith(f"A row of {table} cannot be read (")
    assert answer.detail.endswith("Correct it in the database.")


def test_the_database_refuses_what_no_server_writes() -> None:
    lease = start_run("shop")
    row = place(Order(job_name="nightly"), [], {})
    for rows, changes in (
        (locks(), {"attempt": 0}),
        (locks(), {"heartbeat_interval": timedelta()}),
        (gates(), {"last_status": "nonsense"}),
        (runs(), {"status": "nonsense"}),
        (runs(), {"trigger": "nonsense"}),
        (runs(), {"attempt": 0}),
        (one_offs(), {"status": "nonsense"}),
        (one_offs(), {"max_attempts": 0}),
        (one_offs(), {"priority": 101}),
        (one_offs(), {"priority": -101}),
    ):
        with pytest.raises(DatabaseError), transaction.atomic():
            rows.update(**changes)
    assert lease.release()
    assert one_offs().get(pk=row.pk).status == "waiting"
