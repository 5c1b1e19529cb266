"""The page of a job answers in one screen."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from django_singlejob import singleton_job
from django_singlejob.models import JobLock, JobNote
from django_singlejob.models.jobs import gates
from django_singlejob.process.clock import DBNow
from tests.admin.pages import Page, page_of, shown
from tests.contract.acts import HOUR, last_run, start_run

if TYPE_CHECKING:
    from django.test import Client

    from tests.admin.people import LogIn

pytest_plugins = ["tests.fixtures", "tests.admin.people"]
pytestmark = [pytest.mark.usefixtures("fresh_process"), pytest.mark.django_db]

ADDRESS = page_of("jobstatus", "nightly")


def test_its_heading_is_the_name_and_nothing_else_is(viewer: Client) -> None:
    start_run()
    page = shown(viewer, ADDRESS)
    main = page.partition('id="content"')[2]
    assert re.findall(r"<h1[^>]*>\s*(.*?)\s*</h1>", main) == ["nightly"]
    assert "View job" not in main


def test_the_output_is_there_as_the_last_heartbeat_told_it(viewer: Client) -> None:
    start_run()
    JobLock.objects.update(progress={"output": "row 1\nrow <2>\n"}, heartbeat_interval=timedelta(seconds=10))
    page = shown(viewer, ADDRESS)
    assert "row 1\nrow &lt;2&gt;" in page
    assert "One comes every 10\xa0s." in Page(page).text or "One comes every 10 s." in Page(page).text


def test_it_says_who_has_the_lock_that_it_shares(viewer: Client) -> None:
    singleton_job("nightly", lock="database")(print)
    assert "free" in Page(shown(viewer, ADDRESS)).text
    start_run("import", name="database")
    page = Page(shown(viewer, ADDRESS)).text
    assert "free" not in page
    assert "import" in page


def test_it_is_for_those_who_may_see_runs(log_in: LogIn) -> None:
    start_run()
    JobLock.objects.update(progress={"output": "the first line\nrow 2\n"}, heartbeat_interval=timedelta(seconds=10))
    assert "the first line" not in shown(log_in("clerk", "view_jobstatus"), ADDRESS)
    assert "the first line" in shown(log_in("other", "view_jobstatus", "view_jobrun"), ADDRESS)


def test_while_it_runs_a_page_that_is_open_gets_what_changes(viewer: Client) -> None:
    start_run()
    JobLock.objects.update(progress={"output": "row 1\n"})
    assert 'id="singlejob-refresh"' in shown(viewer, ADDRESS)
    fresh = viewer.get(ADDRESS, headers={"Singlejob-Refresh": "1"}).content.decode()
    assert "row 1" in fresh
    assert "<html" not in fresh
    assert "data-over" not in fresh
    JobLock.objects.all().delete()
    assert "data-over" in viewer.get(ADDRESS, headers={"Singlejob-Refresh": "1"}).content.decode()
    assert 'id="singlejob-refresh"' not in shown(viewer, ADDRESS)


def test_a_failure_leads_to_its_run_with_the_own_line(viewer: Client) -> None:
    @singleton_job("nightly")
    def fails() -> None:
        raise ValueError("no rows")

    for _ in range(2):
        with pytest.raises(ValueError, match="no rows"):
            fails()
    page = Page(shown(viewer, ADDRESS))
    assert page_of("jobrun", last_run().pk) in page.links
    words = page.text.replace("\n", " ")
    assert "ValueError: no rows" in words
    assert f"{__file__}:" in words
    assert 'raise ValueError("no rows")' in words
    assert re.search(r"Failures in a row\s+2", words)


def test_a_slot_that_was_given_up_has_its_why(viewer: Client) -> None:
    singleton_job("nightly", schedule="0 3 * * *", time_zone="Asia/Tokyo")(print)
    gates().create(name="nightly", schedule="0 3 * * *", time_zone="Asia/Tokyo")
    slot = last = DBNow() - 3 * HOUR
    JobNote.objects.create(job_name="nightly", kind="missed", at=DBNow(), first_slot=slot, last_slot=last, number=2)
    page = Page(shown(viewer, ADDRESS))
    (link,) = [link for link in page.links if "/why/?" in link and "at=" in link]
    assert "%2B09%3A00" in link
    assert viewer.get(link).status_code in (200, 403)
    assert "JST" in page.text
    assert "<time" not in page.text


def test_notes_tell_who_did_what(viewer: Client) -> None:
    gates().create(name="nightly", last_started_at=DBNow())
    JobNote.objects.create(job_name="nightly", kind="paused", at=DBNow(), by="ada", reason="<b>stock</b>")
    page = shown(viewer, ADDRESS)
    words = Page(page).text.replace("\n", " ")
    assert "paused, ada: <b>stock</b>" in words
    assert "<b>stock" not in page


def test_a_stop_that_is_asked_for_is_there(viewer: Client) -> None:
    start_run()
    JobLock.objects.update(stopped_by="ada")
    assert re.search(r"Asked to stop by\s+ada", Page(shown(viewer, ADDRESS)).text)


def test_its_options_are_those_that_are_not_the_default(viewer: Client) -> None:
    singleton_job("nightly", retries=2, max_runtime=timedelta(minutes=3), ping_url="https://a.example/secret")(act)
    words = Page(shown(viewer, ADDRESS)).text
    assert f"{__file__}:" in words
    assert re.search(r"retries\s+2", words)
    assert re.search(r"max_runtime\s+3 minutes", words)
    assert "catch_up" not in words.partition("Its options")[2].partition("Everything")[0]
    assert "secret" not in words


def act() -> None:
    """A job."""
