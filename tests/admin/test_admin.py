"""What is true of all pages of the admin."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import urlencode

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import translation

from django_singlejob import singleton_job
from django_singlejob.models.jobs import gates
from django_singlejob.models.locks import locks
from django_singlejob.models.one_offs import one_offs
from django_singlejob.models.runs import runs
from django_singlejob.process.clock import DBNow
from tests.admin.pages import (
    MODELS,
    Page,
    act,
    all_rows,
    begin,
    clear_page,
    each_model,
    list_of,
    page_of,
    shown,
)
from tests.contract.acts import HOUR, expire

if TYPE_CHECKING:
    from django.test import Client

pytest_plugins = ["tests.fixtures", "tests.admin.people"]
pytestmark = [pytest.mark.usefixtures("fresh_process"), pytest.mark.django_db]

HOSTILE = "<script>alert('it is ours')</script>\"><img src=x onerror=alert(1)>"


def every_page() -> list[str]:
    """The URLs of all pages, for the rows that exist."""
    pages = [page for model in MODELS for page in (list_of(model), page_of(model))]
    pages += [page_of("jobstatus", name) for name in gates().values_list("name", flat=True)]
    histories = [page_of(model).replace("/change/", "/history/") for model in MODELS]
    forms = [reverse("admin:django_singlejob_oneoffjob_add"), clear_page(*locks().values_list("name", flat=True))]
    overview = [reverse(f"admin:django_singlejob_overview_{page}") for page in ("changelist", "ledger", "winners")]
    days = [f"{overview[1]}?{urlencode({'job': name})}" for name in gates().values_list("name", flat=True)]
    why = reverse("admin:django_singlejob_overview_why")
    reasons = [f"{why}?{urlencode({'job': name})}" for name in gates().values_list("name", flat=True)]
    return [*pages, *histories, *forms, *overview, *days, *reasons, reverse("admin:index")]


def live_a_little() -> None:
    """Create a row in (nearly) each state."""
    singleton_job("nightly", schedule="0 1 * * *")(lambda: None)
    singleton_job("hourly", schedule=HOUR)(lambda: None)
    for name in "nightly", "weekly", "yearly":
        begin(name)
    runs().filter(job_name="weekly").update(status="failed", finished_at=DBNow(), error="Oh", traceback="Oh\nno")
    locks().filter(name="weekly")._raw_delete("default")
    one_offs().filter(job_name="weekly").update(status="failed", finished_at=DBNow(), error="Oh", traceback="Oh\nno")
    expire("yearly")
    gates().update(mean_duration=HOUR, run_count=9, misfire_count=2, schedule="0 1 * * *", next_slot=DBNow() - HOUR)


@pytest.mark.slow
@each_model
def test_the_list_and_the_details_are_shown(admin_client: Client, model: str) -> None:
    begin("nightly")
    assert "nightly" in shown(admin_client, list_of(model))
    assert "nightly" in shown(admin_client, page_of(model))


@each_model
def test_an_empty_list_is_a_list(admin_client: Client, model: str) -> None:
    page = shown(admin_client, list_of(model))
    assert "0 " in page
    assert 'id="result_list"' not in page


@each_model
def test_a_page_of_what_is_not_there_leads_home(admin_client: Client, model: str) -> None:
    response = admin_client.get(page_of(model, "1"))
    assert (response.status_code, response.headers["Location"]) == (302, reverse("admin:index"))


@each_model
def test_nothing_on_a_page_can_be_filled_in(admin_client: Client, model: str) -> None:
    begin("nightly")
    assert set(Page(shown(admin_client, page_of(model))).fields) <= {"action", "_selected_action", "back"}


@pytest.mark.slow
def test_nothing_is_written_when_somebody_only_looks(admin_client: Client) -> None:
    live_a_little()
    before = all_rows()
    for url in every_page():
        with CaptureQueriesContext(connection) as queries:
            shown(admin_client, url)
        # The timeline is asked in a savepoint, because the test is in a transaction.
        assert {query["sql"].split()[0] for query in queries} - {"SAVEPOINT", "RELEASE"} == {"SELECT"}, url
    assert all_rows() == before


# --- hostile text from the database


@pytest.mark.slow
def test_hostile_text_is_only_text(admin_client: Client) -> None:
    begin("nightly")
    names = {"job_name": HOSTILE, "hostname": HOSTILE}
    gates().update(name=HOSTILE, schedule=HOSTILE, time_zone=HOSTILE[:64])
    locks().update(name=HOSTILE, command=HOSTILE, **names)
    runs().update(**names)
    one_offs().update(args=[HOSTILE], kwargs={HOSTILE: HOSTILE}, queue_name=HOSTILE, worker_ids=HOSTILE, **names)
    assert_harmless(admin_client)
    ends = {"error": HOSTILE, "traceback": HOSTILE, "finished_at": DBNow()}
    runs().update(status="failed", **ends)
    one_offs().update(status="failed", result=HOSTILE, error_class=HOSTILE, **ends)
    expire(HOSTILE)
    assert_harmless(admin_client)


def assert_harmless(client: Client) -> None:
    for url in every_page():
        page = shown(client, url)
        assert "<script>alert(" not in page, url
        assert "<img src=x" not in page, url
        assert Page(page).inline == [], url
        if url != reverse("admin:index") and not url.endswith("/add/"):
            assert "&lt;script&gt;alert(" in page, url


@pytest.mark.slow
@each_model
def test_nor_does_a_strange_address_do_harm(admin_client: Client, model: str) -> None:
    begin("nightly")
    for name in "q", "p", "state", "server", "job_name", "status__exact", "o", "started_at__year":
        response = admin_client.get(list_of(model), {name: HOSTILE}, follow=True)
        assert response.status_code in (200, 400)
        page = response.content.decode()
        assert "<script>alert(" not in page
        assert Page(page).inline == []


@pytest.mark.slow
def test_no_page_needs_inline_scripts_or_styles(admin_client: Client) -> None:
    live_a_little()
    for url in every_page():
        assert Page(shown(admin_client, url)).inline == [], url


# --- every word can be translated


@pytest.fixture
def marked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A language in which each text has marks around it."""
    real = translation._trans  # type: ignore[attr-defined]
    for name in "gettext", "pgettext", "ngettext", "npgettext":
        translate = getattr(real, name)
        monkeypatch.setattr(real, name, lambda *texts, translate=translate: f"⟦{translate(*texts)}⟧")


