"""What the processes of a command cost, in times of a plain management command that does the same.

Processor time is that of all processes that a command line has started, also of those that its own processes did not
wait for. Memory is proportional (PSS): what n processes share counts for each as one n-th. For Linux.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from django.core.management import call_command
from django.utils.timezone import now

from django_singlejob.models import JobStatus, OneOffJob
from tests.benchmarks.rounds import ratios, spread
from tests.benchmarks.servers import wait_for

ROUNDS = 9
# How many jobs one round of many has, and how many such rounds there are.
MANY, ROUNDS_OF_MANY = 30, 3
# How often the job of the worker is due, and for how long the worker is watched while it is, and is not. Seconds.
EVERY, WINDOW, ROUNDS_OF_WORKER = 2, 30.0, 3
JOB = "shop.work"
PLAIN, ONCE, WORKER = ["plain"], ["singleton_worker", "--once", "--verbosity=0"], ["singleton_worker", "--verbosity=0"]
RUN = ["run_singleton", JOB, "--now", "--verbosity=0"]
BY_A_FORK, BY_AN_EXECUTOR = "run_singleton, by a fork", "run_singleton, by an executor"
# A process with a thread is not forked.
WAYS = {BY_A_FORK: {}, BY_AN_EXECUTOR: {"SHOP_THREAD": "1"}}
PROJECTS = {"a light project": {}, "a heavy project": {"SHOP_HEAVY": "1"}}
_TICK = os.sysconf("SC_CLK_TCK")
_PR_SET_CHILD_SUBREAPER = 36


def compare() -> None:
    """Prints the tables."""
    if sys.platform != "linux":
        print("\nMeasuring processes needs Linux.")
        return
    # What has lost its parent is a child of this process then.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    call_command("flush", interactive=False, verbosity=0)
    compare_lines()
    compare_many()
    compare_memory()
    compare_worker()


def show(title: str, values: Mapping[str, list[float]], floor: list[float]) -> None:
    print(f"\n--- {title}; median and quartiles of {len(floor)} rounds in turn")
    for name, each in values.items():
        print(f"{name:44}{spread(ratios(each, floor)):>24}", flush=True)


# --- command lines


def compare_lines() -> None:
    plain: list[float] = []
    values: dict[str, list[float]] = {"the plain one once more": [], **{way: [] for way in WAYS}}
    for _ in range(ROUNDS):
        plain.append(spent(PLAIN))
        values["the plain one once more"].append(spent(PLAIN))
        for way, environment in WAYS.items():
            values[way].append(spent(RUN, environment))
    show("processor time of a command line / of a plain one", values, plain)


def compare_many() -> None:
    """What a crontab of many lines costs, and one line that runs the same as jobs."""
    for project, environment in PROJECTS.items():
        plain: list[float] = []
        values: dict[str, list[float]] = {"singleton_worker --once, nothing due": [], "singleton_worker --once": []}
        for _ in range(ROUNDS_OF_MANY):
            OneOffJob.objects.all().delete()
            values["singleton_worker --once, nothing due"].append(spent(ONCE, environment))
            OneOffJob.objects.bulk_create(
                OneOffJob(job_name=JOB, created_at=now(), run_after=now()) for _ in range(MANY)
            )
            values["singleton_worker --once"].append(spent(ONCE, environment))
            done = OneOffJob.objects.filter(status="done").count()
            assert done == MANY, f"{done} of {MANY} one-offs were done."
            plain.append(sum(spent(PLAIN, environment) for _ in range(MANY)))
        show(f"{project}: processor time of {MANY} one-offs / of {MANY} plain command lines", values, plain)
        print(f"Seconds: plain {spread(plain)}, --once {spread(values['singleton_worker --once'])}.")


def spent(arguments: list[str], environment: Mapping[str, str] = os.environ) -> float:
    """Seconds of processor time of this command line."""
    before = of_the_dead()
    with started(arguments, environment) as process:
        assert process.wait() == 0, f"{' '.join(arguments)} failed."
    return of_the_dead() - before


@contextmanager
def started(arguments: list[str], environment: Mapping[str, str] = os.environ) -> Iterator[subprocess.Popen[bytes]]:
    """A process with this command line. After the block, it has ended, with all that it has started."""
    settings = {"DJANGO_SETTINGS_MODULE": "tests.benchmarks.shop.settings"}
    process = subprocess.Popen(
        [sys.executable, "-m", "django", *arguments],
        env={**os.environ, **environment, **settings},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        process.terminate()
        process.wait()
        with suppress(ChildProcessError):
            while True:
                os.waitpid(-1, 0)


def of_the_dead() -> float:
    """Seconds of processor time of all processes that were started here and have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


