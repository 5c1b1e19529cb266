"""The recipes of the page on jobs and commands. Its jobs run here; its crontab lines run in a project of their own."""

from __future__ import annotations

import gzip
import re
import subprocess
import sys
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from asgiref.sync import async_to_sync
from django.contrib.sessions.models import Session
from django.core.management import BaseCommand, call_command, get_commands
from django.test import RequestFactory
from django.utils import timezone

from django_singlejob import SKIPPED, JobStopped, JobTimeout, LeaseLost, current_run, job_lock, singleton_job
from django_singlejob.jobs import registry
from django_singlejob.models import JobLock, JobRun, OneOffJob
from django_singlejob.running import runner
from django_singlejob.signals import job_finished
from tests.app.models import Counter
from tests.children import ROOT
from tests.contract.acts import die_running, fall_behind, hourly, take
from tests.databases import APPS
from tests.processes.witness import ends
from tests.recipes.snippets import snippet
from tests.test_docs import table
from tests.waiting import PATIENCE, a_moment, eventually, work_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from django.core.management.base import CommandParser
    from pytest_django import Settings

    from tests.children import Child, Spawn
    from tests.fixtures import Elsewhere
    from tests.recipes.modules import Modules

pytest_plugins = ["tests.fixtures", "tests.recipes.modules"]
pytestmark = [
    pytest.mark.django_db(transaction=True, available_apps=APPS),
    pytest.mark.usefixtures("fresh_process"),
]

HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)


# --- what a snippet imports, and how it is run


@pytest.fixture
def have_command(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[dict[str, Any]]]:
    """Makes a management command. Returns what it is called with, each time."""

    def have_command(name: str) -> list[dict[str, Any]]:
        calls: list[dict[str, Any]] = []

        class Command(BaseCommand):
            def add_arguments(self, parser: CommandParser) -> None:
                parser.add_argument("name", nargs="?")
                parser.add_argument("--format")

            def handle(self, **options: Any) -> None:
                calls.append(options)

        monkeypatch.setitem(get_commands(), name, Command())
        return calls

    return have_command


def run(text: str, **names: Any) -> Any:
    """What the snippet defines. Each body that it leaves out is `body()`, one of the names that it is given."""
    names = {"__name__": "shop.jobs", "body": lambda: None, **names}
    exec(compile(text.replace("): ...", "): return body()"), "jobs.py", "exec"), names)
    return SimpleNamespace(**names)


@contextmanager
def finished() -> Iterator[list[Any]]:
    """The runs that finish meanwhile."""
    runs: list[Any] = []

    def note(run: Any, **_: object) -> None:
        runs.append(run)

    job_finished.connect(note)
    try:
        yield runs
    finally:
        job_finished.disconnect(note)


# --- a project, and what cron does


class Project:
    """A project in a folder, with programs of its own, and a database that is the test's."""

    def __init__(self, spawn: Spawn) -> None:
        self._spawn, self.folder = spawn, spawn.folder / "project"
        self.programs = self.folder / "bin"
        self.write("manage.py", "import sys; from django.core.management import *; execute_from_command_line(sys.argv)")
        self.write(
            "settings.py",
            'from tests.settings import *\nINSTALLED_APPS.remove("tests.app.apps.TestAppConfig")\n'
            'INSTALLED_APPS += ["reports"]\n',
        )
        self.write("reports/__init__.py", "")
        for python in ".venv/bin/python", "bin/python":
            self.have_program(python, f'exec {sys.executable} "$@"')

    def write(self, name: str, text: str, *, mode: str = "w") -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open(mode) as file:
            file.write(text)

    def have_program(self, name: str, script: str) -> None:
        self.write(name, f"#!/bin/sh\n{script}\n")
        (self.folder / name).chmod(0o755)

    def start(self, line: str) -> Child:
        """What cron does with a line at its time, or a shell with a command."""
        command = re.sub(r"^(@\w+|[\d*]\S* (\S+ ){4}) *", "", line.strip()).replace("\\%", "%")
        here = command.replace("/srv/shop", str(self.folder)).replace("/backup", str(self.folder))
        return self._spawn(
            "-c",
            'import os, sys; os.execvp("sh", ["sh", "-c", sys.argv[1]])',
            here,
            DJANGO_SETTINGS_MODULE="settings",
            PYTHONPATH=str(ROOT),
            PATH=f"{self.programs}:{self._spawn.env['PATH']}",
        )

    def cron(self, line: str) -> str:
        child = self.start(line)
        child.finish()
        return child.output


