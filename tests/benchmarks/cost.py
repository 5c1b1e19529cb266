"""What a lock costs, beside the paper's bare INSERT and DELETE, and beside one SELECT, in turn on one connection."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from statistics import median

from django_singlejob import LockHeld, job_lock, singleton_job
from tests.app.models import Counter

ROUNDS = 300


@singleton_job("bench.job")
def job() -> None:
    pass


@singleton_job("bench.held")
def held() -> None:
    pass


def compare() -> None:
    """Prints the table."""
    Counter.objects.all().delete()
    with job_lock("bench.held"):
        medians = measure(ACTS)
    print(f"\n--- what a lock costs; median of {ROUNDS} rounds in turn")
    for name, seconds in medians.items():
        floor = medians["one SELECT" if "refused" in name or "SELECT" in name else "INSERT and DELETE"]
        print(f"{name:40} {seconds * 1000:8.2f} ms {seconds / floor:8.1f} x")


def measure(acts: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Seconds for each act. They take turns, so that noise of the machine affects them all alike."""
    times: dict[str, list[float]] = {name: [] for name in acts}
    for _ in range(ROUNDS):
        for name, act in acts.items():
            start = time.perf_counter()
            act()
            times[name].append(time.perf_counter() - start)
    return {name: median(values) for name, values in times.items()}


def insert_and_delete() -> None:
    """The paper's recipe: no lease, no fence, no history."""
    Counter.objects.bulk_create([Counter(name="bench")])
    Counter.objects.filter(name="bench")._raw_delete("default")


def lock() -> None:
    with job_lock("bench.lock"):
        pass


def select() -> None:
    Counter.objects.filter(name="bench").first()


def be_refused() -> None:
    with contextlib.suppress(LockHeld), job_lock("bench.held"):
        pass


ACTS: dict[str, Callable[[], object]] = {
    "INSERT and DELETE": insert_and_delete,
    "job_lock(): acquire and release": lock,
    "a job that does nothing": job,
    "one SELECT": select,
    "a job whose lock is held: refused": held,
    "job_lock() of a held lock: refused": be_refused,
}