# --- memory


def compare_memory() -> None:
    plain: list[float] = []
    values: dict[str, list[float]] = {}
    counts: dict[str, int] = {}
    for _ in range(ROUNDS_OF_MANY):
        plain.append(sum(memory_during(PLAIN).values()))
        for way, environment in WAYS.items():
            memory = memory_during(RUN, environment)
            counts[way] = len(memory)
            for part, bytes_ in [("all", sum(memory.values())), *memory.items()]:
                values.setdefault(f"{way}: {part}", []).append(bytes_)
    show("memory of a command line while its job runs / of a plain one", values, plain)
    print(f"Processes: {counts}. The plain one: {mebibytes(plain)} MiB.")


def memory_during(arguments: list[str], environment: Mapping[str, str] = os.environ) -> dict[str, float]:
    """Bytes of each of its processes, while its job runs."""
    with tempfile.TemporaryDirectory(prefix="singlejob-") as folder:
        file = Path(folder, "begun")
        given = [str(file)] if arguments == PLAIN else ["--args", json.dumps([str(file)])]
        with started([*arguments, *given], environment) as process:
            wait_for(file.exists)
            found = memory_of(process.pid)
            file.unlink()
            assert process.wait() == 0
    return found


def memory_of(pid: int) -> dict[str, float]:
    """Bytes of each process of a command, by what it is."""
    found: dict[str, float] = {}
    for each in descendants(os.getpid()):
        with suppress(OSError):  # it has just ended
            what = "guard" if "guard.py" in Path(f"/proc/{each}/cmdline").read_text() else "executor"
            lines = Path(f"/proc/{each}/smaps_rollup").read_text().splitlines()
            pss = next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
            found["supervisor" if each == pid else what] = 1024.0 * pss
    return found


def mebibytes(values: list[float]) -> str:
    return spread([value / 2**20 for value in values])


def descendants(pid: int) -> Iterator[int]:
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, task.read_text().split()):
            yield child
            with suppress(OSError):
                yield from descendants(child)


# --- a worker that stays


def compare_worker() -> None:
    """A job a minute is not waited for: what a run costs, and what a worker without any, is measured apart."""
    line, run, idle, minute, memory, plain = [], [], [], [], [], []
    with started(WORKER, {"SHOP_EVERY": str(EVERY)}) as worker:
        for _ in range(ROUNDS_OF_WORKER):
            busy, count = watched(worker.pid, is_busy=True)
            quiet, none = watched(worker.pid, is_busy=False)
            assert count > none == 0
            idle.append(quiet / WINDOW * 60)
            run.append((busy - quiet) / count)
            minute.append(idle[-1] + run[-1])
            memory.append(memory_of(worker.pid))
    for _ in range(ROUNDS_OF_WORKER):
        line.append(spent(PLAIN))
        plain.append(sum(memory_during(PLAIN).values()))
    values = {"one run": run, "a minute without a run": idle, "a minute with one run": minute}
    show("processor time of a worker / of a plain command line", values, line)
    parts = {"all": [sum(each.values()) for each in memory]}
    parts |= {part: [each[part] for each in memory] for part in memory[0]}
    show("memory of a worker whose executor waits / of a plain command line", parts, plain)


def watched(pid: int, *, is_busy: bool) -> tuple[float, int]:
    """Seconds of processor time of a worker in a window, and how many runs ended in it."""
    wait_for(lambda: runs() > 0)
    JobStatus.objects.filter(name=JOB).update(paused=not is_busy)
    before, time_before = runs(), time.monotonic()
    wait_for(lambda: runs() > before if is_busy else time.monotonic() > time_before + EVERY + 1)
    spent_before, before = of_the_living(pid), runs()
    time.sleep(WINDOW)
    return of_the_living(pid) - spent_before, runs() - before


def runs() -> int:
    return sum(JobStatus.objects.filter(name=JOB).values_list("run_count", flat=True))


def of_the_living(pid: int) -> float:
    """Seconds of processor time of a process that lives, and of all that it has started."""
    total = 0
    for each in {pid, *descendants(os.getpid())}:
        with suppress(OSError):  # it has just ended
            fields = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
            total += sum(map(int, fields[11:15]))
    return total / _TICK
