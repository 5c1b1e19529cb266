"""What 1 to 1,000 leases in one process need in one heartbeat interval: threads beside the main one, connections,
statements, and processor time in times of a lock cycle's."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import Any

from django.db import connection
from django.db.backends.signals import connection_created

from django_singlejob import job_lock
from django_singlejob.conf import options
from tests.benchmarks.candidates import PORTABLE, choose, lock
from tests.benchmarks.curves_point import Point
from tests.benchmarks.rounds import rounded

LEASES = (1, 10, 100, 1_000)
# Long enough to take the last of them before the first one is due.
LEASE = timedelta(seconds=90)
CYCLES = 100
SAMPLE_EVERY = 0.01
DESCRIPTORS = Path("/proc/self/fd")


def points() -> Iterator[Point]:
    choose(PORTABLE)
    cycle = median(own_time(lock) for _ in range(CYCLES))
    # All the time, because a connection may outlive its leases.
    with statements_of_others() as statements:
        for count in LEASES:
            with held(count):
                time.sleep(interval())  # until then, each of them has sent a heartbeat or is about to
                already = len(statements)
                most_threads, most_connections, seconds = one_interval()
                sent = len(statements) - already
            lines = {
                "threads": most_threads - 1,
                "connections": most_connections,
                "statements": sent,
                "processor time / lock cycle": seconds / cycle,
            }
            yield Point(count, {name: rounded_count(value) for name, value in lines.items()}, lines)


@contextmanager
def held(count: int) -> Iterator[None]:
    """This process holds this many leases."""
    with ExitStack() as stack:
        for number in range(count):
            stack.enter_context(job_lock(f"bench.lease-{number:04}", lease=LEASE))
        yield


def interval() -> float:
    """Between two heartbeats."""
    return (LEASE / options().heartbeats_per_lease).total_seconds()


def one_interval() -> tuple[int, int, float]:
    """The most threads and connections that there were, and the seconds of processor time of the other threads."""
    threads, connected = [], []
    end = time.monotonic() + interval()
    total, own = time.process_time(), time.thread_time()
    while time.monotonic() < end:
        threads.append(threading.active_count())
        connected.append(connections_of_this_process())
        time.sleep(SAMPLE_EVERY)
    seconds = (time.process_time() - total) - (time.thread_time() - own)
    return max(threads), max(connected), seconds


def connections_of_this_process() -> int:
    """To the database: its file, or a socket."""
    name, found = connection.settings_dict["NAME"], 0
    for descriptor in DESCRIPTORS.iterdir():
        with suppress(OSError):  # closed meanwhile
            target = str(descriptor.readlink())
            found += target == name or (connection.vendor != "sqlite" and target.startswith("socket:"))
    return found


@contextmanager
def statements_of_others() -> Iterator[list[str]]:
    """Collects the statements on connections that are opened meanwhile."""
    statements: list[str] = []

    def note(execute: Callable[..., Any], sql: str, *arguments: Any) -> Any:
        statements.append(sql)
        return execute(sql, *arguments)

    def watch(connection: Any, **_: Any) -> None:
        if note not in connection.execute_wrappers:
            connection.execute_wrappers.append(note)

    connection_created.connect(watch)
    try:
        yield statements
    finally:
        connection_created.disconnect(watch)


def own_time(act: Callable[[], object]) -> float:
    """Seconds of processor time."""
    start = time.process_time()
    act()
    return time.process_time() - start


def rounded_count(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else rounded(value)
