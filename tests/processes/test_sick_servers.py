"""Two servers, of which one can start no more processes: nothing is lost or used up, and all runs on the other one."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from django_singlejob import job_lock
from django_singlejob.models import JobLock, JobRun, OneOffJob
from tests.contract.acts import MINUTE, fall_behind, hourly, scheduled
from tests.databases import APPS
from tests.processes.test_containers import NO_CAPABILITY_BUT_FILES, USER
from tests.processes.witness import is_over
from tests.processes.workers import SETTINGS, all_are_done, end, enqueue
from tests.waiting import eventually

if TYPE_CHECKING:
    from tests.children import Child, Spawn

pytest_plugins = "tests.fixtures"
pytestmark = [
    pytest.mark.usefixtures("fresh_process"),
    pytest.mark.django_db(transaction=True, available_apps=APPS),
]

SERVER = """if True:
    import os, resource, sys, threading
    from pathlib import Path
    from django_singlejob import is_executor
    schedule, limit, *words = sys.argv[1:]

    def fall_sick():
        # It may still open its database, but not what a process takes.
        most = max(map(int, os.listdir("/proc/self/fd"))) + 8 if limit == "RLIMIT_NOFILE" else 1
        resource.setrlimit(getattr(resource, limit), (most, most))

    go = Path(os.environ["GO"])
    if limit == "RLIMIT_AS" and is_executor() and go.exists():
        fall_sick()
    import django; django.setup()
    from django.core.management import execute_from_command_line
    from django_singlejob import singleton_job
    from tests.waiting import eventually

    @singleton_job(schedule=schedule, max_attempts=1)
    def nightly():
        pass

    def wait():
        # Until then it starts threads, and without them a command does not begin to wait.
        eventually(lambda: "watch over jobs" in {thread.name for thread in threading.enumerate()})
        eventually(go.exists)
        if limit != "RLIMIT_AS":  # without memory, Python itself may wait for ever for a thread
            fall_sick()
        print("it is sick", flush=True)
        threading.Event().wait()

    if limit and not is_executor():
        threading.Thread(target=wait, daemon=True).start()
    execute_from_command_line(["manage.py", *words])
"""


class Servers:
    def __init__(self, spawn: Spawn, go: Path) -> None:
        self.schedule = hourly(ago=3 * MINUTE)
        self._spawn, self._go = spawn, go

    def run(self, *words: str, limit: str = "") -> Child:
        """As a user whom the system does not spare, as it does root."""
        user = ["setpriv", f"--reuid={USER}", "--clear-groups", *NO_CAPABILITY_BUT_FILES]
        line = [*user, sys.executable, "-c", SERVER, self.schedule, limit, *words]
        return self._spawn("-c", f"import os; os.execvp('setpriv', {line!r})", **SETTINGS)

    def let_fall_sick(self, child: Child) -> None:
        self._go.touch()
        child.wait_for("it is sick")


@pytest.fixture
def servers(spawn: Spawn, go: Path) -> Servers:
    return Servers(spawn, go)


@pytest.mark.parametrize("limit", ["RLIMIT_NPROC", "RLIMIT_NOFILE", "RLIMIT_AS"])
def test_slots_one_offs_and_tasks_run_on_the_healthy_worker(servers: Servers, limit: str) -> None:
    nightly = scheduled(schedule=servers.schedule, max_attempts=1)
    sick = servers.run("singleton_worker", "--interval=0.05", limit=limit)
    sick.wait_for("all queues")
    servers.let_fall_sick(sick)
    fall_behind(nightly)
    for number in range(3):
        enqueue("quick")
        enqueue("tasks.nothing", number)
    OneOffJob.objects.update(max_attempts=1)
    sick.wait_for("'nightly' has not begun")
    sick.wait_for("'quick' has not begun")
    sick.wait_for("rocess of the tasks exited with status" if limit == "RLIMIT_AS" else "could be started for tasks")
    healthy = servers.run("singleton_worker", "--interval=0.05")
    eventually(all_are_done)
    eventually(lambda: is_over("nightly", "successful"))
    end(healthy, sick)
    assert set(OneOffJob.objects.values_list("status", "attempt")) == {("done", 1)}
    runs = JobRun.objects.exclude(job_name__startswith="django_singlejob").values_list("job_name", "status", "attempt")
    assert sorted(runs) == [("nightly", "successful", 1)] + [("quick", "successful", 1)] * 3
    assert not JobLock.objects.exists()


@pytest.mark.parametrize("limit", ["RLIMIT_NPROC", "RLIMIT_NOFILE"])
def test_a_shell_command_runs_on_the_healthy_server(servers: Servers, limit: str) -> None:
    line = ("run_singleton", "backup", "--wait", "60", "--now", "--", "echo", "it runs")
    with job_lock("backup"):
        sick = servers.run(*line, limit=limit)
        servers.let_fall_sick(sick)
    assert sick.finish() == 75
    assert "backup: not begun. No process could be started for it: " in sick.output
    assert not JobRun.objects.exists()
    assert not JobLock.objects.exists()
    healthy = servers.run(*line)
    assert healthy.finish() == 0
    assert "it runs" in healthy.output
    assert "it runs" not in sick.output


def test_memory_for_a_run_that_cannot_be_had_leaves_no_file_open(spawn: Spawn) -> None:
    code = """
        import os, resource
        from django_singlejob.running.shared import SharedMemory

        first = SharedMemory()
        before = os.listdir("/proc/self/fd")
        limits = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (1, limits[1]))
        try:
            SharedMemory()
        except OSError:
            resource.setrlimit(resource.RLIMIT_AS, limits)
            print(os.listdir("/proc/self/fd") == before)
    """
    child = spawn.code(code)
    assert child.finish() == 0
    assert child.output == "True\n"
