"""The recipes for looking after jobs: each command, each query and each setting of the page does what it says."""

from __future__ import annotations

import re
import shlex
import sys
from contextlib import suppress
from datetime import timedelta
from io import StringIO
from typing import TYPE_CHECKING, Any

import pytest
from django.contrib.auth.models import Permission
from django.core.management import call_command
from django.utils import timezone

from django_singlejob import singleton_job, status as status_of_all
from django_singlejob.models import JobLock, JobRun, JobStatus, OneOffJob
from tests.admin.pages import OPERATE, shown
from tests.children import ROOT
from tests.contract.acts import SECOND, expire, start_run, take
from tests.databases import APPS
from tests.recipes.snippets import snippet

if TYPE_CHECKING:
    from django.test import Client
    from pytest_django import Settings

    from tests.children import Spawn
    from tests.recipes.modules import Modules

pytest_plugins = ["tests.fixtures", "tests.admin.people", "tests.recipes.modules"]
pytestmark = [
    pytest.mark.on_database("sqlite"),
    pytest.mark.usefixtures("fresh_process"),
    pytest.mark.django_db(transaction=True, available_apps=APPS),
]
#: The admin needs the tables of its own apps.
with_all_apps = pytest.mark.django_db


def commands(text: str) -> list[list[str]]:
    """The words of each management command in a console, without those before its name."""
    lines = [line for line in text.splitlines() if line.startswith("$ python manage.py ")]
    return [shlex.split(line)[3:] for line in lines]


def command(words: list[str]) -> tuple[str, int]:
    """What the command prints, and its exit status."""
    output = StringIO()
    try:
        call_command(*words, stdout=output, stderr=output)
    except SystemExit as left:
        return output.getvalue(), int(left.code or 0)
    return output.getvalue(), 0


