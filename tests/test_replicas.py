"""A router sends reads to a replica that lags behind. This package reads only from the database that decides."""

from __future__ import annotations

from io import StringIO
from typing import TYPE_CHECKING, Any

import pytest
from django.apps import apps
from django.contrib import admin
from django.core.management import call_command
from django.db import connection, connections, router
from django.db.backends.sqlite3.base import DatabaseWrapper
from django.db.models import F
from django.urls import reverse

from django_singlejob import current_run, job_lock, singleton_job
from django_singlejob.models import OneOffJob
from django_singlejob.models.jobs import gates
from django_singlejob.models.locks import locks
from django_singlejob.models.one_offs import one_offs
from django_singlejob.models.runs import runs
from django_singlejob.running.enqueue import Order
from tests.admin.pages import MODELS, Page, act, begin, clear_page, each_model, list_of, page_of, shown
from tests.contract.acts import expire, last_run, scheduled, start_run
from tests.databases import APPS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from django.contrib.admin import ModelAdmin
    from django.db.models import Model
    from django.test import Client
    from pytest_django import Settings

pytest_plugins = ["tests.fixtures", "tests.admin.people"]
pytestmark = [pytest.mark.usefixtures("fresh_process"), pytest.mark.django_db]

OURS: list[type[Model]] = [
    model for model in apps.get_app_config("django_singlejob").get_models() if not model._meta.proxy
]


class Replica:
    """A router that sends all reads to it, except those that name a database. Writes go elsewhere.

    Attributes:
        asked_for: our models for which a read was sent to the replica.
    """

    def __init__(self) -> None:
        self.asked_for: list[str] = []

    def db_for_read(self, model: type[Model], **hints: object) -> str | None:
        if model._meta.app_label != "django_singlejob":
            return None  # sessions, users and permissions are not our rows
        self.asked_for.append(model.__name__)
        return "replica"

    def db_for_write(self, model: type[Model], **hints: object) -> str:
        return "default"

    def catch_up(self) -> None:
        """Copy the rows as they are now. Later changes do not arrive."""
        for model in OURS:
            model._base_manager.using("replica").all().delete()
            rows = list(model._base_manager.using("default"))
            model._base_manager.using("replica").bulk_create(rows)


@pytest.fixture
def replica(settings: Settings, tmp_path: Path) -> Iterator[Replica]:
    file = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(tmp_path / "replica.sqlite3"), "OPTIONS": {}}
    connections["replica"] = DatabaseWrapper(connection.settings_dict | file, "replica")
    with connections["replica"].schema_editor() as editor:
        for model in OURS:
            editor.create_model(model)
    replica = Replica()
    settings.DATABASE_ROUTERS = [replica]
    yield replica
    connections["replica"].close()
    del connections["replica"]


def a_bit_of_everything() -> None:
    """A row of each kind in each model: running, failed, waiting and stale."""
    begin("nightly")
    runs().update(trigger="one_off")
    start_run("dead")
    expire("dead")
    scheduled("hourly")
    failed = start_run("broken")
    failed.release()
    runs().filter(job_name="broken").update(status="failed", error="Oh no", traceback="as it was", duration=None)
    gates().filter(name="broken").update(consecutive_failures=1)
    Order(job_name="hourly").enqueue()


# --- the pages


def ours() -> list[ModelAdmin[Any]]:
    return [each for model, each in admin.site._registry.items() if model._meta.app_label == "django_singlejob"]


def urls() -> Iterator[str]:
    """The URLs of all our pages, and of the admin's pages that read our rows."""
    yield reverse("admin:index")
    yield reverse("admin:app_list", args=["django_singlejob"])
    for page in ours():
        for pattern in page.get_urls():
            if pattern.name and pattern.pattern.converters:
                model: Any = page.model
                yield from (
                    reverse(f"admin:{pattern.name}", args=[admin.utils.quote(row.pk)])
                    for row in model._base_manager.using("default")
                )
            elif pattern.name:
                yield reverse(f"admin:{pattern.name}")
    yield clear_page("dead", "nightly")
    for model in MODELS:
        yield list_of(model, "?q=night")
    yield list_of("joblock", "?state=stale&hostname=web-1")
    yield list_of("jobstatus", "?state=attention")
    yield list_of("jobrun", "?status__exact=failed&server=web-1&job_name=broken&o=2")
    yield list_of("oneoffjob", "?status__exact=waiting")


@pytest.mark.slow
def test_no_page_reads_from_a_replica(replica: Replica, admin_client: Client) -> None:
    a_bit_of_everything()
    pages = list(urls())
    assert len(pages) > 40
    astray = {}
    for url in pages:
        replica.asked_for.clear()
        admin_client.get(url)
        if replica.asked_for:
            astray[url] = replica.asked_for[:]
    assert astray == {}


