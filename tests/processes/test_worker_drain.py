"""Real workers that exit when nothing is due any more: `singleton_worker --drain`."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from django_singlejob.models import JobLock, JobRun, OneOffJob
from tests.children import kill_alone
from tests.contract.acts import MINUTE, expire, hourly
from tests.databases import APPS
from tests.processes.witness import ends
from tests.processes.workers import (
    SETTINGS,
    all_are_done,
    enqueue,
    enqueue_noted,
    jobs_and_tasks,
    notes,
)
from tests.waiting import eventually

if TYPE_CHECKING:
    from tests.children import Child, Spawn

pytestmark = pytest.mark.django_db(transaction=True, available_apps=APPS)

# Not in tests/app/jobs.py, where the workers of every other test would find them due.
JOBS = """
    import sys
    from django.core.management import call_command
    from django_singlejob import singleton_job
    from tests.contract.acts import HOUR
    from tests.waiting import work_for

    def slotted(name):
        return singleton_job(name, schedule=sys.argv[1], catch_up="all", lease=HOUR)(lambda: work_for(0.01))

    def broken():
        raise ZeroDivisionError("five")

    jobs = [slotted(f"slotted-{number}") for number in range(5)]
    singleton_job("broken", lease=HOUR)(broken)
"""
FALL_BEHIND = """
    from tests.contract.acts import fall_behind
    for job in jobs:
        fall_behind(job, 3)
"""
DRAIN = """
    call_command("singleton_worker", drain=True, threads=5)
"""


def drain(spawn: Spawn, *options: str) -> Child:
    return spawn.command("singleton_worker", "--drain", *options, **SETTINGS)


def nothing_is_locked() -> bool:
    return not JobLock.objects.exists()


@jobs_and_tasks
def test_two_that_drain_at_once_run_everything_due_once_and_both_end(spawn: Spawn, kind: str) -> None:
    schedule = hourly(ago=30 * MINUTE)  # no slot comes due meanwhile
    assert spawn.code(JOBS + FALL_BEHIND, schedule, **SETTINGS).finish() == 0
    enqueue_noted(kind, range(100), 0.01)
    enqueue("broken")
    workers = [spawn.code(JOBS + DRAIN, schedule, **SETTINGS) for _ in range(2)]
    assert [child.finish() for child in workers] == [0, 0]
    assert notes() == [(number, 1) for number in range(100)]
    assert ends("broken") == ["failed"]
    slots = JobRun.objects.filter(trigger="schedule").values_list("job_name", "slot", "attempt", "status")
    assert len(slots) == len(set(slots)) == 15
    assert {(attempt, status) for _, _, attempt, status in slots} == {(1, "successful")}
    assert not OneOffJob.objects.exclude(status__in=["done", "failed"]).exists()
    assert nothing_is_locked()
    output = workers[0].output + workers[1].output
    assert output.count("broken: failed, ZeroDivisionError: five") == 1
    assert "Traceback" not in output


def test_it_ends_at_once_if_nothing_is_due(spawn: Spawn) -> None:
    assert drain(spawn).finish() == 0
    assert nothing_is_locked()


@jobs_and_tasks
def test_sigterm_ends_it_like_any_worker_and_shows_in_its_status(spawn: Spawn, kind: str) -> None:
    enqueue_noted(kind, range(1000), seconds=0.1)
    child = drain(spawn, "-v", "0")
    eventually(lambda: len(notes()) > 5)
    child.send_signal(signal.SIGTERM)
    assert child.finish() == 143
    assert set(OneOffJob.objects.values_list("status", "attempt")) == {("waiting", 0), ("done", 1)}
    assert nothing_is_locked()


def test_what_another_worker_runs_does_not_keep_it(spawn: Spawn) -> None:
    enqueue("tells")
    other = spawn.command("singleton_worker", **SETTINGS)
    other.wait_for("started")
    enqueue("tells")
    assert drain(spawn).finish() == 0
    assert list(OneOffJob.objects.order_by("pk").values_list("status", "attempt")) == [
        ("in_progress", 1),
        ("waiting", 0),
    ]
    other.send_signal(signal.SIGTERM)
    other.send_signal(signal.SIGKILL)


def test_the_next_one_drains_what_a_killed_one_was_running(spawn: Spawn) -> None:
    enqueue_noted("jobs", range(20), seconds=0.1)
    child = drain(spawn)
    eventually(lambda: len(notes()) > 2)
    kill_alone(child)
    for name in JobLock.objects.values_list("name", flat=True):
        expire(name)
    assert drain(spawn).finish() == 0
    assert all_are_done()
    assert nothing_is_locked()
