"""How long the admin's pages take with many jobs, locks and one-offs and a million runs, beside the same pages with
empty tables. For PostgreSQL. The bare times depend on the machine; the ratios show what the rows cost."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from statistics import median
from typing import Any
from unittest import mock
from uuid import uuid4

from django.contrib.auth import get_user_model
from django.db import connection
from django.test import Client, override_settings
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from django_singlejob import singleton_job
from django_singlejob.jobs import registry
from django_singlejob.jobs.schedule import next_slot, parse
from django_singlejob.models import JobLock, JobRun, JobStatus, OneOffJob
from django_singlejob.models.jobs import gates
from django_singlejob.models.locks import locks
from django_singlejob.process.clock import DBNow
from tests.benchmarks.throughput import analyze, empty, execute

ROUNDS = 10
JOBS, LOCKS, RUNS, ONE_OFFS = 1_000, 500, 1_000_000, 100_000
HISTORY = timedelta(days=30)
WANTED = 0.3
TABLES = {model: model._meta.db_table for model in (JobStatus, JobLock, JobRun, OneOffJob)}
WORDS = ["cleanup", "import", "mail", "report", "sync"]
SCHEDULES = ["{0} * * * *", "*/10 * * * *", "{0} {1} * * *", "{0} {1} * * mon-fri", "{0} 2-22/4 1,15 * *"]
TRACEBACK = "Traceback (most recent call last):\n" + '  File "shop/jobs.py", line 12, in work\n    work()\n' * 15
FREQUENT, RARE, UNKNOWN = "web-3", "web-8", "web-9"

# A few jobs run much more often than the others. Only some twenty runs have the rare trigger or the rare host.
FILL_RUNS = f"""
    INSERT INTO {TABLES[JobRun]} (job_name, fence, token, status, trigger, attempt, hostname, pid, started_at,
        finished_at, duration, acquire_duration, error, traceback)
    SELECT job.name, n, gen_random_uuid(),
        CASE WHEN luck < 0.03 THEN 'failed' WHEN luck < 0.031 THEN 'abandoned' WHEN luck < 0.032 THEN 'interrupted'
            ELSE 'successful' END,
        CASE WHEN n %% 50000 = 0 THEN 'manual' WHEN n %% 100 = 1 THEN 'one_off' WHEN n %% 10 = 2 THEN 'call'
            WHEN n %% 10 < 5 THEN 'command' ELSE 'schedule' END,
        1, CASE WHEN n %% 50000 = 7 THEN '{RARE}' ELSE 'web-' || 1 + n %% 7 END, 1000 + n %% 30000,
        now() - age, now() - age + lasted, lasted, lasted / 1000,
        CASE WHEN luck < 0.032 THEN 'ValueError: It went wrong.' ELSE '' END,
        CASE WHEN luck < 0.032 THEN %(traceback)s ELSE '' END
    FROM (
        SELECT n, 1 + floor(%(jobs)s * random() ^ 2) AS number, random() AS luck,
            %(history)s * ((%(runs)s - n) / %(runs)s::float) AS age, interval '10 seconds' * random() AS lasted
        FROM generate_series(1, %(runs)s) n
    ) runs JOIN {TABLES[JobStatus]} job ON job.fence = number ORDER BY n
"""
FILL_RUNS_UNDER_WAY = f"""
    INSERT INTO {TABLES[JobRun]} (job_name, fence, token, status, trigger, attempt, hostname, pid, started_at, error,
        traceback)
    SELECT job_name, 1, token, 'running', 'schedule', 1, hostname, pid, acquired_at, '', '' FROM {TABLES[JobLock]}
