"""How the database finds one-offs among many: by an index, however many have ended or wait for another day."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from django.core.management.color import no_style
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from django_singlejob import singleton_job
from django_singlejob.models import OneOffJob
from django_singlejob.models.one_offs import one_offs
from django_singlejob.monitoring.queues import MOST as MOST_OF_QUEUES, queues
from django_singlejob.process.holder import this_process
from django_singlejob.tasks.batches import Batches, task_rows
from django_singlejob.worker.due import anything_due, exclusive
from tests.contract.acts import HOUR

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pytest_django import DjangoDbBlocker

pytest_plugins = "tests.fixtures"
pytestmark = [pytest.mark.django_db, pytest.mark.timeout(1200)]

DAY = timedelta(days=1)
# Set SINGLEJOB_TEST_ROWS=1000000 for as many rows as a busy site has.
ENDED = int(os.environ.get("SINGLEJOB_TEST_ROWS", "20000"))
WAITING = ENDED // 4
MOST = 40
TABLE = OneOffJob._meta.db_table
#: Waiting one-offs, the same number of each kind: parallel or exclusive, due now or (with a higher priority) tomorrow.
KINDS: list[dict[str, Any]] = [
    {**name, "priority": priority, "in": delay}
    for name in ({"task_path": "shop.tasks.mail", "backend": "default"}, {"job_name": "nightly"})
    for priority, delay in ((0, -HOUR), (0, DAY), (10, DAY))
]


@pytest.fixture(scope="module", autouse=True)
def crowd(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[None]:
    with django_db_blocker.unblock():
        rows = crowd_rows(datetime.now(UTC))
        while some := list(islice(rows, 2000)):
            one_offs().bulk_create(some)
        update_statistics()
        yield
        connection.ops.execute_sql_flush(connection.ops.sql_flush(no_style(), [TABLE]))


def crowd_rows(now: datetime) -> Iterator[OneOffJob]:
    facts: dict[str, Any] = {"created_at": now - 2 * DAY}
    for number in range(ENDED):
        finished_at = now - DAY * number / ENDED
        yield OneOffJob(job_name="nightly", status="done", run_after=finished_at, finished_at=finished_at, **facts)
    for number in range(WAITING // len(KINDS)):
        for kind in KINDS:
            columns = {**facts, **kind}
            run_after = now + columns.pop("in") + timedelta(milliseconds=number)
            yield OneOffJob(status="waiting", run_after=run_after, **columns)


def update_statistics() -> None:
    """Update the statistics, as the server does on its own. SQLite has none until it is asked to."""
    statements = {"postgresql": f"VACUUM ANALYZE {TABLE}", "mysql": f"ANALYZE TABLE {TABLE}"}
    if connection.vendor in statements:
        with connection.cursor() as cursor:
            cursor.execute(statements[connection.vendor])


# --- the statements


#: To claim and to record are done here by hand.
NO_LEASE: Any = None


def claim_tasks() -> None:
    claimed = Batches(NO_LEASE).waiting().lock_due(MOST)
    assert len(claimed) == MOST
    assert task_rows().claim_locked(claimed, uuid4(), this_process())


def finish_tasks() -> None:
    claimed = Batches(NO_LEASE).waiting().lock_due(MOST)
    task_rows().finish_all(claimed, uuid4(), {"status": "done"})


QUESTIONS: dict[str, Callable[[], object]] = {
    "whether anything is due": anything_due,
    "whether a task is due": lambda: Batches(NO_LEASE).waiting().due().exists(),
    "tasks": claim_tasks,
    "tasks of a queue": lambda: Batches(NO_LEASE, ["default"]).waiting().lock_due(MOST),
    "tasks that have been performed": finish_tasks,
    "tasks that are released": lambda: one_offs().release(uuid4()),
    "the next one-off": lambda: exclusive([]).next_due(),
    "the next one-off of jobs": lambda: exclusive([]).filter(job_name__in=["nightly"]).next_due(),
    "the next one-off of a queue": lambda: exclusive(["default"], {"hourly"}).next_due(),
    "what is due and what has failed, by queue": queues,
    "orphans": lambda: one_offs().abandon_orphans("Its lock is gone."),
}


@pytest.mark.slow
@pytest.mark.usefixtures("fresh_process")
@pytest.mark.parametrize("question", QUESTIONS)
def test_an_index_leads_to(question: str, request: pytest.FixtureRequest) -> None:
    for name in ("nightly", "hourly"):
        singleton_job(name)(lambda: None)
    if question.startswith("what is due and") and not getattr(connection, "mysql_is_mariadb", True):
        reason = "MySQL sorts what has failed in the last hour"
        request.applymarker(pytest.mark.xfail(strict=True, reason=reason))
    found = {complaint for statement in asked(QUESTIONS[question]) for complaint in complaints(statement)}
    assert not found, "\n".join(sorted(found))


def asked(question: Callable[[], object]) -> list[str]:
    """The statements about one-offs, a few of each kind. They change nothing."""
    with CaptureQueriesContext(connection) as captured, transaction.atomic():
        question()
        transaction.set_rollback(True)
    statements = [query["sql"] for query in captured if TABLE in query["sql"]]
    assert statements
    return statements[:6]


# --- the plans of the database


def complaints(statement: str) -> list[str]:
    explain = {"postgresql": of_postgresql, "mysql": of_mysql, "sqlite": of_sqlite}[connection.vendor]
    return [f"{complaint}:\n{statement[:2000]}" for complaint in explain(statement)]


def explained(how: str, statement: str) -> list[dict[str, Any]]:
    with connection.cursor() as cursor:
        cursor.execute(f"{how} {statement}")
        columns = [column[0] for column in cursor.description]
        return [dict(zip(columns, row, strict=True)) for row in cursor.fetchall()]


def of_postgresql(statement: str) -> Iterator[str]:
    (row,) = explained("EXPLAIN (FORMAT JSON)", statement)
    plan = row["QUERY PLAN"]
    for node in nodes((json.loads(plan) if isinstance(plan, str) else plan)[0]["Plan"]):
        # What ended in the last hour, found by an index: to sort fewer rows than are asked for costs little.
        if "UNION" in statement and node["Node Type"] != "Seq Scan" and node["Plan Rows"] < MOST_OF_QUEUES:
            continue
        is_all_read = node.get("Index Name", "").endswith("_pkey") and "Index Cond" not in node
        if node["Node Type"] in {"Sort", "Incremental Sort", "Bitmap Heap Scan"} or (
            node.get("Relation Name") == TABLE and (node["Node Type"] == "Seq Scan" or is_all_read)
        ):
            yield f"{node['Node Type']} by {node.get('Index Name', node.get('Sort Key'))}"


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for part in plan.get("Plans", []):
        yield from nodes(part)


def of_mysql(statement: str) -> Iterator[str]:
    is_mariadb = connection.mysql_is_mariadb  # type: ignore[attr-defined]
    # MySQL 9 would draw a tree.
    for row in explained("EXPLAIN" if is_mariadb else "EXPLAIN FORMAT=TRADITIONAL", statement):
        is_about_one_offs = row["table"] in {TABLE, "U0"}
        if is_about_one_offs and (row["type"] in {"ALL", "index"} or "filesort" in (row["Extra"] or "")):
            yield f"{row['type']} by {row['key']}, {row['Extra']}"


def of_sqlite(statement: str) -> Iterator[str]:
    for row in explained("EXPLAIN QUERY PLAN", statement):
        detail = row["detail"]
        if detail.startswith((f"SCAN {TABLE}", "SCAN U0", "USE TEMP B-TREE")):
            yield detail
        # It reads all that are waiting or have ended.
        if detail.endswith("(status=?)") and "in_progress" not in statement.partition("WHERE")[2]:
            yield detail
