from __future__ import annotations

from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from django_singlejob.orders import Order, place
from django_singlejob.querysets import gates, locks, runs
from django_singlejob.queue import one_offs
from tests.contract.acts import everything, expire, start_run

if TYPE_CHECKING:
    from django.test import Client

pytest_plugins = "tests.fixtures"
pytestmark = [pytest.mark.usefixtures("fresh_process"), pytest.mark.django_db]

MODELS = ["joblock", "jobstatus", "jobrun", "oneoffjob"]
HOSTILE = "<script>alert('it is ours')</script>"

each_model = pytest.mark.parametrize("model", MODELS)


@pytest.fixture
def admin_client(client: Client, django_user_model: Any) -> Client:
    """A superuser without a password: to hash one takes longer than a test."""
    client.force_login(django_user_model.objects.create(username="admin", is_staff=True, is_superuser=True))
    return client


def list_of(model: str) -> str:
    return reverse(f"admin:django_singlejob_{model}_changelist")


def details_of(model: str) -> str:
    rows: dict[str, Any] = {"joblock": locks(), "jobstatus": gates(), "jobrun": runs(), "oneoffjob": one_offs()}
    return reverse(f"admin:django_singlejob_{model}_change", args=[rows[model].first().pk])


def begin(name: str) -> None:
    """Somebody runs a one-off of that job, and goes on: there is a row of each model."""
    start_run(name, one_off=place(Order(job_name=name), [], {}))


def page(client: Client, url: str) -> str:
    response = client.get(url)
    assert response.status_code == 200, url
    return response.content.decode()


class Fields(HTMLParser):
    """The names of what can be filled in, but for the admin's own search and log-out."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.names: set[str | None] = set()
        self.feed(page)
        self.names -= {"q", "csrfmiddlewaretoken", None}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("input", "select", "textarea"):
            self.names.add(dict(attrs).get("name"))


@each_model
def test_a_superuser_sees_the_list_and_the_details(admin_client: Client, model: str) -> None:
    begin("nightly")
    assert "nightly" in page(admin_client, list_of(model))
    assert "nightly" in page(admin_client, details_of(model))


@each_model
def test_an_empty_list_is_a_list(admin_client: Client, model: str) -> None:
    assert "0 " in page(admin_client, list_of(model))


@each_model
def test_nobody_can_add_change_or_delete(admin_client: Client, model: str) -> None:
    begin("nightly")
    before = [*everything(), *one_offs().values()]
    assert Fields(page(admin_client, list_of(model))).names == set()
    assert Fields(page(admin_client, details_of(model))).names == set()
    add = reverse(f"admin:django_singlejob_{model}_add")
    delete = details_of(model).replace("/change/", "/delete/")
    for url in add, delete, details_of(model):
        assert admin_client.post(url, {"name": "nightly", "post": "yes"}).status_code == 403
    chosen = {"action": "delete_selected", "_selected_action": "nightly"}
    admin_client.post(list_of(model), chosen)
    assert [*everything(), *one_offs().values()] == before


@each_model
def test_hostile_text_is_only_text(admin_client: Client, model: str) -> None:
    begin("nightly")
    locks().update(hostname=HOSTILE, command=HOSTILE)
    runs().update(hostname=HOSTILE, error=HOSTILE, traceback=HOSTILE, status="failed")
    one_offs().update(hostname=HOSTILE, error=HOSTILE, args=[HOSTILE], result=HOSTILE, queue_name=HOSTILE)
    for url in list_of(model), details_of(model):
        shown = page(admin_client, url)
        assert HOSTILE not in shown
        assert ("&lt;script&gt;alert(" in shown) is (model != "jobstatus")


@each_model
def test_a_longer_list_takes_no_more_queries(admin_client: Client, model: str) -> None:
    begin("nightly")
    page(admin_client, list_of(model))
    few = count_queries(admin_client, list_of(model))
    for name in "hourly", "weekly", "yearly":
        begin(name)
    assert count_queries(admin_client, list_of(model)) == few < 10


def count_queries(client: Client, url: str) -> int:
    with CaptureQueriesContext(connection) as queries:
        page(client, url)
    return len(queries)


@pytest.mark.parametrize(
    ("state", "shown"),
    [("", {"nightly", "hourly"}), ("?state=held", {"nightly"}), ("?state=stale", {"hourly"})],
)
def test_locks_are_live_or_stale(admin_client: Client, state: str, shown: set[str]) -> None:
    begin("nightly")
    begin("hourly")
    expire("hourly")
    seen = page(admin_client, f"{list_of('joblock')}{state}")
    assert {name for name in ("nightly", "hourly") if f"/{name}/change/" in seen} == shown
    assert seen.count("icon-yes") == ("nightly" in shown)
    assert seen.count("icon-no") == ("hourly" in shown)


@each_model
def test_they_can_be_searched_for(admin_client: Client, model: str) -> None:
    begin("nightly")
    begin("hourly")
    assert "1 result" in page(admin_client, f"{list_of(model)}?q=night")


def test_a_lock_whose_run_is_not_in_the_history_any_more_is_shown(admin_client: Client) -> None:
    begin("nightly")
    runs().all().delete()
    assert "nightly" in page(admin_client, details_of("joblock"))


def test_who_may_not_see_it_does_not(client: Client, django_user_model: Any) -> None:
    client.force_login(django_user_model.objects.create(username="clerk", is_staff=True))
    assert client.get(list_of("joblock")).status_code == 403
