"""Real workers that have a lot to do, and die doing it.

There are only a few hundred tasks, to be quick. `SINGLEJOB_TEST_ONE_OFFS=10000` runs 10,000 tasks, and a tenth as many
jobs; `SINGLEJOB_TEST_SECONDS=10` keeps a job that is always due busy for 10 seconds.
"""

from __future__ import annotations

import os
import signal
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from django.db import connection

from django_singlejob.models import JobLock, JobRun, OneOffJob
from tests.app.models import Counter
from tests.databases import APPS
from tests.processes.witness import ends
from tests.processes.workers import (
    PATIENCE,
    SETTINGS,
    all_are_done,
    attempts,
    end,
    enqueue,
    enqueue_noted,
    jobs_and_tasks,
    notes,
    one_off,
    worker,
)
from tests.waiting import eventually, seconds_of, work_for

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.children import Child, Spawn
    from tests.proxy import Proxy

ASKED = int(os.environ.get("SINGLEJOB_TEST_ONE_OFFS", "0"))
SECONDS = float(os.environ.get("SINGLEJOB_TEST_SECONDS", "2"))
LONGEST = PATIENCE + ASKED / 10

pytestmark = [
    pytest.mark.django_db(transaction=True, available_apps=APPS),
    pytest.mark.timeout(2 * LONGEST),
]


