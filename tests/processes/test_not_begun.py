"""A server whose processes for jobs do not get as far as the job loses nothing, and others run it."""

from __future__ import annotations

import shutil
import signal
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from django.db import transaction
from django.utils import timezone

from django_singlejob.models import JobLock, JobRun, JobStatus, OneOffJob
from tests.contract.acts import HOUR, MINUTE, fall_behind, hourly, scheduled, start_run
from tests.databases import APPS
from tests.mirror import PACKAGE
from tests.processes.conftest import WAYS
from tests.processes.workers import SETTINGS, end, enqueue, worker
from tests.waiting import eventually

if TYPE_CHECKING:
    from pathlib import Path

    from tests.children import Child, Spawn

pytest_plugins = "tests.fixtures"
pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True, available_apps=APPS)]
# What the database does not matter for.
once = pytest.mark.on_database("sqlite")

SICK = {"DJANGO_SETTINGS_MODULE": "tests.processes.sick_settings"}
WHY = "RuntimeError: the port"

NIGHTLY = """
    import sys
    from django.core.management import execute_from_command_line
    from django_singlejob import singleton_job

    @singleton_job(schedule=sys.argv[1], max_attempts=1)
    def nightly():
        print("it runs")

    execute_from_command_line(["manage.py", *sys.argv[2:]])
    """


def nothing_was_begun() -> bool:
    return not (JobRun.objects.exists() or JobLock.objects.exists())


def left() -> list[tuple[str, int]]:
    return list(OneOffJob.objects.order_by("pk").values_list("status", "attempt"))


@pytest.mark.parametrize(("mode", "kind"), [("--once", "quick"), ("--drain", "tasks.nothing")])
def test_a_pass_gives_a_one_off_back_and_another_server_runs_it(spawn: Spawn, mode: str, kind: str) -> None:
    enqueue(kind, *([1] if kind.startswith("tasks") else []))
    child = spawn.command("singleton_worker", mode, **SICK)
    assert child.finish() == 75
    assert WHY in child.output
    assert left() == [("waiting", 0)]
    assert nothing_was_begun()
    assert spawn.command("singleton_worker", mode, **SETTINGS).finish() == 0
    assert left() == [("done", 1)]


def slot(spawn: Spawn, schedule: str, *words: str, **env: str) -> Child:
    return spawn.code(NIGHTLY, schedule, *words, **env)


@pytest.mark.usefixtures("fresh_process")
@pytest.mark.parametrize("words", [("singleton_worker", "--once", "-v2"), ("run_singleton", "nightly")])
def test_a_slot_is_given_back_with_its_only_attempt(spawn: Spawn, words: tuple[str, ...]) -> None:
    schedule = hourly(ago=3 * MINUTE)
    fall_behind(scheduled(schedule=schedule, max_attempts=1))
    for _ in range(2):
        child = slot(spawn, schedule, *words, **SICK)
        assert child.finish() == 75
        assert WHY in child.output
        assert nothing_was_begun()
        assert JobStatus.objects.get(name="nightly").last_started_at is None
    child = slot(spawn, schedule, *words, **SETTINGS)
    assert child.finish() == 0
    assert "it runs" in child.output
    assert list(JobRun.objects.values_list("status", "attempt")) == [("successful", 1)]
    assert slot(spawn, schedule, *words, **SETTINGS).finish() == 0
    assert JobRun.objects.count() == 1


def test_a_worker_pauses_longer_and_longer_and_says_what_is_wrong(spawn: Spawn) -> None:
    enqueue("quick")
    sick = worker(spawn, **SICK)
    sick.wait_for("3 runs in a row have not begun")
    assert "django_singlejob.is_executor()" in sick.output
    assert WHY in sick.output
    assert left() == [("waiting", 0)]
    healthy = worker(spawn, **SETTINGS)
    eventually(lambda: left() == [("done", 1)])
    sick.send_signal(signal.SIGTERM)
    assert sick.finish() == 0
    end(healthy)


def test_a_system_without_processes_is_no_failure_of_the_job(spawn: Spawn) -> None:
    enqueue("quick")
    child = spawn.code(
        """
        import os, sys
        from django.core.management import execute_from_command_line
        os.chdir("/")
        import django_singlejob.process.program as program
        program.directory = "/no such directory"
        execute_from_command_line(["manage.py", *sys.argv[1:]])
        """,
        "singleton_worker",
        "--once",
        **SETTINGS,
    )
    assert child.finish() == 75
    assert "No process could be started for it" in child.output
    assert left() == [("waiting", 0)]
    assert nothing_was_begun()


