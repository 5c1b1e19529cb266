"""A lock for each customer: its gate stays for ever, and no list and no look of a worker reads it."""

from __future__ import annotations

import json
import re
from io import StringIO
from typing import TYPE_CHECKING

import pytest
from django.core.management import call_command
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from django_singlejob import job_lock, singleton_job
from django_singlejob.models import JobStatus
from tests.admin.pages import list_of, shown
from tests.models.test_plans import explained, nodes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from django.test import Client

pytest_plugins = ["tests.fixtures", "tests.admin.people"]
pytestmark = [pytest.mark.usefixtures("fresh_process"), pytest.mark.django_db]

JOBS, CUSTOMERS = 3, 5_000
TABLE = JobStatus._meta.db_table


def told(*command: str) -> str:
    output = StringIO()
    call_command(*command, stdout=output)
    return output.getvalue()


def overview(page: str) -> str:
    return reverse(f"admin:django_singlejob_overview_{page}")


#: What somebody reads, or a worker does, without the name of a lock.
LOOKS: dict[str, Callable[[Client], str]] = {
    "a pass of a worker": lambda _: told("singleton_worker", "--once"),
    "singleton_status": lambda _: told("singleton_status"),
    "its JSON": lambda _: told("singleton_status", "--format", "json"),
    "run_singleton --list": lambda _: told("run_singleton", "--list", "--format", "json"),
    "the overview": lambda client: shown(client, overview("changelist")),
    "the ledger": lambda client: shown(client, overview("ledger")),
    "the jobs": lambda client: shown(client, list_of("jobstatus")),
    "the runs": lambda client: shown(client, list_of("jobrun")),
    "the runs of some jobs": lambda client: shown(client, list_of("jobrun", "?q=sync")),
}
each_look = pytest.mark.parametrize("look", LOOKS)


@pytest.fixture
def jobs() -> None:
    for number in range(JOBS):
        singleton_job(f"nightly-{number}", schedule="30 2 * * *")(print)
    told("singleton_worker", "--once")


def serve_customers(number: int) -> None:
    """As if each customer had been served once, under a lock of its own."""
    gates = [JobStatus(name=f"sync:{customer}", fence=1, hold_count=1) for customer in range(number)]
    JobStatus.objects.bulk_create(gates, batch_size=1_000)


def asked(look: str, client: Client) -> list[str]:
    LOOKS[look](client)  # the first request also reads content types
    with CaptureQueriesContext(connection) as queries:
        LOOKS[look](client)
    return [query["sql"] for query in queries]


@pytest.mark.slow
@pytest.mark.usefixtures("jobs")
@each_look
def test_the_gates_of_locks_are_not_read(look: str, admin_client: Client) -> None:
    few = asked(look, admin_client)
    serve_customers(CUSTOMERS)
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute(f"ANALYZE {TABLE}")  # as the server does on its own
    many = asked(look, admin_client)
    assert len(many) == len(few)
    plans = [(statement[:2000], plan) for statement in many if TABLE in statement for plan in whole_reads(statement)]
    assert not plans


def whole_reads(statement: str) -> Iterator[str]:
    """The parts of the database's plan for this SELECT that read all gates."""
    if not statement.lstrip("(").startswith("SELECT"):
        return
    names = {TABLE, *re.findall(rf"\b{TABLE}\W+(U\d)\b", statement)}  # in a subquery it has another
    if connection.vendor == "sqlite":
        details = [row["detail"] for row in explained("EXPLAIN QUERY PLAN", statement)]
        yield from (detail for detail in details if detail.split()[0] == "SCAN" and detail.split()[1] in names)
    elif connection.vendor == "postgresql":
        (row,) = explained("EXPLAIN (FORMAT JSON)", statement)
        plan = row["QUERY PLAN"]
        for node in nodes((json.loads(plan) if isinstance(plan, str) else plan)[0]["Plan"]):
            if node.get("Relation Name") == TABLE and node["Node Type"] == "Seq Scan":
                yield node["Node Type"]
    else:
        rows = explained("EXPLAIN", statement)
        yield from (row["type"] for row in rows if row["table"] in names and row["type"] in {"ALL", "index"})


@pytest.mark.usefixtures("jobs")
@pytest.mark.parametrize("look", ["singleton_status", "its JSON", "the overview", "the jobs"])
def test_a_job_is_listed_and_a_free_lock_is_not(look: str, admin_client: Client) -> None:
    serve_customers(9)
    told_then = LOOKS[look](admin_client)
    assert ("nightly-0" in told_then, "sync:" in told_then) == (True, False)


@pytest.mark.usefixtures("jobs")
@pytest.mark.parametrize("look", ["singleton_status", "its JSON"])
def test_a_lock_is_listed_while_it_is_held(look: str, admin_client: Client) -> None:
    serve_customers(9)
    with job_lock("sync:7"):
        told_then = LOOKS[look](admin_client)
    assert ("sync:7" in told_then, "sync:8" in told_then) == (True, False)


def test_a_name_that_was_once_a_job_s_stays_listed() -> None:
    serve_customers(9)
    singleton_job("report")(int)()
    JobStatus.objects.filter(name="report").update(name="sync:of-an-older-release")
    listed = [line.split()[0] for line in told("singleton_status").splitlines() if line.startswith("sync:")]
    assert listed == ["sync:of-an-older-release"]
