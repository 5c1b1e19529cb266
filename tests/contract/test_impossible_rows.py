"""A row that makes no sense, written by hand or by another program, spoils nothing but itself."""

from __future__ import annotations

import json
from contextlib import suppress
from io import StringIO
from typing import TYPE_CHECKING, Any

import pytest
from django.core.management import call_command
from django.db.models import Field
from django.urls import NoReverseMatch

from django_singlejob import Lease, singleton_job
from django_singlejob.admin import overview
from django_singlejob.clock import DBNow
from django_singlejob.locking import acquire, clear
from django_singlejob.locking.liveness import SECOND
from django_singlejob.locking.request import Reason, Refusal
from django_singlejob.models import JobLock, JobRun, JobStatus
from django_singlejob.monitoring.verdict import judge
from django_singlejob.querysets.jobs import gates
from django_singlejob.querysets.locks import locks
from django_singlejob.querysets.one_offs import one_offs
from django_singlejob.worker import tick
from django_singlejob.worker.loop import Worker
from django_singlejob.worker.tick import Plan
from tests.admin.pages import list_of, page_of, shown
from tests.contract.acts import MINUTE, ask, fall_behind, hourly, scheduled, slots_run, take
from tests.impossible import any_dates, columns, plant, spoil, values
from tests.selection import sampled

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django.db.models import Model
    from django.test import Client
    from pytest_django import Settings

    from django_singlejob import Job

pytest_plugins = ("tests.fixtures", "tests.admin.people")
pytestmark = [
    pytest.mark.usefixtures("fresh_process", "inline_pool"),
    pytest.mark.django_db,
]
each_column = pytest.mark.parametrize(
    ("model", "columns"),
    sampled(columns()),
    ids=[f"{model.__name__}-{'-'.join(names)}" for model, names in columns()],
)
OVERVIEW = "/admin/django_singlejob/overview/"


