"""A statement's SQL is built once for each shape of its arguments, and executed with other values each time."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from django.db import DataError, connection, transaction
from django.db.models import F
from django.db.models.sql.compiler import SQLCompiler, SQLDeleteCompiler, SQLUpdateCompiler

from django_singlejob.clock import DBNow
from django_singlejob.database import sent_now
from django_singlejob.fields import FIRST, LAST
from django_singlejob.querysets.jobs import gates
from django_singlejob.querysets.locks import locks
from tests.contract.acts import gate, lock, take

if TYPE_CHECKING:
    from collections.abc import Callable

pytest_plugins = "tests.fixtures"
pytestmark = [pytest.mark.usefixtures("fresh_process"), pytest.mark.django_db]

MINUTE = timedelta(minutes=1)


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[SQLCompiler]:
    """The compilers that have built an UPDATE or a DELETE."""
    found: list[SQLCompiler] = []

    def counting(as_sql: Callable[..., Any]) -> Callable[..., Any]:
        def count(compiler: SQLCompiler, *args: Any) -> Any:
            found.append(compiler)
            return as_sql(compiler, *args)

        return count

    for kind in SQLUpdateCompiler, SQLDeleteCompiler:
        monkeypatch.setattr(kind, "as_sql", counting(kind.as_sql))
    return found


def test_it_is_built_once(built: list[SQLCompiler]) -> None:
    first, second = take("nightly"), take("hourly")
    assert first.release()
    assert locks().renew("hourly", second.token, MINUTE, sent_now())
    built.clear()
    for lease in 2 * MINUTE, 3 * MINUTE:
        assert locks().renew("hourly", second.token, lease, sent_now())
        assert lock("hourly").lease == lease
    assert second.release()
    assert not built


def test_another_shape_is_another_statement() -> None:
    lease = take()
    for result in {"last_status": "failed"}, {"last_status": ""}, {"last_status": "failed", "consecutive_failures": 0}:
        gates().filter(name="nightly").update(last_status="abandoned", consecutive_failures=5)
        assert gates().finish("nightly", lease.token, result)
        found = gate()
        assert {"last_status": found.last_status, "consecutive_failures": found.consecutive_failures} == {
            "consecutive_failures": 5,
            **result,
        }


def test_what_the_database_computes_is_computed_each_time() -> None:
    lease = take()
    for expected in 1, 2:
        assert gates().finish("nightly", lease.token, {"consecutive_failures": F("consecutive_failures") + 1})
        assert gate().consecutive_failures == expected


def test_rows_that_are_filtered_stay_so() -> None:
    lease = take()
    assert gates().hold("nightly", lease.token)
    assert not gates().filter(paused=True).hold("nightly", lease.token)


def test_a_document_is_one_value() -> None:
    lease = take()
    for end in {"token": "a"}, {"token": "b", "status": "failed"}:
        assert gates().finish("nightly", lease.token, {"unrecorded": end})
        assert gate().unrecorded == end


def test_a_write_of_no_row_or_of_a_strangers_is_no_success() -> None:
    take()
    assert not locks().release("nightly", uuid4())
    assert not locks().release("hourly", lock().token)
    assert not locks().renew("nightly", uuid4(), MINUTE, sent_now())


@pytest.mark.parametrize("slot", [None, FIRST, LAST, FIRST + 5 * MINUTE])
@pytest.mark.parametrize("is_changed", [True, False])
def test_a_job_starts_where_its_schedule_was_seen(slot: Any, is_changed: bool) -> None:
    gates().remember("nightly")
    gates().update(next_slot=slot, schedule="@hourly" if slot else "")
    seen = gates().look_up({"nightly"}, timedelta())["nightly"]
    if is_changed:
        gates().update(next_slot=DBNow())
    changes = {"fence": seen.fence + 1, "token": uuid4()}
    assert gates().pass_and_start(seen, timedelta(), changes) is not is_changed
    assert gate().token == (None if is_changed else changes["token"])
    assert not gates().pass_and_start(seen, timedelta(), changes)


def test_a_failed_write_breaks_the_transaction() -> None:
    """As each of Django's own writes: otherwise PostgreSQL would refuse whatever follows, and so the COMMIT."""
    lease = take()
    with transaction.atomic():
        with pytest.raises(DataError), connection.execute_wrapper(_fail):
            locks().release(lease.name, lease.token)
        assert transaction.get_rollback()


def _fail(*_: Any) -> None:
    raise DataError
