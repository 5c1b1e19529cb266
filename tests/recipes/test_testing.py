"""The tests that the recipes about tests show pass, and the jobs of reusable apps run."""

from __future__ import annotations

import unittest
from io import StringIO
from typing import TYPE_CHECKING, Any

import pytest
from django.core.management import BaseCommand, call_command, get_commands

from django_singlejob import SingleJobError
from django_singlejob.models import JobRun
from tests.databases import APPS
from tests.recipes.snippets import snippet

if TYPE_CHECKING:
    from pytest_django import Settings

    from tests.recipes.modules import Modules

pytest_plugins = ["tests.fixtures", "tests.recipes.modules"]
pytestmark = [
    pytest.mark.on_database("sqlite"),
    pytest.mark.django_db(transaction=True, available_apps=APPS),
]

REPORTS = """
from django_singlejob import singleton_job
@singleton_job(schedule="30 2 * * *", time_zone="Europe/Rome")
def daily_report(): ...
"""
SHOP = """
from datetime import timedelta
from django_singlejob import singleton_job
@singleton_job
def confirm_order(order_id): ...
def fetch(): ...
@singleton_job(max_runtime=timedelta(hours=1))
def import_prices():
    fetch()
"""


@pytest.mark.parametrize(
    ("test_case", "count"),
    [
        (snippet("recipes/testing.md", "Test a job"), 1),
        (snippet("recipes/testing.md", "Test a schedule"), 1),
        (snippet("recipes/testing.md", "Test a one-off or a task"), 1),
        (snippet("recipes/testing.md", "Test a time-out"), 1),
    ],
    ids=["job", "schedule", "one-off", "time-out"],
)
def test_the_tests_pass(modules: Modules, test_case: str, count: int) -> None:
    modules("reports.jobs", REPORTS)
    modules("shop.jobs", SHOP)
    tests = unittest.defaultTestLoader.loadTestsFromModule(modules("shop.tests", test_case))
    result = tests.run(unittest.TestResult())
    assert result.testsRun == count
    assert not result.errors + result.failures


def test_the_plain_function_and_the_crontab_line(modules: Modules) -> None:
    reports = modules("reports.jobs", REPORTS)
    reports.daily_report.__wrapped__()
    assert not JobRun.objects.exists()
    assert "daily_report: ran" in run_now("daily_report")
    modules("shop.jobs", SHOP.replace("def fetch(): ...", "def fetch(): raise ValueError"))
    with pytest.raises(SystemExit):
        run_now("import_prices")


def run_now(name: str) -> str:
    out = StringIO()
    call_command("run_singleton", name, now=True, verbosity=2, stdout=out)
    return out.getvalue()


def test_a_reusable_app_has_a_job(modules: Modules) -> None:
    sent: list[str] = []
    modules("newsletter.mail", "def send_issue(): sent.append('issue')", sent=sent)
    app = modules("newsletter.jobs", snippet("recipes/testing.md", "Ship a job in a reusable app"))
    assert app.schedule == "@daily"
    assert "newsletter.send_issue: ran" in run_now("newsletter.send_issue")
    assert sent == ["issue"]


def test_a_project_calls_the_job_of_the_app_itself(modules: Modules, settings: Settings) -> None:
    settings.NEWSLETTER_SCHEDULE = None
    modules("newsletter.mail", "def send_issue(): ...")
    assert modules("newsletter.jobs", snippet("recipes/testing.md", "Ship a job in a reusable app")).schedule is None


def test_two_apps_cannot_have_one_name(modules: Modules) -> None:
    modules("reports.jobs", REPORTS)
    with pytest.raises(SingleJobError, match="Two jobs are called 'daily_report'"):
        modules("shop.jobs", REPORTS)


def test_a_project_makes_a_job_of_the_command_of_an_app(modules: Modules, monkeypatch: pytest.MonkeyPatch) -> None:
    class Command(BaseCommand):
        def handle(self, **_: Any) -> None: ...

    monkeypatch.setitem(get_commands(), "send_issue", Command())
    modules("project.jobs", snippet("recipes/testing.md", "Ship a job in a reusable app", number=2))
    assert "send_issue: ran" in run_now("send_issue")
    assert JobRun.objects.get().status == "successful"
