"""Metrics for Prometheus, and the alerts that are shipped."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client import REGISTRY, CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from django_singlejob.integrations.prometheus import SingleJobs
from django_singlejob.models import JobStatus, OneOffJob
from django_singlejob.monitoring.acknowledging import acknowledge
from django_singlejob.process.clock import DBNow
from tests.children import ROOT
from tests.contract.acts import HOUR, MINUTE, SECOND, take
from tests.monitoring.test_facts import job

if TYPE_CHECKING:
    from pathlib import Path

    from django.test import Client
    from pytest_django import DjangoAssertNumQueries, Settings

    from tests.fixtures import Away

pytest_plugins = "tests.fixtures"
pytestmark = [
    pytest.mark.usefixtures("fresh_process"),
    pytest.mark.django_db,
    pytest.mark.urls("django_singlejob.urls"),
]
committed = pytest.mark.django_db(transaction=True)

TOKEN = "s3cret"
RULES = ROOT / "docs" / "examples" / "prometheus-alerts.yml"
PAGE = ROOT / "docs" / "recipes" / "alerts.md"

Labels = frozenset[tuple[str, str]]


def enqueued(queue: str, *, count: int = 1) -> None:
    facts: dict[str, Any] = {"task_path": "shop.mail", "created_at": DBNow(), "run_after": DBNow() - HOUR}
    OneOffJob.objects.bulk_create(OneOffJob(queue_name=queue, **facts) for _ in range(count))


def metrics_in(text: str) -> dict[str, dict[Labels, float]]:
    found: dict[str, dict[Labels, float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name.startswith("singlejob_"):
                found.setdefault(sample.name, {})[frozenset(sample.labels.items())] = sample.value
    return found


def scraped() -> dict[str, dict[Labels, float]]:
    """What `django-prometheus` would show."""
    return metrics_in(generate_latest(REGISTRY).decode())


def labels(**given: str) -> Labels:
    return frozenset(given.items())


# --- what is scraped


def test_a_job_has_its_metrics() -> None:
    job(
        consecutive_failures=2,
        misfire_count=3,
        mean_duration=MINUTE,
        run_count=1,
        last_status="successful",
        last_started_at=DBNow() - HOUR,
        last_finished_at=DBNow() - MINUTE,
    )
    take("nightly")
    row, found, name = JobStatus.objects.get(), scraped(), labels(name="nightly")
    assert row.next_slot
    assert row.last_finished_at
    assert found["singlejob_up"] == {labels(): 1}
    assert found["singlejob_job_state"] == {labels(name="nightly", state="failing"): 1}
    assert found["singlejob_job_level"] == {name: 2}
    assert found["singlejob_job_next_slot_timestamp_seconds"] == {name: row.next_slot.timestamp()}
    assert found["singlejob_job_last_success_timestamp_seconds"] == {name: row.last_finished_at.timestamp()}
    assert found["singlejob_job_failures_in_a_row"] == {name: 2}
    assert found["singlejob_job_misfires_total"] == {name: 3}
    assert found["singlejob_job_mean_duration_seconds"] == {name: 60}
    assert 0 <= found["singlejob_job_lock_age_seconds"][name] < 60
    assert found["singlejob_job_last_duration_seconds"][name] == pytest.approx(59 * 60, abs=60)
    assert found["singlejob_findings"] == {labels(kind="failing", level="critical", acknowledged="no"): 1}


def test_what_is_acknowledged_keeps_its_value_and_says_so() -> None:
    job(consecutive_failures=2)
    acknowledge("nightly", ["failing"], None, by="anna", reason="")
    found = scraped()
    assert found["singlejob_job_level"] == {labels(name="nightly"): 2}
    assert found["singlejob_job_acknowledged"] == {labels(name="nightly"): 1}
    assert found["singlejob_findings"] == {labels(kind="failing", level="critical", acknowledged="yes"): 1}


def test_queues_and_workers_have_theirs() -> None:
    enqueued("mail", count=2)
    take("django_singlejob.worker.1", queues=["mail", "media"])
    found, mail = scraped(), labels(queue="mail")
    assert found["singlejob_queue_due"] == {mail: 2, labels(queue="media"): 0}
    assert found["singlejob_queue_oldest_due_seconds"][mail] == pytest.approx(HOUR / SECOND, abs=60)
    assert found["singlejob_queue_oldest_due_seconds"][labels(queue="media")] == 0
    assert found["singlejob_queue_workers"] == {mail: 1, labels(queue="media"): 1}
    assert found["singlejob_workers"] == {labels(): 1}


def test_a_lock_of_no_job_is_no_label() -> None:
    take("customer-4711")
    assert "singlejob_job_state" not in scraped()


def test_a_hostile_name_stays_a_name() -> None:
    name = 'mail"} 1\nsinglejob_up 1\\{é'
    enqueued(name)
    found = scraped()
    assert found["singlejob_queue_due"] == {labels(queue=name): 1}
    assert found["singlejob_up"] == {labels(): 1}


# --- what it costs


@pytest.mark.parametrize("count", [3, 300])
def test_a_scrape_takes_four_queries(django_assert_num_queries: DjangoAssertNumQueries, count: int) -> None:
    for number in range(count):
        job(f"job-{number}")
    with django_assert_num_queries(4):
        found = scraped()
    assert len(found["singlejob_job_state"]) == count


def test_to_register_it_takes_no_query(django_assert_num_queries: DjangoAssertNumQueries) -> None:
    registry = CollectorRegistry(auto_describe=True)
    with django_assert_num_queries(0):
        registry.register(SingleJobs())
    assert {sample.name for family in registry.collect() for sample in family.samples} >= {"singlejob_up"}


@pytest.mark.slow
def test_no_command_imports_it() -> None:
    code = """