def test_run_singleton_says_so_too(spawn: Spawn) -> None:
    child = spawn.command("run_singleton", "quick", "--now", **SICK)
    assert child.finish() == 75
    assert "quick: not begun. Its process exited with status 1 before that: RuntimeError: the port" in child.output
    assert nothing_was_begun()


def test_a_process_that_was_forked_and_has_no_memory_is_no_second_command(spawn: Spawn) -> None:
    child = spawn.code(
        """
        import os, sys
        from django.core.management import execute_from_command_line
        from django_singlejob.running import serving

        def no_memory(descriptor):
            raise OSError("no memory is left")

        serving.SharedMemory = no_memory
        execute_from_command_line(["manage.py", *sys.argv[1:]])
        """,
        *("run_singleton", "quick", "--now"),
    )
    assert child.finish() == 75
    assert "OSError: no memory is left" in child.output
    assert "quick: not begun. Its process exited with status 1 before that." in child.output
    assert nothing_was_begun()


def stop_the_run() -> None:
    assert JobLock.objects.filter(name="quick").update(stopped_by="ada") == 1


def test_a_run_that_a_user_stops_meanwhile_is_not_given_back(spawn: Spawn, go: Path) -> None:
    """It is not known by then: no heartbeat has seen the mark."""
    enqueue("quick")
    child = spawn.command("singleton_worker", "--once", **SICK, WAITS="yes")
    eventually(JobLock.objects.filter(name="quick").exists)
    stop_the_run()
    go.touch()
    assert child.finish() == 1
    assert JobRun.objects.get().error == "JobStopped: The run was stopped by ada."
    assert left() == [("failed", 1)]


def test_it_is_given_back_while_the_history_is_away(spawn: Spawn) -> None:
    enqueue("quick")
    child = spawn.code(
        """
        import sys
        from django.core.management import execute_from_command_line
        from django_singlejob.locking import recording
        recording.stay_away(RuntimeError("the history is away"))
        execute_from_command_line(["manage.py", *sys.argv[1:]])
        """,
        "singleton_worker",
        "--once",
        **SICK,
    )
    assert child.finish() == 75
    assert left() == [("waiting", 0)]
    assert not JobLock.objects.exists()


def test_a_signal_meanwhile_has_the_usual_exit_status(spawn: Spawn, go: Path) -> None:
    child = spawn.command("run_singleton", "quick", "--now", **SICK, WAITS="yes")
    eventually(JobLock.objects.filter(name="quick").exists)
    child.send_signal(signal.SIGTERM)
    assert child.finish() == 143
    assert nothing_was_begun()


def test_the_death_that_it_was_to_repeat_is_not_forgotten(spawn: Spawn) -> None:
    """Otherwise the start of the run that died would count, and the job would not run for an hour."""
    victim = spawn.command("run_singleton", "until_told")
    victim.wait_for("started")
    victim.kill_all()
    a_minute_ago = timezone.now() - MINUTE
    JobLock.objects.update(expires_at=a_minute_ago, heartbeat_at=a_minute_ago, sent_at=a_minute_ago)
    assert spawn.command("run_singleton", "until_told", "--min-interval", "3600", **SICK).finish() == 75
    child = spawn.command("run_singleton", "until_told", "--min-interval", "3600")
    child.wait_for("started")
    child.kill_all()


def test_what_another_holder_has_by_then_is_left_alone(spawn: Spawn, go: Path) -> None:
    child = spawn.command("run_singleton", "quick", "--now", **SICK, WAITS="yes")
    eventually(JobLock.objects.filter(name="quick").exists)
    others, started_at = uuid4(), timezone.now() - MINUTE
    with transaction.atomic():
        JobStatus.objects.filter(name="quick").update(token=others, last_started_at=started_at)
        JobLock.objects.filter(name="quick").update(token=others)
    go.touch()
    assert child.finish() == 75
    assert JobLock.objects.get(name="quick").token == others
    assert JobStatus.objects.get(name="quick").last_started_at == started_at
    assert "was given back" not in child.output


# --- a lease that is lost meanwhile

WAITS_TO_LOAD = """
    import os, sys
    from pathlib import Path
    from django.core.management import execute_from_command_line
    from django_singlejob import is_executor
    from tests.waiting import eventually

    if is_executor():
        eventually(Path(os.environ["GO"]).exists)
    execute_from_command_line(["manage.py", *sys.argv[1:]])
    """


