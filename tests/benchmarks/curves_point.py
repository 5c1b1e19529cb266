"""A point of a curve, and the processor time that most of them are about."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import NamedTuple

from django.db import connection
from django.test.utils import CaptureQueriesContext

from tests.benchmarks.rounds import rounded

NANOSECONDS = 1_000_000_000
SERVERS = ("postgres", "mariadbd", "mysqld", "connection")


class Point(NamedTuple):
    """What was measured at this size: the cells of a table's row, and the values of a plot's lines."""

    size: int
    cells: dict[str, str]
    lines: Mapping[str, float]


class Cost(NamedTuple):
    """Of one act: statements, and seconds of processor time."""

    statements: int
    seconds: float


def cost(act: Callable[[], object], rounds: int) -> Cost:
    """The median of these rounds, after one that does not count."""
    act()
    on_one_processor()
    seconds = median(processor_time(act) for _ in range(rounds))
    with CaptureQueriesContext(connection) as queries:
        act()
    return Cost(len(queries), seconds)


def on_one_processor() -> None:
    """PostgreSQL must not do a part of a query in another process, whose time would not count."""
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("SET max_parallel_workers_per_gather = 0")


def compared(size: int, costs: Mapping[str, Cost], least: Mapping[str, Cost]) -> Point:
    """With the costs at the smallest size."""
    ratios = {name: each.seconds / least[name].seconds for name, each in costs.items()}
    cells = {name: f"{rounded(ratios[name])} ({each.statements:,})" for name, each in costs.items()}
    return Point(size, cells, ratios)


def processor_time(act: Callable[[], object]) -> float:
    """Seconds, of this process and of the database's process or thread for this connection. What a database on another
    machine does is not known."""
    server, before = server_time(), time.process_time()
    act()
    ours = time.process_time() - before
    return ours + server_time() - server


def server_time() -> float:
    """Seconds so far. SQLite works in our own process."""
    task = Path(f"/proc/{server_task()}")
    if not task.exists() or (task / "comm").read_text().strip() not in SERVERS:
        return 0.0
    return int((task / "schedstat").read_text().split()[0]) / NANOSECONDS


def server_task() -> int | None:
    """The process on PostgreSQL, the thread on MariaDB."""
    if connection.vendor == "sqlite":
        return None
    sql = "SELECT pg_backend_pid()"
    if connection.vendor == "mysql":
        sql = "SELECT tid FROM information_schema.processlist WHERE id = connection_id()"
    with connection.cursor() as cursor:
        cursor.execute(sql)
        return int(cursor.fetchone()[0])
