"""Workers, the work that tests give them, and what they leave."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

import pytest

from django_singlejob.models import OneOffJob
from django_singlejob.process.clock import DBNow
from tests.app.models import Counter

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from tests.children import Child, Spawn

PATIENCE = 90
SETTINGS = {"DJANGO_SETTINGS_MODULE": "tests.processes.worker_settings"}

# One-offs under the lock of their job, and tasks that need no lock.
jobs_and_tasks = pytest.mark.parametrize("kind", ["jobs", "tasks"])


def worker(spawn: Spawn, *options: str, **env: str) -> Child:
    return spawn.command("singleton_worker", "--interval", "0.05", *options, **SETTINGS | env)


def one_off(name: str, *args: Any) -> OneOffJob:
    """A one-off of the job of that name, or of the task in `tests/app/load.py`. It is not saved yet."""
    is_task = name.startswith("tasks.")
    return OneOffJob(
        job_name="" if is_task else name,
        task_path=name.replace("tasks.", "tests.app.load.", 1) if is_task else "",
        args=list(args),
        max_attempts=1000,
        backend="default" if is_task else "",
        created_at=DBNow(),
        run_after=DBNow(),
    )


def enqueue(name: str, *args: Any) -> None:
    one_off(name, *args).save()


def enqueue_noted(kind: str, numbers: Iterable[int], seconds: float = 0.0, file: Path | str = "") -> None:
    """One-offs that each leave a note. Those under a lock belong to 20 jobs, in turn."""
    OneOffJob.objects.bulk_create(
        one_off(f"many-{number % 20}" if kind == "jobs" else "tasks.noted", number, seconds, str(file))
        for number in numbers
    )


def all_are_done() -> bool:
    return not OneOffJob.objects.exclude(status="done").exists()


def notes(file: Path | None = None) -> list[tuple[int, int]]:
    """The one-off and the attempt of each run that came to its end."""
    lines = file.read_text().splitlines() if file else Counter.objects.values_list("name", flat=True)
    return sorted((int(number), int(attempt)) for number, attempt, *_ in (line.split("/") for line in lines))


def attempts() -> dict[int, int]:
    """How often each one-off began, according to its row."""
    return dict(OneOffJob.objects.order_by("pk").values_list("args__0", "attempt"))


def end(*workers: Child) -> None:
    for child in workers:
        child.send_signal(signal.SIGTERM)
    for child in workers:
        # A worker that has just been started does not handle signals yet.
        assert child.finish() in (0, -signal.SIGTERM)
