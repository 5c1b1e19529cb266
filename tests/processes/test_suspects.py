"""Tasks whose process crashes: each runs alone then, so that the one that does it is the only one that is blamed."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from django_singlejob.models import OneOffJob
from tests.databases import APPS
from tests.processes.workers import SETTINGS, all_are_done, end, enqueue, enqueue_noted, notes, one_off, worker
from tests.waiting import eventually

if TYPE_CHECKING:
    from pathlib import Path

    from tests.children import Spawn

pytestmark = pytest.mark.django_db(transaction=True, available_apps=APPS)
once = pytest.mark.on_database("sqlite")

INNOCENT = 3


def enqueue_a_culprit_and_innocent_ones(signum: int) -> None:
    """They are claimed together, by the first worker that begins. The innocent ones run until a file appears."""
    tasks = [one_off("tasks.crashes", signum), *(one_off("tasks.tells") for _ in range(INNOCENT))]
    for task in tasks:
        task.max_attempts = 3
    OneOffJob.objects.bulk_create(tasks)


def left() -> list[tuple[str, int, bool]]:
    return list(OneOffJob.objects.order_by("pk").values_list("status", "attempt", "suspect"))


def have_ended() -> bool:
    return not OneOffJob.objects.exclude(status__in=["done", "failed"]).exists()


# SIGKILL is what the system sends without memory.
@pytest.mark.parametrize(("signum", "workers"), [(signal.SIGSEGV, 1), (signal.SIGKILL, 2)])
def test_a_task_that_crashes_costs_those_beside_it_no_attempt(
    spawn: Spawn, go: Path, signum: int, workers: int
) -> None:
    enqueue_a_culprit_and_innocent_ones(signum)
    children = [worker(spawn) for _ in range(workers)]
    eventually(OneOffJob.objects.filter(suspect=True).exists)
    go.touch()
    eventually(have_ended)
    end(*children)
    assert left() == [("failed", 3, False)] + [("done", 1, False)] * INNOCENT
    culprit, *innocent = OneOffJob.objects.order_by("pk")
    assert culprit.error == f"The process that ran it was killed by {signal.Signals(signum).name}."
    assert culprit.errors.count("JobDied") == 3
    assert {(task.error, task.errors) for task in innocent} == {("", "")}
    output = "".join(child.output for child in children)
    assert output.count("4 tasks that this worker was running have been put back.") == 1
    assert output.count("1 tasks that this worker was running have been put back.") == 2
    assert output.count("1 tasks that this worker was running have failed: they do not begin again.") == 1


@once
@pytest.mark.parametrize("mode", ["--once", "--drain"])
def test_a_pass_leaves_no_suspect_behind(spawn: Spawn, mode: str) -> None:
    enqueue_noted("tasks", range(60))
    OneOffJob.objects.filter(args__0__in=[0, 1, 20, 40, 59]).update(suspect=True)
    assert spawn.command("singleton_worker", mode, **SETTINGS).finish() == 0
    assert notes() == [(number, 1) for number in range(60)]
    assert set(left()) == {("done", 1, False)}


@once
def test_a_busy_worker_passes_it_over_and_runs_it_once_nothing_else_runs(spawn: Spawn, go: Path) -> None:
    enqueue("tasks.tells")
    child = worker(spawn)
    child.wait_for("started")
    suspect = one_off("tasks.noted", 0)
    suspect.suspect = True
    suspect.save()
    enqueue_noted("tasks", range(1, 10))
    eventually(lambda: len(notes()) == 9)
    assert OneOffJob.objects.get(pk=suspect.pk).status == "waiting"
    go.touch()
    eventually(all_are_done)
    end(child)
