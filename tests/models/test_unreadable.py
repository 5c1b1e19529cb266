"""Rows that somebody wrote past Django: one that cannot be read takes nothing else with it.

Each value of `bad_values` is written into each column of each table. The database refuses it; or else every command and
every page works, and a worker runs what has nothing to do with the row.
"""

from __future__ import annotations

import traceback
from contextlib import contextmanager
from datetime import timedelta
from html import unescape
from importlib import import_module
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from django.contrib import admin
from django.contrib.admin.utils import quote
from django.core.management import CommandError, call_command
from django.db import connection, models
from django.urls import include, path, reverse
from health_check.exceptions import ServiceUnavailable

import django_singlejob
from django_singlejob import singleton_job
from django_singlejob.integrations.health_check import SingleJobs
from django_singlejob.models import JobRun, JobStatus, OneOffJob
from django_singlejob.process.clock import utc_now
from tests.admin.pages import MODELS, list_of
from tests.contract.acts import take
from tests.models.bad_values import LONG, columns, values_of, write
from tests.urls import urlpatterns as admin_pages

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django.test import Client
    from pytest_django import Settings

    from tests.children import Spawn

pytest_plugins = ["tests.fixtures", "tests.admin.people"]
pytestmark = [
    pytest.mark.usefixtures("fresh_process"),
    pytest.mark.urls(__name__),
    pytest.mark.django_db(transaction=True),
]

urlpatterns = [*admin_pages, path("", include("django_singlejob.urls"))]

MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
EACH_MINUTE = "* * * * *"
HOLDER = {"hostname": "web-1", "pid": 4711}
TOKEN = "s3cret"


def usual(model: type[models.Model], name: str) -> list[dict[str, Any]]:
    """The rows of a job that is due, each of which a worker or a page looks at closely."""
    now = utc_now()
    slot = now.replace(second=0, microsecond=0) - MINUTE
    past = {"acquired_at": now - DAY, "heartbeat_at": now - HOUR, "sent_at": now - HOUR, "expires_at": now - HOUR}
    live = {"acquired_at": now - HOUR, "heartbeat_at": now, "sent_at": now, "expires_at": now + HOUR}
    run = {"job_name": name, **HOLDER, "fence": 1, "trigger": "schedule", "started_at": now - HOUR, "slot": now - HOUR}
    one_off = {"job_name": name, "run_after": now - HOUR, "created_at": now - DAY, "max_attempts": 3}
    rows: dict[str, list[dict[str, Any]]] = {
        "JobStatus": [
            {
                "name": name,
                "schedule": EACH_MINUTE,
                "time_zone": "UTC",
                "next_slot": slot,
                "last_slot": now - DAY,
                "last_started_at": now - DAY,
                "last_finished_at": now - DAY,
                "run_count": 9,
                "mean_duration": HOUR,
                "consecutive_failures": 1,
                "last_status": "failed",
            },
        ],
        "JobLock": [
            {"name": name, "job_name": name, **HOLDER, **past},
            {"name": f"held-{name}", **HOLDER, **live, "heartbeat_interval": HOUR},
            {"name": f"django_singlejob.worker.{name}", **HOLDER, **live, "heartbeat_interval": HOUR},
        ],
        "JobRun": [
            {**run, "status": "running"},
            {**run, "status": "failed", "finished_at": now, "error": "x", "duration": HOUR},
            {**run, "status": "successful", "finished_at": now - HOUR, "duration": HOUR, "acquire_duration": HOUR},
        ],
        "OneOffJob": [
            one_off,
            {**one_off, "job_name": "", "task_path": "tests.app.django_tasks.plain", "backend": "default"},
            {**one_off, "status": "in_progress", "attempt": 1},
            {**one_off, "status": "failed", "attempt": 1, "finished_at": now, "error": "x"},
        ],
        "JobAlert": [{"subject": name, "kind": "failing", "acknowledged_at": now, "acknowledged_until": now + HOUR}],
        "JobNote": [{"job_name": name, "kind": "missed", "at": now, "first_slot": now, "last_slot": now, "number": 1}],
        "WorkerPass": [{"key": name, **HOLDER, "first_seen_at": now, "seen_at": now}],
    }
    has_token = any(field.name == "token" for field in model._meta.concrete_fields)
    return [{**({"token": uuid4()} if has_token else {}), **row} for row in rows[model.__name__]]


