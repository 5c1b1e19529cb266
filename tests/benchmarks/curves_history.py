"""What a run, a pass of a worker and the admin cost, with up to a million recorded runs of a thousand jobs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from functools import partial

from django.contrib.auth import get_user_model
from django.db import connection
from django.test import Client, override_settings
from django.urls import reverse

from django_singlejob.models import JobRun, JobStatus
from django_singlejob.models.runs import runs
from django_singlejob.worker.pruning import prune
from tests.benchmarks.candidates import job
from tests.benchmarks.curves_point import Cost, Point, compared, cost
from tests.benchmarks.jobs import Worker, fall_due, many_jobs, overview
from tests.benchmarks.throughput import analyze, execute

# So that there are at most as many of each as the settings keep by default.
JOBS = 1_000
# Compared with the first of these: fewer do not fill a page of the list.
RUNS = (1_000, 10_000, 100_000, 1_000_000)
# A million rows take InnoDB too long to insert and to delete.
MOST = {"mysql": 100_000}
ROUNDS, FEW_ROUNDS = 15, 5
# Within the days that the settings keep by default.
SECONDS_APART = 2
TABLES = {model: model._meta.db_table for model in (JobRun, JobStatus)}
DIGITS = " UNION ALL ".join(f"SELECT {digit} AS d" for digit in range(10))
PLACES = "abcdef"
NUMBER = " + ".join(f"{place}.d * {10**power}" for power, place in enumerate(PLACES))

#: For each database: a new token, the instant `number` seconds ago, and a duration of two seconds.
SQL = {
    "postgresql": ("gen_random_uuid()", "now() - interval '1 second' * ({number})", "interval '2 seconds'"),
    "mysql": ("uuid()", "UTC_TIMESTAMP(6) - INTERVAL ({number}) SECOND", "2000000"),
    "sqlite": (
        "lower(hex(randomblob(16)))",
        "strftime('%Y-%m-%d %H:%M:%f', 'now', -({number}) || ' seconds')",
        "2000000",
    ),
}
FILL = """
    INSERT INTO {runs} (job_name, fence, token, status, {trigger}, requested_by, attempt, hostname, pid, started_at,
        finished_at, duration, acquire_duration, error, traceback)
    WITH digits AS ({digits}), numbers AS (SELECT {number} AS n FROM {places})
    SELECT job.name, n, {token}, CASE WHEN n % 33 = 0 THEN 'failed' ELSE 'successful' END, 'schedule', '', 1, 'web-1',
        4711, {started_at}, {started_at}, {duration}, {duration}, '', ''
    FROM numbers JOIN {jobs} job ON job.fence = 1 + n % {count} WHERE n < {most} ORDER BY n
"""


def points() -> Iterator[Point]:
    get_user_model().objects.get_or_create(username="bench", is_staff=True, is_superuser=True)
    try:
        none, least = measured(0), measured(RUNS[0])
        yield compared(0, none, least)
        yield compared(RUNS[0], least, least)
        for count in RUNS[1:]:
            if count <= MOST.get(connection.vendor, count):
                yield compared(count, measured(count), least)
    finally:
        runs().all()._raw_delete("default")


def measured(count: int) -> dict[str, Cost]:
    with many_jobs(JOBS):
        fill(count)
        fall_due(0)
        with closing(Worker()) as worker:
            return {
                "run cycle": cost(job, ROUNDS),
                "tick": cost(worker.tick, ROUNDS),
                "overview": cost(overview, FEW_ROUNDS),
                "list of runs": cost(partial(page, "jobrun"), FEW_ROUNDS),
                "pruning, nothing to do": cost(prune, FEW_ROUNDS),
            }


@override_settings(ALLOWED_HOSTS=["testserver"])
def page(model: str) -> None:
    client = Client()
    client.force_login(get_user_model().objects.get(username="bench"))
    assert client.get(reverse(f"admin:django_singlejob_{model}_changelist")).status_code == 200


def fill(count: int) -> None:
    """Leave this many runs in the history, the newest with the highest key."""
    runs().all()._raw_delete("default")
    token, instant, duration = SQL[connection.vendor]
    execute(
        FILL.format(
            runs=TABLES[JobRun],
            jobs=TABLES[JobStatus],
            trigger=connection.ops.quote_name("trigger"),
            digits=DIGITS,
            number=NUMBER,
            places=" CROSS JOIN ".join(f"digits {place}" for place in PLACES),
            token=token,
            started_at=instant.format(number=f"({count} - n) * {SECONDS_APART}"),
            duration=duration,
            count=JOBS,
            most=count,
        )
    )
    analyze()