@pytest.mark.slow
@each_model
def test_no_action_reads_from_a_replica(replica: Replica, admin_client: Client, model: str) -> None:
    a_bit_of_everything()
    (page,) = (each for each in ours() if each.opts.model_name == model)
    keys = [row.pk for row in page.model._base_manager.using("default")]
    for action in page.actions or []:
        act(admin_client, model, str(action), *keys)
    assert replica.asked_for == []


def test_to_clear_reads_from_no_replica(replica: Replica, admin_client: Client) -> None:
    a_bit_of_everything()
    given = Page(shown(admin_client, clear_page("dead", "nightly"))).fields
    admin_client.post(clear_page(), {"lock": given["lock"], "force": ["nightly"]})
    assert not locks().exists()
    assert replica.asked_for == []


def test_to_ask_for_a_one_off_reads_from_no_replica(replica: Replica, admin_client: Client) -> None:
    scheduled("hourly")
    asked = {"job_name": "hourly", "args": "[]", "kwargs": "{}", "priority": "0", "queue_name": "default"}
    admin_client.post(reverse("admin:django_singlejob_oneoffjob_add"), asked | {"run_after_0": "", "run_after_1": ""})
    assert one_offs().count() == 1
    assert replica.asked_for == []


@pytest.mark.slow
def test_a_traceback_is_as_new_as_the_rest_of_its_page(replica: Replica, admin_client: Client) -> None:
    a_bit_of_everything()
    replica.catch_up()
    runs().filter(job_name="broken").update(traceback="as it is")
    broken = runs().get(job_name="broken")
    assert "as it is" in shown(admin_client, page_of("jobrun", broken.pk))


def test_a_run_that_the_replica_does_not_know_has_its_traceback(replica: Replica, admin_client: Client) -> None:
    a_bit_of_everything()
    broken = runs().get(job_name="broken")
    assert "as it was" in shown(admin_client, page_of("jobrun", broken.pk))


# --- the rows that we return


def test_a_row_is_read_again_where_it_was_read(replica: Replica) -> None:
    row = Order(job_name="hourly").enqueue()
    replica.catch_up()
    one_offs().filter(pk=row.pk).update(status="done")
    row.refresh_from_db()
    assert row.status == "done"
    late = OneOffJob.objects.get(pk=row.pk)
    late.refresh_from_db()
    assert late.status == "waiting"
    late.refresh_from_db(using="default")
    assert late.status == "done"


def test_a_row_that_was_never_read_is_read_in_the_database_that_decides(replica: Replica) -> None:
    row = OneOffJob(pk=Order(job_name="hourly").enqueue().pk)
    row.refresh_from_db()
    assert row.job_name == "hourly"


def test_a_query_of_your_own_is_asked_where_you_say(replica: Replica) -> None:
    row = Order(job_name="hourly").enqueue()
    replica.catch_up()
    one_offs().filter(pk=row.pk).update(status="done", version=F("version") + 1)
    row.refresh_from_db(from_queryset=OneOffJob.objects.using("replica"))
    assert row.version == 0
    row.refresh_from_db(from_queryset=OneOffJob.objects.using(router.db_for_write(OneOffJob)))
    assert row.version == 1


def test_a_deferred_field_is_read_where_its_row_was_read(replica: Replica) -> None:
    a_bit_of_everything()
    replica.catch_up()
    runs().filter(job_name="broken").update(traceback="as it is")
    assert runs().defer("traceback").get(job_name="broken").traceback == "as it is"
    there = runs().using("replica").defer("traceback").get(job_name="broken")
    assert there.traceback == "as it was"


# --- what runs


def commanded(name: str, *arguments: str) -> str:
    """The command's output, whatever its exit status."""
    output = StringIO()
    try:
        call_command(name, *arguments, stdout=output, stderr=output)
    except SystemExit as left:
        output.write(f" {left.code}")
    return output.getvalue()


@pytest.mark.slow
@pytest.mark.django_db(transaction=True, available_apps=APPS)
def test_no_command_and_no_call_reads_from_a_replica(replica: Replica) -> None:
    job = singleton_job("shop", schedule="@hourly", retries=2)(use_all)
    outcome = job.run()
    assert outcome.run is not None
    assert outcome.run.status == "successful"
    job.enqueue()
    job.using(priority=3).enqueue()
    with job_lock("till") as lease:
        lease.renew()
        with lease.atomic():
            lease.check()
    a_bit_of_everything()
    assert "broken" in commanded("singleton_status")
    commanded("singleton_status", "--format=json")
    commanded("singleton_worker", "--once")
    commanded("run_singleton", "shop")
    commanded("run_singleton", "shop", "--now")
    commanded("clear_stale_locks")
    commanded("clear_stale_locks", "--force", "nightly")
    assert last_run("shop").status == "successful"
    commanded("prune_singletons", "--days=0", "--keep=0")
    assert not runs().filter(job_name="shop").exists()
    assert replica.asked_for == []


def use_all() -> None:
    run = current_run()
    assert run is not None
    assert run.run is not None
    run.run.refresh_from_db()
    run.lease.check()
