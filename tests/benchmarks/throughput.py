"""What tasks that do nothing cost a worker: ours and its rivals, in turn.

The tasks are enqueued before the worker starts. Throughput is counted from the first task's start to the last task's
end, as recorded in the rows, so that the start of the process does not count; with several processes, while all of them
were at work. Processor time is that of the worker's processes, less what the same worker takes for a single task. Last
comes how long a task waits for a worker that has nothing else to do.
"""

from __future__ import annotations

import random
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from statistics import median, quantiles
from typing import Any

from django.core.management import call_command
from django.db import connection, transaction
from django.db.models import F, Max, Min, QuerySet
from django.utils.module_loading import import_string

from django_singlejob.models.one_offs import one_offs
from tests.benchmarks.settings import HAS_RIVALS

ROUNDS = 3
PATIENCE = 300.0
OURS = "singleton_worker"
THREADS = 10
#: With one thread, a task may cost this many times the processor time that it costs with THREADS.
ONE_THREAD = 1.3
PROCRASTINATE = ["procrastinate", "--app=tests.benchmarks.procrastinate_app.app", "--log-level=error"]
#: How many tasks an idle worker is given, and the seconds between them.
SINGLE_TASKS = 200
PAUSES = (0.2, 0.8)


@dataclass(frozen=True, kw_only=True)
class Contestant:
    """A worker that drains a queue of ``tasks``. ``wanted``: how many times its throughput ours should be."""

    name: str
    options: str
    tasks: int
    enqueue: Callable[[int], object]
    worker: Sequence[str]
    #: Seconds that this number of tasks took. It fails unless that number has ended.
    duration: Callable[[int], float]
    processes: int = 1
    wanted: float | None = None
    #: The command line of a worker that does not exit, and how many seconds each task waited for it.
    idle: Sequence[str] = ()
    waits: Callable[[], list[float]] = list


@dataclass(frozen=True, kw_only=True)
class Cost:
    """``rate``: tasks a second. ``processor_time``: seconds a task."""

    rate: float
    processor_time: float


def compare() -> None:
    """Prints the tables."""
    contestants = all_contestants()
    costs: dict[str, list[Cost]] = {contestant.name: [] for contestant in contestants}
    for _ in range(ROUNDS):
        for contestant in contestants:
            costs[contestant.name].append(cost(contestant))
    print(f"\n--- tasks that do nothing; medians of {ROUNDS} rounds in turn, and of the rounds' ratios")
    print(f"{'':34}{'tasks/s':>9}{'we do':>9}{'wanted':>9}{'CPU ms':>9}{'of ours':>9}{'wanted':>9}")
    for contestant in contestants:
        print(line(contestant, costs))
    if not HAS_RIVALS:
        print("The rivals need PostgreSQL, and procrastinate, django-tasks-db and django-ox installed.")
    wait_at_idle_workers([contestant for contestant in contestants if contestant.idle])


def line(contestant: Contestant, costs: dict[str, list[Cost]]) -> str:
    ours, theirs = costs[OURS], costs[contestant.name]
    faster = median(our.rate / their.rate for our, their in zip(ours, theirs, strict=True))
    dearer = median(their.processor_time / our.processor_time for our, their in zip(ours, theirs, strict=True))
    rate, milliseconds = (median(each.rate for each in theirs), 1000 * median(each.processor_time for each in theirs))
    wanted = f">= {contestant.wanted:g} x" if contestant.wanted else ""
    at_most = f"<= {ONE_THREAD:g} x" if contestant.name == f"{OURS}, one thread" else ""
    return (
        f"{contestant.name:34}{rate:9.0f}{faster:7.1f} x{wanted:>9}{milliseconds:9.2f}{dearer:7.2f} x{at_most:>9}"
        f"   {contestant.tasks} tasks, {contestant.options}"
    )


def cost(contestant: Contestant) -> Cost:
    """What draining the queue costs."""
    start = drain(contestant, 1)
    spent = drain(contestant, contestant.tasks) - start
    rate = contestant.tasks / contestant.duration(contestant.tasks)
    return Cost(rate=rate, processor_time=spent / contestant.tasks)