class Round:
    """Every value of one column, each in rows of a job of its own; and what is innocent."""

    def __init__(self, field: models.Field[Any, Any], values: list[str]) -> None:
        self.refused = self.stored = 0
        self.keys: list[Any] = []
        singleton_job("innocent", schedule=EACH_MINUTE)(lambda: None)
        now = utc_now()
        slot = now.replace(second=0, microsecond=0) - MINUTE
        facts = {"schedule": EACH_MINUTE, "time_zone": "UTC", "next_slot": slot}
        JobStatus.objects.bulk_create([JobStatus(name="innocent", **facts)])
        for number, value in enumerate(values):
            self.write(field, value, f"victim-{number}")
        later = {"run_after": now - MINUTE, "created_at": now}
        OneOffJob.objects.bulk_create(
            [
                OneOffJob(job_name="innocent", **later),
                OneOffJob(task_path="tests.app.django_tasks.plain", backend="default", **later),
            ]
        )
        self.innocent = list(OneOffJob.objects.order_by("-pk").values_list("pk", flat=True)[:2])

    def write(self, field: models.Field[Any, Any], value: str, name: str) -> None:
        singleton_job(name, schedule=EACH_MINUTE, max_attempts=2)(lambda: None)
        if field.model is not JobStatus:
            gate = usual(JobStatus, name)[0] | {"next_slot": utc_now() + HOUR}
            JobStatus.objects.bulk_create([JobStatus(**gate)])
        kept = None
        for row in usual(field.model, name):
            model = field.model._base_manager
            (made,) = model.bulk_create([field.model(**row)])
            key = made.pk or model.order_by("-pk").values_list("pk", flat=True)[0]
            if write(field, value, key):
                self.stored += 1
                kept = key
            else:
                self.refused += 1
        if kept is not None:
            self.keys.append(kept)

    def was_innocent_run(self) -> list[str]:
        problems = []
        if not JobRun.objects.filter(job_name="innocent", trigger="schedule", status="successful").exists():
            problems.append("the innocent slot was not run")
        if OneOffJob.objects.filter(pk__in=self.innocent, status="done").count() != 2:
            problems.append("the innocent one-offs were not run")
        return problems


