"""How many tasks that do nothing one worker process finishes in a second: ours and its rivals, in turn.

The tasks are enqueued before the worker starts. What counts is the time from the first task's start to the last task's
end, as recorded in the rows, so that the start of the process does not count.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from statistics import median
from typing import Any

from django.core.management import call_command
from django.db import connection, transaction
from django.db.models import Max, Min, QuerySet
from django.utils.module_loading import import_string

from django_singlejob.querysets.one_offs import one_offs
from tests.benchmarks.settings import HAS_RIVALS

ROUNDS = 3
PATIENCE = 300.0
OURS = "singleton_worker"
THREADS = 10
PROCRASTINATE = ["procrastinate", "--app=tests.benchmarks.procrastinate_app.app", "--log-level=error"]


@dataclass(frozen=True, kw_only=True)
class Contestant:
    """A worker that drains a queue of ``tasks``. ``wanted``: how many times its throughput ours should be."""

    name: str
    options: str
    tasks: int
    enqueue: Callable[[int], object]
    worker: Sequence[str]
    #: Seconds from the first start to the last end. It fails unless this number of tasks has ended.
    duration: Callable[[int], float]
    wanted: float | None = None


def compare() -> None:
    """Prints the table."""
    contestants = all_contestants()
    rates: dict[str, list[float]] = {contestant.name: [] for contestant in contestants}
    for _ in range(ROUNDS):
        for contestant in contestants:
            rates[contestant.name].append(rate(contestant))
    print(f"\n--- tasks that do nothing, one worker process; median of {ROUNDS} rounds in turn")
    print(f"{'':34}{'tasks/s':>9}{'we do':>9}{'wanted':>9}")
    for contestant in contestants:
        ratio = median(ours / theirs for ours, theirs in zip(rates[OURS], rates[contestant.name], strict=True))
        wanted = f">= {contestant.wanted:g} x" if contestant.wanted else ""
        run = f"   {contestant.tasks} tasks, {contestant.options}"
        print(f"{contestant.name:34}{median(rates[contestant.name]):9.0f}{ratio:7.1f} x{wanted:>9}{run}")
    if not HAS_RIVALS:
        print("The rivals need PostgreSQL, and procrastinate and django-tasks-db installed.")


def rate(contestant: Contestant) -> float:
    """Tasks a second."""
    empty()
    with transaction.atomic():
        contestant.enqueue(contestant.tasks)
    analyze()
    work(*contestant.worker)
    return contestant.tasks / contestant.duration(contestant.tasks)


def empty() -> None:
    """Empty the tables, without dead rows."""
    call_command("flush", interactive=False, verbosity=0)
    if HAS_RIVALS:
        execute("TRUNCATE procrastinate_jobs, procrastinate_events, procrastinate_workers CASCADE")


def analyze() -> None:
    """Do what the database itself does some time after many rows have changed."""
    if connection.vendor == "postgresql":
        execute("VACUUM ANALYZE")


def execute(sql: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(sql)


def work(*arguments: str) -> None:
    """Run a worker in a process of its own, until it exits."""
    command = [sys.executable, "-m", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(arguments)} failed:\n{done.stdout}{done.stderr}")


# --- the contestants


def all_contestants() -> list[Contestant]:
    if not HAS_RIVALS:
        return [ourselves()]
    if "procrastinate_jobs" not in connection.introspection.table_names():
        work(*PROCRASTINATE, "schema", "--apply")
    awaiting, threads = procrastinate("noop_async", tasks=1000, wanted=2.0), procrastinate("noop", tasks=500)
    return [ourselves(), awaiting, threads, django_tasks_db()]


def ourselves(tasks: int = 3000) -> Contestant:
    return Contestant(
        name=OURS,
        options=f"--threads {THREADS}",
        tasks=tasks,
        enqueue=noops("default"),
        worker=our_worker(tasks),
        duration=our_duration,
    )


def our_worker(tasks: int) -> list[str]:
    """The command line of our worker, which exits after `tasks` tasks."""
    return ["django", OURS, f"--threads={THREADS}", f"--max-jobs={tasks}", "--verbosity=0"]


def our_duration(tasks: int) -> float:
    return duration(one_offs().filter(status="done", token__isnull=False), tasks)


def django_tasks_db() -> Contestant:
    # It runs its tasks one after the other. With these options it never sleeps, so they are the fastest.
    options = ["--batch", "--interval=0", "--no-startup-delay"]
    rows = import_string("django_tasks_db.models.DBTaskResult").objects.filter(status="SUCCESSFUL")
    return Contestant(
        name=f"django-tasks-db {version('django-tasks-db')}",
        options=" ".join(options),
        tasks=300,
        enqueue=noops("django-tasks-db"),
        worker=["django", "db_worker", "--backend=django-tasks-db", "--verbosity=0", *options],
        duration=lambda tasks: duration(rows, tasks),
        wanted=10.0,
    )


def procrastinate(task: str, *, tasks: int, wanted: float | None = None) -> Contestant:
    app = import_string("tests.benchmarks.procrastinate_app.app")
    function = import_string(f"tests.benchmarks.procrastinate_app.{task}")

    def enqueue(count: int) -> None:
        with app.open():
            function.batch_defer(*[{}] * count)

    # All other options have their defaults: a pool of 4 connections, and LISTEN.
    options = [f"--concurrency={THREADS}"]
    return Contestant(
        name=f"procrastinate {version('procrastinate')}, {task}",
        options=" ".join(options),
        tasks=tasks,
        enqueue=enqueue,
        worker=[*PROCRASTINATE, "worker", "--one-shot", *options],
        duration=procrastinate_duration,
        wanted=wanted,
    )


def procrastinate_duration(tasks: int) -> float:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FILTER (WHERE type = 'succeeded'), extract(epoch FROM max(at) - min(at))::float"
            " FROM procrastinate_events WHERE type IN ('started', 'succeeded')"
        )
        succeeded, seconds = cursor.fetchone()
    assert succeeded == tasks, f"{succeeded} of {tasks} tasks were done."
    return float(seconds)


def noops(backend: str) -> Callable[[int], None]:
    noop = import_string("tests.benchmarks.tasks.noop").using(backend=backend)

    def enqueue(count: int) -> None:
        for _ in range(count):
            noop.enqueue()

    return enqueue


def duration(done: QuerySet[Any], tasks: int) -> float:
    assert done.count() == tasks, f"{done.count()} of {tasks} tasks were done."
    span = done.aggregate(start=Min("started_at"), end=Max("finished_at"))
    seconds: float = (span["end"] - span["start"]).total_seconds()
    return seconds