@pytest.fixture
def project(spawn: Spawn) -> Project:
    return Project(spawn)


HOURLY_REPORT = snippet("recipes/jobs.md", "Run a job on a schedule")


def test_one_line_runs_each_job_that_is_due(project: Project) -> None:
    text = HOURLY_REPORT.replace("5 * * * *", hourly(ago=30 * MINUTE))
    project.write("reports/jobs.py", text)
    fall_behind(run(text).hourly_report)
    said = project.cron(snippet("recipes/jobs.md", "Run a job on a schedule", "text"))
    assert "The report is ready." not in said
    assert JobRun.objects.get().slot
    assert JobRun.objects.get().output == "The report is ready.\n"


def test_what_a_job_printed_is_kept(project: Project) -> None:
    project.write("settings.py", snippet("recipes/jobs.md", "See what a job printed", number=2), mode="a")
    project.write("reports/jobs.py", HOURLY_REPORT.replace('"The report is ready."', '"long" * 10_000'))
    project.cron("cd /srv/shop && python manage.py run_singleton hourly_report --now")
    printed: list[str] = []
    run(snippet("recipes/jobs.md", "See what a job printed"), print=printed.append)
    assert printed == ["long" * 10_000 + "\n"]


def test_a_command_needs_no_code(project: Project) -> None:
    Session.objects.create(session_key="old", session_data="", expire_date=timezone.now() - HOUR)
    project.cron(snippet("recipes/jobs.md", "Run a management command", "text"))
    assert not Session.objects.exists()
    assert ends("clearsessions") == ["successful"]


def test_commands_are_jobs(have_command: Callable[[str], list[dict[str, Any]]]) -> None:
    have_command("clearsessions")
    calls = have_command("report")
    run(snippet("recipes/jobs.md", "Run a management command"))
    call_command("run_singleton", "clearsessions", now=True)
    call_command("run_singleton", "nightly_report", now=True)
    assert ends("clearsessions") == ends("nightly_report") == ["successful"]
    assert [options["format"] for options in calls] == ["pdf"]


OFFERS = """
from django_singlejob import singleton_job

@singleton_job
def send_offers(country="de"):
    print(f"Offers for {country}.")
"""


def test_a_line_for_one_job_runs_it_once(project: Project) -> None:
    project.write("reports/jobs.py", OFFERS)
    line = snippet("recipes/jobs.md", "Write one crontab line for each job", "text")
    assert project.cron(line) == "Offers for it.\n"
    assert project.cron(line) == ""


def test_another_server_waits_and_takes_over(project: Project) -> None:
    project.write("reports/jobs.py", OFFERS + 'print("Loaded.", flush=True)\n')
    with job_lock("send_offers"):
        child = project.start(snippet("recipes/jobs.md", "Keep another server ready", "text"))
        child.wait_for("Loaded.")
        a_moment()
    assert child.finish() == 0
    assert child.output == "Loaded.\nOffers for de.\n"


def test_a_shell_command_runs_under_a_lock(project: Project) -> None:
    project.have_program("bin/pg_dump", 'echo "a dump of $1"')
    assert project.cron(snippet("recipes/jobs.md", "Run a shell command under a lock", "text")) == ""
    assert gzip.decompress((project.folder / "shop.gz").read_bytes()) == b"a dump of shop\n"
    assert ends("nightly_backup") == ["successful"]


def true(called: list[list[str]], words: list[str], start: Any = subprocess.Popen, **_: Any) -> Any:
    called.append(words)
    return start(["true"])


