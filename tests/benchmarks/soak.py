"""Many tasks, while each second a worker is killed: nothing is lost, and nothing grows. For PostgreSQL.

Three workers run the tasks. Two of them are killed by SIGKILL in turn, one each second if it has begun a task, and
started again. The third one lives to the end, to show whether its memory grows. Each task leaves a line in a file,
which outlives its process, just before it ends.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from django.db import connection
from django.db.models import Sum
from django.utils.module_loading import import_string

from django_singlejob.models import JobLock, JobStatus, OneOffJob
from tests.benchmarks.endurance import size
from tests.benchmarks.throughput import THREADS, analyze, empty, our_worker

MORTALS = 2
EVERY = 1.0
# How long nothing may happen. Seconds.
PATIENCE = 60.0
PARTS = 10
TABLES = {"one-offs": OneOffJob, "locks": JobLock, "gates": JobStatus}
SETTINGS = "tests.benchmarks.soak_settings"


def compare(tasks: int) -> None:
    """Prints the table."""
    empty()
    with tempfile.TemporaryDirectory(prefix="singlejob-") as folder:
        notes = Path(folder, "notes")
        enqueue(tasks, notes)
        analyze()
        print(f"\n--- {tasks:,} tasks, {MORTALS + 1} workers of {THREADS} threads, one killed each {EVERY:g} s")
        print(f"{'done':>9}{'seconds':>9}{'killed':>8}{'RSS MiB':>9}{'sessions':>10}", end="")
        print("".join(f"{f'{name} KiB':>14}" for name in TABLES))
        with crew() as workers:
            killed = soak(workers, tasks)
            eventually_released(killed)
        judge(tasks, notes, killed)


def enqueue(tasks: int, notes: Path) -> None:
    noted = import_string("tests.benchmarks.tasks.noted")
    backend = noted.get_backend()
    for first in range(0, tasks, 1000):
        numbers = range(first, min(first + 1000, tasks))
        backend.enqueue_many(noted, [((number, str(notes)), {}) for number in numbers])
    # A task whose worker is killed again and again would fail after the usual three attempts.
    OneOffJob.objects.update(max_attempts=1000)


# --- the workers


class Crew:
    """The workers: the one that lives, and the others, of which the oldest that is at work is killed next."""

    def __init__(self) -> None:
        self.survivor = start()
        self.mortals = [start() for _ in range(MORTALS)]

    def kill_one(self) -> set[int]:
        """Kill a worker and start another. Returns the process id of the one that was killed."""
        busy = set(OneOffJob.objects.in_progress().values_list("pid", flat=True))  # they are of executors
        victim = next((worker for worker in self.mortals if busy & processes_of(worker.pid)), None)
        if victim is None:
            return set()
        victim.kill()
        victim.wait()
        self.mortals.remove(victim)
        self.mortals.append(start())
        return {victim.pid}

    def end(self) -> None:
        workers = [self.survivor, *self.mortals]
        for worker in workers:
            worker.terminate()
        for worker in workers:
            worker.wait(PATIENCE)


def processes_of(pid: int) -> set[int]:
    """A worker, its executors and its guard."""
    command = ["ps", "-o", "pid=", "-p", str(pid), "--ppid", str(pid)]
    return set(map(int, subprocess.run(command, capture_output=True, text=True, check=False).stdout.split()))


def start() -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", *our_worker()]
    environment = os.environ | {"DJANGO_SETTINGS_MODULE": SETTINGS}
    # What they say of those that died is expected.
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


@contextmanager
def crew() -> Iterator[Crew]:
    workers = Crew()
    try:
        yield workers
    finally:
        workers.end()


def soak(workers: Crew, tasks: int) -> set[int]:
    """Kill a worker each second until all tasks are done. Returns the process ids of those that were killed."""
    killed: set[int] = set()
    began_at = progress_at = time.monotonic()
    done = 0
    marks = deque(tasks * part // PARTS for part in range(PARTS + 1))
    while True:
        before, done = done, OneOffJob.objects.filter(status="done").count()
        now = time.monotonic()
        progress_at = now if done > before else progress_at
        assert now < progress_at + PATIENCE, f"{tasks - done} tasks are left, and nothing happens."
        if done >= marks[0]:
            print(Sample.of(workers, done, now - began_at, len(killed)), flush=True)
        while marks and done >= marks[0]:
            marks.popleft()
        if done == tasks:
            return killed
        time.sleep(EVERY)
        killed |= workers.kill_one()


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One line of the table. ``memory``: of the worker that lives, with its executors, in MiB."""

    done: int
    seconds: float
    killed: int
    memory: float
    sessions: int
    sizes: list[int]

    @classmethod
    def of(cls, workers: Crew, done: int, seconds: float, killed: int) -> Sample:
        sizes = [size(model._meta.db_table) for model in TABLES.values()]
        memory = resident(workers.survivor.pid)
        return cls(done=done, seconds=seconds, killed=killed, memory=memory, sessions=sessions(), sizes=sizes)

    def __str__(self) -> str:
        line = f"{self.done:9,}{self.seconds:9.0f}{self.killed:8}{self.memory:9.1f}{self.sessions:10}"
        return line + "".join(f"{kib:14,}" for kib in self.sizes)


def resident(pid: int) -> float:
    """MiB of a worker, with its executors and its guard."""
    command = ["ps", "-o", "rss=", "-p", str(pid), "--ppid", str(pid)]
    kib = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return sum(map(int, kib.split())) / 1024


def sessions() -> int:
    """Of the database, without this one."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) - 1 FROM pg_stat_activity WHERE datname = current_database()")
        return int(cursor.fetchone()[0])


# --- what they have left


def eventually_released(killed: set[int]) -> None:
    """Wait until the locks of the dead are gone."""
    deadline = time.monotonic() + PATIENCE
    while JobLock.objects.filter(pid__in=killed).exists():
        assert time.monotonic() < deadline, "The locks of killed workers are left."
        time.sleep(0.2)


def judge(tasks: int, notes: Path, killed: set[int]) -> None:
    """Fails if a task was lost, or was done again for another reason than that its worker was killed."""
    rows = OneOffJob.objects
    runs = [tuple(map(int, line.split("/"))) for line in notes.read_text().splitlines()]
    times = Counter(number for number, _, _ in runs)
    attempts = {number: attempt for (number, *_), attempt in rows.values_list("args", "attempt")}
    assert not JobLock.objects.exists(), "A lock is left."
    assert rows.filter(status="done").count() == tasks == len(times), "Tasks were lost."
    assert len({(number, attempt) for number, attempt, _ in runs}) == len(runs), "One attempt was run twice."
    assert all(attempt <= attempts[number] for number, attempt, _ in runs), "An attempt was not recorded."
    again = [pid for number, attempt, pid in runs if attempt < attempts[number]]
    assert killed.issuperset(again), "A task was done again although its worker lived."
    former = [line for ids in rows.values_list("worker_ids", flat=True) for line in ids.splitlines()[:-1]]
    begun = rows.aggregate(attempts=Sum("attempt"))["attempts"]
    print(f"None of {tasks:,} tasks was lost, and no lock is left; there are {JobStatus.objects.count()} gates.")
    print(f"{len(killed)} workers were killed, and {begun - tasks:,} attempts with them; {len(again):,} had done")
    print(f"their work. {len(former) - (begun - tasks):,} times a task was given back before it began.")