def untranslated(page: str) -> set[str]:
    """The words outside the marks."""
    text = Page(page).text
    text = re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}", "", text)
    while (inner := re.sub("⟦[^⟦⟧]*⟧", " ", text)) != text:
        text = inner
    return set(re.findall(r"[^\W\d_]{2,}", text))


# The names of jobs, servers and users, what they wrote, and where a job is defined.
DATA = {"nightly", "hourly", "weekly", "yearly", "admin", "Cleans", "up", "Oh", "no", "UTC", "pid", "default"}
DATA |= {*re.findall("[a-zA-Z]+", f"{__file__}: {__name__}.live_a_little.<locals>.<lambda>")}
# Django has these in English only, and so are schedules.
ENGLISH = {"Search", "True", "False", "Every", "hour"}


@pytest.mark.slow
@pytest.mark.usefixtures("marked")
def test_every_word_can_be_translated(admin_client: Client) -> None:
    live_a_little()
    locks().update(hostname="", command="")
    runs().update(hostname="")
    one_offs().update(hostname="", worker_ids="")
    found = {url: untranslated(shown(admin_client, url)) - DATA - ENGLISH for url in every_page()}
    assert [f"{url}: {words}" for url, words in found.items() if words] == []


@pytest.mark.slow
@pytest.mark.usefixtures("marked")
def test_every_message_can_be_translated(admin_client: Client) -> None:
    live_a_little()
    keys = list(one_offs().values_list("pk", flat=True))
    answers = [
        *act(admin_client, "jobstatus", "run_now", "nightly", "weekly"),
        *(
            text
            for action in ("pause", "pause", "resume", "resume", "hide")
            for text in act(admin_client, "jobstatus", action, "nightly")
        ),
        *(
            text
            for action in ("hide", "hide", "show", "show")
            for text in act(admin_client, "jobstatus", action, "weekly")
        ),
        *(text for action in ("cancel", "retry", "cancel") for text in act(admin_client, "oneoffjob", action, *keys)),
    ]
    assert len(answers) == 16
    assert [text for text in answers if not text.startswith("⟦")] == []


@pytest.mark.parametrize("model", ["joblock", "jobstatus", "oneoffjob"])
def test_the_admins_log_is_not_called_like_the_history_of_the_runs(viewer: Client, model: str) -> None:
    singleton_job("nightly")(lambda: None)
    begin("nightly")
    log = page_of(model).replace("/change/", "/history/")
    page = shown(viewer, page_of(model))
    assert log in Page(page).links
    assert "Admin log" in page
    assert "History" not in page
    assert "<h1>Admin log: nightly" in shown(viewer, log)
    assert "istory" not in Page(shown(viewer, log)).text.partition("This object")[0]


def test_a_run_has_no_log(viewer: Client) -> None:
    begin("nightly")
    assert "historylink" not in shown(viewer, page_of("jobrun"))