def test_a_shell_command_is_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    run(snippet("recipes/jobs.md", "Run a shell command under a lock"))
    called: list[list[str]] = []
    monkeypatch.setattr("subprocess.Popen", partial(true, called))
    assert registry.get("nightly_backup").schedule == "@daily"
    assert runner.run(registry.get("nightly_backup")).status == "successful"
    assert called == [["bash", "-o", "pipefail", "-c", "pg_dump shop | gzip > /backup/shop.gz"]]


def test_one_server_runs_the_daemon(project: Project) -> None:
    project.have_program("bin/celery", 'echo "celery $@"; exec sleep 600')
    line = snippet("recipes/jobs.md", "Run one daemon on one of your servers", "text")
    child = project.start(f"cd /srv/shop && exec python {line}")
    child.wait_for("celery -A shop beat\n")
    assert JobLock.objects.get(name="beat").lease.total_seconds() == 10
    child.terminate()
    assert child.finish() == 143


def test_a_job_is_for_some_servers(settings: Settings) -> None:
    settings.SINGLEJOB = {**settings.SINGLEJOB, "HOSTNAME": "web1"}
    job = run(snippet("recipes/jobs.md", "Choose the server")).dump_database
    fall_behind(job)
    call_command("singleton_worker", once=True)
    assert not JobRun.objects.exists()
    settings.SINGLEJOB["HOSTNAME"] = "backup-2.example.org"
    call_command("singleton_worker", once=True)
    assert JobRun.objects.get().job_name == "dump_database"


# --- schedules


def test_schedules() -> None:
    jobs = run(snippet("recipes/jobs.md", "Write the schedule"))
    for job in jobs.clean_up_carts, jobs.count_visitors, jobs.import_orders:
        fall_behind(job)
    call_command("singleton_worker", once=True)
    assert {*JobRun.objects.values_list("job_name", "status")} == {
        (name, "successful") for name in ("clean_up_carts", "count_visitors", "import_orders")
    }


def test_the_hash_of_a_name_spreads_jobs_out() -> None:
    rows = table((ROOT / "docs" / "recipes" / "jobs.md").read_text(), "Schedule")
    schedules = [
        str(singleton_job(f"job-{number}", schedule=row[0].strip("` "))(print).schedule)
        for number, row in enumerate(rows)
    ]
    patterns = [r"\d+ 3 \* \* \*", r"\d+ [0-5] \* \* \*", r"\d+,\d+,\d+,\d+ \* \* \* \*|\d+-59/15 \* \* \* \*"]
    assert all(re.fullmatch(pattern, found) for pattern, found in zip(patterns, schedules, strict=True)), schedules


def test_a_night_to_come(settings: Settings, capsys: pytest.CaptureFixture[str]) -> None:
    settings.TIME_ZONE = "Europe/Rome"
    singleton_job("nightly_report", schedule="30 2 * * *")(print)
    line, expected = snippet("recipes/jobs.md", "Look at a night to come", "console").split("\n", 1)
    call_command(*line.split()[3:])
    assert capsys.readouterr().out == expected


@pytest.mark.parametrize(("name", "minutes", "runs"), [
    ("refresh_prices", 30, 1), ("report_sales", 30, 3), ("send_reminders", 30, 0), ("send_reminders", 5, 1),
])  # fmt: skip
def test_missed_slots(name: str, minutes: int, runs: int) -> None:
    text = snippet("recipes/jobs.md", "Catch up on missed slots").replace("0 * * * *", hourly(ago=minutes * MINUTE))
    fall_behind(getattr(run(text), name), slots=3)
    call_command("run_singleton", name)
    assert ends(name) == ["successful"] * runs


def test_a_report_is_of_the_day_before_its_slot() -> None:
    printed: list[str] = []
    job = run(snippet("recipes/jobs.md", "Know the slot"), print=printed.append).daily_report
    fall_behind(job, slots=2)
    call_command("run_singleton", "daily_report")
    slots = [slot for slot in JobRun.objects.order_by("slot").values_list("slot", flat=True) if slot]
    assert printed == [f"The report of {slot.date() - timedelta(days=1)}" for slot in slots]
    assert len(slots) >= 2
    job()
    assert len(printed) == len(slots) + 1


