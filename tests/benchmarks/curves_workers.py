"""How many tasks a second 1 to 4 worker processes finish. What counts is the time in which all of them work: from the
last one's first start to the first one's last end."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median

from django.core.management import call_command
from django.db import connection
from django.db.models import Max, Min
from django.utils.module_loading import import_string

from django_singlejob.models.locks import locks
from django_singlejob.models.one_offs import one_offs
from tests.benchmarks.curves_point import Point
from tests.benchmarks.rounds import ratios, spread
from tests.benchmarks.servers import wait_for
from tests.benchmarks.settings import HAS_TASKS
from tests.benchmarks.throughput import OURS, THREADS, analyze

WORKERS = (1, 2, 3, 4)
ROUNDS = 3
TASKS = {"sqlite": 3_000}
MANY_TASKS = 8_000
BATCH = 500
PATIENCE = 60.0


def points() -> Iterator[Point]:
    if not HAS_TASKS:
        print("\nMeasuring several workers needs Django 6.0 or newer, and so Python 3.12 or newer.")
        return
    rates: dict[int, list[float]] = {count: [] for count in WORKERS}
    for _ in range(ROUNDS):
        for count in WORKERS:
            rates[count].append(rate(count))
    for count, values in rates.items():
        relative = ratios(values, rates[WORKERS[0]])
        yield Point(count, {"tasks a second": spread(relative)}, {"tasks a second": median(relative)})


def rate(count: int) -> float:
    """Tasks a second."""
    call_command("flush", interactive=False, verbosity=0)
    with workers(count):
        wait_for(lambda: locks().count() >= count)
        enqueue(TASKS.get(connection.vendor, MANY_TASKS))
        wait_for(lambda: not one_offs().exclude(status="done").exists())
    return rate_together()


@contextmanager
def workers(count: int) -> Iterator[None]:
    command = [sys.executable, "-m", "django", OURS, f"--threads={THREADS}", "--verbosity=0", "--no-reload"]
    started = [subprocess.Popen(command) for _ in range(count)]
    try:
        yield
    finally:
        for worker in started:
            worker.terminate()
        for worker in started:
            worker.wait(PATIENCE)


def enqueue(count: int) -> None:
    noop = import_string("tests.benchmarks.tasks.noop")
    backend = noop.get_backend()
    for _ in range(0, count, BATCH):
        backend.enqueue_many(noop, [((), {})] * BATCH)
    analyze()


def rate_together() -> float:
    """While all of them worked."""
    spans = one_offs().values("pid").annotate(start=Min("started_at"), end=Max("finished_at")).order_by()
    start, end = max(span["start"] for span in spans), min(span["end"] for span in spans)
    done = one_offs().filter(finished_at__gt=start, finished_at__lte=end).count()
    seconds: float = (end - start).total_seconds()
    return done / seconds
