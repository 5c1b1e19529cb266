"""Real workers: `manage.py singleton_worker` in processes that receive signals, lose their lock or lose the database.

`test_worker_load.py` gives them a lot to do, and kills them.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from django_singlejob.locking.clear import clear
from django_singlejob.models import JobLock, OneOffJob
from tests.app.models import Counter
from tests.children import ROOT
from tests.contract.acts import expire
from tests.databases import APPS
from tests.processes.witness import ends
from tests.processes.workers import (
    SETTINGS,
    all_are_done,
    end,
    enqueue,
    enqueue_noted,
    jobs_and_tasks,
    notes,
    worker,
)
from tests.waiting import PATIENCE, a_moment, eventually, seconds_of, work_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.children import Child, Spawn
    from tests.processes.conftest import Call
    from tests.proxy import Proxy

pytestmark = pytest.mark.django_db(transaction=True, available_apps=APPS)

WORKERS_LOCK = "django_singlejob.worker.1"


def name_of(kind: str, job: str) -> str:
    return f"tasks.{job}" if kind == "tasks" else job


def heartbeats(lock: str) -> int:
    return sum(JobLock.objects.filter(name=lock).values_list("heartbeats", flat=True))


def left() -> list[tuple[str, int]]:
    """The status and attempt of each one-off."""
    return list(OneOffJob.objects.order_by("pk").values_list("status", "attempt"))


def nothing_is_locked() -> bool:
    return not JobLock.objects.exists()


def test_where_nothing_is_enabled_it_waits_for_its_signal_and_touches_nothing(spawn: Spawn) -> None:
    enqueue("tells")
    child = worker(spawn, SINGLEJOB_TEST_ENABLED="False")
    child.wait_for("SINGLEJOB['ENABLED'] is False: this worker runs nothing.")
    a_moment()
    assert child.poll() is None
    child.send_signal(signal.SIGTERM)
    assert child.finish() == 0
    assert child.output.count("is False") == 1
    assert left() == [("waiting", 0)]
    assert nothing_is_locked()


# --- the end


@jobs_and_tasks
def test_within_the_grace_a_run_may_finish_and_its_heartbeats_go_on(spawn: Spawn, go: Path, kind: str) -> None:
    lock = WORKERS_LOCK if kind == "tasks" else "tells"
    enqueue(name_of(kind, "tells"))
    child = worker(spawn, "--grace", "60")
    child.wait_for("started")
    child.send_signal(signal.SIGTERM)
    told_at = heartbeats(lock)
    eventually(lambda: heartbeats(lock) > told_at + 1)
    go.touch()
    assert child.finish() == 0
    assert left() == [("done", 1)]
    assert nothing_is_locked()
    assert "caught" not in child.output


def test_after_the_grace_runs_are_interrupted_and_wait_again(spawn: Spawn) -> None:
    for job in "tells", "tells_async":
        enqueue(job)
    child = worker(spawn, "--grace", "1")
    eventually(lambda: child.output.count("started") == 2)
    assert seconds_of(lambda: is_caught_after_a_signal(child)) >= 1
    assert child.finish() == 0
    assert child.output.count("caught") == 2
    assert left() == [("waiting", 0)] * 2
    assert nothing_is_locked()
    assert ends("tells") == ends("tells_async") == ["interrupted"]


def test_after_the_grace_tasks_end_with_their_process_and_wait_again(spawn: Spawn) -> None:
    for job in "tasks.tells", "tasks.tells_async", "tasks.noted":
        enqueue(job, *([1] if job == "tasks.noted" else []))
    child = worker(spawn, "--grace", "1")
    eventually(lambda: child.output.count("started") == 2 and ("done", 1) in left())
    assert seconds_of(lambda: is_over_after_a_signal(child)) >= 1
    assert "caught" not in child.output
    assert sorted(left()) == [("done", 1), ("waiting", 1), ("waiting", 1)]
    assert nothing_is_locked()


def is_over_after_a_signal(child: Child) -> None:
    child.send_signal(signal.SIGTERM)
    assert child.finish() == 0


def is_caught_after_a_signal(child: Child) -> None:
    child.send_signal(signal.SIGTERM)
    child.wait_for("caught")


def test_a_second_signal_interrupts_at_once(spawn: Spawn) -> None:
    enqueue("tells")
    child = worker(spawn, "--grace", "600")
    child.wait_for("started")
    # A burst counts once. It arrives as one, however busy the machine is.
    for signum in signal.SIGSTOP, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCONT:
        child.send_signal(signum)
    a_moment()
    assert "caught" not in child.output
    eventually(lambda: ends_if_it_is_told_again(child))
    assert child.finish() == 0
    assert "caught JobInterrupted" in child.output
    assert left() == [("waiting", 0)]
    assert nothing_is_locked()


def ends_if_it_is_told_again(child: Child) -> bool:
    """It gets no more once its body is interrupted: at its own end, one would do what it does to any program."""
    if "caught" not in child.output:
        child.send_signal(signal.SIGTERM)
    a_moment()
    return child.poll() is not None


@pytest.mark.parametrize(
    ("name", "argument", "end"),
    [
        ("stubborn", "swallows every exception", ["interrupted"]),
        ("stubborn", "holds the GIL in C", ["interrupted"]),
        # No thread can be interrupted, so this counts as a death.
        ("tasks.nap", 600.0, []),
    ],
)
def test_what_ignores_the_interrupt_is_killed_and_waits_again(
    spawn: Spawn, name: str, argument: object, end: list[str]
) -> None:
    enqueue(name, argument)
    child = worker(spawn, "--grace", "0")
    child.wait_for("started")
    child.send_signal(signal.SIGTERM)
    assert child.finish() == 0
    assert left() == [("waiting", 0 if end else 1)]
    assert nothing_is_locked()
    assert ends("stubborn") == end


def test_nor_does_a_thread_that_python_would_wait_for_keep_the_process(spawn: Spawn) -> None:
    enqueue("waits_for_a_thread")
    child = spawn.code(
        """
        import asyncio, time
        from django_singlejob import singleton_job
        from django_singlejob.management.commands.singleton_worker import Command
        from tests.app.jobs import say

        @singleton_job("waits_for_a_thread")
        async def waits_for_a_thread():
            say("started")
            await asyncio.to_thread(time.sleep, 600)

        Command().run_from_argv(["manage.py", "singleton_worker", "--grace", "0"])
        """,
        "singleton_worker",
        **SETTINGS,
    )
    child.wait_for("started")
    child.send_signal(signal.SIGTERM)
    assert child.finish() == 0
    assert left() == [("waiting", 0)]


def test_it_ends_after_max_jobs_runs(spawn: Spawn) -> None:
    enqueue_noted("tasks", range(30))
    # Each of its looks takes longer than the interval.
    assert worker(spawn, "--threads", "10", "--max-jobs", "13", "--interval", "0.0001").finish() == 0
    assert len(notes()) == 13
    assert sorted(left()) == [("done", 1)] * 13 + [("waiting", 0)] * 17
    assert nothing_is_locked()


# --- others


def test_a_worker_whose_threads_are_all_busy_still_clears_the_lock_of_a_dead_holder(
    spawn: Spawn, call: Call, go: Path
) -> None:
    enqueue("tells")
    busy = worker(spawn, "--threads", "1")
    busy.wait_for("started")
    victim = call("nap(600)")
    victim.wait_for("attempt 1")
    victim.kill()
    victim.wait()
    expire("nap")
    eventually(lambda: ends("nap") == ["abandoned"])
    assert not JobLock.objects.filter(name="nap").exists()
    assert left() == [("in_progress", 1)]
    go.touch()
    eventually(all_are_done)
    end(busy)


def is_deleted(lock: JobLock) -> None:
    JobLock.objects.filter(pk=lock.pk).delete()


def is_cleared(lock: JobLock) -> None:
    assert clear(lock, force=True)


@pytest.mark.parametrize("lose", [is_deleted, is_cleared])
def test_the_tasks_of_a_worker_whose_lock_is_lost_end_and_are_begun_again(
    spawn: Spawn, go: Path, lose: Callable[[JobLock], None]
) -> None:
    for _ in range(4):
        enqueue("tasks.tells")
    former = worker(spawn, "--threads", "4")
    eventually(lambda: former.output.count("started") == 4)
    lose(JobLock.objects.get(name=WORKERS_LOCK))
    # A worker that has just begun finds the run whose lock was deleted by hand.
    other = worker(spawn, "--threads", "4")
    eventually(lambda: (former.output + other.output).count("started") >= 8)
    go.touch()
    eventually(all_are_done)
    end(former, other)
    rows = OneOffJob.objects.values_list("result", "attempt", "worker_ids")
    assert all(result == attempt == len(ids.splitlines()) == 2 for result, attempt, ids in rows), list(rows)
    assert nothing_is_locked()


@jobs_and_tasks
@pytest.mark.on_database("postgresql", "mysql")
def test_a_restart_of_the_database_ends_no_worker(spawn: Spawn, proxy: Proxy, database_url: str, kind: str) -> None:
    child = worker(spawn, DATABASE_URL=proxy.url(database_url))
    enqueue_noted(kind, [1])
    eventually(all_are_done)
    proxy.go_down()
    child.wait_for("The worker retries until it does")
    enqueue_noted(kind, [2])
    proxy.come_back()
    eventually(all_are_done)
    end(child)
    assert notes() == [(1, 1), (2, 1)]
    assert nothing_is_locked()


# --- threads


def test_jobs_of_one_lock_never_run_side_by_side_in_its_threads(spawn: Spawn) -> None:
    for _ in range(10):
        enqueue("adds")
        enqueue("adds_too")
    child = worker(spawn, "--processes", "4", "--threads", "4")
    eventually(all_are_done)
    end(child)
    assert Counter.objects.get(name="sum").value == 20


def test_the_heartbeats_of_all_runs_are_sent(spawn: Spawn) -> None:
    for job in ("tells", "tells_async"):
        enqueue(job)
    child = worker(spawn, "--grace", "0")
    eventually(lambda: heartbeats("tells") > 1 and heartbeats("tells_async") > 1)
    child.send_signal(signal.SIGTERM)
    child.finish()


@jobs_and_tasks
def test_all_else_runs_side_by_side(spawn: Spawn, kind: str) -> None:
    for number in range(4):
        enqueue("tasks.meets" if kind == "tasks" else f"guest-{number}", number, 4)
    child = worker(spawn, "--processes", "4", "--threads", "4")
    eventually(all_are_done)
    end(child)


def test_processes_that_a_job_starts_get_signals(spawn: Spawn) -> None:
    enqueue("ends_a_child")
    child = worker(spawn)
    eventually(all_are_done)
    end(child)
    assert OneOffJob.objects.get().result == -signal.SIGTERM


@jobs_and_tasks
def test_a_forked_child_ends_with_the_job_and_does_not_work_on(spawn: Spawn, kind: str) -> None:
    for how_the_child_ends in "comes back", "exits", "has a thread":
        enqueue(name_of(kind, "forks"), how_the_child_ends)
    child = worker(spawn)
    eventually(all_are_done)  # it waits for its child
    assert set(OneOffJob.objects.values_list("result", flat=True)) == {"parent"}
    assert [held.pid for held in JobLock.objects.filter(name=WORKERS_LOCK)] == [child.pid]
    enqueue_noted(kind, range(5))
    eventually(all_are_done)
    end(child)
    assert notes() == [(number, 1) for number in range(5)]
    assert set(left()) == {("done", 1)}


def test_one_that_a_program_calls_says_what_that_gives_up_and_heeds_signals_all_the_same(
    spawn: Spawn, go: Path
) -> None:
    enqueue("until_told")
    child = spawn.code(
        """
        from django.core.management import call_command
        call_command("singleton_worker")
        print("the program goes on")
        """,
        **SETTINGS,
    )
    child.wait_for("singleton_worker runs jobs in this process, because a program has called it")
    child.wait_for("started")
    child.send_signal(signal.SIGTERM)
    assert child.finish() == 0
    assert "the program goes on" in child.output
    assert left() == [("waiting", 0)]
    assert nothing_is_locked()


# --- the code changes


@pytest.fixture
def project(tmp_path: Path, child_env: dict[str, str]) -> dict[str, str]:
    """The environment of a process whose settings are in a folder of their own."""
    (tmp_path / "edition.py").write_text("EDITION = 1\n")
    (tmp_path / "debug_settings.py").write_text(
        "from tests.processes.worker_settings import *\nfrom edition import EDITION\nDEBUG = True\n"
    )
    return {
        "DJANGO_SETTINGS_MODULE": "debug_settings",
        "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)]),
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def edition(child: Child | subprocess.Popen[bytes]) -> object:
    """The edition of the code that the worker runs."""
    enqueue("tells_the_edition")
    eventually(lambda: not OneOffJob.objects.filter(job_name="tells_the_edition").exclude(status="done").exists())
    assert child.poll() is None
    return OneOffJob.objects.filter(job_name="tells_the_edition").latest("pk").result


@jobs_and_tasks
def test_a_changed_file_restarts_it_after_the_current_runs(
    spawn: Spawn, project: dict[str, str], tmp_path: Path, go: Path, kind: str
) -> None:
    child = worker(spawn, **project)
    assert edition(child) == 1
    enqueue(name_of(kind, "tells"))
    child.wait_for("started")
    (tmp_path / "edition.py").write_text("EDITION = 2\n")
    work_for(1.5)  # longer than Django's reloader rests
    assert "The worker restarts" not in child.output
    go.touch()
    child.wait_for("The worker restarts")
    assert left()[1] == ("done", 1)
    assert edition(child) == 2
    end(child)
    assert nothing_is_locked()


# --- nobody reads what it says


@pytest.mark.parametrize("reader", ["has ended", "has no room", "is not there"])
def test_a_worker_that_cannot_say_what_it_does_works_on(spawn: Spawn, tmp_path: Path, reader: str) -> None:
    enqueue_noted("jobs", range(4))
    command = [sys.executable, "-m", "django", "singleton_worker", "--interval", "0.05", "--no-reload"]
    if reader == "is not there":
        command = ["sh", "-c", 'exec "$@" >&-', "sh", *command]
    with streams(reader) as stdout, (tmp_path / "errors").open("w") as errors:
        child = subprocess.Popen(command, env=spawn.env | SETTINGS, cwd=ROOT, stdout=stdout, stderr=errors)
        try:
            eventually(all_are_done)
            assert child.poll() is None
            child.send_signal(signal.SIGTERM)
            assert child.wait(PATIENCE) == 0
        finally:
            child.kill()
            child.wait()
    assert (tmp_path / "errors").read_text() == ""
    assert nothing_is_locked()


def test_and_restarts_when_the_code_has_changed(spawn: Spawn, project: dict[str, str], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "django", "singleton_worker", "--interval", "0.05"]
    with streams("has ended") as stdout:
        env = spawn.env | SETTINGS | project | {"PYTHONUNBUFFERED": ""}  # what cannot be written stays in the buffer
        child = subprocess.Popen(command, env=env, cwd=ROOT, stdout=stdout)
        try:
            assert edition(child) == 1
            (tmp_path / "edition.py").write_text("EDITION = 2\n")
            eventually(lambda: edition(child) == 2)
        finally:
            child.kill()
            child.wait()


@contextmanager
def streams(reader: str) -> Iterator[Any]:
    if reader == "has no room":
        with Path("/dev/full").open("w") as full:
            yield full
    elif reader == "has ended":
        reading, writing = os.pipe()
        os.close(reading)
        yield writing
        os.close(writing)
    else:
        yield None
