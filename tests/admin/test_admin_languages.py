"""The pages, for users who read German or Spanish."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from django.urls import reverse
from django.utils import translation

from django_singlejob import singleton_job
from django_singlejob.admin.cells import duration, grouped
from tests.admin.pages import Page, act, begin, list_of, page_of, shown
from tests.contract.acts import expire, ticked

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django.test import Client

pytest_plugins = ["tests.fixtures", "tests.admin.people"]
pytestmark = [pytest.mark.usefixtures("fresh_process"), pytest.mark.django_db]

WORDS = {
    "de": ["0 3 * * * (UTC)", "Nächster Termin", "in ", "Zustand"],
    "es": ["0 3 * * * (UTC)", "Próximo turno", "en ", "Estado"],
}


@pytest.fixture(params=WORDS)
def language(request: pytest.FixtureRequest) -> Iterator[str]:
    with translation.override(request.param):
        yield request.param


def test_a_cron_expression_is_shown_as_it_is(admin_client: Client, language: str) -> None:
    singleton_job("nightly", schedule="0 3 * * *", time_zone="UTC")(lambda: None)
    page = Page(shown(admin_client, list_of("jobstatus"))).text
    assert WORDS[language][0] in page
    assert WORDS[language][1].lower() in page.lower()


def test_an_interval_is_too(admin_client: Client, language: str) -> None:
    singleton_job("often", schedule=timedelta(minutes=5))(lambda: None)
    words = {"de": "Alle 5 Minuten", "es": "Cada 5 minutos"}
    assert words[language] in Page(shown(admin_client, list_of("jobstatus"))).text


def test_a_finding_is_a_whole_sentence(admin_client: Client, language: str) -> None:
    begin()
    expire("nightly")
    words = {"de": "lang keinen Heartbeat gesendet", "es": "que no ha enviado ningún latido desde hace"}
    assert words[language] in Page(shown(admin_client, reverse("admin:django_singlejob_overview_changelist"))).text


def test_a_message_is_too(admin_client: Client, language: str) -> None:
    singleton_job("nightly")(lambda: None)
    ticked()
    words = {"de": "Der nächste freie Worker führt den Job nightly aus.", "es": "El próximo worker libre ejecutará"}
    assert words[language] in act(admin_client, "jobstatus", "run_now", "nightly")[0]


def test_every_page_is_shown(admin_client: Client, language: str) -> None:
    begin()
    for model in "joblock", "jobstatus", "jobrun", "oneoffjob":
        shown(admin_client, list_of(model))
        shown(admin_client, page_of(model))


def test_a_duration_has_the_decimal_separator_of_the_language(language: str) -> None:
    assert duration(timedelta(milliseconds=1234)) == "1,2\xa0s"


def test_a_large_count_is_grouped_as_in_the_language() -> None:
    """In German, "5,000" is five."""
    with translation.override("en"):
        assert grouped(5000) == "5,000"
    with translation.override("de"):
        assert grouped(5000) == "5.000"
