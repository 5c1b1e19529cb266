from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connection

from django_singlejob.clock import DBNow
from django_singlejob.one_offs.enqueue import Order, place
from django_singlejob.querysets.one_offs import one_offs
from tests.contract.acts import MINUTE, lock, take

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
