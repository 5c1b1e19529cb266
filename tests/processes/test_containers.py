"""Commands where the system gives them little: as process 1 of a container, without /proc, without another process."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from django_singlejob.models import JobLock, JobRun, OneOffJob
from tests.databases import APPS
from tests.processes.witness import descendants, ends, is_over
from tests.processes.workers import SETTINGS, enqueue

if TYPE_CHECKING:
    from tests.children import Child, Spawn

pytestmark = [
    pytest.mark.slow,
    pytest.mark.django_db(transaction=True, available_apps=APPS),
    pytest.mark.on_database("sqlite"),
]

#: In front of a command line: what gives it less.
CONTAINER = ["unshare", "--fork", "--pid", "--mount-proc"]
NO_PROC = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /proc && exec "$@"', "sh"]
NO_CAPABILITY_BUT_FILES = ["--inh-caps=-all,+dac_override", "--ambient-caps=-all,+dac_override"]
#: They do nothing to process 1, if it has no handler for them.
NOT_HEEDED = [signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGPWR, signal.SIGRTMIN + 3]
#: A user whom nobody else is: the system counts what each user has.
USER = 1_000_000 + os.getpid()


def with_few(number: int) -> list[str]:
    """As a user that may have this many processes and threads, at most."""
    return [
        *("setpriv", f"--reuid={USER}", "--clear-groups", *NO_CAPABILITY_BUT_FILES),
        *("prlimit", f"--nproc={number}"),
    ]


def behind(words: list[str], spawn: Spawn, *command: str, **env: str) -> Child:
    """Run a management command behind these words. Skips the test if this machine does not allow that."""
    tried = shutil.which(words[0]) and subprocess.run([*words, "true"], check=False, capture_output=True)
    if not tried or tried.returncode:
        pytest.skip(f"this process may not use {words[0]}")
    line = [*words, sys.executable, "-m", "django", *command]
    return spawn("-c", f"import os; os.execvp({words[0]!r}, {line!r})", **env)


# --- process 1


@pytest.mark.parametrize(
    ("command", "status", "end"),
    [
        (["kills_itself"], 1, "failed"),
        (["leaves_an_orphan"], 0, "successful"),
        (["daemon", "--", "sh", "-c", "exit 3"], 3, "failed"),
        (["daemon", "--", "sh", "-c", "(true &); kill -9 $$"], 137, "failed"),
    ],
    ids=["is killed", "leaves an orphan", "a shell command", "one that is killed"],
)
def test_as_process_1_of_a_container_run_singleton_has_its_usual_status(
    spawn: Spawn, command: list[str], status: int, end: str
) -> None:
    child = behind(CONTAINER, spawn, "run_singleton", *command)
    assert child.finish() == status
    assert is_over(command[0], end)


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGQUIT])
def test_a_signal_ends_it_there_too(spawn: Spawn, signum: int) -> None:
    child = behind(CONTAINER, spawn, "run_singleton", "nap")
    child.wait_for("attempt")
    process_1 = descendants(child.pid)[0]
    for other in NOT_HEEDED:
        os.kill(process_1, other)
    os.kill(process_1, signum)
    assert child.finish() == 128 + signum
    assert is_over("nap", "interrupted")
    assert "cleaned up" in child.output


def test_a_worker_ends_there_by_the_signal_of_several_images(spawn: Spawn) -> None:
    child = behind(CONTAINER, spawn, "singleton_worker", **SETTINGS)
    child.wait_for("all queues")
    os.kill(descendants(child.pid)[0], signal.SIGQUIT)
    assert child.finish() == 0
    assert not JobLock.objects.exists()


ORPHANS = """
    zombies() { grep -ls 'Z (zombie)' /proc/[0-9]*/status | wc -l; }
    for number in 1 2 3; do (true &); done
    until [ "$(zombies)" = 0 ]; do sleep 0.1; done
    echo "0 zombies"
"""


def test_it_collects_the_orphans_of_a_shell_command_while_that_runs(spawn: Spawn) -> None:
    child = behind(CONTAINER, spawn, "run_singleton", "daemon", "--lease", "6", "--", "sh", "-c", ORPHANS)
    assert child.finish() == 0
    assert child.output == "0 zombies\n"


# --- without /proc


@pytest.mark.parametrize(
    ("command", "status", "end"),
    [
        (["exits_at_once"], 1, "failed"),
        (["daemon", "--", "sh", "-c", "exit 3"], 3, "failed"),
    ],
    ids=["a job", "a shell command"],
)
def test_without_proc_run_singleton_works_as_usual(spawn: Spawn, command: list[str], status: int, end: str) -> None:
    child = behind(NO_PROC, spawn, "run_singleton", *command)
    assert child.finish() == status
    assert is_over(command[0], end)


def test_without_proc_each_run_of_a_worker_has_a_process_of_its_own_and_the_log_says_why(spawn: Spawn) -> None:
    for _ in range(2):
        enqueue("quick")
    child = behind(NO_PROC, spawn, "singleton_worker", "--once", DJANGO_SETTINGS_MODULE="tests.processes.news_settings")
    assert child.finish() == 0
    assert ends("quick") == ["successful"] * 2
    assert child.output.count("what cannot be seen here, because there is no /dev/fd") == 2


# --- without another process, or another thread


def nothing_was_begun() -> bool:
    return not (JobRun.objects.exists() or JobLock.objects.exists())


@pytest.mark.parametrize("number", [1, 3, 4])
def test_a_job_that_gets_no_process_or_no_thread_is_not_begun(spawn: Spawn, number: int) -> None:
    child = behind(with_few(number), spawn, "run_singleton", "quick", "--now")
    assert child.finish() == 75
    assert "Traceback" not in child.output
    assert nothing_was_begun()


@pytest.mark.parametrize("number", [1, 2])
def test_nor_is_a_shell_command(spawn: Spawn, number: int) -> None:
    child = behind(with_few(number), spawn, "run_singleton", "daemon", "--", "true")
    assert child.finish() == 75
    assert nothing_was_begun()


@pytest.mark.parametrize("number", [1, 2])
def test_nor_is_a_one_off_which_another_server_runs(spawn: Spawn, number: int) -> None:
    enqueue("quick")
    child = behind(with_few(number), spawn, "singleton_worker", "--once", **SETTINGS)
    assert child.finish() == 75
    assert [*OneOffJob.objects.values_list("status", "attempt")] == [("waiting", 0)]
    assert nothing_was_begun()
    assert spawn.command("singleton_worker", "--once", **SETTINGS).finish() == 0
    assert [*OneOffJob.objects.values_list("status", "attempt")] == [("done", 1)]
