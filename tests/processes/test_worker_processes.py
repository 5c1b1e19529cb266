"""The processes of a worker: one for each run of a job, and one for all tasks."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from django.db import connection, transaction

from django_singlejob.models import JobLock, OneOffJob
from tests.databases import APPS
from tests.processes.witness import ends, is_alive
from tests.processes.workers import SETTINGS, all_are_done, end, enqueue, one_off, worker
from tests.waiting import eventually

if TYPE_CHECKING:
    from pathlib import Path

    from tests.children import Child, Spawn
    from tests.proxy import Proxy

pytestmark = pytest.mark.django_db(transaction=True, available_apps=APPS)
once = pytest.mark.on_database("sqlite")


def bodies(child: Child) -> list[int]:
    """The processes that have said `started PID`."""
    return [int(found) for found in re.findall(r"started (\d+)", child.output)]


def test_a_crash_puts_back_no_task_of_another_worker(spawn: Spawn, go: Path) -> None:
    enqueue("tasks.says_its_process")
    other = worker(spawn, "--queue", "default")
    other.wait_for("started")
    crash = one_off("tasks.crashes_once")
    crash.queue_name = "crashes"  # from the beginning, or the other worker could take it
    crash.save()
    child = worker(spawn, "--queue", "crashes")
    eventually(OneOffJob.objects.filter(queue_name="crashes", status="done").exists)
    assert OneOffJob.objects.in_progress().get().attempt == 1
    go.touch()
    eventually(all_are_done)
    end(child, other)
    assert OneOffJob.objects.get(queue_name="default").attempt == 1


@once
def test_a_drain_runs_them_again_too(spawn: Spawn) -> None:
    enqueue("tasks.crashes_once")
    assert spawn.command("singleton_worker", "--drain", **SETTINGS).finish() == 0
    assert OneOffJob.objects.get().status == "done"


@once
def test_a_job_that_kills_its_process_costs_its_neighbours_nothing(spawn: Spawn, go: Path) -> None:
    enqueue("tells")
    enqueue("kills_itself")
    child = worker(spawn)
    child.wait_for("started")
    eventually(lambda: ends("kills_itself") == ["failed"])
    go.touch()
    eventually(lambda: ends("tells") == ["successful"])
    end(child)


@once
def test_a_job_that_skips_itself_is_done_with(spawn: Spawn) -> None:
    enqueue("skips_itself")
    child = worker(spawn)
    eventually(all_are_done)
    assert ends("skips_itself") == ["skipped"]
    assert (OneOffJob.objects.get().result, OneOffJob.objects.get().error) == (None, "")
    child.wait_for("skips_itself: skipped itself, holiday.")
    end(child)


@once
def test_a_busy_worker_keeps_its_leases(spawn: Spawn) -> None:
    enqueue("outlasts_its_lease")
    child = worker(spawn, "--processes", "2", "-v", "0")
    child.wait_for("started")
    for number in range(60):
        enqueue(f"many-{number % 20}", number)
    eventually(lambda: ends("outlasts_its_lease") == ["successful"])
    assert "lost" not in child.output
    end(child)


@pytest.mark.on_database("postgresql")
def test_after_an_outage_longer_than_the_lease_the_worker_runs_its_tasks_again(
    spawn: Spawn, proxy: Proxy, database_url: str, go: Path
) -> None:
    enqueue("tasks.tells")
    child = worker(spawn, DATABASE_URL=proxy.url(database_url))
    child.wait_for("started")
    proxy.go_down()
    eventually(JobLock.objects.stale().exists)
    child.wait_for("was not renewed")
    go.touch()
    proxy.come_back()
    eventually(all_are_done)
    end(child)


@pytest.mark.on_database("postgresql")
def test_what_is_put_back_late_is_not_what_runs_by_then(spawn: Spawn, go: Path) -> None:
    """The next process works under the same lock."""
    for _ in range(2):
        enqueue("tasks.says_its_process")
    child = worker(spawn, "--threads", "1")
    eventually(lambda: bodies(child))
    with transaction.atomic():
        OneOffJob.objects.select_for_update().in_progress().get()
        os.kill(bodies(child)[0], signal.SIGKILL)
        eventually(lambda: child.output.count("The database does not answer") >= 4)
    child.wait_for("have been put back")
    go.touch()
    eventually(all_are_done)
    end(child)
    assert sorted(OneOffJob.objects.values_list("attempt", flat=True)) == [1, 2]


@once
@pytest.mark.parametrize("mode", ["--once", "--drain"])
def test_a_task_that_interrupts_itself_ends_the_pass(spawn: Spawn, mode: str) -> None:
    enqueue("tasks.interrupts_itself")
    child = spawn.command("singleton_worker", mode, **SETTINGS)
    child.finish()
    assert child.output.count("interrupts_itself: interrupted") == 1
    assert OneOffJob.objects.get().status == "waiting"


@once
def test_what_the_process_tidies_up_at_its_exit_outlives_its_children(spawn: Spawn) -> None:
    for _ in range(2):
        enqueue("uses_a_directory_of_the_process")
    assert spawn.command("singleton_worker", "--once", **SETTINGS).finish() == 0
    assert ends("uses_a_directory_of_the_process") == ["successful"] * 2


@once
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process that its parent has died")
def test_all_processes_end_with_their_worker(spawn: Spawn) -> None:
    enqueue("tasks.says_its_process")
    enqueue("stubborn", "swallows every exception")
    child = worker(spawn)
    eventually(lambda: len(bodies(child)) == 2)
    child.send_signal(signal.SIGKILL)
    eventually(lambda: not any(map(is_alive, bodies(child))))


@pytest.mark.on_database("postgresql")
def test_a_look_that_waits_delays_no_deadline(spawn: Spawn) -> None:
    enqueue("stubborn_for_too_long", "swallows every exception")
    child = worker(spawn)
    eventually(lambda: bodies(child))
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("LOCK TABLE django_singlejob_oneoffjob IN ACCESS EXCLUSIVE MODE")
        (body,) = bodies(child)
        eventually(lambda: not is_alive(body))
    eventually(lambda: ends("stubborn_for_too_long") == ["interrupted"])
    end(child)


@once
@pytest.mark.skipif(shutil.which("unshare") is None, reason="there are no namespaces")
def test_as_process_1_of_a_container_it_collects_what_jobs_leave_behind(spawn: Spawn) -> None:
    for _ in range(3):
        enqueue("leaves_an_orphan")
    command = ["unshare", "--fork", "--pid", "--mount-proc", sys.executable, "-m", "django"]
    if subprocess.run([*command[:4], "true"], check=False, capture_output=True).returncode:
        pytest.skip("this process may not make a namespace")
    words = [*command, "singleton_worker", "--interval", "0.05"]
    child = spawn("-c", f"import os; os.execvp('unshare', {words!r})", **SETTINGS)
    eventually(all_are_done)
    enqueue("counts_zombies")
    eventually(all_are_done)
    assert OneOffJob.objects.get(job_name="counts_zombies").result in (0, 1)  # the next run collects one
    child.kill_all()
