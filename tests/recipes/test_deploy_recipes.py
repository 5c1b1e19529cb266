"""The recipes of the page on deployments."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from django.core.management import call_command
from django.db.models import F
from django.db.models.functions import Now

from django_singlejob import singleton_job
from django_singlejob.models import JobLock, JobRun, JobStatus, OneOffJob
from tests.children import ROOT
from tests.contract.acts import expire, fall_behind, start_run, take
from tests.databases import APPS
from tests.processes.set_ups import no_tables
from tests.processes.witness import ends
from tests.processes.workers import SETTINGS, enqueue
from tests.recipes.lines import of_crontab, prompted, shell
from tests.recipes.snippets import snippet
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_django import Settings

    from django_singlejob import Job
    from tests.children import Spawn

pytest_plugins = "tests.fixtures"
pytestmark = pytest.mark.django_db(transaction=True, available_apps=APPS)

# --- cron and workers


@pytest.fixture
def due(fresh_process: None) -> None:
    """A slot of the job `checked` is due. No other comes due while a test runs."""
    fall_behind(singleton_job("checked", schedule="@yearly")(lambda: None))


@pytest.fixture
def with_schedules(tmp_path: Path) -> dict[str, str]:
    """The environment of a project whose job `checked` has a yearly schedule."""
    (tmp_path / "yearly_settings.py").write_text(
        "from tests.settings import *\nSINGLEJOB = {**SINGLEJOB, 'AUTODISCOVER': ['jobs', 'sentry_jobs']}\n"
    )
    return {"DJANGO_SETTINGS_MODULE": "yearly_settings", "PYTHONPATH": f"{tmp_path}:{ROOT}"}


@pytest.mark.usefixtures("due")
def test_what_is_due_runs_once_across_all_servers(spawn: Spawn, with_schedules: dict[str, str]) -> None:
    line = of_crontab(snippet("recipes/deploy.md", "One crontab line on every server, or one worker on each", "text"))
    servers = [shell(spawn, line, **with_schedules) for _ in range(3)]
    assert [server.finish() for server in servers] == [0] * 3
    assert ends("checked") == ["successful"]


def test_a_worker_runs_what_is_enqueued(spawn: Spawn) -> None:
    page = snippet("recipes/deploy.md", "One crontab line on every server, or one worker on each", "console")
    (line,) = prompted(page)
    worker = shell(spawn, f"exec {line}", **SETTINGS)
    enqueue("quick")
    eventually(lambda: OneOffJob.objects.filter(status="done").exists())
    worker.terminate()
    assert worker.finish() == 0


# --- migrations


def test_each_container_starts_and_one_migrates(spawn: Spawn, database_url: str, tmp_path: Path) -> None:
    entrypoint = snippet("recipes/deploy.md", "Migrate from the entrypoint of every container", "sh")
    with no_tables(database_url, tmp_path) as url:
        env = {"DATABASE_URL": url, "DJANGO_SETTINGS_MODULE": "tests.processes.migrate_settings"}
        containers = [shell(spawn, entrypoint, "sh", "echo", "the server starts", **env) for _ in range(3)]
        assert [container.finish() for container in containers] == [0] * 3
    said = "".join(container.output for container in containers)
    assert said.count("the server starts") == 3
    assert said.count("Applying migrated.0002_prices... OK") == 1


# --- pauses, copies and backups


def call(line: str) -> None:
    """This line of a shell."""
    call_command(*shlex.split(line.removeprefix("python manage.py ")))


@pytest.fixture
def hourly_report(fresh_process: None) -> Job:
    return singleton_job("hourly_report")(lambda: None)


@pytest.mark.usefixtures("hourly_report")
def test_a_job_is_paused_during_a_deploy() -> None:
    pause, resume = prompted(snippet("recipes/deploy.md", "Two releases of your code at once", "console"))
    call(pause)
    call_command("run_singleton", "hourly_report", "--now")
    assert ends("hourly_report") == []
    call(resume)
    call_command("run_singleton", "hourly_report", "--now")
    assert ends("hourly_report") == ["successful"]


@pytest.fixture
def staging(settings: Settings) -> Callable[[], None]:
    """Reads the settings of the recipe."""

    def read() -> None:
        names: dict[str, Any] = {}
        exec(snippet("recipes/deploy.md", "Copy production to staging"), names)
        settings.SINGLEJOB = names["SINGLEJOB"]

    return read


@pytest.mark.usefixtures("hourly_report")
def test_a_copy_runs_nothing_that_waited_in_production(staging: Callable[[], None]) -> None:
    singleton_job("done")(lambda: None)()
    start_run("checked")
    expire("checked")
    enqueue("hourly_report")
    staging()
    call_command("singleton_worker", "--drain")
    assert ends("hourly_report") == []
    for line in prompted(snippet("recipes/deploy.md", "Copy production to staging", "console")):
        call(line)
    assert not JobLock.objects.exists()
    assert not JobRun.objects.exists()
    assert not OneOffJob.objects.exists()


@pytest.mark.usefixtures("hourly_report")
def test_one_job_can_be_run_in_staging(staging: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    (line,) = prompted(snippet("recipes/deploy.md", "Copy production to staging", "console", 2))
    variable, _, command = line.partition(" ")
    staging()
    call(command)
    assert ends("hourly_report") == []
    monkeypatch.setenv(*variable.split("="))
    staging()
    call(command)
    assert ends("hourly_report") == ["successful"]


@pytest.mark.usefixtures("fresh_process")
def test_after_a_restore_no_fence_is_given_out_twice() -> None:
    """Another system has seen fences since the backup: of a lock that is held in the backup, and of one that has no row
    in it."""
    for _ in range(3):
        take("hourly_report").release()
    later = take("hourly_report")
    later.release()
    JobStatus.objects.filter(name="hourly_report").delete()
    seen = {"nightly": take("nightly").fence + 1000, "hourly_report": later.fence}
    expire("nightly")
    exec(snippet("recipes/deploy.md", "Restore a backup"), {})
    call_command("clear_stale_locks")
    assert {name: take(name).fence > fence for name, fence in seen.items()} == dict.fromkeys(seen, True)


def test_after_a_restore_a_one_off_can_be_cancelled() -> None:
    for name in "confirm_order", "nap":
        enqueue(name)
    (line,) = prompted(snippet("recipes/deploy.md", "Restore a backup", "console"))
    call(line)
    statuses = dict(OneOffJob.objects.values_list("job_name", "status"))
    assert statuses == {"confirm_order": "cancelled", "nap": "waiting"}


@pytest.mark.usefixtures("due")
@pytest.mark.parametrize("was_running", [False, True])
def test_missed_slots_can_be_skipped(was_running: bool) -> None:
    if was_running:
        JobStatus.objects.update(last_slot=F("next_slot"), abandoned=True, last_status="abandoned")
    exec(snippet("recipes/deploy.md", "Skip the slots that were missed"), {})
    call_command("singleton_worker", "--once")
    assert ends("checked") == []
    assert JobStatus.objects.filter(name="checked", next_slot__gt=Now()).exists()


# --- upgrades


def manage(spawn: Spawn, line: str, **env: str) -> str:
    """The line succeeds. Returns what it printed."""
    child = shell(spawn, line, **env)
    assert child.finish() == 0, child.output
    return child.output


@pytest.mark.on_database("sqlite")
def test_an_upgrade_and_an_uninstallation(spawn: Spawn, database_url: str, tmp_path: Path) -> None:
    (plan,) = prompted(snippet("recipes/deploy.md", "Upgrade django-singlejob", "console"))
    (drop,) = prompted(snippet("recipes/deploy.md", "Uninstall", "console"))
    clean_up, uninstall = prompted(snippet("recipes/deploy.md", "Uninstall", "console", 2))
    (tmp_path / "without_settings.py").write_text(
        "from tests.settings import *\nINSTALLED_APPS.remove('django_singlejob')\n"
        "INSTALLED_APPS.remove('tests.app.apps.TestAppConfig')\nTASKS = {}\n"
    )
    with no_tables(database_url, tmp_path) as url:
        env = {"DATABASE_URL": url}
        assert "django_singlejob.0001_initial" in manage(spawn, plan, **env)
        manage(spawn, "python manage.py migrate -v 0", **env)
        assert "No planned migration operations." in manage(spawn, plan, **env)
        assert "Unapplying django_singlejob.0001_initial... OK" in manage(spawn, drop, **env)
        without = {"DJANGO_SETTINGS_MODULE": "without_settings", "PYTHONPATH": f"{tmp_path}:{ROOT}"}
        assert "django_singlejob.joblock" in manage(spawn, f"yes yes | {clean_up} -v 2", **env, **without)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needs = [re.split("[<>=]", need)[0].lower() for need in project["dependencies"]]
    assert shlex.split(uninstall) == [
        "pip",
        "uninstall",
        project["name"],
        *(need for need in needs if need != "django"),
    ]
