"""Hiding jobs in the admin, and showing them again: the list, the page of a job, what is refused and what is logged."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from django.contrib.admin.models import LogEntry
from django.db import connections
from django.urls import reverse

from django_singlejob import job_lock, singleton_job
from django_singlejob.jobs import registry
from django_singlejob.models.jobs import gates
from tests.admin.pages import Page, act, list_of, page_of, shown
from tests.contract.acts import start_run
from tests.waiting import PATIENCE

if TYPE_CHECKING:
    from django.test import Client

    from tests.fixtures import Elsewhere

pytest_plugins = ["tests.fixtures", "tests.admin.people"]
pytestmark = [pytest.mark.usefixtures("fresh_process"), pytest.mark.django_db]

HIDDEN = "The job {} is hidden. It is shown again when a server requests it, and while its lock is held."


def has_run(*names: str) -> None:
    for name in names:
        start_run(name).release()


def hidden() -> set[str]:
    return set(gates().filter(hidden=True).values_list("name", flat=True))


def is_listed(client: Client, name: str, query: str = "") -> bool:
    return page_of("jobstatus", name) in "".join(Page(shown(client, list_of("jobstatus", query))).links)


def test_a_job_is_hidden_from_its_page_and_shown_again(admin_client: Client) -> None:
    has_run("mistyped")
    for action, done, logged in (
        ("hide", HIDDEN.format("mistyped"), "Hidden."),
        (
            "show",
            "The job mistyped is shown again.",
            "Shown again.",
        ),
    ):
        assert f'value="{action}"' in shown(admin_client, page_of("jobstatus", "mistyped"))
        assert act(admin_client, "jobstatus", action, "mistyped", back="mistyped") == [done]
        assert hidden() == ({"mistyped"} if action == "hide" else set())
        assert f'value="{action}"' not in shown(admin_client, page_of("jobstatus", "mistyped"))
        entry = LogEntry.objects.latest("pk")
        assert (entry.user.get_username(), entry.object_id, entry.is_change()) == ("admin", "mistyped", True)
        assert entry.get_change_message() == logged


def test_several_are_chosen_in_the_list(admin_client: Client) -> None:
    has_run("mistyped", "removed", "kept")
    answers = act(admin_client, "jobstatus", "hide", "mistyped", "removed")
    assert answers == [HIDDEN.format("mistyped"), HIDDEN.format("removed")]
    assert hidden() == {"mistyped", "removed"}
    assert LogEntry.objects.count() == 2


def test_the_list_shows_them_only_where_it_is_asked_to(admin_client: Client) -> None:
    has_run("mistyped", "kept")
    gates().filter(name="mistyped").update(hidden=True, consecutive_failures=1)
    for query in "", "?state=failing", "?state=attention", "?q=mistyped":
        assert not is_listed(admin_client, "mistyped", query)
    assert is_listed(admin_client, "kept")
    assert is_listed(admin_client, "mistyped", "?state=hidden")
    assert is_listed(admin_client, "mistyped", "?state=hidden&q=mis")
    assert not is_listed(admin_client, "kept", "?state=hidden")


def test_the_overview_and_the_ledger_leave_them_out(admin_client: Client) -> None:
    has_run("mistyped")
    gates().update(consecutive_failures=1, hidden=True, schedule="@hourly", time_zone="UTC")
    for page in "overview_changelist", "overview_ledger":
        assert (
            page_of("jobstatus", "mistyped")
            not in Page(shown(admin_client, reverse(f"admin:django_singlejob_{page}"))).links
        )


def test_the_history_keeps_its_runs_and_no_longer_offers_its_name(admin_client: Client) -> None:
    has_run("mistyped", "kept", "also-kept")
    gates().hide("mistyped")
    page = shown(admin_client, list_of("jobrun"))
    assert "?job_name=kept" in page
    assert "?job_name=mistyped" not in page
    assert page.count("field-of_job") == 3


def test_a_job_of_the_code_is_not_hidden(admin_client: Client) -> None:
    singleton_job("nightly")(lambda: None)
    has_run("nightly")
    assert 'value="hide"' not in shown(admin_client, page_of("jobstatus", "nightly"))
    (answer,) = act(admin_client, "jobstatus", "hide", "nightly")
    assert answer == "The job nightly was not hidden, because this release of the code has it. Pause it instead."
    assert hidden() == set()
    assert not LogEntry.objects.exists()


def test_one_that_the_code_has_again_is_shown(admin_client: Client) -> None:
    has_run("nightly")
    gates().hide("nightly")
    singleton_job("nightly")(lambda: None)
    assert is_listed(admin_client, "nightly")
    assert not is_listed(admin_client, "nightly", "?state=hidden")


def test_nothing_is_changed_twice(admin_client: Client) -> None:
    has_run("mistyped")
    assert act(admin_client, "jobstatus", "show", "mistyped") == ["The job mistyped was not hidden."]
    gates().hide("mistyped")
    assert act(admin_client, "jobstatus", "hide", "mistyped") == ["The job mistyped was already hidden."]
    assert not LogEntry.objects.exists()


def test_a_lock_of_no_job_is_in_no_list_anyway(admin_client: Client) -> None:
    with job_lock("pipe"):
        pass
    assert act(admin_client, "jobstatus", "hide", "pipe", "nobody") == []
    assert hidden() == set()


def test_there_is_no_button_without_the_permission(viewer: Client) -> None:
    has_run("mistyped")
    assert 'value="hide"' not in shown(viewer, page_of("jobstatus", "mistyped"))


def test_it_is_hidden_while_the_jobs_cannot_be_imported(admin_client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes back if it is a job in there."""
    has_run("nightly")

    with monkeypatch.context() as patch:
        patch.setitem(registry.failures, "shop.jobs", ImportError("no module named shop"))
        assert HIDDEN.format("nightly") in act(admin_client, "jobstatus", "hide", "nightly")
    assert not is_listed(admin_client, "nightly")
    singleton_job("nightly")(lambda: None)
    assert is_listed(admin_client, "nightly")


@pytest.mark.on_database("postgresql", "mysql")
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("action", ["hide", "show"])
def test_nobody_waits_for_a_fenced_transaction(admin_client: Client, elsewhere: Elsewhere, action: str) -> None:
    lease = start_run("mistyped")
    before = action == "show"
    gates().update(hidden=before)
    with lease.atomic():
        (answer,) = elsewhere(act, admin_client, "jobstatus", action, "mistyped").result(PATIENCE)
    assert "because another transaction is using it. Try again." in answer
    assert gates().get().hidden is before


@pytest.mark.django_db(transaction=True)
def test_it_is_hidden_where_each_request_is_a_transaction(
    admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)
    has_run("mistyped")
    assert act(admin_client, "jobstatus", "hide", "mistyped") == [HIDDEN.format("mistyped")]
    assert hidden() == {"mistyped"}
    assert LogEntry.objects.count() == 1
