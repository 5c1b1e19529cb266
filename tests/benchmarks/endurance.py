"""Whether cycles stay as fast, and the tables as small, after many of them, with autovacuum as it is by default."""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import median

from django.core.management import call_command
from django.db import connection

from django_singlejob.models import JobLock, JobStatus
from tests.benchmarks.candidates import choose, connected_to, job, ways
from tests.benchmarks.plots import Plotter
from tests.benchmarks.servers import DurablePostgreSQL, running
from tests.benchmarks.tables import Table

# How many points the plot has.
PARTS = 100
TABLES = {"lock table": JobLock, "gate table": JobStatus}
KIB = 1024


def fill(table: Table, plotter: Plotter, cycles: int) -> None:
    if connection.vendor != "postgresql":
        return
    ratios, sizes, lines = {}, {}, {}
    for way in ways():
        with running(DurablePostgreSQL) as server, connected_to(server.url):
            call_command("migrate", run_syncdb=True, verbosity=0)
            choose(way)
            times = run(cycles)
            sizes[way] = {name: size(model._meta.db_table) for name, model in TABLES.items()}
        tenth = len(times) // 10
        ratios[way] = f"{median(times[-tenth:]) / median(times[:tenth]):.2f}"
        lines[way] = parts(times)
    table.row(f"{cycles:,} run cycles: last tenth / first tenth", ratios)
    for name in TABLES:
        cells = {way: f"{kib[name]:,} KiB" for way, kib in sizes.items()}
        table.row(f"{cycles:,} run cycles: size of the {name} after them", cells)
    plotter.endurance(cycles, lines)


def run(cycles: int) -> list[float]:
    """Seconds for each cycle."""
    times = []
    for _ in range(cycles):
        start = time.perf_counter()
        job()
        times.append(time.perf_counter() - start)
    return times


def parts(times: Sequence[float]) -> list[float]:
    """The median of each part of the cycles, in times of the first tenth's."""
    length, floor = len(times) // PARTS, median(times[: len(times) // 10])
    return [median(times[number * length : (number + 1) * length]) / floor for number in range(PARTS)]


def size(table: str) -> int:
    """With its indexes, in KiB."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_total_relation_size(%s)", [table])
        return int(cursor.fetchone()[0]) // KIB