"""
FILL_ONE_OFFS = f"""
    INSERT INTO {TABLES[OneOffJob]} (job_name, task_path, args, kwargs, queue_name, priority, status, run_after,
        started_at, finished_at, version, attempt, max_attempts, backend, hostname, pid, worker_ids, error, error_class,
        traceback, created_at)
    SELECT job.name, '', '[4711]', '{{"language": "it"}}', 'default', 0,
        CASE WHEN n > %(one_offs)s THEN 'waiting' WHEN n %% 30 = 0 THEN 'failed' WHEN n %% 100 = 1 THEN 'cancelled'
            ELSE 'done' END,
        now() - age, now() - age, CASE WHEN n <= %(one_offs)s THEN now() - age END,
        2, 1, 3, '', 'web-' || 1 + n %% 7, 4711, 'web-1:4711',
        CASE WHEN n %% 30 = 0 THEN 'ValueError: It went wrong.' ELSE '' END, '',
        CASE WHEN n %% 30 = 0 THEN %(traceback)s ELSE '' END, now() - age
    FROM (
        SELECT n, %(history)s * ((%(one_offs)s - n) / %(one_offs)s::float) AS age
        FROM generate_series(1, %(one_offs)s + 200) n
    ) one_offs JOIN {TABLES[JobStatus]} job ON job.fence = 1 + n %% %(jobs)s ORDER BY n
