"""The lines that start a command, and the programs that call one: the end of each is what its caller takes it for."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from django.core.management import call_command

from django_singlejob.models import JobLock, JobRun
from tests.app.models import Counter
from tests.children import ROOT
from tests.databases import APPS
from tests.ping_server import ping_server
from tests.processes.conftest import WAYS, both_ways
from tests.processes.witness import descendants, ends, is_alive, is_over
from tests.processes.workers import SETTINGS, enqueue
from tests.waiting import PATIENCE, eventually

if TYPE_CHECKING:
    from pathlib import Path

    from tests.children import Child, Spawn

pytestmark = [
    pytest.mark.slow,
    pytest.mark.django_db(transaction=True, available_apps=APPS),
    pytest.mark.on_database("sqlite"),
]


# --- what is slow at the end of a program

SLOW_EXIT = """
    import atexit, os, sys
    from django.core.management import execute_from_command_line
    from django_singlejob import is_executor
    from tests.app.jobs import say, wait_until_told

    def tidy_up():
        say("tidying up in", os.getpid())
        wait_until_told()
        say("tidied up in", os.getpid())

    if "ONLY_THE_COMMAND" not in os.environ or not is_executor():
        atexit.register(tidy_up)
    execute_from_command_line(["manage.py", *sys.argv[1:]])
    """


def processes(child: Child, words: str) -> list[int]:
    """The processes that have printed these words, and their numbers."""
    lines = (line.rpartition(f"{words} in ") for line in child.output.splitlines())
    return [int(number) for _, found, number in lines if found]


@pytest.mark.parametrize(
    ("way", "job", "status", "end"),
    [("fork", "quick", 0, "successful"), ("new process", "says_and_fails", 1, "failed")],
)
def test_a_slow_hook_is_a_part_of_the_run_and_changes_no_status(
    spawn: Spawn, go: Path, way: str, job: str, status: int, end: str
) -> None:
    child = spawn.code(SLOW_EXIT, "run_singleton", job, "--now", **WAYS[way])
    eventually(lambda: processes(child, "tidying up"))
    assert JobLock.objects.filter(name=job).exists()
    assert ends(job) == ["running"]
    go.touch()
    assert child.finish() == status
    assert is_over(job, end)
    # If the run has a process of its own, the hook is called there and in the command itself.
    found = processes(child, "tidied up")
    assert len(found) == len({*found}) == (1 if way == "fork" else 2)


def test_the_hook_of_the_command_itself_keeps_no_lock(spawn: Spawn, go: Path) -> None:
    env = WAYS["new process"] | {"ONLY_THE_COMMAND": "yes"}
    child = spawn.code(SLOW_EXIT, "run_singleton", "quick", "--now", **env)
    child.wait_for("tidying up")
    assert is_over("quick", "successful")
    go.touch()
    assert child.finish() == 0


def test_a_signal_during_the_hook_of_a_run_interrupts_the_run(spawn: Spawn) -> None:
    child = spawn.code(SLOW_EXIT, "run_singleton", "quick", "--now")
    child.wait_for("tidying up")
    child.send_signal(signal.SIGTERM)
    assert child.finish() == 143
    assert is_over("quick", "interrupted")


def test_a_slow_ping_server_changes_neither_the_status_nor_the_lock(spawn: Spawn) -> None:
    with ping_server("never") as server:
        env = WAYS["new process"] | {"SINGLEJOB_TEST_PING_URL": server.url}
        child = spawn.command("run_singleton", "says_and_fails", "--now", **env)
        eventually(lambda: JobRun.objects.filter(status="failed").exists() and not JobLock.objects.exists())
        assert child.finish() == 1


# --- what the program does around the command

MANAGE = """
    import os, sys
    from django.core.management import execute_from_command_line

    try:
        execute_from_command_line(["manage.py", *sys.argv[1:]])
    except SystemExit as end:
        print("caught", end.code, "in", os.getpid(), flush=True)
        if "IS_MAPPED" in os.environ:
            sys.exit(40 + (end.code or 0))
    print("went on in", os.getpid(), flush=True)
    """


@pytest.mark.parametrize(("way", "status"), [("fork", 1), ("new process", 41)])
def test_a_program_may_map_the_exit_status_unless_it_has_forked(spawn: Spawn, way: str, status: int) -> None:
    env = WAYS[way] | {"IS_MAPPED": "yes"}
    assert spawn.code(MANAGE, "run_singleton", "says_and_fails", "--now", **env).finish() == status


@both_ways
def test_what_a_program_does_after_the_command_it_does_once(spawn: Spawn, way: str) -> None:
    child = spawn.code(MANAGE, "run_singleton", "quick", "--now", **WAYS[way])
    assert child.finish() == 0
    assert len(processes(child, "went on")) == 1


def test_and_no_process_of_a_worker_does_it(spawn: Spawn) -> None:
    enqueue("quick")
    child = spawn.code(MANAGE, "singleton_worker", "--once", **SETTINGS)
    assert child.finish() == 0
    assert processes(child, "went on") == [child.pid]


# --- lines of a shell

#: Seconds. The lease of the job has a minute, and a busy machine needs some.
LONG_BEFORE_THE_LEASE = 20

RUN = f"{sys.executable} -m django run_singleton"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (f"{RUN} quick --now && echo yes", "quick ran\nyes\n"),
        (f"{RUN} exits --now --args [3] || echo no", "no\n"),
        (f'said=$({RUN} quick --now); echo "<$said>"', "<quick ran>\n"),
        (f"{RUN} quick --now | tee $FILE; cat $FILE", "quick ran\n" * 2),
    ],
    ids=["and", "or", "into a variable", "into a pipe"],
)
def test_a_line_goes_on_when_its_command_ends(spawn: Spawn, tmp_path: Path, line: str, said: str) -> None:
    enqueue("quick")
    env = spawn.env | {"FILE": str(tmp_path / "file")}
    done = subprocess.run(["sh", "-c", line], capture_output=True, env=env, cwd=ROOT, timeout=PATIENCE, check=True)
    assert done.stdout.decode() == said


@pytest.mark.parametrize(
    "command", [["run_singleton", "guest-0", "--args", "[0, 2]"], ["singleton_worker"]], ids=["a run", "a worker"]
)
def test_a_pipe_ends_with_its_command_even_if_that_is_killed(spawn: Spawn, command: list[str]) -> None:
    enqueue("guest-0", 0, 2)
    words = [sys.executable, "-m", "django", *command]
    with subprocess.Popen(words, env=spawn.env, cwd=ROOT, stdout=subprocess.PIPE) as child:
        eventually(Counter.objects.filter(name="guest 0").exists)
        child.kill()
        child.communicate(timeout=LONG_BEFORE_THE_LEASE)


# --- signals as those of a service manager


def stop_service(child: Child) -> list[int]:
    """Send SIGTERM to the command and to all that it has started, as systemd does. Returns these."""
    processes = descendants(child.pid)
    for pid in [child.pid, *processes]:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    return processes


@pytest.mark.parametrize("job", ["nap", "asks_all_the_time"])
def test_a_signal_to_each_process_of_a_service_interrupts_the_run_once(spawn: Spawn, job: str) -> None:
    child = spawn.command("run_singleton", job, "--now")
    child.wait_for("attempt" if job == "nap" else "started")
    processes = stop_service(child)
    assert child.finish() == 143
    assert child.output.count("cleaned up") == 1
    assert is_over(job, "interrupted")
    assert not any(map(is_alive, processes))


def test_and_a_shell_command_has_the_time_to_clean_up(spawn: Spawn) -> None:
    script = "trap 'echo cleaned up; exit 0' TERM; echo started; while :; do sleep 0.05; done"
    child = spawn.command("run_singleton", "nightly", "--", "sh", "-c", script)
    child.wait_for("started")
    processes = stop_service(child)
    assert child.finish() == 0
    assert child.output.count("cleaned up") == 1
    assert is_over("nightly", "successful")
    assert not any(map(is_alive, processes))


# --- commands that a program calls


def test_under_a_test_runner_a_called_command_runs_the_job_here_and_says_nothing(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    call_command("run_singleton", "quick", now=True)
    assert capsys.readouterr().out.startswith("quick ran\n")
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []
    assert is_over("quick", "successful")
    assert JobRun.objects.get().pid == os.getpid()


FROM_A_TASK = """
    import logging, multiprocessing, os, signal, sys, threading
    import django
    from django.core.management import call_command
    from django.db import connection
    from tests.app.jobs import say

    logging.basicConfig()
    connection.ensure_connection()  # that of the pool's parent
    handler = signal.getsignal(signal.SIGTERM)

    def task():
        for _ in range(2):
            call_command("run_singleton", "quick", now=True)
        try:
            call_command("run_singleton", "says_and_fails", now=True)
        except SystemExit as end:
            say("status", end.code, "in", os.getpid())
        call_command("run_singleton", "nightly", "--", "sh", "-c", "echo a shell command")
        assert signal.getsignal(signal.SIGTERM) is handler
        say("the task is done")

    kinds = {"thread": threading.Thread, "process": multiprocessing.get_context("fork").Process}
    pool = kinds[os.environ["POOL"]](target=task, daemon=True)
    pool.start()
    pool.join()
    """


@pytest.mark.parametrize("pool", ["thread", "process"])
def test_a_task_of_another_queue_may_call_it(spawn: Spawn, pool: str) -> None:
    """Such tasks run in threads, or in processes that may have no children of multiprocessing's."""
    child = spawn.code(FROM_A_TASK, "worker", POOL=pool)
    assert child.finish() == 0
    assert "the task is done" in child.output, child.output
    assert child.output.count("run_singleton runs jobs in this process, because a program has called it") == 4
    assert is_over("quick", "successful", "successful")
    assert is_over("says_and_fails", "failed")
    assert is_over("nightly", "successful")
