"""How a process ended that a command has started is known; and if it cannot be known, the run has failed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from django_singlejob.models import JobRun
from tests.app import jobs
from tests.databases import APPS
from tests.processes.witness import ends

if TYPE_CHECKING:
    from tests.children import Child, Spawn

pytestmark = [pytest.mark.django_db(transaction=True, available_apps=APPS), pytest.mark.on_database("sqlite")]

IGNORES_SIGCHLD = """if True:
    import os, signal, sys
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    os.execv(sys.executable, [sys.executable, "-m", "django", *sys.argv[1:]])
"""


def by_a_launcher_that_ignores_sigchld(spawn: Spawn, *arguments: str) -> Child:
    """Such a launcher passes that on to the programs that it starts. Then the system forgets how children end."""
    return spawn("-c", IGNORES_SIGCHLD, *arguments)


@pytest.mark.parametrize(("script", "status"), [("exit 3", 3), ("kill -9 $$", 137), ("exit 0", 0)])
def test_a_command_has_its_own_status_whatever_the_launcher_ignores(spawn: Spawn, script: str, status: int) -> None:
    child = by_a_launcher_that_ignores_sigchld(spawn, "run_singleton", "nightly", "--", "sh", "-c", script)
    assert child.finish() == status
    assert ends("nightly") == ["failed" if status else "successful"]


@pytest.mark.parametrize("options", [(), ("--inline",)], ids=["child", "inline"])
def test_so_has_what_a_job_starts(spawn: Spawn, options: tuple[str, ...]) -> None:
    child = by_a_launcher_that_ignores_sigchld(spawn, "run_singleton", "says_how_a_command_ended", *options)
    assert child.finish() == 0
    assert "status 3" in child.output


def test_and_what_a_job_of_a_worker_starts(spawn: Spawn) -> None:
    jobs.says_how_a_command_ended.enqueue()
    child = by_a_launcher_that_ignores_sigchld(spawn, "singleton_worker", "--once", "-v2")
    assert child.finish() == 0
    assert "status 3" in child.output


# --- a program that ignores SIGCHLD by itself, later on


FORGETS = """
    import signal, sys
    from django.core.management import execute_from_command_line
    from django.db.backends.signals import connection_created

    connection_created.connect(lambda **_: signal.signal(signal.SIGCHLD, signal.SIG_IGN), weak=False)
    execute_from_command_line(["django-admin", *sys.argv[1:]])
"""


def test_a_command_whose_status_is_unknown_has_failed(spawn: Spawn) -> None:
    child = spawn.code(FORGETS, "run_singleton", "nightly", "--", "sh", "-c", "exit 0")
    assert child.finish() == 1
    assert "The exit status of the command is unknown" in JobRun.objects.get().error
    assert ends("nightly") == ["failed"]


@pytest.mark.parametrize("handler", ["signal.SIG_IGN", "collect"])
def test_so_has_one_that_is_called_by_a_program(spawn: Spawn, handler: str) -> None:
    child = spawn.code(f"""
        import os, signal
        from contextlib import suppress
        from django.core.management import call_command

        def collect(*_):
            with suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG) != (0, 0):
                    pass

        signal.signal(signal.SIGCHLD, {handler})
        call_command("run_singleton", "nightly", "--", "sh", "-c", "exit 3")
    """)
    assert child.finish() == 1
    assert "The exit status of the command is unknown" in JobRun.objects.get().error
    assert ends("nightly") == ["failed"]


def test_so_has_a_body_that_has_not_reported(spawn: Spawn) -> None:
    child = spawn.code(FORGETS, "run_singleton", "exits_at_once")
    assert child.finish() == 1
    error = "JobDied: Its process ended with an unknown exit status before the job had ended."
    assert JobRun.objects.get().error == error


def test_one_that_has_reported_its_end_has_ended_like_that(spawn: Spawn) -> None:
    child = spawn.code(FORGETS, "run_singleton", "quick")
    assert child.finish() == 0, child.output
    assert ends("quick") == ["successful"]


@pytest.mark.parametrize(
    ("arguments", "env", "status"),
    [
        (("run_singleton", "no_such_job"), {}, 2),
        (("run_singleton", "quick"), {"DATABASE_URL": "sqlite:////no/such/folder/db.sqlite3"}, 69),
    ],
)
def test_a_traceback_changes_no_status(
    spawn: Spawn, arguments: tuple[str, ...], env: dict[str, str], status: int
) -> None:
    child = spawn.command(*arguments, "--traceback", **env)
    assert child.finish() == status
    assert "Traceback" in child.output
