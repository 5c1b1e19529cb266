"""`django_singlejob.status()`: one object for programs, which `singleton_status --format json` prints."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError
from datetime import UTC, datetime, timedelta
from io import StringIO
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.core.management import call_command
from django.db import OperationalError

import django_singlejob
from django_singlejob import singleton_job
from django_singlejob.jobs import registry
from django_singlejob.models import JobLock, JobRun, JobStatus, OneOffJob
from django_singlejob.process.clock import DBNow
from tests.contract.acts import HOUR, MINUTE, SECOND, expire, take

if TYPE_CHECKING:
    from pytest_django import DjangoAssertNumQueries, Settings

    from tests.fixtures import Away

pytest_plugins = "tests.fixtures"
pytestmark = [pytest.mark.usefixtures("fresh_process"), pytest.mark.django_db]
committed = pytest.mark.django_db(transaction=True, available_apps=["django_singlejob"])

WORKER = "django_singlejob.worker.1"


def job(name: str = "nightly", **columns: Any) -> None:
    singleton_job(name, schedule="30 2 * * *")(print)
    facts = {"schedule": "30 2 * * *", "time_zone": "UTC", "next_slot": DBNow() + HOUR, "last_started_at": DBNow()}
    JobStatus.objects.bulk_create([JobStatus(name=name, **facts | columns)])


def ran(status: str, ago: timedelta, name: str = "nightly", **columns: Any) -> None:
    begun = DBNow() - ago
    facts: dict[str, Any] = {
        "fence": 1,
        "trigger": "schedule",
        "hostname": "web",
        "pid": 1,
        "started_at": begun,
        "token": uuid4(),
    }
    JobRun.objects.bulk_create([JobRun(job_name=name, status=status, finished_at=begun, **facts | columns)])


def enqueued(queue: str, ago: timedelta) -> None:
    facts: dict[str, Any] = {"task_path": "shop.mail", "created_at": DBNow(), "run_after": DBNow() - ago}
    OneOffJob.objects.bulk_create([OneOffJob(queue_name=queue, **facts)])


def printed() -> dict[str, Any]:
    output = StringIO()
    call_command("singleton_status", "--format", "json", stdout=output)
    found: dict[str, Any] = json.loads(output.getvalue())
    return found


def sinces(status: Any) -> dict[str, datetime | None]:
    return {finding.kind: finding.since for finding in status.findings}


# --- the object


def test_it_says_what_the_command_prints_as_json() -> None:
    job(consecutive_failures=1, last_status="failed", last_finished_at=DBNow())
    take(WORKER, queues=["mail"])
    take("block")
    enqueued("mail", 90 * MINUTE)
    status = django_singlejob.status()
    assert status.version == 1
    assert without_ages(status.as_dict()) == without_ages(printed())
    assert json.loads(json.dumps(status.as_dict())) == status.as_dict()


def without_ages(found: dict[str, Any]) -> dict[str, Any]:
    for queue in found["queues"]:
        queue["oldest"] = round(queue["oldest"], -2)
    for job in found["jobs"]:
        if job["holder"]:
            del job["holder"]["age"]
    return found


def test_nobody_can_change_it() -> None:
    job()
    status = django_singlejob.status()
    with pytest.raises(FrozenInstanceError):
        status.level = "ok"  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        status.jobs[0].state = "idle"  # type: ignore[misc]
    assert isinstance(status.findings, tuple)


def test_it_has_instants_in_utc_and_durations() -> None:
    job(mean_duration=MINUTE, last_status="successful", last_finished_at=DBNow())
    take("nightly")
    (found,) = django_singlejob.status().jobs
    assert (found.state, found.level, found.mean_duration) == ("running", "ok", MINUTE)
    assert found.holder
    assert found.holder.acquired_at.tzinfo is found.next_slot.tzinfo is UTC  # type: ignore[union-attr]
    assert found.last_success_at == found.last_finished_at


# --- what the history adds


def test_a_failing_job_has_its_last_error_and_its_last_success() -> None:
    job(consecutive_failures=2, run_count=4, last_status="failed", last_finished_at=DBNow())
    ran("successful", 9 * HOUR, duration=9 * SECOND)
    ran("successful", 8 * HOUR, duration=8 * SECOND)
    ran("failed", 2 * HOUR, error="the first", duration=2 * SECOND)
    ran("interrupted", HOUR, error="the last" + "!" * 5_000, duration=SECOND)
    ran("running", MINUTE)
    ran("failed", MINUTE, "another", error="another's")
    (found,) = (each for each in django_singlejob.status().jobs if each.name == "nightly")
    assert found.last_error is not None
    assert found.last_error.startswith("the last!")
    assert len(found.last_error) == 1_000
    success = JobRun.objects.filter(status="successful").order_by("-started_at")[0]
    assert success.finished_at == found.last_success_at


def test_it_is_failing_since_the_first_failure_after_its_last_success() -> None:
    job(consecutive_failures=2, run_count=4, last_status="failed", last_finished_at=DBNow())
    ran("failed", 9 * HOUR)
    ran("successful", 8 * HOUR)
    ran("failed", 2 * HOUR)
    ran("interrupted", HOUR)
    ran("failed", 3 * HOUR, "another")
    (finding,) = (each for each in django_singlejob.status().findings if each.subject == "nightly")
    assert finding.since == JobRun.objects.filter(job_name="nightly").order_by("-started_at")[1].finished_at


def test_of_what_has_been_pruned_nothing_is_known() -> None:
    job(consecutive_failures=1, run_count=1, last_status="failed")
    (found,) = django_singlejob.status().jobs
    assert (found.last_error, found.last_success_at) == (None, None)


def test_the_last_duration_is_known_when_the_run_has_ended() -> None:
    job(last_started_at=DBNow() - HOUR, last_finished_at=DBNow() - MINUTE)
    job("running", last_started_at=DBNow(), last_finished_at=DBNow() - MINUTE)
    job("first", last_started_at=DBNow())
    durations = {each.name: each.last_duration for each in django_singlejob.status().jobs}
    assert durations.pop("nightly") // MINUTE in (58, 59)  # type: ignore[operator]
    assert durations == {"running": None, "first": None}


def test_a_job_that_is_well_has_no_error() -> None:
    job(run_count=2, last_status="successful", last_finished_at=DBNow())
    ran("failed", HOUR, error="long ago")
    assert django_singlejob.status().jobs[0].last_error is None


def test_the_command_shows_the_last_error() -> None:
    job(consecutive_failures=1, last_status="failed", last_finished_at=DBNow())
    ran("failed", HOUR, error="ValueError: no\nmore|")
    output = StringIO()
    call_command("singleton_status", stdout=output)
    assert "FAILING  LAST ERROR\n" in output.getvalue()
    assert r"nightly  ValueError: no\nmore\x7c" in output.getvalue()


# --- since when


def test_a_finding_says_since_when() -> None:
    job("overdue", next_slot=DBNow() - HOUR)
    job("failing", consecutive_failures=1, last_status="failed", last_finished_at=DBNow() - MINUTE)
    job("stale")
    take("stale")
    expire("stale")
    take(WORKER)
    expire(WORKER)
    enqueued("mail", HOUR)
    found = sinces(django_singlejob.status())
    status = {row.name: row for row in JobStatus.objects.all()}
    lock = {row.name: row for row in JobLock.objects.all()}
    assert found == {
        "no_worker": OneOffJob.objects.get().run_after,
        "dead": lock[WORKER].expires_at,
        "stale": lock["stale"].expires_at,
        "overdue": status["overdue"].next_slot,
        "failing": status["failing"].last_finished_at,
    }
    assert all(since and since.tzinfo is UTC for since in found.values())


@pytest.mark.parametrize("last", ["abandoned", "skipped", ""])
def test_when_a_holder_died_nobody_knows(last: str) -> None:
    job(consecutive_failures=1, last_status=last, last_finished_at=DBNow() - HOUR)
    job("unseen", next_slot=None)
    assert sinces(django_singlejob.status()) == {"failing": None, "unseen": None}


# --- what it costs, and what fails


def test_it_takes_as_many_queries_however_much_there_is(django_assert_num_queries: DjangoAssertNumQueries) -> None:
    def fill(numbers: range) -> None:
        for number in numbers:
            job(f"job-{number}", consecutive_failures=number % 2, run_count=1)
            ran("failed", HOUR, f"job-{number}", error="no")
            enqueued(f"queue-{number}", HOUR)

    fill(range(3))
    with django_assert_num_queries(6):
        django_singlejob.status()
    fill(range(3, 300))
    with django_assert_num_queries(6):
        status = django_singlejob.status()
    assert (len(status.jobs), len(status.queues)) == (300, 300)


def test_jobs_that_cannot_be_registered_are_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.failures, "shop.jobs", ZeroDivisionError("division by zero"))
    status = django_singlejob.status()
    assert (status.level, [finding.kind for finding in status.findings]) == ("critical", ["not_imported"])


@committed
def test_if_the_database_does_not_answer_its_error_is_raised(database_away: Away) -> None:
    with database_away(), pytest.raises(OperationalError):
        django_singlejob.status()


def test_an_invalid_setting_is_an_error(settings: Settings) -> None:
    settings.SINGLEJOB = {"LEASE": 60}
    with pytest.raises(ImproperlyConfigured, match="LEASE"):
        django_singlejob.status()