import sys
from django.core.management import call_command
from django.conf import settings
memory = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
settings.configure(INSTALLED_APPS=["django_singlejob"], DATABASES={"default": memory}, USE_TZ=True)
import django
django.setup()
call_command("migrate", verbosity=0)
call_command("singleton_status")
call_command("run_singleton", "backup", "--", "true")
print([name for name in sys.modules if "prometheus" in name or "integrations" in name])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.splitlines()[-1:] == ["[]"], done.stderr


# --- when the database is away


@committed
def test_then_a_scrape_says_so_and_does_not_fail(database_away: Away, caplog: pytest.LogCaptureFixture) -> None:
    with database_away():
        found = scraped()
    assert found == {"singlejob_up": {labels(): 0}}
    assert caplog.messages[-1].startswith("The metrics cannot be read: OperationalError: ")


# --- the page


def test_the_page_needs_the_token(client: Client, settings: Settings) -> None:
    job()
    for given in {}, {"HEALTH_TOKEN": TOKEN}, {"LEASE": 60}:
        settings.SINGLEJOB = given
        response = client.get("/metrics/", headers={"Authorization": "Bearer wrong"})
        assert (response.status_code, response.content) == (401, b"")
        assert response["WWW-Authenticate"] == "Bearer"


@committed
def test_the_page_shows_our_metrics_only(client: Client, settings: Settings, database_away: Away) -> None:
    settings.SINGLEJOB = {"HEALTH_TOKEN": TOKEN}
    job()
    headers = {"Authorization": f"Bearer {TOKEN}"}
    response = client.get("/metrics/", headers=headers)
    assert response["Content-Type"].startswith("text/plain; version=")
    assert response["Cache-Control"] == "private, no-store"
    assert b"python_info" not in response.content
    assert metrics_in(response.content.decode()).keys() == scraped().keys()
    with database_away():
        response = client.get("/metrics/", headers=headers)
    assert (response.status_code, metrics_in(response.content.decode())) == (200, {"singlejob_up": {labels(): 0}})


# --- the alerts


def test_the_alerts_and_the_documentation_use_metrics_that_exist() -> None:
    ours = {family.name + ("_total" if family.type == "counter" else "") for family in SingleJobs().describe()}
    used = set(re.findall(r"\bsinglejob_\w+", RULES.read_text()))
    shown = set(re.findall(r"\bsinglejob_\w+", PAGE.read_text()))
    assert used <= ours
    assert shown
    assert shown <= ours


def test_each_metric_explains_itself() -> None:
    assert all(family.documentation.endswith(".") for family in SingleJobs().describe())


def promtool(*arguments: str) -> None:
    """It must be satisfied."""
    program = shutil.which("promtool") or there_is_none()
    done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def there_is_none() -> str:
    reason = "There is no promtool: apt-get install prometheus"
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.mark.slow
def test_the_alerts_are_valid_and_fire(tmp_path: Path) -> None:
    promtool("check", "rules", str(RULES))
    cases = (ROOT / "tests" / "integrations" / "alerts_test.yml").read_text()
    (tmp_path / "cases.yml").write_text(cases.replace("RULES", str(RULES)))
    promtool("test", "rules", str(tmp_path / "cases.yml"))
    alerts = set(re.findall(r"alert: (\w+)", RULES.read_text()))
    assert alerts == set(re.findall(r"alertname: (\w+)", cases))
