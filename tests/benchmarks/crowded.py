"""What many rows cost: how much longer one worker takes for the same tasks, and how long it takes to find that nothing
is due, with a million finished one-offs and a hundred thousand waiting ones. For PostgreSQL."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from statistics import median
from typing import Any

from django.db.models import DateTimeField

from django_singlejob.models import OneOffJob
from django_singlejob.models.jobs import gates
from django_singlejob.models.one_offs import one_offs
from django_singlejob.process.clock import DBNow
from django_singlejob.worker import due
from tests.benchmarks.tasks import noop
from tests.benchmarks.throughput import analyze, empty, execute, our_duration, our_worker, work

ROUNDS = 3
LOOKS = 20
TASKS = 3000
ENDED = 1_000_000
WAITING = 100_000
WANTED = 1.5
DAY, MINUTE = timedelta(days=1), timedelta(minutes=1)
TABLE = OneOffJob._meta.db_table
PAUSED = "bench.paused"
EMPTY = "an empty table"
TASK: dict[str, Any] = {"task_path": noop.module_path, "backend": "default"}
#: The one-offs that wait beside the tasks: what they are like, and when they are due.
CROWDS: dict[str, dict[str, Any]] = {
    "as the tasks themselves": TASK | {"run_after": DBNow() - MINUTE},
    "for tomorrow, of a higher priority": TASK | {"run_after": DBNow() + DAY, "priority": 10},
    "due, of a job that is paused": {"job_name": PAUSED, "run_after": DBNow() - MINUTE, "priority": 10},
}


def compare() -> None:
    """Prints the table."""
    durations: dict[str, list[float]] = {name: [] for name in [EMPTY, *CROWDS]}
    looks: dict[str, float] = {}
    empty()
    gates().remember(PAUSED)
    gates().filter(name=PAUSED).update(paused=True)
    with an_empty_table_beside() as beside:
        insert(ENDED, status="done", finished_at=DBNow() - DAY, run_after=DBNow() - DAY, **TASK)
        for _ in range(ROUNDS):
            with beside():
                durations[EMPTY].append(drain())
                looks[EMPTY] = look()
            for name, crowd in CROWDS.items():
                insert(WAITING, **crowd)
                durations[name].append(drain())
                looks[name] = look()
                one_offs().exclude(status="done", token=None)._raw_delete("default")
    print(f"\n--- {TASKS} tasks, with {ENDED:,} finished and {WAITING:,} waiting one-offs; best of {ROUNDS} rounds")
    print(f"{'':34}{'tasks/s':>9}{'slower':>9}{'wanted':>9}   to find nothing due")
    for name, values in durations.items():
        ratio = min(values) / min(durations[EMPTY])
        print(f"{name:34}{TASKS / min(values):9.0f}{ratio:7.2f} x{f'< {WANTED:g} x':>9}{looks[name] * 1000:10.2f} ms")


def drain() -> float:
    """Seconds for the tasks."""
    insert(TASKS, run_after=DBNow(), **TASK)
    analyze()
    work(*our_worker(f"--max-jobs={TASKS}"))
    return our_duration(TASKS)


def look() -> float:
    """Seconds."""
    times = []
    for _ in range(LOOKS):
        start = time.perf_counter()
        due.anything_due()
        times.append(time.perf_counter() - start)
    return median(times)


def insert(count: int, **like: Any) -> None:
    """Insert `count` rows, some milliseconds apart."""
    row = one_offs().create(created_at=DBNow() - DAY, **like)
    values = {
        field.attname: " - n * interval '10 milliseconds'" if isinstance(field, DateTimeField) else ""
        for field in OneOffJob._meta.local_concrete_fields
        if not field.primary_key
    }
    execute(
        f"INSERT INTO {TABLE} ({', '.join(values)}) SELECT {', '.join(name + apart for name, apart in values.items())}"
        f" FROM {TABLE}, generate_series(2, {count}) n WHERE id = {row.pk}"
    )


@contextmanager
def an_empty_table_beside() -> Iterator[Callable[[], Any]]:
    """Creates an empty table in another schema. Inside the context manager that it yields, it hides the full one
    from us and our workers."""

    @contextmanager
    def in_front() -> Iterator[None]:
        execute(f"TRUNCATE beside.{TABLE}")
        execute("SET search_path = beside, public")
        os.environ["PGOPTIONS"] = "-c search_path=beside,public"
        try:
            yield
        finally:
            del os.environ["PGOPTIONS"]
            execute("SET search_path = public")

    execute("DROP SCHEMA IF EXISTS beside CASCADE; CREATE SCHEMA beside")
    execute(f"CREATE TABLE beside.{TABLE} (LIKE public.{TABLE} INCLUDING ALL)")
    try:
        yield in_front
    finally:
        execute("DROP SCHEMA beside CASCADE")
        empty()