def test_a_job_skips_itself(modules: Modules) -> None:
    closed = [True, False]
    modules("shop.warehouse", is_closed=closed.pop)
    job = run(snippet("recipes/jobs.md", "Skip a run")).send_orders
    assert job() is None
    assert job() is SKIPPED
    assert [*JobRun.objects.order_by("pk").values_list("status", "error")] == [
        ("successful", ""),
        ("skipped", "holiday"),
    ]


# --- what may go wrong


def test_a_failure_is_retried() -> None:
    def fail() -> None:
        raise ValueError("no prices")

    job = run(snippet("recipes/jobs.md", "Retry a job that fails"), body=fail).import_prices
    with pytest.raises(ValueError, match="no prices"):
        job()
    assert OneOffJob.objects.get().job_name == "import_prices"
    assert [job.delay_before_retry(number) for number in (1, 2, 3, 4)] == [5 * MINUTE, 10 * MINUTE, 20 * MINUTE, None]


def test_a_run_whose_server_died_is_run_again(modules: Modules) -> None:
    invoices: dict[str, object] = {}
    orders = [SimpleNamespace(total=12)]
    modules(
        "shop.models",
        Order=SimpleNamespace(objects=SimpleNamespace(unpaid=lambda: orders)),
        Invoice=SimpleNamespace(objects=SimpleNamespace(update_or_create=lambda **values: invoices.update(values))),
    )
    printed: list[str] = []
    job = run(snippet("recipes/jobs.md", "Allow for a server that dies"), print=printed.append).bill_orders
    fall_behind(job)
    die_running(job)
    call_command("singleton_worker", once=True)
    assert printed == ["The last attempt was cut off."]
    assert invoices == {"order": orders[0], "defaults": {"amount": 12}}


def test_a_job_may_not_run_longer() -> None:
    def run_for_too_long() -> None:
        (run,) = JobLock.objects.all()
        assert run.lease.total_seconds() == 20
        while True:
            found = current_run()
            assert found
            found.lease.check()
            work_for(0.01)

    text = snippet("recipes/jobs.md", "Limit how long a job runs").replace("minutes=30", "milliseconds=30")
    with pytest.raises(JobTimeout):
        run(text, body=run_for_too_long).import_feed()


def test_a_run_is_stopped_and_cleans_up(
    modules: Modules, elsewhere: Elsewhere, settings: Any, project: Project
) -> None:
    settings.SINGLEJOB = {"LEASE": timedelta(seconds=6)}
    exported: list[str] = []

    def orders() -> Iterator[Any]:
        while len(exported) < 100 * PATIENCE:
            yield SimpleNamespace(export=exported.append)
            work_for(0.01)

    modules("shop.models", Order=SimpleNamespace(objects=SimpleNamespace(all=orders)))
    running = elsewhere(run(snippet("recipes/jobs.md", "Stop a run")).export_orders)
    eventually(lambda: exported)
    said = project.cron(snippet("recipes/jobs.md", "Stop a run", "console").replace("$ ", "cd /srv/shop && "))
    assert "'export_orders'" in said
    with pytest.raises(JobStopped):
        running.result(PATIENCE)
    assert not Path(exported[0]).exists()


def catalogue(modules: Modules, pages: Callable[[], Iterator[list[Any]]]) -> None:
    def update_or_create(sku: str, defaults: dict[str, int]) -> None:
        Counter.objects.update_or_create(name=sku, defaults={"value": defaults["price"]})

    modules("shop.models", Product=SimpleNamespace(objects=SimpleNamespace(update_or_create=update_or_create)))
    modules("shop.supplier", pages=pages)


def test_a_holder_that_lost_its_lock_writes_nothing(modules: Modules) -> None:
    def pages() -> Iterator[list[Any]]:
        yield [SimpleNamespace(sku="bolt", price=2), SimpleNamespace(sku="nut", price=1)]
        JobLock.objects.all().delete()
        take("import_products")  # as another server does
        yield [SimpleNamespace(sku="bolt", price=9)]

    catalogue(modules, pages)
    with pytest.raises(LeaseLost):
        run(snippet("recipes/jobs.md", "Write in a fenced transaction")).import_products()
    assert dict(Counter.objects.values_list("name", "value")) == {"bolt": 2, "nut": 1}