def run(text: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(text, names)
    return names


def fail() -> None:
    print("The page was empty.")
    raise ValueError("There is nothing to report.")


def failed(name: str) -> None:
    with suppress(ValueError):
        singleton_job(name)(fail)()


def test_see_whether_all_is_well() -> None:
    singleton_job("nightly")(lambda: None)()
    text = snippet("recipes/admin.md", "See whether all is well", "console")
    (words,) = commands(text)
    output, status = command(words)
    first, expected = output.splitlines()[0], text.splitlines()[1]
    assert re.sub(r"\d+", "N", first) == re.sub(r"\d+", "N", expected)
    assert status == 0


def test_what_needs_attention() -> None:
    failed("hourly_report")
    failed("import_catalogue")
    (words,) = commands(snippet("recipes/admin.md", "What needs attention", "console"))
    assert command(words[:2])[1] == 2
    output, status = command(words)
    assert output.startswith("WARNING: 1 failing (hourly_report).")
    assert status == 1


def test_find_out_why_a_run_failed(capsys: pytest.CaptureFixture[str], spawn: Spawn) -> None:
    failed("hourly_report")
    JobRun.objects.update(output="The page was empty.\n")  # it is kept of what a command runs
    capsys.readouterr()
    run(snippet("recipes/admin.md", "Find out why a run failed"))
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == ["failed", "1", "ValueError: There is nothing to report."]
    assert any("in fail" in line for line in lines)
    assert lines[-2] == "The page was empty."


def test_run_a_job_now() -> None:
    singleton_job("hourly_report", schedule="@yearly", min_interval=timedelta(days=1))(lambda: None)
    (words,) = commands(snippet("recipes/admin.md", "Run a job now", "console"))
    for _ in range(2):
        assert command(words)[1] == 0
    assert [run.trigger for run in JobRun.objects.all()] == ["manual", "manual"]


def test_pause_a_job_and_resume_it() -> None:
    singleton_job("hourly_report")(lambda: None)()
    pause, resume = commands(snippet("recipes/admin.md", "Pause a job, and resume it", "console"))
    until = pause.index("--until") + 1
    pause[until] = pause[until].replace("2026", str(timezone.now().year + 1))
    assert command(pause)[1] == 0
    assert JobStatus.objects.paused().get().pause_reason == "the supplier is down"
    assert command(resume)[1] == 0
    assert not JobStatus.objects.paused().exists()


def test_change_a_schedule() -> None:
    singleton_job("hourly_report", schedule="@hourly")(lambda: None)
    change, reset = commands(snippet("recipes/admin.md", "Change a schedule", "console"))
    assert command(change)[1] == 0
    assert JobStatus.objects.get().own_schedule == "0 4 * * *"
    assert command(reset)[1] == 0
    assert JobStatus.objects.get().own_schedule == ""


def test_hide_a_job_that_is_gone() -> None:
    take("hourly_report").release()
    *hide, _show = snippet("recipes/admin.md", "Hide a job that is gone").splitlines()
    run("\n".join(hide))
    assert JobStatus.objects.get().hidden
    run(snippet("recipes/admin.md", "Hide a job that is gone"))
    assert not JobStatus.objects.get().hidden


def test_clear_a_stale_lock() -> None:
    start_run("hourly_report")
    start_run("stale")
    expire("stale")
    (words,) = commands(snippet("recipes/admin.md", "Clear a stale lock", "console"))
    command(words)
    assert [lock.name for lock in JobLock.objects.all()] == ["hourly_report"]
    command([*words, "--force", "hourly_report"])
    assert not JobLock.objects.exists()


def test_stop_a_run() -> None:
    start_run("hourly_report", heartbeat_interval=20 * SECOND)
    (words,) = commands(snippet("recipes/admin.md", "Stop a run", "console"))
    assert command(words)[1] == 0
    assert JobLock.objects.get().stopped_by


def test_cancel_retry_and_delete_one_offs() -> None:
    job = singleton_job("send")(lambda: None)
    newsletter = job.using(queue_name="newsletter").enqueue()
    mail = job.using(queue_name="mail").enqueue()
    OneOffJob.objects.filter(pk=mail.pk).update(status="failed", finished_at=timezone.now())
    cancel, retry = commands(snippet("recipes/admin.md", "Cancel, retry and delete one-offs", "console"))
    command([*cancel, "--dry-run"])
    assert OneOffJob.objects.waiting().get() == newsletter
    assert command(cancel)[1] == command(retry)[1] == 0
    assert OneOffJob.objects.waiting().get() == mail


def test_see_which_workers_are_alive() -> None:
    command(["singleton_worker", "--once"])
    assert len(run(snippet("recipes/admin.md", "See which workers are alive"))["alive"]) == 1


def test_find_out_why_a_job_did_not_run() -> None:
    singleton_job("nightly", schedule="0 3 * * *")(print)
    text = snippet("recipes/admin.md", "Find out why a job did not run", language="console")
    (words,) = commands(text)
    output, status = command(words)
    assert status == 0
    assert "2026-11-22 03:00:00" in output


def test_see_which_servers_ask(settings: Settings) -> None:
    settings.SINGLEJOB = run(snippet("recipes/admin.md", "See which servers ask"))["SINGLEJOB"]
    command(["singleton_worker", "--once"])
    (server,) = status_of_all().servers
    assert (server.release, server.is_asking) == ("2026.11.3", True)


@with_all_apps
def test_grant_permissions() -> None:
    text = (ROOT / "docs" / "recipes" / "admin.md").read_text()
    (table,) = re.findall(r"^\| Permission .*\n\|[-|]+\n((?:\|.*\n)+)", text, re.MULTILINE)
    granted = {name for row in table.splitlines() for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    assert granted == {*OPERATE, "force_joblock"}
    known = Permission.objects.filter(content_type__app_label="django_singlejob")
    assert granted <= set(known.values_list("codename", flat=True))


@with_all_apps
def test_use_your_own_admin_site(admin_client: Client, settings: Settings, modules: Modules) -> None:
    modules("shop.urls", snippet("recipes/admin.md", "Use your own admin site, or a theme"))
    settings.ROOT_URLCONF = "shop.urls"
    for model in "overview", "jobstatus", "joblock", "jobrun", "oneoffjob":
        assert 'href="/operations/' in shown(admin_client, f"/operations/django_singlejob/{model}/")


def test_prune_the_history(spawn: Spawn) -> None:
    start_run("nightly").release()
    JobRun.objects.update(status="successful", started_at=timezone.now() - timedelta(days=40))
    line = snippet("recipes/admin.md", "Prune the history", "text").split("&& ")[1]
    words = shlex.split(line.replace(".venv/bin/python manage.py", f"{sys.executable} -m django"))
    child = spawn(*words[1:])
    assert child.finish() == 0, child.output
    assert [run.job_name for run in JobRun.objects.all()] == ["prune_singletons"]


def test_delete_what_is_stored_about_one_person() -> None:
    job = singleton_job("delete_customer")(lambda address: None)
    theirs, other = job.enqueue("ada@example.com"), job.enqueue("bob@example.com")
    for address in "ada@example.com", "bob@example.com":
        start_run(address.replace("@", ".")).release()
    for run_of in JobRun.objects.all():
        JobRun.objects.filter(pk=run_of.pk).update(status="failed", error=run_of.job_name.replace(".", "@", 1))
    start_run("still_running")
    JobRun.objects.filter(status="running").update(error="ada@example.com")
    run(snippet("recipes/admin.md", "Delete what is stored about one person"))
    assert not OneOffJob.objects.filter(pk=theirs.pk).exists()
    assert OneOffJob.objects.get() == other
    assert [*JobRun.objects.order_by("pk").values_list("job_name", flat=True)] == ["bob.example.com", "still_running"]
