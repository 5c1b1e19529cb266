"""The admin's queries: as many for many rows as for few, and none that reads the whole history."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from django_singlejob import singleton_job
from django_singlejob.models import JobLock, JobRun, JobStatus, OneOffJob
from django_singlejob.models.jobs import gates
from django_singlejob.models.locks import locks
from django_singlejob.models.one_offs import one_offs
from django_singlejob.models.runs import runs
from django_singlejob.process.clock import DBNow, utc_now
from tests.admin.pages import list_of, page_of, shown
from tests.contract.acts import HOUR, MINUTE

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from django.test import Client

pytest_plugins = ["tests.fixtures", "tests.admin.people"]
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("fresh_process"), pytest.mark.django_db]

FEW, MANY = 3, 60
YEAR = timedelta(days=365)
TODAY = f"{datetime.now(UTC):started_at__year=%Y&started_at__month=%-m&started_at__day=%-d}"
OF_RUNS = [
    "",
    "?status__exact=failed",
    "?trigger__exact=manual",
    "?server=web-0",
    "?server=unknown",
    "?job_name=job_0",
    "?job_name=job_0&status__exact=failed&server=web-0",
    "?q=job",
    "?q=unknown",
    f"?{TODAY}",
    f"?{TODAY}&server=web-0",
    f"?{TODAY.rpartition('&')[0]}",
    f"?{TODAY.partition('&')[0]}&trigger__exact=call",
]
LISTS = {
    "jobstatus": ["", "?state=attention", "?state=running", "?q=job"],
    "joblock": ["", "?state=held", "?state=stale", "?hostname=web-0", "?q=job"],
    "jobrun": OF_RUNS,
    "oneoffjob": [
        "",
        "?status__exact=failed",
        "?queue_name__exact=default",
        "?priority=0",
        "?name=job_0",
        "?name=unknown",
        "?q=job",
        "?q=unknown",
    ],
}


@pytest.mark.parametrize("model", LISTS)
def test_a_longer_list_takes_no_more_queries(admin_client: Client, model: str) -> None:
    fill(range(FEW))
    few = {query: len(asked(admin_client, list_of(model, query))) for query in LISTS[model]}
    fill(range(FEW, MANY))
    assert {query: len(asked(admin_client, list_of(model, query))) for query in LISTS[model]} == few
    assert max(few.values()) <= 11


def test_nor_does_the_page_of_a_job_that_has_run_more_often(admin_client: Client) -> None:
    fill(range(FEW))
    shown(admin_client, page_of("jobstatus", "job_0"))  # the first request also reads content types
    few = asked(admin_client, page_of("jobstatus", "job_0"))
    fill(range(FEW, MANY))
    fill_history(["job_0"] * MANY)
    assert len(asked(admin_client, page_of("jobstatus", "job_0"))) == len(few) <= 12


@pytest.mark.parametrize("page", ["changelist", "ledger"])
def test_nor_do_the_overview_and_the_ledger(admin_client: Client, page: str) -> None:
    url = reverse(f"admin:django_singlejob_overview_{page}")
    fill(range(FEW))
    few = asked(admin_client, url)
    fill(range(FEW, MANY))
    assert len(asked(admin_client, url)) == len(few) <= 12


@pytest.mark.parametrize(("kind", "most"), [("successful", 9), ("failed", 10), ("missed", 12)])
def test_a_night_of_many_jobs_takes_no_more_queries_than_one_of_few(admin_client: Client, kind: str, most: int) -> None:
    url = reverse("admin:django_singlejob_overview_ledger")
    spend_a_night(range(FEW), kind)
    few = asked(admin_client, url)
    spend_a_night(range(FEW, MANY), kind)
    assert len(asked(admin_client, url)) == len(few) <= most


def test_the_runs_are_not_counted_without_a_limit(admin_client: Client) -> None:
    fill(range(FEW))
    for query in OF_RUNS:
        counts = [
            sql for sql in asked(admin_client, list_of("jobrun", query)) if "COUNT(" in sql and "GROUP BY" not in sql
        ]
        assert all("LIMIT 10000" in sql for sql in counts), query
        assert bool(counts) is (query != "?q=unknown"), query


def test_below_a_year_are_its_own_months(admin_client: Client) -> None:
    middle = datetime(2025, 6, 15, 12, tzinfo=UTC)
    for started_at in (middle - YEAR, middle, middle + timedelta(days=31)):
        run("job_0", started_at=started_at).save()
    page = shown(admin_client, list_of("jobrun", "?started_at__year=2025"))
    assert [month for month in range(1, 13) if f"started_at__month={month}&amp;started_at__year=2025" in page] == [6, 7]


# --- rows


def fill(numbers: Iterable[int]) -> None:
    """Create a job for each number, which is running, has run and is waiting. Every third one is stale and failing."""
    names = [f"job_{number}" for number in numbers]
    for name in names:
        singleton_job(name, schedule="30 2 * * *")(print)
    gates().bulk_create(gate(name) for name in names)
    locks().bulk_create(lock(name) for name in names)
    fill_history(names)


def spend_a_night(numbers: Iterable[int], kind: str) -> None:
    """Create a job for each number, of whose hourly slots one ended so. All others were run well."""
    top = datetime.now(UTC).replace(second=0, microsecond=0) - 10 * MINUTE
    facts = {"schedule": f"{top.minute} * * * *", "time_zone": "UTC", "next_slot": top + HOUR, "last_started_at": top}
    names = [f"night_{number}" for number in numbers]
    gates().bulk_create(JobStatus(name=name, **facts) for name in names)
    runs().bulk_create(
        run(name, slot=slot, started_at=slot, finished_at=slot + MINUTE, trigger="schedule", lock=name, status=status)
        for name in names
        for ago in range(9)
        for slot, status in [(top - ago * HOUR, kind if ago == 3 else "successful")]
        if status != "missed"
    )


def fill_history(names: Sequence[str]) -> None:
    """Create runs and one-offs of each kind."""
    kinds: list[dict[str, Any]] = [
        *({"status": status} for status in JobRun.Status.values),
        *({"trigger": trigger, "hostname": "web-1"} for trigger in JobRun.Trigger.values),
    ]
    runs().bulk_create(run(name, **kind) for name in names for kind in kinds)
    times = {"run_after": DBNow() - MINUTE, "created_at": DBNow() - HOUR}
    statuses = OneOffJob.Status.values
    one_offs().bulk_create(OneOffJob(job_name=name, status=status, **times) for name in names for status in statuses)


def is_ill(name: str) -> bool:
    return int(name.removeprefix("job_")) % 3 == 0


def gate(name: str) -> JobStatus:
    return JobStatus(name=name, last_started_at=DBNow(), run_count=9, consecutive_failures=int(is_ill(name)))


def lock(name: str) -> JobLock:
    return JobLock(
        name=name,
        job_name=name,
        token=uuid4(),
        hostname="web-0",
        pid=1,
        acquired_at=DBNow() - HOUR,
        heartbeat_at=DBNow() - HOUR,
        sent_at=utc_now() - HOUR,
        expires_at=DBNow() + (-MINUTE if is_ill(name) else MINUTE),
    )


def run(name: str, **columns: Any) -> JobRun:
    facts = {"fence": 1, "token": uuid4(), "status": "successful", "trigger": "call", "hostname": "web-0", "pid": 1}
    times = {"started_at": DBNow() - MINUTE, "duration": MINUTE}
    return JobRun(job_name=name, **facts | times | columns)


# --- queries


def asked(client: Client, url: str) -> list[str]:
    with CaptureQueriesContext(connection) as queries:
        shown(client, url)
    return [query["sql"] for query in queries]
