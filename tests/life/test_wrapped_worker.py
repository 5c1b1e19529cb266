"""A project's own command that calls the worker. All runs in that process: a warning says so."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from django_singlejob.models import JobLock
from tests.databases import APPS
from tests.life.test_life import TIDY, enqueue_task, nothing_is_left, results, wait_for_note
from tests.processes.witness import ends
from tests.processes.workers import enqueue
from tests.waiting import eventually

if TYPE_CHECKING:
    from tests.children import Child, Spawn
    from tests.life.conftest import Life

pytest_plugins = "tests.fixtures"
pytestmark = pytest.mark.django_db(transaction=True, available_apps=APPS)

WARNING = "singleton_worker runs jobs in this process, because a program has called it."


@pytest.fixture
def child_env(child_env: dict[str, str]) -> dict[str, str]:
    return child_env | {"DJANGO_SETTINGS_MODULE": "tests.life.wrapped_settings"}


def finished(child: Child) -> str:
    """What it has written."""
    assert child.finish() == 0, child.output
    return child.output


@pytest.mark.parametrize("way", ["--drain", "until a signal"])
def test_it_runs_jobs_and_tasks_and_says_where(life: Life, spawn: Spawn, way: str) -> None:
    for name in TIDY:
        enqueue(name)
        enqueue_task(name)
    child = spawn.command("worker", *([way] if way == "--drain" else []))
    eventually(nothing_is_left)
    if way != "--drain":
        child.send_signal(signal.SIGTERM)
    finished(child)
    assert WARNING in (life.folder / "warnings.log").read_text()
    for name in TIDY:
        assert len(results(name)) == 2
        assert ends(name) == ["successful"]
    assert {note.pid for name in TIDY for note in life.notes(name)} == {child.pid}
    assert not JobLock.objects.exists()


def test_a_signal_interrupts_its_run_at_once_and_frees_the_lock(life: Life, spawn: Spawn) -> None:
    """The grace has no effect, as the warning says."""
    enqueue("waits")
    child = spawn.command("worker")
    wait_for_note(life, child, "waits")
    child.send_signal(signal.SIGTERM)
    finished(child)
    assert ends("waits") == ["interrupted"]
    assert not JobLock.objects.exists()
