"""Real workers: `manage.py singleton_worker`, in processes that are told to end, that die, that lose the database."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

import pytest

from django_singlejob.models import JobLock, OneOffJob
from django_singlejob.orders import Order
from tests.app.models import Counter
from tests.databases import APPS
from tests.processes.witness import ends, eventually

if TYPE_CHECKING:
    from tests.children import Child, Spawn
    from tests.proxy import Proxy

pytestmark = pytest.mark.django_db(transaction=True, available_apps=APPS)

PATIENCE = 90


def worker(spawn: Spawn, **env: str) -> Child:
    return spawn.command("singleton_worker", "--interval", "0.05", **env)


def enqueue(count: int, seconds: float = 0.0) -> None:
    for number in range(count):
        Order(job_name="noted", max_attempts=1000).enqueue(number, seconds)


def all_are_done() -> bool:
    return not OneOffJob.objects.exclude(status="done").exists()


def notes() -> list[tuple[int, int]]:
    """Of each run that came to its end, in their order: which one-off it was for, and which attempt."""
    names = Counter.objects.values_list("name", flat=True)
    return sorted((int(number), int(attempt)) for number, attempt, _ in (name.split("/") for name in names))


def end(*workers: Child) -> None:
    for child in workers:
        child.send_signal(signal.SIGTERM)
    for child in workers:
        # One that has only just been started does not handle signals yet.
        assert child.finish() in (0, -signal.SIGTERM)


def test_two_workers_run_each_one_off_once(spawn: Spawn) -> None:
    enqueue(100)
    workers = [worker(spawn) for _ in range(2)]
    eventually(all_are_done, PATIENCE)
    end(*workers)
    assert notes() == [(number, 1) for number in range(100)]
    assert set(OneOffJob.objects.values_list("attempt", flat=True)) == {1}
    assert set(ends("noted")) == {"successful"}


def test_workers_that_are_killed_lose_nothing(spawn: Spawn) -> None:
    enqueue(40, seconds=0.1)
    workers = [worker(spawn) for _ in range(2)]
    deadline = time.monotonic() + PATIENCE
    while not all_are_done():
        assert time.monotonic() < deadline
        eventually(lambda: all_are_done() or JobLock.objects.filter(name="noted").exists())
        victim = workers.pop(0)
        victim.kill()
        victim.wait()
        workers.append(worker(spawn))
        time.sleep(1.5)
    end(*workers)
    done = notes()
    assert {number for number, _ in done} == set(range(40))
    attempts = dict(OneOffJob.objects.order_by("pk").values_list("args__0", "attempt"))
    # Who ran twice to its end was killed between that and its record, and each killed run has counted.
    assert all(attempt <= attempts[number] for number, attempt in done)
    assert sum(attempts.values()) == 40 + ends("noted").count("abandoned")
    assert "running" not in ends("noted")


@pytest.mark.parametrize("count", [1, 5])
def test_a_worker_that_is_told_to_end_leaves_nothing_locked_and_loses_nothing(spawn: Spawn, count: int) -> None:
    enqueue(3, seconds=60)
    child = worker(spawn)
    eventually(OneOffJob.objects.in_progress().exists)
    eventually(JobLock.objects.filter(name="noted").exists)
    time.sleep(0.2)
    for _ in range(count):
        child.send_signal(signal.SIGTERM)
    assert child.finish() == 0
    assert not JobLock.objects.filter(name="noted").exists()
    assert list(OneOffJob.objects.values_list("status", "attempt")) == [("waiting", 0)] * 3
    assert ends("noted") == ["interrupted"]


@pytest.mark.on_database("postgresql", "mysql")
def test_a_restart_of_the_database_ends_no_worker(spawn: Spawn, proxy: Proxy, database_url: str) -> None:
    child = worker(spawn, DATABASE_URL=proxy.url(database_url))
    enqueue(1)
    eventually(all_are_done)
    proxy.go_down()
    time.sleep(1)
    enqueue(1)
    proxy.come_back()
    eventually(all_are_done)
    end(child)
    assert len(notes()) == 2
