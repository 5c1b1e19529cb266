"""Real workers that have claimed more tasks than they have threads, and are kept from running them."""

from __future__ import annotations

import signal
from functools import partial
from typing import TYPE_CHECKING

import pytest

from django_singlejob.jobs.names import WORKER_LOCK
from django_singlejob.locking.clear import clear
from django_singlejob.models import OneOffJob
from tests.children import kill_alone
from tests.contract.acts import expire, lock
from tests.databases import APPS
from tests.processes.workers import SETTINGS, end, enqueue, enqueue_noted, notes, one_off, worker
from tests.waiting import eventually

if TYPE_CHECKING:
    from tests.children import Spawn

pytestmark = pytest.mark.django_db(transaction=True, available_apps=APPS)

SHORT = 100


def short_tasks_but_one(behind: int) -> None:
    """Many short tasks, then one that takes long, and ``behind`` short ones."""
    noted = [one_off("tasks.noted", number) for number in range(SHORT + behind)]
    OneOffJob.objects.bulk_create([*noted[:SHORT], one_off("tasks.nap", 600.0), *noted[SHORT:]])


def are_left(statuses: set[tuple[str, int]], behind: int) -> bool:
    return set(OneOffJob.objects.order_by("-pk")[:behind].values_list("status", "attempt")) == statuses


def test_what_a_long_task_keeps_from_running_runs_on_another_worker(spawn: Spawn) -> None:
    """The busy worker looks so seldom that it does not put the tasks back by looking."""
    behind = 30
    short_tasks_but_one(behind)
    busy = worker(spawn, "--threads", "1", "--interval", "600")
    busy.wait_for("started")
    other = worker(spawn)
    eventually(partial(are_left, {("done", 1)}, behind))
    end(other)
    assert notes() == [(number, 1) for number in range(SHORT + behind)]
    busy.kill()


def test_what_has_not_begun_is_put_back_at_a_signal(spawn: Spawn) -> None:
    enqueue_noted("tasks", range(SHORT))
    enqueue("tasks.tells")
    enqueue_noted("tasks", range(SHORT, SHORT + 10))
    child = worker(spawn, "--threads", "1", "--grace", "0")
    child.wait_for("started")
    child.send_signal(signal.SIGTERM)
    assert child.finish() == 0
    # The one that had begun was cut short.
    assert are_left({("waiting", 0), ("waiting", 1)}, 11)
    assert notes() == [(number, 1) for number in range(SHORT)]


def test_a_worker_that_is_killed_fails_no_task_that_has_not_begun(spawn: Spawn) -> None:
    """One task takes its worker with it each time, and many are claimed behind it."""
    enqueue_noted("tasks", range(SHORT))
    enqueue("tasks.tells")
    enqueue_noted("tasks", range(SHORT, SHORT + 30))
    OneOffJob.objects.update(max_attempts=1)
    child = worker(spawn, "--threads", "1")
    child.wait_for("started")
    kill_alone(child)
    expire(f"{WORKER_LOCK}.1")
    assert clear(lock(f"{WORKER_LOCK}.1"), error="It was killed.")
    OneOffJob.objects.filter(task_path__endswith=".tells").delete()
    assert spawn.command("singleton_worker", "--drain", **SETTINGS).finish() == 0
    # Those of the others whose end was not recorded may have run twice.
    assert [number for number, _ in notes() if number >= SHORT] == [*range(SHORT, SHORT + 30)]
