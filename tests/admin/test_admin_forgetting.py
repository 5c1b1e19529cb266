"""Forgetting jobs and locks in the admin: what it asks, what it refuses, and what it logs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from django.contrib.admin.models import LogEntry
from django.db import connections

from django_singlejob import job_lock, registry, singleton_job
from django_singlejob.clock import DBNow
from django_singlejob.querysets.jobs import FORGOTTEN, gates
from tests.admin.pages import Page, forget_page, list_of, messages_of, page_of, shown
from tests.contract.acts import HOUR, start_run, take

if TYPE_CHECKING:
    from django.test import Client

pytest_plugins = ["tests.fixtures", "tests.admin.people"]
pytestmark = [pytest.mark.usefixtures("fresh_process"), pytest.mark.django_db]


def has_run(*names: str) -> None:
    """Long enough ago to be forgotten."""
    for name in names:
        start_run(name).release()
        gates().filter(name=name).update(last_started_at=DBNow() - HOUR)


def confirm(client: Client, *names: str) -> list[str]:
    return messages_of(client.post(forget_page(), {"name": names}, follow=True))


def is_known(name: str) -> bool:
    return gates().filter(name=name).exists()


def test_a_job_is_forgotten_from_its_page(admin_client: Client) -> None:
    has_run("nightly")
    page = Page(shown(admin_client, page_of("jobstatus", "nightly")))
    assert forget_page("nightly") in page.links
    asked = Page(shown(admin_client, forget_page("nightly")))
    assert asked.fields["name"] == ["nightly"]
    assert is_known("nightly")
    assert confirm(admin_client, *asked.fields["name"]) == ["nightly was forgotten."]
    assert not is_known("nightly")
    entry = LogEntry.objects.get()
    assert (entry.user.get_username(), entry.object_id, entry.is_deletion()) == ("admin", "nightly", True)
    assert entry.get_change_message() == "Forgotten."


def test_several_are_chosen_in_the_list(admin_client: Client) -> None:
    has_run("nightly", "hourly")
    chosen = {"action": "forget", "_selected_action": ["nightly", "hourly"]}
    asked = Page(admin_client.post(list_of("jobstatus"), chosen).content.decode())
    assert asked.fields["name"] == ["nightly", "hourly"]
    assert len(confirm(admin_client, "nightly", "hourly")) == LogEntry.objects.count() == 2


def test_a_lock_of_no_job_is_forgotten_from_its_page(admin_client: Client) -> None:
    with job_lock("pipe"):
        pass
    assert forget_page("pipe") in Page(shown(admin_client, page_of("jobstatus", "pipe"))).links
    assert confirm(admin_client, "pipe") == ["pipe was forgotten."]


def test_there_is_no_button_for_a_job_of_the_code(admin_client: Client) -> None:
    singleton_job("nightly")(lambda: None)
    has_run("nightly", "django_singlejob.prune")
    for name in "nightly", "django_singlejob.prune":
        assert "Forget…" not in shown(admin_client, page_of("jobstatus", name))
    asked = shown(admin_client, forget_page("nightly"))
    assert "nightly cannot be forgotten, because this release of the code has it." in asked
    assert "name" not in Page(asked).fields
    (message,) = confirm(admin_client, "nightly")
    assert message.startswith("nightly was not forgotten: this release of the code has the job")
    assert is_known("nightly")
    assert not LogEntry.objects.exists()


def test_nor_without_the_permission(viewer: Client) -> None:
    has_run("nightly")
    assert "Forget…" not in shown(viewer, page_of("jobstatus", "nightly"))


def test_what_is_refused_shows_its_reason(admin_client: Client) -> None:
    lease = take("pipe")
    (held, unknown, reserved) = confirm(admin_client, "pipe", "nobody", FORGOTTEN)
    assert held == "pipe was not forgotten: its lock is held (wait until it is released, or clear it)."
    assert unknown.startswith("nobody was not forgotten: no job or lock has this name")
    assert reserved.startswith(f"{FORGOTTEN} was not forgotten: ")
    assert confirm(admin_client, "pi\0pe") == []
    assert not LogEntry.objects.exists()
    lease.release()


def test_nothing_is_forgotten_while_the_jobs_cannot_be_imported(
    admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name may be that of a job in the module."""
    has_run("nightly")

    def fail() -> None:
        raise ImportError("no module named shop")

    monkeypatch.setattr(registry, "autodiscover", fail)
    (answer, *_) = confirm(admin_client, "nightly")
    assert answer == "Nothing was forgotten, because a jobs.py cannot be imported: ImportError: no module named shop"
    assert is_known("nightly")


@pytest.mark.django_db(transaction=True)
def test_it_is_forgotten_where_each_request_is_a_transaction(
    admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)
    has_run("nightly")
    assert confirm(admin_client, "nightly") == ["nightly was forgotten."]
    assert not is_known("nightly")
    assert LogEntry.objects.count() == 1
