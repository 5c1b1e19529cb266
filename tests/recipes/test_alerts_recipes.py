"""The recipes of the page on alerts and monitoring."""

from __future__ import annotations

import json
import os
import re
import shlex
import tomllib
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import django
import pytest
import yaml
from django.core.management import call_command

from django_singlejob import singleton_job
from django_singlejob.models import JobRun, JobStatus
from tests.children import ROOT
from tests.contract.acts import fall_behind
from tests.databases import APPS
from tests.integrations.test_prometheus import RULES, promtool
from tests.integrations.test_sentry import check_ins, environment, events
from tests.ping_server import ping_server
from tests.ports import quiet_port
from tests.processes.witness import ends
from tests.recipes.lines import prompted, shell
from tests.recipes.snippets import snippet
from tests.waiting import eventually

if TYPE_CHECKING:
    from django.test import Client
    from pytest_django import Settings

    from tests.children import Child, Spawn
    from tests.recipes.modules import Modules

pytest_plugins = ["tests.fixtures", "tests.recipes.modules"]
pytestmark = [pytest.mark.django_db(transaction=True, available_apps=APPS), pytest.mark.on_database("sqlite")]

#: With the app of users, which pages need.
with_users = pytest.mark.django_db(transaction=True)
PAGE = ROOT / "docs" / "recipes" / "alerts.md"
FAILS = """
import sys
from django.core.management import ManagementUtility
from django_singlejob import singleton_job

@singleton_job("nightly")
def nightly():
    print("The first of two invoices is sent.")
    raise ZeroDivisionError("the password is 1234")

ManagementUtility(["manage.py", "run_singleton", "nightly"]).execute()
"""

SLACK_SETTINGS = """
from tests.settings import *
SLACK_WEBHOOK = "{url}"
LOGGING = {{
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {{"console": {{"class": "logging.StreamHandler"}}}},
    "loggers": {{"django.dispatch": {{"handlers": ["console"]}}}},
}}
"""
SENTRY_SETTINGS = """
from tests.processes.worker_settings import *
SINGLEJOB = {**SINGLEJOB, "AUTODISCOVER": ["jobs", "sentry_jobs"]}
"""


@pytest.fixture
def a_failing_job(fresh_process: None) -> None:
    singleton_job("nightly")(print)
    JobStatus.objects.bulk_create([JobStatus(name="nightly", consecutive_failures=1, last_status="failed")])


@pytest.fixture
def sentry_url() -> str:
    (found,) = re.findall(r'dsn="(.+)"', snippet("recipes/alerts.md", "Report to Sentry"))
    return str(found)


def failed(child: Child) -> None:
    assert child.finish() == 1
    assert "nightly: failed, ZeroDivisionError" in child.output
    assert ends("nightly") == ["failed"]


def urls(text: str, settings: Settings, modules: Modules) -> None:
    """This is the project's `urls.py`."""
    modules("shop.urls", text)
    settings.ROOT_URLCONF = "shop.urls"


@pytest.fixture
def health_page(settings: Settings, modules: Modules, monkeypatch: pytest.MonkeyPatch) -> str:
    """The page's token. The settings and the addresses are those of the recipe."""
    token = "s3cret"
    monkeypatch.setenv("SINGLEJOB_HEALTH_TOKEN", token)
    names: dict[str, Any] = {}
    exec(snippet("recipes/alerts.md", "Add a health page for an uptime service", number=2), names)
    settings.SINGLEJOB = names["SINGLEJOB"]
    urls(snippet("recipes/alerts.md", "Add a health page for an uptime service"), settings, modules)
    return token


# --- mail and Slack


def test_a_failure_is_one_mail(spawn: Spawn, tmp_path: Path) -> None:
    mails = tmp_path / "mails"
    path = "django.core.mail.backends.filebased.EmailBackend"
    backend = f"MAILERS = {{'default': {{'BACKEND': {path!r}, 'OPTIONS': {{'file_path': {str(mails)!r}}}}}}}\n"
    if django.VERSION < (6, 1):
        backend = f"EMAIL_BACKEND = {path!r}\nEMAIL_FILE_PATH = {str(mails)!r}\n"
    (tmp_path / "mail_settings.py").write_text(
        f"from tests.settings import *\nbefore = SINGLEJOB\n{backend}"
        + snippet("recipes/alerts.md", "Get a mail")
        + "SINGLEJOB = before | SINGLEJOB\n"
    )
    failed(spawn.code(FAILS, "run_singleton", DJANGO_SETTINGS_MODULE="mail_settings", PYTHONPATH=f"{tmp_path}:{ROOT}"))
    (mail,) = [text for path in mails.iterdir() for text in path.read_text().split("-" * 79) if text.strip()]
    assert "To: ops@shop.example" in mail
    assert "Subject: [Django] nightly: failing" in mail
    assert "ZeroDivisionError" in mail
    assert "The first of two invoices is sent." in mail
    assert "https://shop.example/admin/django_singlejob/jobrun/" in mail