def test_a_job_says_how_far_it_is(modules: Modules) -> None:
    modules("shop.supplier", pages=lambda: range(3))
    job = run(snippet("recipes/jobs.md", "Show how far a job is")).import_catalogue
    with finished() as runs:
        job()
    progress = runs[0].lease.progress
    assert (progress.done, progress.total, progress.text) == (3, 3, "importing")


# --- locks


def test_a_tenant_that_is_busy_is_left_out(modules: Modules) -> None:
    synced: list[int] = []
    tenants = {pk: SimpleNamespace(sync=partial(synced.append, pk)) for pk in (1, 2, 3)}
    rows = SimpleNamespace(get=lambda pk: tenants[pk], values_list=lambda *_, flat: tenants)
    modules("shop.models", Tenant=SimpleNamespace(objects=rows))
    modules("shop.tasks", snippet("recipes/jobs.md", "Lock each tenant")).sync_tenants()
    with job_lock("tenant:2"):
        call_command("singleton_worker", drain=True, threads=1, verbosity=0)
    assert synced == [1, 3]
    assert {row.status for row in OneOffJob.objects.all()} == {"done"}


def test_each_tenant_is_a_job(have_command: Callable[[str], list[dict[str, Any]]], settings: Any) -> None:
    settings.TENANTS = ["alpha", "beta"]
    calls = have_command("sync_tenant")
    run(snippet("recipes/jobs.md", "Lock each tenant", number=2))
    with job_lock("sync:alpha"):
        call_command("run_singleton", "sync:beta", now=True)
    assert [options["name"] for options in calls] == ["beta"]


def test_two_jobs_share_a_lock(elsewhere: Elsewhere) -> None:
    jobs = run(snippet("recipes/jobs.md", "Let several jobs share a lock"), body=lambda: "ran")
    with job_lock("catalogue"):
        assert jobs.import_offers() is SKIPPED
        waiting = elsewhere(jobs.rebuild_search_index)
        a_moment()
    assert waiting.result(PATIENCE) == "ran"


def test_a_view_takes_a_lock(modules: Modules) -> None:
    imported: list[bool] = []
    modules("shop.supplier", import_offers=lambda: imported.append(JobLock.objects.filter(name="catalogue").exists()))
    view = run(snippet("recipes/jobs.md", "Lock a block of code")).import_now
    request = RequestFactory().post("/")
    assert view(request).status_code == 200
    assert imported == [True]
    with job_lock("catalogue"):
        response = view(request)
    assert response.status_code == 409
    assert response.content.startswith(b"The lock 'catalogue' has been held by ")


# --- jobs that are called


def test_a_job_is_called(modules: Modules) -> None:
    reported: list[str] = []
    modules("reports.jobs", hourly_report=run(HOURLY_REPORT, print=reported.append).hourly_report)
    text = snippet("recipes/jobs.md", "Call a job from your own code")
    printed: list[tuple[object, ...]] = []
    calls = run(text, print=lambda *words: printed.append(words))
    assert (calls.value, calls.outcome.status, printed) == (None, "successful", [])
    assert reported == ["The report is ready."] * 2
    with job_lock("hourly_report"):
        holder = str(JobLock.objects.get().holder)
        run(text, print=lambda *words: printed.append(words))
    assert printed == [("The job was skipped.",), ("held", holder)]


def test_an_async_view_calls_jobs(modules: Modules) -> None:
    modules("reports.jobs", hourly_report=run(HOURLY_REPORT).hourly_report)
    view = run(snippet("recipes/jobs.md", "Write an async job")).refresh
    assert async_to_sync(view)(RequestFactory().get("/")).status_code == 200
    assert ends("poll_suppliers") == ends("hourly_report") == ["successful"]