@pytest.fixture(autouse=True)
def anything_goes(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An impossible lease counts as one that is too long to wait for."""
    settings.SINGLEJOB = {**settings.SINGLEJOB, "LEASE": 5 * MINUTE}
    monkeypatch.setattr(acquire, "PERSEVERANCE", 0.2)  # there are no others
    # On a busy machine, a look takes longer than the intervals of these locks, so their watch restarts again and again.
    monkeypatch.setattr(tick, "LONGEST_TICK", 2.0)
    for module in (acquire, clear):
        monkeypatch.setattr(module, "LONGEST_WATCH", 2 * SECOND)
    with any_dates():
        yield


def good_rows() -> Job:
    """A job with a due slot, a one-off that is due, and a lock that is held."""
    job: Job = scheduled("good")
    fall_behind(job)
    one_offs().create(job_name="also-good", run_after=DBNow() - MINUTE, created_at=DBNow())
    singleton_job("also-good")(lambda: None)
    take("good-lock", lease=10 * MINUTE)
    return job


def bad_rows(model: type[Model], columns: list[str]) -> list[Job]:
    """For each value of each of the columns, a job with such rows. Its slot is due if they have a say in that."""
    schedule = hourly(ago=30 * MINUTE) if model in (JobLock, JobStatus) else None
    jobs: list[Job] = []
    for column in columns:
        field = model._meta.get_field(column)
        assert isinstance(field, Field)
        for number, value in enumerate(values(field)):
            register = singleton_job(f"bad-{column}-{number}", schedule=schedule)
            jobs.append(register(lambda *_args, **_kwargs: None))
            plant(model, column, jobs[-1], value)
    return jobs


def said(command: str, *arguments: str) -> str:
    output = StringIO()
    call_command(command, *arguments, stdout=output, stderr=output, no_color=True)
    return output.getvalue()


def keys_of(model: str) -> list[Any]:
    rows: Any = {"joblock": locks(), "jobrun": JobRun.objects, "oneoffjob": one_offs()}.get(model)
    return [] if rows is None else list(rows.values_list("pk", flat=True))


def urls_of(page: str, jobs: list[Job]) -> Iterator[str]:
    for key in [job.name for job in jobs] if page == "jobstatus" else keys_of(page):
        with suppress(NoReverseMatch):  # no page has this name
            yield page_of(page, key)


@each_column
def test_the_pages_show_the_others(
    model: type[Model], columns: list[str], admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overview, "MOST_ROWS", 1000)
    good_rows()
    jobs = bad_rows(model, columns)
    assert "good-lock" in shown(admin_client, list_of("joblock"))
    assert "also-good" in shown(admin_client, list_of("oneoffjob"))
    assert "good" in shown(admin_client, list_of("jobstatus"))
    assert "good-lock" in shown(admin_client, OVERVIEW)
    assert "good-lock" in admin_client.get(OVERVIEW, headers={"Singlejob-Refresh": "1"}).content.decode()
    shown(admin_client, list_of("jobrun"))
    urls = list(urls_of(model._meta.model_name or "", jobs))
    for url in [*urls, *(url.replace("/change/", "/history/") for url in urls[:1])]:
        assert admin_client.get(url, follow=True).status_code == 200, url


@each_column
def test_the_commands_report_the_others(model: type[Model], columns: list[str]) -> None:
    good_rows()
    bad_rows(model, columns)
    assert "good-lock" in said("singleton_status")
    assert "good-lock" in {fact["name"] for fact in json.loads(said("singleton_status", "--format=json"))["jobs"]}
    assert "good-lock" in {health.name for health in judge().healths}
    for form in ("text", "json"):
        said("prune_singletons", "--dry-run", f"--format={form}")
        said("clear_stale_locks", "--dry-run", "--overrunning", f"--format={form}")
    said("prune_singletons", "--days=1", "--keep=1")
    said("clear_stale_locks")
    assert locks().filter(name="good-lock").exists()


@each_column
@pytest.mark.parametrize("mode", ["once", "drain"])
def test_a_worker_runs_the_others(model: type[Model], columns: list[str], mode: str) -> None:
    job = good_rows()
    bad_rows(model, columns)
    reports = list(Worker(Plan(**{mode: True})).work())  # type: ignore[arg-type]
    assert [status for _slot, _attempt, status in slots_run(job.name)] == ["successful"], reports
    assert one_offs().get(job_name="also-good").status == "done"
    assert locks().filter(name="good-lock").exists()


@each_column
def test_nobody_gets_a_lock_that_may_be_held(model: type[Model], columns: list[str]) -> None:
    good_rows()
    jobs = bad_rows(model, columns)
    assert isinstance(ask("another"), Lease)
    for name in [job.name for job in jobs]:
        may_be_held = locks().live().filter(name=name).exists()
        answer = ask(name, job_name=name, trigger="call")
        assert not (may_be_held and isinstance(answer, Lease)), name


@pytest.mark.on_database("sqlite")
def test_a_lock_that_cannot_be_read_is_not_free_and_is_reported(admin_client: Client) -> None:
    take("shop", lease=10 * MINUTE)
    assert spoil(locks().get(), "sent_at", "2026-02-31 00:00:00")
    answer = ask("shop")
    assert isinstance(answer, Refusal)
    assert answer.reason == Reason.UNDECIDED
    assert answer.detail.startswith("The row 'shop' of the table django_singlejob_joblock cannot be read")
    (finding,) = judge().findings
    assert (finding.kind, finding.about, finding.subject) == ("impossible_row", "lock", "shop")
    assert "CRITICAL: 1 impossible row (shop)" in said("singleton_status")
    assert "cannot be read" in shown(admin_client, OVERVIEW)


def test_a_fence_that_cannot_grow_is_reported_and_nothing_is_granted() -> None:
    take("shop").release()
    gates().filter(name="shop").update(fence=2**63 - 1)
    answer = ask("shop")
    assert isinstance(answer, Refusal)
    assert answer.reason == Reason.UNDECIDED
    assert answer.detail.startswith("the fence of its gate is the greatest that there is")
    gates().filter(name="shop").update(last_started_at=DBNow())
    assert [(found.kind, found.subject) for found in judge().findings] == [("impossible_row", "shop")]
    assert isinstance(ask("another"), Lease)


def test_a_holder_whose_lease_makes_no_sense_is_given_the_usual_one() -> None:
    lease = take("shop", lease=10 * MINUTE)
    locks().update(expires_at=DBNow() - 99 * MINUTE, heartbeat_at=DBNow())
    assert isinstance(ask("shop"), Refusal)
    assert locks().get().token == lease.token
