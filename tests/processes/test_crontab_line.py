"""The crontab line, as cron starts it."""

from __future__ import annotations

import os
import socket
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from django.core.management import call_command

from django_singlejob import job_lock
from django_singlejob.models import JobLock, JobRun, JobStatus
from tests.app import jobs
from tests.children import ROOT
from tests.databases import APPS
from tests.processes.witness import ends, is_over

if TYPE_CHECKING:
    from tests.children import Child, Spawn
    from tests.proxy import Proxy

pytestmark = pytest.mark.django_db(transaction=True, available_apps=APPS)


def shell(spawn: Spawn, script: str, *options: str) -> Child:
    return spawn.command("run_singleton", "nightly", *options, "--", "sh", "-c", script)


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["tick"], 0, "tick: ran"),
        (["-m", "report", "today", "--status", "3"], 3, "report exited with status 3"),
        (["exits", "--args", "[3]"], 1, "exits: failed"),
        (["nightly", "--", "sh", "-c", "exit 7"], 7, "status 7"),
        (["nightly", "--", "sh", "-c", "kill -9 $$"], 137, "status 137"),
        (["nightly", "--", "no-such-program"], 127, "not found"),
        (["tik"], 2, "Did you mean 'tick'?"),
    ],
)
def test_the_exit_status_shows_the_outcome(spawn: Spawn, arguments: list[str], status: int, words: str) -> None:
    child = spawn.command("run_singleton", "-v", "2", *arguments)
    assert child.finish() == status
    assert words in child.output
    assert "Traceback" not in child.output
    assert not JobLock.objects.exists()


@pytest.mark.parametrize(("options", "status"), [([], 0), (["-E", "9"], 9)])
def test_a_skipped_run_is_not_an_error_unless_requested(spawn: Spawn, options: list[str], status: int) -> None:
    with job_lock("tick"):
        child = spawn.command("run_singleton", "-v", "2", "tick", *options)
        assert child.finish() == status
        assert child.output == f"tick: skipped, held by somebody else ({JobLock.objects.get().holder}).\n"
    assert not JobRun.objects.exists()


@pytest.mark.parametrize("arguments", [["tick"], ["exits", "--args", "[3]"], ["nightly", "--", "false"]])
def test_verbosity_0_is_silent(spawn: Spawn, arguments: list[str]) -> None:
    child = spawn.command("run_singleton", "-v", "0", *arguments)
    child.finish()
    assert child.output == ""
    assert JobRun.objects.exists()


def test_wait_keeps_trying(spawn: Spawn) -> None:
    with job_lock("tick"):
        child = spawn.code("""
            from django.core.management import call_command
            from django_singlejob.locking import acquire

            def tell_and_sleep(seconds, sleep=acquire.sleep):
                print("waits", flush=True)
                sleep(seconds)

            acquire.sleep = tell_and_sleep
            call_command("run_singleton", "tick", "--wait", "600", "--now")
        """)
        child.wait_for("waits\nwaits")
    assert child.finish() == 0
    assert is_over("tick", "successful")


@pytest.mark.on_database("postgresql", "mysql")
def test_a_database_that_is_away_is_status_69(spawn: Spawn, proxy: Proxy, through_proxy: dict[str, str]) -> None:
    proxy.go_down()
    child = spawn.command("run_singleton", "tick", **through_proxy)
    assert child.finish() == 69
    assert "The database does not answer" in child.output
    assert "Traceback" not in child.output


def test_a_command_and_its_children_get_the_signals(spawn: Spawn) -> None:
    child = shell(
        spawn,
        """
        (trap 'echo inner signalled; exit' TERM; echo inner started; while :; do sleep 0.05; done) &
        trap 'echo outer signalled; wait; exit 9' TERM
        echo outer started; while :; do sleep 0.05; done
        """,
    )
    child.wait_for("inner started")
    child.wait_for("outer started")
    child.terminate()
    assert child.finish() == 9
    assert {"inner signalled", "outer signalled"} <= set(child.output.splitlines())
    assert is_over("nightly", "interrupted")


def test_the_row_shows_host_pid_and_command(spawn: Spawn) -> None:
    child = shell(spawn, "echo started; exec sleep 600")
    child.wait_for("started")
    lock = JobLock.objects.get()
    assert (lock.name, lock.hostname, lock.pid, lock.command) == ("nightly", socket.gethostname(), child.pid, "sh")


def test_two_servers_whose_clocks_differ_by_up_to_20_seconds_run_a_short_job_once_a_minute() -> None:
    # When each of the two fires, in seconds after the full minute.
    minutes = [(0, 20), (20, 0), (0, 0), (10, -10), (-10, 10), (20, 19), (0, 20)]
    clock = 0
    for minute, seconds in enumerate(minutes):
        for second in sorted(seconds):
            passes(minute * 60 + second - clock)
            clock = minute * 60 + second
            call_command("run_singleton", "tick")
    assert ends("tick") == ["successful"] * len(minutes)


def test_min_interval_is_an_option_and_now_overrides_it() -> None:
    for options in [], [], ["--min-interval", "60"], ["--min-interval", "0"], ["--now"]:
        call_command("run_singleton", "tick", *options)
    assert list(JobRun.objects.values_list("trigger", flat=True)) == ["command", "command", "manual"]


def passes(seconds: float) -> None:
    """Let time pass, as the job sees it."""
    for status in JobStatus.objects.filter(last_started_at__isnull=False):
        started_at = (status.last_started_at or status.now) - timedelta(seconds=seconds)
        JobStatus.objects.filter(pk=status.pk).update(last_started_at=started_at)


# --- a module that does not load

SETTINGS = "from tests.settings import *\n\nINSTALLED_APPS = [*INSTALLED_APPS, 'half_a_shop']\n"
JOBS = """from datetime import timedelta
from django_singlejob import singleton_job

singleton_job("restock", schedule=timedelta(hours=1))(print)
"""


def test_a_module_that_does_not_load_costs_only_its_own_jobs(spawn: Spawn) -> None:
    package = spawn.folder / "half_a_shop"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "jobs.py").write_text(JOBS)
    (spawn.folder / "half_settings.py").write_text(SETTINGS)
    env = {"DJANGO_SETTINGS_MODULE": "half_settings", "PYTHONPATH": f"{spawn.folder}{os.pathsep}{ROOT}"}
    spawn.command("singleton_worker", "--once", **env).finish()
    slot = datetime(2026, 11, 1, tzinfo=UTC)
    assert JobStatus.objects.filter(name="restock").update(next_slot=slot) == 1
    jobs.says.enqueue("I run")

    (package / "jobs.py").write_text(f"{JOBS}1 / 0\n")
    child = spawn.command("singleton_worker", "--once", **env)
    assert child.finish() == 0
    assert f"ZeroDivisionError: division by zero. Fix the error in {package / 'jobs.py'}, line 5." in child.output
    assert JobRun.objects.get().job_name == "says"
    status = JobStatus.objects.get(name="restock")
    assert status.next_slot == slot
    assert status.schedule
    assert spawn.command("singleton_status", "--check", **env).finish() == 2
    assert spawn.command("check", **env).finish() == 1

    # As on a server that has the next release.
    (package / "jobs.py").write_text(JOBS.replace("print", "lambda: None"))
    assert spawn.command("singleton_worker", "--once", **env).finish() == 0
    assert JobRun.objects.filter(job_name="restock", slot__isnull=False).exists()