def how_many(kind: str) -> int:
    return (ASKED if kind == "tasks" else ASKED // 10) or 200


def nothing_is_locked() -> bool:
    return not JobLock.objects.exists()


def nothing_went_wrong_in(*workers: Child) -> None:
    """A retried heartbeat is logged, and may happen on a busy machine."""
    assert not any("Traceback" in child.output for child in workers)


def none_was_lost_or_run_twice_unrecorded(count: int, done: list[tuple[int, int]]) -> None:
    """A one-off runs to its end twice only if its worker died before recording the first run; its row shows that."""
    begun = attempts()
    assert {number for number, _ in done} == set(begun) == set(range(count))
    assert len(set(done)) == len(done), "One attempt was run twice."
    assert all(attempt <= begun[number] for number, attempt in done)
    assert not JobRun.objects.filter(status="running").exists()


@jobs_and_tasks
def test_two_workers_run_each_one_off_once(spawn: Spawn, kind: str) -> None:
    count = how_many(kind)
    enqueue_noted(kind, range(count))
    workers = [worker(spawn, "--threads", "10", "-v", "0") for _ in range(2)]
    took = seconds_of(lambda: while_some_are_done(all_are_done))
    print(f"{count} one-offs ({kind}, {connection.vendor}) took {took:.1f} s.")
    end(*workers)
    assert notes() == [(number, 1) for number in range(count)]
    assert set(attempts().values()) == {1}
    assert nothing_is_locked()
    nothing_went_wrong_in(*workers)


@jobs_and_tasks
def test_workers_that_are_killed_lose_nothing(spawn: Spawn, kind: str) -> None:
    count = how_many(kind)
    enqueue_noted(kind, range(count), seconds=0.1)
    workers = [worker(spawn, "--threads", "10", "-v", "0") for _ in range(2)]
    dead: set[int] = set()
    while not all_are_done():
        eventually(lambda: all_are_done() or find_busy(workers))
        if victim := find_busy(workers):
            victim.kill()
            victim.wait()
            dead.add(victim.pid)
            workers.remove(victim)
            workers.append(worker(spawn, "--threads", "10", "-v", "0"))
            # One each second; but on a busy machine no worker would live long enough to do anything.
            enough = done_so_far() + 100
            work_for(1)
            while_some_are_done(partial(are_done, min(enough, count)))
    eventually(lambda: not JobLock.objects.filter(pid__in=dead).exists())
    end(*workers)
    done = notes()
    print(
        f"{len(dead)} were killed; of {count} {len(done) - count} ran twice, {sum(attempts().values()) - count} began."
    )
    none_was_lost_or_run_twice_unrecorded(count, done)
    # An attempt counts for each worker that was killed. One that puts a task back, since no thread was free in time, is
    # among the workers too.
    for attempt, ids in OneOffJob.objects.values_list("attempt", "worker_ids"):
        former = [int(line.rpartition(":")[2]) for line in ids.splitlines()[:-1]]
        assert attempt - 1 <= sum(pid in dead for pid in former)
    assert nothing_is_locked()


def find_busy(workers: list[Child]) -> Child | None:
    pids = set(OneOffJob.objects.in_progress().values_list("pid", flat=True))
    return next((child for child in workers if child.pid in pids), None)


def while_some_are_done(condition: Callable[[], bool]) -> None:
    """Wait for the condition as long as a one-off is done now and then."""
    while not condition():
        count = done_so_far()
        eventually(lambda: condition() or done_so_far() > count)  # noqa: B023


def are_done(enough: int) -> bool:
    return done_so_far() >= enough


def done_so_far() -> int:
    return OneOffJob.objects.filter(status="done").count()


@pytest.mark.parametrize("signals", [1, 5])
@jobs_and_tasks
def test_a_worker_that_is_signalled_while_it_is_busy_leaves_nothing_locked_and_loses_nothing(
    spawn: Spawn, kind: str, signals: int
) -> None:
    enqueue_noted(kind, range(1000), seconds=0.05)
    child = worker(spawn, "--threads", "10", "-v", "0")
    eventually(lambda: len(notes()) > 20)
    for _ in range(signals):
        child.send_signal(signal.SIGTERM)
    assert child.finish() == 0
    assert nothing_is_locked()
    assert set(OneOffJob.objects.values_list("status", "attempt")) == {("waiting", 0), ("done", 1)}
    done = OneOffJob.objects.filter(status="done").order_by("args__0").values_list("args__0", flat=True)
    assert notes() == [(number, 1) for number in sorted(done)]
    nothing_went_wrong_in(child)


@pytest.mark.on_database("postgresql", "mysql")
@jobs_and_tasks
def test_a_restart_of_the_database_while_they_are_busy_loses_nothing(
    spawn: Spawn, proxy: Proxy, database_url: str, tmp_path: Path, kind: str
) -> None:
    file = tmp_path / "notes"
    file.touch()
    enqueue_noted(kind, range(200), 0.05, file)
    workers = [worker(spawn, "--threads", "5", DATABASE_URL=proxy.url(database_url)) for _ in range(2)]
    for outage in range(2):
        eventually(partial(are_noted, 20 + 60 * outage, file))
        proxy.go_down()
        work_for(1)
        proxy.come_back()
    while_some_are_done(all_are_done)
    assert [child.poll() for child in workers] == [None, None]
    end(*workers)
    none_was_lost_or_run_twice_unrecorded(200, notes(file))
    assert nothing_is_locked()


@pytest.mark.on_database("postgresql", "mysql")
@jobs_and_tasks
def test_a_worker_that_is_signalled_while_the_database_is_away_leaves_nothing_locked_and_loses_nothing(
    spawn: Spawn, proxy: Proxy, database_url: str, tmp_path: Path, kind: str
) -> None:
    file = tmp_path / "notes"
    file.touch()
    enqueue_noted(kind, range(500), 0.05, file)
    child = worker(spawn, "--threads", "5", DATABASE_URL=proxy.url(database_url))
    eventually(partial(are_noted, 10, file))
    proxy.go_down()
    child.send_signal(signal.SIGTERM)
    work_for(0.5)
    proxy.come_back()
    assert child.finish() == 0
    # A grant whose answer was lost is left to expire, see below.
    in_doubt = OneOffJob.objects.in_progress().values_list("token", flat=True)
    assert set(JobLock.objects.values_list("token", flat=True)) == set(in_doubt)
    assert kind == "jobs" or not in_doubt
    assert set(OneOffJob.objects.values_list("status", flat=True)) <= {"waiting", "in_progress", "done"}
    done = set(OneOffJob.objects.filter(status="done").values_list("args__0", flat=True))
    assert done <= {number for number, _ in notes(file)}
    assert len(set(notes(file))) == len(notes(file)), "One attempt was run twice."


@pytest.mark.on_database("postgresql", "mysql")
def test_a_caller_that_is_signalled_while_the_answer_to_its_grant_is_lost_leaves_no_lock(
    spawn: Spawn, proxy: Proxy, database_url: str, go: Path
) -> None:
    child = spawn.code(
        """
        import os, signal
        from django_singlejob.locking import acquire
        from django_singlejob.process.received_signals import deferred_signals
        from tests.app.jobs import say, wait_until_told
        from tests.contract.acts import ask

        usual = acquire.Acquisition._ask_despite_trouble

        def told_meanwhile(attempt):
            answer = usual(attempt)
            os.kill(os.getpid(), signal.SIGTERM)
            return answer

        ask().release()
        say("ready")
        wait_until_told()
        acquire.Acquisition._ask_despite_trouble = told_meanwhile
        with deferred_signals():
            say(ask())
        """,
        DATABASE_URL=proxy.url(database_url),
    )
    child.wait_for("ready")
    proxy.cut_answer_to(b"COMMIT")
    go.touch()
    assert child.finish() == 0
    assert proxy.answer_cut.is_set()
    assert "INTERRUPTED" in child.output
    assert nothing_is_locked()


def are_noted(enough: int, file: Path) -> bool:
    return len(notes(file)) >= enough


# --- a job that is always due

RECURRING = """
    from datetime import timedelta
    from django.core.management import call_command
    from django_singlejob import singleton_job
    from tests.app.jobs import LEASE, add_one

    # Not in tests/app/jobs.py, where the workers of every other test would find it due.
    @singleton_job("recurring", schedule=timedelta(microseconds=1), lease=LEASE)
    def recurring():
        add_one("sum")

    call_command("singleton_worker", interval=timedelta(seconds=0.05), verbosity=0)
"""


def each_came_when_the_one_before_had_left(job: str) -> None:
    rows = Counter.objects.exclude(name="sum").values_list("name", flat=True)
    spans = sorted((float(begun), float(ended)) for begun, ended, _ in (name.split("/") for name in rows))
    print(f"{job} ran {len(spans)} times in {spans[-1][1] - spans[0][0]:.1f} s.")
    assert all(ended <= begun for (_, ended), (begun, _) in pairwise(spans))
    # A busy machine makes only a few runs: what counts is that each was recorded once and overlapped with no other. The
    # signals that end the workers may cut off the last one.
    statuses = ends(job)
    cut_off = statuses.count("interrupted")
    assert statuses[: len(statuses) - cut_off] == ["successful"] * (len(statuses) - cut_off)
    assert cut_off <= 2
    assert 1 < statuses.count("successful") <= len(spans) <= Counter.objects.get(name="sum").value <= len(statuses)
    assert nothing_is_locked()


def test_a_job_with_a_slot_each_microsecond_never_runs_beside_itself(spawn: Spawn) -> None:
    workers = [spawn.code(RECURRING, **SETTINGS) for _ in range(2)]
    eventually(Counter.objects.filter(name="sum", value__gt=1).exists)
    work_for(SECONDS)
    end(*workers)
    each_came_when_the_one_before_had_left("recurring")
    nothing_went_wrong_in(*workers)


def test_a_flood_of_tasks_keeps_no_job_waiting(spawn: Spawn) -> None:
    OneOffJob.objects.bulk_create(one_off("tasks.nothing", number) for number in range(1000))
    enqueue("adds_again_and_again")
    child = worker(spawn, "--threads", "4", "-v", "0")
    tasks = OneOffJob.objects.parallel()
    while_some_are_done(lambda: not tasks.exclude(status="done").exists())
    assert Counter.objects.get(name="sum").value >= 5
    end(child)


def test_nor_does_a_job_that_enqueues_itself(spawn: Spawn) -> None:
    enqueue("adds_again_and_again")
    workers = [worker(spawn, "-v", "0") for _ in range(2)]
    eventually(Counter.objects.filter(name="sum", value__gt=1).exists)
    work_for(SECONDS)
    end(*workers)
    each_came_when_the_one_before_had_left("adds_again_and_again")
    nothing_went_wrong_in(*workers)
    assert list(OneOffJob.objects.exclude(status="done").values_list("status", "attempt")) == [("waiting", 0)]