@once
def test_a_run_whose_lease_is_lost_while_its_process_loads_is_not_begun(spawn: Spawn, go: Path) -> None:
    child = spawn.code(WAITS_TO_LOAD, "run_singleton", "quick", "--now", **WAYS["new process"])
    eventually(JobLock.objects.filter(name="quick", heartbeats__gt=0).exists)
    assert spawn.command("clear_stale_locks", "--force", "quick").finish() == 0
    others = start_run("quick", lease=HOUR)
    child.wait_for("has not begun")
    go.touch()
    assert child.finish() == 75
    assert "quick ran" not in child.output
    assert "could not be given back: Its process was killed by SIGTERM before that. The lease" in child.output
    assert JobRun.objects.order_by("pk")[0].status == "abandoned"
    assert list(JobLock.objects.values_list("token", flat=True)) == [others.token]
    assert others.release()


# --- another release meanwhile

IN_A_RELEASE = """if True:
    import os
    os.chdir(os.environ["RELEASE"])

    import shutil, sys, threading
    from pathlib import Path
    import django; django.setup()
    import django_singlejob
    from django.core.management import execute_from_command_line
    from django.db.backends.signals import connection_created
    from django_singlejob import is_executor, singleton_job

    def upgrade():
        path = Path(django_singlejob.__file__)
        path.write_text(path.read_text().replace("__version__ = ", "__version__ = '9.' + "))

    def delete():
        shutil.rmtree(os.environ["RELEASE"], ignore_errors=True)

    for change in upgrade, delete:
        singleton_job(change)
        if os.environ.get("MEANWHILE") == change.__name__ and not is_executor():
            threading.Thread(target=threading.Event().wait, daemon=True).start()  # so that it does not fork
            connection_created.connect(lambda change=change, **_: change(), weak=False)
    execute_from_command_line(["manage.py", *sys.argv[1:]])
    """


class Release:
    """The project in a folder of its own, with its own copy of the package."""

    def __init__(self, spawn: Spawn, folder: Path) -> None:
        self._spawn, self._folder = spawn, folder
        shutil.copytree(PACKAGE, folder / "django_singlejob")
        (folder / "alone.py").write_text(
            "from tests.processes.worker_settings import *\nSINGLEJOB = {**SINGLEJOB, 'RUNS_PER_PROCESS': 1}\n"
        )

    def command(self, *words: str, **env: str) -> Child:
        env |= {"RELEASE": str(self._folder), "DJANGO_SETTINGS_MODULE": "alone"}
        return self._spawn("-c", IN_A_RELEASE, *words, **env)


@pytest.fixture
def release(spawn: Spawn, tmp_path: Path) -> Release:
    return Release(spawn, tmp_path / "release")


@once
@pytest.mark.parametrize(
    ("mode", "change", "status"),
    [
        ("--interval=0.05", "upgrade", 75),
        ("--once", "delete", 0),  # cron begins another pass anyway
    ],
)
def test_a_worker_whose_release_is_replaced_ends_and_loses_nothing(
    spawn: Spawn, release: Release, mode: str, change: str, status: int
) -> None:
    enqueue(change)
    enqueue("quick")
    child = release.command("singleton_worker", mode, *([] if mode == "--once" else ["--processes=1"]))
    assert child.finish() == status
    assert "the code has changed since this program was started" in child.output
    assert left() == [("done", 1), ("waiting", 0)]
    assert not JobLock.objects.exists()
    assert spawn.command("singleton_worker", "--drain", **SETTINGS).finish() == 0
    assert left() == [("done", 1), ("done", 1)]


@once
@pytest.mark.parametrize(
    ("change", "why"),
    [("upgrade", "This process has django-singlejob 9.0"), ("delete", "No process could be started for it:")],
)
def test_nor_is_a_run_begun_by_another_release(release: Release, change: str, why: str) -> None:
    child = release.command("run_singleton", "quick", "--now", MEANWHILE=change)
    assert child.finish() == 75
    assert why in child.output
    assert nothing_was_begun()


def test_nor_is_a_shell_command_that_could_get_no_guard(spawn: Spawn) -> None:
    """A deploy has removed the Python of a command that waited meanwhile."""
    code = """
        import sys
        from django.core.management import execute_from_command_line

        sys.executable = "/no/such/release/bin/python"
        execute_from_command_line(["manage.py", *sys.argv[1:]])
    """
    child = spawn.code(code, "run_singleton", "nightly", "--now", "--", "true")
    assert child.finish() == 75
    assert "No process could be started for it: [Errno 2]" in child.output
    assert not JobRun.objects.exists()