@with_users
def test_a_mail_is_tried(settings: Settings) -> None:
    settings.SINGLEJOB = {**settings.SINGLEJOB, "NOTIFY": ["ops@shop.example"]}
    if django.VERSION >= (6, 1):
        settings.MAILERS = {"default": {"BACKEND": "django.core.mail.backends.locmem.EmailBackend"}}
    said = StringIO()
    (line,) = prompted(snippet("recipes/alerts.md", "Get a mail", "console"))
    call_command(*shlex.split(line)[2:], stdout=said)
    assert said.getvalue() == "Sent to ops@shop.example.\n"


@with_users
@pytest.mark.usefixtures("a_failing_job")
def test_what_is_wrong_is_acknowledged() -> None:
    said = StringIO()
    (line,) = prompted(snippet("recipes/alerts.md", "Acknowledge an alarm", "console"))
    call_command(*shlex.split(line.replace("hourly_report", "nightly"))[2:], stdout=said)
    assert said.getvalue().startswith("Acknowledged until ")


@pytest.mark.parametrize("answer", ["ok", "never", "not_found", ""])
def test_a_failure_is_posted_to_slack_and_recorded_whatever_slack_does(
    spawn: Spawn, tmp_path: Path, answer: str
) -> None:
    text = snippet("recipes/alerts.md", "Post failures to Slack")
    assert "timeout=2)" in text
    if answer == "ok":  # also on a busy machine
        text = text.replace("timeout=2)", "timeout=60)")
    with ping_server(answer) as server:
        url = server.url.partition("{")[0] if answer else f"http://127.0.0.1:{quiet_port()}/"
        (tmp_path / "slack_settings.py").write_text(SLACK_SETTINGS.format(url=url))
        child = spawn.code(
            text + FAILS, "run_singleton", DJANGO_SETTINGS_MODULE="slack_settings", PYTHONPATH=f"{tmp_path}:{ROOT}"
        )
        failed(child)
        if answer:
            eventually(lambda: server.heard)
        posts = [json.loads(each.body) for each in server.heard]
    assert posts == (
        [{"text": "nightly failed: ZeroDivisionError\nThe first of two invoices is sent.\n"}] if answer else []
    )
    assert ("Error calling tell_slack" in child.output) is (answer != "ok")


# --- Sentry and pings


def test_a_failed_slot_checks_in_twice_and_is_one_event(
    spawn: Spawn, tmp_path: Path, sentry_url: str, fresh_process: None
) -> None:
    fall_behind(singleton_job("checked_and_fails", schedule="@yearly")(lambda: None))
    with ping_server() as sentry:
        env = environment(sentry)
        text = snippet("recipes/alerts.md", "Report to Sentry").replace(sentry_url, env["SENTRY_DSN"])
        (tmp_path / "recipe_settings.py").write_text(SENTRY_SETTINGS + text)
        here = {"DJANGO_SETTINGS_MODULE": "recipe_settings", "PYTHONPATH": f"{tmp_path}:{ROOT}"}
        assert spawn.command("singleton_worker", "--once", **env | here).finish() == 1
        assert [each["status"] for each in check_ins(sentry)] == ["in_progress", "error"]
        [event] = events(sentry)
    run = JobRun.objects.get()
    assert run.slot
    assert event["tags"] == {"job": run.job_name, "run": str(run.pk), "slot": run.slot.isoformat()}