class Trials:
    """Acts that may not end with a traceback."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    @contextmanager
    def act(self, name: str) -> Iterator[None]:
        try:
            yield
        except (CommandError, SystemExit):
            pass
        except Exception as error:
            frames = traceback.extract_tb(error.__traceback__)[-5:]
            where = " ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames)
            self.problems.append(f"{name}: {type(error).__name__}: {str(error)[:150]} at {where}")

    def call(self, *words: str) -> str:
        out = StringIO()
        with self.act(" ".join(words)):
            call_command(*words, stdout=out, stderr=out)
        return out.getvalue()

    def visit(self, client: Client, address: str) -> None:
        with self.act(address):
            response = client.get(address, headers={"Authorization": f"Bearer {TOKEN}"})
            if response.status_code not in (200, 302, 404, 503):
                self.problems.append(f"{address}: {response.status_code}")


def pages(model: type[models.Model], keys: list[Any]) -> Iterator[str]:
    yield from map(list_of, MODELS)
    yield from (list_of("jobstatus", query) for query in ("?state=attention", "?state=failing", "?q=victim"))
    yield from (reverse("admin:index"), "/health/", "/metrics/")
    yield from (reverse(f"admin:django_singlejob_overview_{page}") for page in ("changelist", "ledger", "winners"))
    yield reverse("admin:django_singlejob_jobstatus_change", args=["innocent"])
    if model in admin.site._registry:
        for key in keys:
            yield reverse(f"admin:django_singlejob_{model.__name__.lower()}_change", args=[quote(key)])


@pytest.mark.parametrize("field", [*columns()], ids=str)
def test_it_takes_nothing_else_with_it(field: models.Field[Any, Any], admin_client: Client, settings: Settings) -> None:
    import_module("tests.app.django_tasks")
    settings.SINGLEJOB = {"HEALTH_TOKEN": TOKEN}
    rows = Round(field, list(values_of(field)))
    trials = Trials()
    trials.call("singleton_status")
    trials.call("singleton_status", "--check", "--format", "json")
    for page in pages(field.model, rows.keys):
        trials.visit(admin_client, page)
    trials.call("prune_singletons", "--dry-run")
    trials.call("singleton_worker", "--once")
    trials.problems += rows.was_innocent_run()
    trials.call("clear_stale_locks")
    trials.call("singleton_status", "--check")
    print(field, f"{rows.refused} refused, {rows.stored} stored")
    assert trials.problems == []


# --- what monitoring says


@pytest.fixture
def bad_lock(fresh_process: None, settings: Settings) -> str:
    """A lock whose progress has a number that is too long for Python: not even PostgreSQL refuses it."""
    settings.SINGLEJOB = {"HEALTH_TOKEN": TOKEN}
    singleton_job("nightly")(print)
    take("shop")
    with connection.cursor() as cursor:
        cursor.execute("UPDATE django_singlejob_joblock SET progress = %s", [f"[{LONG * '9'}]"])
    return "The row 'shop' of JobLock cannot be read, because of its column 'progress'"


@pytest.mark.on_database("sqlite", "postgresql")
def test_all_readers_of_the_status_name_the_row(bad_lock: str, client: Client, admin_client: Client) -> None:
    (found,) = django_singlejob.status().findings
    assert (found.kind, found.level, found.about, found.subject) == ("unreadable", "critical", "row", "JobLock shop")
    assert found.message.startswith(bad_lock)
    page = client.get("/health/")
    assert (page.status_code, page.json()["findings"]) == (503, {"unreadable": 1})
    metrics = client.get("/metrics/", headers={"Authorization": f"Bearer {TOKEN}"}).content.decode()
    assert "singlejob_up 1.0" in metrics
    assert 'singlejob_findings{acknowledged="no",kind="unreadable",level="critical"} 1.0' in metrics
    with pytest.raises(ServiceUnavailable) as failure:
        SingleJobs().run()
    assert failure.value.message == "1 unreadable"
    out = StringIO()
    with pytest.raises(SystemExit) as end:
        call_command("singleton_status", "--check", stdout=out)
    assert end.value.code == 2
    assert out.getvalue().startswith("CRITICAL: 1 unreadable (row JobLock shop).")
    overview = admin_client.get(reverse("admin:django_singlejob_overview_changelist")).content.decode()
    assert bad_lock in unescape(overview)


@pytest.mark.on_database("sqlite", "postgresql")
def test_a_one_off_that_waits_for_ever_because_it_cannot_be_read_is_named() -> None:
    row = singleton_job("nightly")(print).using(run_after=utc_now() - HOUR).enqueue()
    with connection.cursor() as cursor:
        cursor.execute("UPDATE django_singlejob_oneoffjob SET args = %s", [f"[{LONG * '9'}]"])
    found = [(finding.kind, finding.subject) for finding in django_singlejob.status().findings]
    assert ("unreadable", f"OneOffJob {row.pk}") in found


@pytest.mark.usefixtures("bad_lock")
@pytest.mark.on_database("sqlite", "postgresql")
@pytest.mark.parametrize("command", ["singleton_status", "singleton_worker --once", "clear_stale_locks"])
def test_a_command_of_its_own_process_prints_no_traceback(command: str, spawn: Spawn) -> None:
    child = spawn.command(*command.split())
    child.finish()
    assert "Traceback" not in child.output
