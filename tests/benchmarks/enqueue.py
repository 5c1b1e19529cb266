"""The processor time that a client spends on enqueueing, one at a time and 500 at once: ours and its rivals, in turn.

Processor time, because a shared machine and the database on it do not change it much.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from statistics import median
from typing import Any

from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils.module_loading import import_string

from django_singlejob import singleton_job
from tests.benchmarks.settings import HAS_RIVALS, HAS_TASKS
from tests.benchmarks.throughput import PROCRASTINATE, empty, work

ROUNDS = 15
SINGLY = 100
BATCH = 500
THEIRS = "django-tasks-db"
THEIRS_AT_ONCE = "procrastinate"


@singleton_job("bench.enqueued")
def job(number: int, *, language: str) -> None:
    pass


@dataclass(frozen=True, kw_only=True)
class Way:
    """A way to enqueue ``tasks`` tasks: ``act`` does it once."""

    name: str
    tasks: int
    act: Callable[[], object]


def compare() -> None:
    """Prints the tables."""
    with ExitStack() as stack:
        singly = [Way(name=name, tasks=1, act=act) for name, act in all_singly(stack).items()]
        show("one at a time", singly, SINGLY, than=THEIRS)
    with ExitStack() as stack:
        at_once = [Way(name=name, tasks=BATCH, act=act) for name, act in all_at_once(stack).items()]
        show(f"{BATCH} at once", at_once, 1, than=THEIRS_AT_ONCE)
    if not HAS_RIVALS:
        print("The rivals need PostgreSQL, and procrastinate, django-tasks-db and django-ox installed.")


def show(title: str, ways: list[Way], times: int, *, than: str) -> None:
    """``than``: the rival that ours is compared with."""
    spent: dict[str, list[float]] = {way.name: [] for way in ways}
    for number in range(ROUNDS + 1):
        empty()
        for way in ways:
            seconds = processor_time(way, times)
            if number:  # the first round fills caches
                spent[way.name].append(seconds)
    print(f"\n--- enqueue {title}: processor time of the client a task; median of {ROUNDS} rounds in turn")
    rival = next((way.name for way in ways if way.name.startswith(than)), "")
    print(f"{'':34}{'ms':>9}{'rival x':>9}{'statements':>12}")
    for way in ways:
        ratios = [one / other for one, other in zip(spent[way.name], spent[rival], strict=True)] if rival else []
        ratio = f"{median(ratios):.2f} x" if ratios else ""
        print(f"{way.name:34}{median(spent[way.name]) * 1000:9.4f}{ratio:>9}{statements(way):>12}")


def processor_time(way: Way, times: int) -> float:
    """Seconds a task."""
    start = time.process_time()
    for _ in range(times):
        way.act()
    return (time.process_time() - start) / times / way.tasks


def statements(way: Way) -> str:
    """How many statements Django sends for it, with BEGIN and COMMIT. procrastinate sends its own past Django."""
    if way.name.startswith(THEIRS_AT_ONCE):
        return "-"
    with CaptureQueriesContext(connection) as queries:
        way.act()
    return str(len(queries))


def all_singly(stack: ExitStack) -> dict[str, Callable[[], object]]:
    ways: dict[str, Callable[[], object]] = {"job.enqueue()": partial(job.enqueue, 4711, language="it")}
    if HAS_TASKS:
        ways["task.enqueue()"] = partial(task().enqueue, 4711, language="it")
    if HAS_RIVALS:
        ways[f"{THEIRS} {version(THEIRS)}"] = partial(task().using(backend=THEIRS).enqueue, 4711, language="it")
        ways[f"django-ox {version('django-ox')}"] = partial(
            task().using(backend="django-ox").enqueue, 4711, language="it"
        )
        ways[f"{THEIRS_AT_ONCE} {version(THEIRS_AT_ONCE)}"] = partial(opened(stack).defer, number=4711, language="it")
    return ways


def all_at_once(stack: ExitStack) -> dict[str, Callable[[], object]]:
    calls = [((4711,), {"language": "it"})] * BATCH
    ways: dict[str, Callable[[], object]] = {"job.enqueue_many()": partial(job.enqueue_many, calls)}
    if HAS_TASKS:
        ways["backend.enqueue_many()"] = partial(task().get_backend().enqueue_many, task(), calls)
    if HAS_RIVALS:
        ox = task().using(backend="django-ox")
        ways[f"django-ox {version('django-ox')}"] = partial(ox.get_backend().enqueue_many, ox, calls)
        batch = [{"number": 4711, "language": "it"}] * BATCH
        ways[f"{THEIRS_AT_ONCE} {version(THEIRS_AT_ONCE)}"] = partial(opened(stack).batch_defer, *batch)
    return ways


def task() -> Any:
    return import_string("tests.benchmarks.tasks.noop")


def opened(stack: ExitStack) -> Any:
    """procrastinate's task, with its connections open."""
    if "procrastinate_jobs" not in connection.introspection.table_names():
        work(*PROCRASTINATE, "schema", "--apply")
    stack.enter_context(import_string("tests.benchmarks.procrastinate_app.app").open())
    return import_string("tests.benchmarks.procrastinate_app.noop")