def drain(contestant: Contestant, tasks: int) -> float:
    """Returns the seconds of processor time."""
    empty()
    with transaction.atomic():
        contestant.enqueue(tasks)
    analyze()
    before = processor_time()
    work(*contestant.worker, processes=contestant.processes)
    return processor_time() - before


def processor_time() -> float:
    """Seconds of all processes that were started here and have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def empty() -> None:
    """Empty the tables, without dead rows."""
    call_command("flush", interactive=False, verbosity=0)
    if knows_procrastinate():
        execute("TRUNCATE procrastinate_jobs, procrastinate_events, procrastinate_workers CASCADE")


def knows_procrastinate() -> bool:
    return "procrastinate_jobs" in connection.introspection.table_names()


def empty_tasks() -> None:
    """Delete the tasks that have ended, but not what their workers hold."""
    our_done().delete()
    if HAS_RIVALS:
        for rows in "django_tasks_db.models.DBTaskResult", "django_ox.models.OxTask":
            import_string(rows).objects.all().delete()
        execute("TRUNCATE procrastinate_jobs, procrastinate_events CASCADE")


def analyze() -> None:
    """Do what the database itself does some time after many rows have changed."""
    if connection.vendor == "postgresql":
        execute("VACUUM ANALYZE")


def execute(sql: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(sql)


def work(*arguments: str, processes: int = 1) -> None:
    """Run a worker in processes of its own, until they exit."""
    command = [sys.executable, "-m", *arguments]
    workers = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for _ in range(processes)
    ]
    for worker in workers:
        output, _ = worker.communicate(timeout=PATIENCE)
        if worker.returncode:
            sys.exit(f"{' '.join(arguments)} failed:\n{output}")


# --- a worker that is idle


def wait_at_idle_workers(contestants: Sequence[Contestant]) -> None:
    """All of them at the same time, since each has tasks of its own."""
    empty()
    with ExitStack() as stack:
        for contestant in contestants:
            stack.enter_context(at_work(contestant))
        for _ in range(SINGLE_TASKS):
            time.sleep(random.uniform(*PAUSES))
            for contestant in contestants:
                contestant.enqueue(1)
        time.sleep(5)
        waits = {contestant.name: contestant.waits() for contestant in contestants}
    print(f"\n--- from enqueue to start at an idle worker, with its default interval; {SINGLE_TASKS} tasks")
    print(f"{'':34}{'p50':>9}{'p99':>9}")
    for name, seconds in waits.items():
        assert len(seconds) == SINGLE_TASKS, f"{len(seconds)} of {SINGLE_TASKS} tasks were done."
        percentiles = quantiles(seconds, n=100)
        print(f"{name:34}{percentiles[49]:7.3f} s{percentiles[98]:7.3f} s")


@contextmanager
def at_work(contestant: Contestant) -> Iterator[None]:
    """A worker, until the block ends. It has begun, and has nothing to do."""
    command = [sys.executable, "-m", *contestant.idle]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as worker:
        try:
            contestant.enqueue(1)
            deadline = time.monotonic() + PATIENCE
            while not contestant.waits():
                assert time.monotonic() < deadline, f"{contestant.name} does nothing."
                time.sleep(0.1)
            empty_tasks()
            yield
        finally:
            worker.terminate()


# --- the contestants


def all_contestants() -> list[Contestant]:
    ours = [ourselves(), ourselves(", one thread", threads=1)]
    if connection.vendor != "sqlite":
        ours += [ourselves(f", {count} processes", processes=count, tasks=4000 * count) for count in (2, 3)]
    if not HAS_RIVALS:
        return ours
    if not knows_procrastinate():
        work(*PROCRASTINATE, "schema", "--apply")
    awaiting, threads = procrastinate("noop_async", tasks=1000, wanted=10.0), procrastinate("noop", tasks=500)
    return [*ours, awaiting, threads, django_ox(), django_tasks_db()]


def ourselves(what: str = "", *, threads: int = THREADS, processes: int = 1, tasks: int = 3000) -> Contestant:
    return Contestant(
        name=f"{OURS}{what}",
        options=f"--threads {threads}",
        tasks=tasks,
        enqueue=our_noops,
        worker=our_worker("--drain", threads=threads),
        duration=our_duration if processes == 1 else duration_together,
        processes=processes,
        idle=() if what else ["django", OURS, "--verbosity=0"],
        waits=our_waits,
    )


def our_worker(*options: str, threads: int = THREADS) -> list[str]:
    return ["django", OURS, f"--threads={threads}", "--verbosity=0", *options]


def our_noops(count: int) -> None:
    noop = import_string("tests.benchmarks.tasks.noop")
    noop.get_backend().enqueue_many(noop, [((), {})] * count)


def our_duration(tasks: int) -> float:
    return duration(our_done(), tasks)


def our_done() -> QuerySet[Any]:
    return one_offs().filter(status="done", token__isnull=False)


def duration_together(tasks: int) -> float:
    """As if the processes had been at work together all the time."""
    assert our_done().count() == tasks, f"{our_done().count()} of {tasks} tasks were done."
    spans = our_done().order_by().values("pid").annotate(start=Min("started_at"), end=Max("finished_at"))
    start, end = max(span["start"] for span in spans), min(span["end"] for span in spans)
    done = our_done().filter(finished_at__gt=start, finished_at__lte=end).count()
    assert done > tasks / 4, "The processes hardly met: give them more tasks."
    seconds: float = (end - start).total_seconds()
    return seconds * tasks / done


def our_waits() -> list[float]:
    return waits(our_done().values_list(F("started_at") - F("created_at"), flat=True))


def django_tasks_db() -> Contestant:
    # It runs its tasks one after the other. With these options it never sleeps, so they are the fastest.
    options = ["--batch", "--interval=0", "--no-startup-delay"]
    rows = import_string("django_tasks_db.models.DBTaskResult").objects.filter(status="SUCCESSFUL")
    worker = ["django", "db_worker", "--backend=django-tasks-db", "--verbosity=0"]
    return Contestant(
        name=f"django-tasks-db {version('django-tasks-db')}",
        options=" ".join(options),
        tasks=300,
        enqueue=their_noops,
        worker=[*worker, *options],
        duration=lambda tasks: duration(rows, tasks),
        wanted=10.0,
        idle=worker,
        waits=lambda: waits(rows.values_list(F("started_at") - F("enqueued_at"), flat=True)),
    )


def django_ox() -> Contestant:
    rows = import_string("django_ox.models.OxTask").objects.filter(status="SUCCESSFUL")
    worker = ["django", "ox_worker", "--backend=django-ox", "--verbosity=0", f"--concurrency={THREADS}"]
    noop = import_string("tests.benchmarks.tasks.noop").using(backend="django-ox")
    return Contestant(
        name=f"django-ox {version('django-ox')}",
        options=f"--concurrency={THREADS}",
        tasks=1000,
        enqueue=lambda count: noop.get_backend().enqueue_many(noop, [((), {})] * count),
        worker=[*worker, "--batch"],
        duration=lambda tasks: duration(rows, tasks),
        idle=worker,
        waits=lambda: waits(rows.values_list(F("started_at") - F("enqueued_at"), flat=True)),
    )


def their_noops(count: int) -> None:
    noop = import_string("tests.benchmarks.tasks.noop").using(backend="django-tasks-db")
    for _ in range(count):
        noop.enqueue()


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
        idle=[*PROCRASTINATE, "worker", *options] if task == "noop_async" else (),
        waits=procrastinate_waits,
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


def procrastinate_waits() -> list[float]:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT extract(epoch FROM started.at - deferred.at)::float FROM procrastinate_events started"
            " JOIN procrastinate_events deferred USING (job_id)"
            " WHERE started.type = 'started' AND deferred.type = 'deferred'"
        )
        return [seconds for (seconds,) in cursor.fetchall()]


def duration(done: QuerySet[Any], tasks: int) -> float:
    assert done.count() == tasks, f"{done.count()} of {tasks} tasks were done."
    span = done.aggregate(start=Min("started_at"), end=Max("finished_at"))
    seconds: float = (span["end"] - span["start"]).total_seconds()
    return seconds


def waits(spans: QuerySet[Any, Any]) -> list[float]:
    return [span.total_seconds() for span in spans]