@pytest.mark.parametrize(("job", "end"), [("quick", ""), ("nightly", "/fail")])
def test_a_run_is_pinged(spawn: Spawn, tmp_path: Path, job: str, end: str) -> None:
    with ping_server() as server:
        address = server.url.removesuffix("/secret/{name}")
        text = snippet("recipes/alerts.md", "Ping healthchecks.io").replace("https://hc-ping.com", address)
        (tmp_path / "ping_settings.py").write_text("from tests.settings import *\n" + text)
        env = {"DJANGO_SETTINGS_MODULE": "ping_settings", "PYTHONPATH": f"{tmp_path}:{ROOT}"}
        child = spawn.code(FAILS, "run_singleton", **env) if end else spawn.command("run_singleton", job, **env)
        assert child.finish() == (1 if end else 0)
        assert server.paths == [f"/your-ping-key/{job}/start", f"/your-ping-key/{job}{end}"]
        assert [each.rest for each in server.heard] == [{"create": ["1"]}] * 2


# --- pages


def bring_about(kind: str, name: str) -> None:
    """A finding of this kind."""
    if kind == "overdue":
        fall_behind(singleton_job(name, schedule="@yearly")(print))
    else:
        assert kind == "failing"
        singleton_job(name)(print)
        JobStatus.objects.create(name=name, consecutive_failures=1)


@with_users
@pytest.mark.usefixtures("fresh_process", "health_page")
def test_the_health_page_names_nothing(client: Client) -> None:
    shown = json.loads(snippet("recipes/alerts.md", "Add a health page for an uptime service", "json"))
    assert client.get("/singlejob/health/").json() == {"version": 1, "level": "ok", "findings": {}}
    for kind, count in shown["findings"].items():
        for number in range(count):
            bring_about(kind, f"{kind}-{number}")
    answer = client.get("/singlejob/health/")
    assert answer.status_code == 503
    assert answer.json() == shown


@with_users
@pytest.mark.usefixtures("a_failing_job", "health_page")
def test_with_the_token_it_is_the_whole_status(client: Client) -> None:
    (line,) = prompted(snippet("recipes/alerts.md", "Add a health page for an uptime service", "console"))
    # As curl does, which a machine may not have.
    program, option, header, url = shlex.split(os.path.expandvars(line))
    assert (program, option) == ("curl", "-H")
    answer = client.get(urlsplit(url).path, headers=dict([header.split(": ")]))
    assert [each["name"] for each in answer.json()["jobs"]] == ["nightly"]


@with_users
@pytest.mark.usefixtures("fresh_process")
def test_the_check_for_django_health_check(client: Client, settings: Settings, modules: Modules) -> None:
    urls(snippet("recipes/alerts.md", "Add a check to django-health-check"), settings, modules)
    assert client.get("/health/?format=json").status_code == 200
    singleton_job("nightly")(print)
    JobStatus.objects.create(name="nightly", consecutive_failures=1)
    answer = client.get("/health/?format=json")
    assert answer.status_code == 500
    assert b"1 failing" in answer.content


@with_users
@pytest.mark.usefixtures("a_failing_job")
def test_prometheus_finds_the_page(health_page: str, client: Client, tmp_path: Path) -> None:
    text = snippet("recipes/alerts.md", "Scrape it with Prometheus", "yaml")
    (job,) = yaml.safe_load(text)["scrape_configs"]
    assert client.get(job["metrics_path"]).status_code == 401
    answer = client.get(job["metrics_path"], headers={"Authorization": f"Bearer {health_page}"})
    assert 'singlejob_job_level{name="nightly"} 2.0' in answer.content.decode()
    (tmp_path / RULES.name).write_text(RULES.read_text())
    (tmp_path / "token").write_text(health_page)
    where = job["authorization"]["credentials_file"]
    (tmp_path / "prometheus.yml").write_text(text.replace(where, str(tmp_path / "token")))
    promtool("check", "config", str(tmp_path / "prometheus.yml"))


# --- singleton_status


@pytest.mark.parametrize(("failures", "status", "word"), [(0, 0, "OK"), (1, 1, "WARNING"), (3, 2, "CRITICAL")])
def test_nagios_gets_the_level_as_the_exit_status(spawn: Spawn, failures: int, status: int, word: str) -> None:
    JobStatus.objects.bulk_create([JobStatus(name="tick", consecutive_failures=failures)])
    _, _, line = snippet("recipes/alerts.md", "Check the jobs from Nagios or cron", "text").partition("=")
    child = shell(spawn, line)
    assert (child.finish(), child.output.partition(":")[0]) == (status, word)


# --- extras


def test_the_extras_exist() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = set(re.findall(r"django-singlejob\[(.+?)\]", PAGE.read_text()))
    assert named == {"sentry", "health-check", "prometheus"}
    assert named <= extras.keys()
