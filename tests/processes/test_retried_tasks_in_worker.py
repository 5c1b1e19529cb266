"""Tasks that are retried, in a real worker."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from django.utils import timezone

from django_singlejob.models import OneOffJob
from tests.databases import APPS
from tests.processes.workers import end, enqueue, enqueue_noted, notes, worker
from tests.waiting import eventually

if TYPE_CHECKING:
    from tests.children import Spawn

pytestmark = pytest.mark.django_db(transaction=True, available_apps=APPS)


def left() -> list[tuple[str, int]]:
    return list(OneOffJob.objects.filter(task_path__endswith="s").values_list("status", "attempt"))


def test_while_it_waits_its_thread_runs_others(spawn: Spawn) -> None:
    enqueue("tasks.falters")
    child = worker(spawn, "--threads", "1")
    eventually(lambda: left() == [("waiting", 1)])
    enqueue_noted("tasks", range(3))
    eventually(lambda: notes() == [(number, 1) for number in range(3)])
    assert left() == [("waiting", 1)]
    OneOffJob.objects.filter(status="waiting").update(run_after=timezone.now())
    eventually(lambda: left() == [("done", 2)])
    assert OneOffJob.objects.get(status="done", attempt=2).result == 2
    end(child)
    assert child.output.count("failed and will be retried in 3600 s, ConnectionError: down") == 1


@pytest.mark.on_database("sqlite")
def test_one_that_is_stopped_is_not_retried(spawn: Spawn) -> None:
    enqueue("tasks.asks_and_is_retried")
    child = worker(spawn)
    child.wait_for("started")
    assert OneOffJob.objects.stop("ada") == 1
    eventually(lambda: not OneOffJob.objects.filter(status="in_progress").exists())
    end(child)
    row = OneOffJob.objects.get()
    assert (row.status, row.attempt, row.error) == ("failed", 1, "JobStopped: The run was stopped by ada.")
