"""`health/`: 200 or 503, and the verdict as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from django.db import connections
from django.urls import reverse
from django.utils import translation

from django_singlejob import singleton_job
from django_singlejob.process.clock import DBNow
from tests.contract.acts import HOUR
from tests.monitoring.test_facts import job

if TYPE_CHECKING:
    from django.http import HttpResponse
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

TOKEN = "s3cret-e"
SECRETS = ("nightly", "ValueError", "web-1", "Check that", "30 2")


@pytest.fixture(autouse=True)
def production(settings: Settings) -> None:
    settings.DEBUG = False
    settings.ALLOWED_HOSTS = ["shop.example"]
    settings.SINGLEJOB = {"HEALTH_TOKEN": TOKEN}


def asked(client: Client, token: str = "", *, method: str = "get", **headers: str) -> HttpResponse:
    if token:
        headers["Authorization"] = f"Bearer {token}"
    response: HttpResponse = getattr(client, method)("/health/", headers={"Host": "shop.example", **headers})
    return response


def test_it_has_a_name() -> None:
    assert reverse("health") == "/health/"


def test_where_all_is_well_it_is_200(client: Client) -> None:
    job()
    response = asked(client)
    assert response.status_code == 200
    assert response.json() == {"version": 1, "level": "ok", "findings": {}}  # type: ignore[attr-defined]


def test_a_warning_is_200(client: Client) -> None:
    singleton_job("nightly", schedule="@daily")(print)
    response = asked(client)
    assert response.status_code == 200
    assert response.json()["level"] == "warning"  # type: ignore[attr-defined]


@pytest.mark.parametrize("token", ["", "wrong", TOKEN + "!", TOKEN[:-1]])
def test_what_is_critical_is_503_and_without_the_token_nothing_is_given_away(client: Client, token: str) -> None:
    job(consecutive_failures=1)
    job("hourly", next_slot=DBNow() - HOUR)
    response = asked(client, token)
    assert response.status_code == 503
    assert response.json() == {  # type: ignore[attr-defined]
        "version": 1,
        "level": "critical",
        "findings": {"overdue": 1, "failing": 1},
    }
    assert not any(secret in response.content.decode() for secret in SECRETS)
    assert response["Cache-Control"] == "public, max-age=5"
    assert response["Vary"] == "Authorization"


@pytest.mark.parametrize("scheme", ["Bearer ", "bearer  "])
def test_with_the_token_it_is_the_whole_status(client: Client, scheme: str) -> None:
    job(consecutive_failures=1)
    response = asked(client, Authorization=f"{scheme}{TOKEN}")
    assert response.status_code == 503
    found = response.json()  # type: ignore[attr-defined]
    assert [(each["name"], each["state"]) for each in found["jobs"]] == [("nightly", "failing")]
    assert found["findings"][0]["subject"] == "nightly"
    assert response["Cache-Control"] == "private, no-store"


def test_without_the_setting_no_token_opens_it(client: Client, settings: Settings) -> None:
    settings.SINGLEJOB = {}
    job()
    for token in "", "None", TOKEN:
        assert "jobs" not in asked(client, token).json()  # type: ignore[attr-defined]


def test_a_token_in_the_address_or_of_another_scheme_opens_nothing(client: Client) -> None:
    response = client.get(f"/health/?token={TOKEN}&HEALTH_TOKEN={TOKEN}", headers={"Host": "shop.example"})
    assert "jobs" not in response.json()
    assert "jobs" not in asked(client, Authorization=f"Basic {TOKEN}").json()  # type: ignore[attr-defined]


def test_it_is_in_english_whatever_the_reader_speaks(client: Client, settings: Settings) -> None:
    settings.MIDDLEWARE = ["django.middleware.locale.LocaleMiddleware", *settings.MIDDLEWARE]
    job(consecutive_failures=1)
    with translation.override(None):  # the middleware leaves its language behind
        response = asked(client, TOKEN, **{"Accept-Language": "de"})
    assert "The last run" in response.json()["findings"][0]["message"]  # type: ignore[attr-defined]


# --- requests


@pytest.mark.parametrize(("method", "status"), [("head", 200), ("post", 405), ("put", 405), ("delete", 405)])
def test_it_can_only_be_read(client: Client, method: str, status: int) -> None:
    job()
    response = asked(client, method=method)
    assert response.status_code == status
    assert method != "head" or not response.content


def test_it_needs_no_session_and_no_user(client: Client, settings: Settings) -> None:
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, "django.contrib.auth.middleware.LoginRequiredMiddleware"]
    job()
    response = asked(client)
    assert response.status_code == 200
    assert not response.cookies


@pytest.mark.parametrize("token", ["", TOKEN])
def test_it_takes_five_queries(client: Client, django_assert_num_queries: DjangoAssertNumQueries, token: str) -> None:
    for number in range(300):
        job(f"job-{number}", consecutive_failures=number % 2)
    with django_assert_num_queries(5):
        asked(client, token)


# --- when nothing is known


@committed
@pytest.mark.parametrize("token", ["", TOKEN])
def test_if_the_database_is_away_it_is_503(
    client: Client, database_away: Away, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with database_away():
        monkeypatch.setitem(connections["default"].settings_dict, "ATOMIC_REQUESTS", True)
        response = asked(client, token)
    assert response.status_code == 503
    found = response.json()  # type: ignore[attr-defined]
    assert (found["version"], found["level"]) == (1, "unknown")
    assert ("error" in found) == bool(token)
    assert "Traceback" not in response.content.decode()


def test_if_a_setting_is_invalid_it_is_503(client: Client, settings: Settings) -> None:
    settings.SINGLEJOB = {"HEALTH_TOKEN": TOKEN, "LEASE": 60}
    response = asked(client, TOKEN)
    assert response.status_code == 503
    assert response.json() == {"version": 1, "level": "unknown"}  # type: ignore[attr-defined]