"""


def compare() -> None:
    """Prints the table."""
    empty()
    with mock.patch.dict(registry._jobs), empty_tables_beside() as beside:
        fill()
        analyze()
        print(f"\n--- the admin's pages, with {JOBS:,} jobs, {LOCKS} locks, {RUNS:,} runs, {ONE_OFFS:,} finished")
        print(f"--- one-offs, and with empty tables; {ROUNDS} rounds in turn; wanted: < {WANTED * 1000:.0f} ms")
        print(f"{'':68}{'queries':>8}{'median ms':>11}{'worst ms':>10}{'empty ms':>10}{'slower':>9}")
        for url in urls():
            report(url, beside)
    empty()


@override_settings(ALLOWED_HOSTS=["testserver"])
def report(url: str, beside: Callable[[], Any]) -> None:
    client = Client()
    client.force_login(get_user_model().objects.get_or_create(username="bench", is_staff=True, is_superuser=True)[0])
    with CaptureQueriesContext(connection) as queries:
        seconds_for(client, url)
        count = len(queries)
    full, none = [], []
    for _ in range(ROUNDS):
        full.append(seconds_for(client, url))
        with beside():
            none.append(seconds_for(client, url))
    page = "/".join(url.split("/")[3:])
    slow = "   SLOW" if median(full) > WANTED else ""
    print(
        f"{page:68}{count:8}{median(full) * 1000:11.0f}{max(full) * 1000:10.0f}{median(none) * 1000:10.0f}"
        f"{median(full) / median(none):7.1f} x{slow}"
    )


def seconds_for(client: Client, url: str) -> float:
    start = time.perf_counter()
    response = client.get(url)
    seconds = time.perf_counter() - start
    assert response.status_code == 200, f"{url}: {response.status_code}"
    return seconds


# --- the pages, as people use them


def urls() -> Iterator[str]:
    often = job_name(0)
    yield from of_list("jobstatus", "", "p=5", "state=attention", "q=report", "q=nothing")
    yield reverse("admin:django_singlejob_jobstatus_change", args=[often])
    yield from of_list("joblock", "", "p=5", "state=held", "state=stale", f"hostname={FREQUENT}", "q=report")
    yield from of_list("jobrun", "", "p=10", "p=100", *days())
    yield from of_list("jobrun", *(f"status__exact={status}" for status in JobRun.Status.values))
    yield from of_list("jobrun", *(f"trigger__exact={trigger}" for trigger in JobRun.Trigger.values))
    yield from of_list(
        "jobrun", *(f"server={server}" for server in (FREQUENT, RARE, UNKNOWN)), f"server={FREQUENT}&p=100"
    )
    yield from of_list("jobrun", f"job_name={often}", f"job_name={often}&p=100", f"job_name={job_name(JOBS - 1)}")
    yield from of_list("jobrun", f"job_name={often}&status__exact=failed", f"job_name={often}&trigger__exact=manual")
    yield from of_list("jobrun", f"server={RARE}&status__exact=failed", "q=report", "q=report&p=100", "q=nothing")
    yield from of_list("oneoffjob", "", "p=10", "p=100", "q=report", "q=nothing")
    yield from of_list("oneoffjob", *(f"status__exact={status}" for status in OneOffJob.Status.values))
    yield from of_list("overview", *(f"hours={hours}" for hours in (1, 6, 24, 72)))


def of_list(model: str, *queries: str) -> Iterator[str]:
    for query in queries:
        yield reverse(f"admin:django_singlejob_{model}_changelist") + f"?{query}"


def days() -> list[str]:
    """A day of the date hierarchy, and a month and a year."""
    day = datetime.now(UTC) - HISTORY / 2
    year, month = f"started_at__year={day.year}", f"started_at__month={day.month}"
    return [f"{year}&{month}&started_at__day={day.day}", f"{year}&{month}", year]


# --- the rows


def fill() -> None:
    for number in range(JOBS):
        if number % 7 != 3:
            singleton_job(job_name(number), schedule=schedule(number) or None)(seconds_for)
    gates().bulk_create(job(number) for number in range(JOBS))
    locks().bulk_create(lock(number) for number in range(0, JOBS, JOBS // LOCKS))
    facts: Any = {"jobs": JOBS, "runs": RUNS, "one_offs": ONE_OFFS, "history": HISTORY, "traceback": TRACEBACK}
    with connection.cursor() as cursor:
        cursor.execute("SELECT setseed(0.5)")
        cursor.execute(FILL_RUNS, facts)
        cursor.execute(FILL_RUNS_UNDER_WAY)
        cursor.execute(FILL_ONE_OFFS, facts)


def job_name(number: int) -> str:
    return f"{WORDS[number % len(WORDS)]}-{number:04}"


def schedule(number: int) -> str:
    """Half of the jobs have a schedule."""
    return SCHEDULES[number % len(SCHEDULES)].format(number % 60, number % 24) if number % 4 < 2 else ""


def job(number: int) -> JobStatus:
    cron = schedule(number)
    return JobStatus(
        name=job_name(number),
        fence=number + 1,
        schedule=cron,
        time_zone="UTC" if cron else "",
        next_slot=next_slot(parse(cron), datetime.now(UTC)) if cron else None,
        paused=number % 100 == 4,
        last_started_at=DBNow() - timedelta(minutes=number),
        last_finished_at=DBNow() - timedelta(minutes=number),
        last_status="failed" if number % 50 == 8 else "successful",
        consecutive_failures=3 if number % 50 == 8 else 0,
        run_count=1000,
        mean_duration=timedelta(hours=3),
    )


def lock(number: int) -> JobLock:
    """One in ten is stale. The others do not expire while this runs."""
    is_stale = number % (10 * JOBS // LOCKS) == 0
    return JobLock(
        name=job_name(number),
        job_name=job_name(number),
        token=uuid4(),
        hostname=f"web-{1 + number // 2 % 7}",
        pid=4711,
        command="singleton_worker",
        acquired_at=DBNow() - timedelta(hours=1),
        heartbeat_at=DBNow() - timedelta(hours=2 if is_stale else 0),
        heartbeat_interval=timedelta(seconds=10),
        expires_at=DBNow() + timedelta(hours=-1 if is_stale else 1),
    )


@contextmanager
def empty_tables_beside() -> Iterator[Callable[[], Any]]:
    """Creates empty tables in another schema. Inside the context manager that it yields, they hide the full ones."""

    @contextmanager
    def in_front() -> Iterator[None]:
        execute("SET search_path = beside, public")
        try:
            yield
        finally:
            execute("SET search_path = public")

    execute("DROP SCHEMA IF EXISTS beside CASCADE; CREATE SCHEMA beside")
    for table in TABLES.values():
        execute(f"CREATE TABLE beside.{table} (LIKE public.{table} INCLUDING ALL)")
    try:
        yield in_front
    finally:
        execute("DROP SCHEMA beside CASCADE")
