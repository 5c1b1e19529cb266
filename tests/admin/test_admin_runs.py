"""The admin's list of runs, and the page of a run."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from django_singlejob import singleton_job
from django_singlejob.admin import reading, runs as page
from django_singlejob.clock import DBNow
from django_singlejob.querysets.jobs import gates
from django_singlejob.querysets.one_offs import one_offs
from django_singlejob.querysets.runs import runs
from tests.admin.pages import Page, act, begin, list_of, page_of, shown
from tests.contract.acts import MINUTE, expire, last_run, start_run, take, ticked

if TYPE_CHECKING:
    from django.test import Client
    from pytest_django import Settings

    from django_singlejob.models import JobRun

pytest_plugins = ["tests.fixtures", "tests.admin.people"]
pytestmark = [pytest.mark.usefixtures("fresh_process"), pytest.mark.django_db]

LONG_AGO = datetime(2024, 12, 31, 23, 30, tzinfo=UTC)


def ran(job_name: str = "nightly", at: datetime = LONG_AGO, **facts: Any) -> JobRun:
    """Create a run that has ended."""
    gates().remember(job_name)
    gates().filter(name=job_name).update(last_started_at=at)
    usual = {"fence": 1, "token": uuid4(), "trigger": "call", "hostname": "web-1", "pid": 1, "status": "successful"}
    return runs().create(job_name=job_name, started_at=at, finished_at=at + MINUTE, **usual | facts)


def listed(client: Client, query: str = "") -> list[int]:
    """The runs in the list, from top to bottom."""
    return [int(key) for key in re.findall(r"jobrun/(\d+)/change/", shown(client, list_of("jobrun", query)))]


# --- the list


def test_the_newest_come_first(admin_client: Client) -> None:
    old, new, older = ran(), ran(at=LONG_AGO + MINUTE), ran(at=LONG_AGO - MINUTE)
    assert listed(admin_client) == [new.pk, old.pk, older.pk]
    assert listed(admin_client, "?o=2") == [older.pk, old.pk, new.pk]


@pytest.mark.slow
def test_they_are_filtered(admin_client: Client) -> None:
    usual = ran()
    failed = ran(status="failed", error="Oh no\nand more")
    elsewhere = ran(hostname="web-2", trigger="schedule")
    other = ran("shop.report:daily_1")
    found = {
        "?status__exact=failed": [failed],
        "?trigger__exact=schedule": [elsewhere],
        "?server=web-2": [elsewhere],
        "?server=web-3": [],
        "?job_name=shop.report%3Adaily_1": [other],
        "?job_name=shop": [],
        "?job_name=nightly&server=web-1": [failed, usual],
        "?server=&job_name=": [other, elsewhere, failed, usual],
    }
    assert {query: sorted(listed(admin_client, query)) for query in found} == {
        query: sorted(run.pk for run in expected) for query, expected in found.items()
    }
    assert "Oh no" in shown(admin_client, list_of("jobrun"))
    assert "and more" not in shown(admin_client, list_of("jobrun"))


def test_they_are_searched_for_by_a_part_of_the_jobs_name(admin_client: Client) -> None:
    ran()
    daily = ran("shop.report:daily_1")
    assert listed(admin_client, "?q=REPORT") == [daily.pk]
    assert listed(admin_client, "?q=never") == []


def test_a_server_is_found_by_its_name_as_well(admin_client: Client) -> None:
    elsewhere = ran(hostname="web-2")
    of_that_name = ran("mirror_web-2")
    ran()
    assert {*listed(admin_client, "?q=web-2")} == {elsewhere.pk, of_that_name.pk}


def test_a_search_that_finds_too_many_jobs_is_one_of_the_history(
    admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "MOST_FOUND", 1)
    found = [ran("report_1"), ran("report_2", at=LONG_AGO - MINUTE)]
    ran("other")
    assert listed(admin_client, "?q=report") == [run.pk for run in found]


def test_the_filters_offer_what_ran_lately(admin_client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MOST_LINKS", 2)
    monkeypatch.setattr(page, "LOOKED_AT", 2)
    for number in range(3):
        ran(f"job_{number}", at=LONG_AGO + number * MINUTE, hostname=f"web-{number}")
    gates().remember("never")
    shows = shown(admin_client, list_of("jobrun"))
    assert shows.count("There are more. Search for the others.") == 1
    links = Page(shows).links
    assert [link for link in links if "job_name=" in link] == ["?job_name=job_1", "?job_name=job_2"]
    assert [link for link in links if "server=" in link] == ["?server=web-1", "?server=web-2"]
    links = Page(shown(admin_client, list_of("jobrun", "?job_name=job_0&server=web-0"))).links
    assert "?job_name=job_1&server=web-0" in links
    assert "?job_name=job_0&server=web-1" in links


def test_of_a_long_history_only_the_first_pages_are_counted(
    admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("django_singlejob.admin.reading.MOST_COUNTED", 3)
    note = "There are more rows. Search for them, or filter the list."
    ran()
    ran()
    assert note not in shown(admin_client, list_of("jobrun"))
    ran()
    ran()
    assert note in shown(admin_client, list_of("jobrun"))
    assert "3 runs" in shown(admin_client, list_of("jobrun"))


# --- the dates


def hierarchy(client: Client, query: str = "") -> list[str]:
    """The links of the date hierarchy to years, months or days, without the one that leads back."""
    found = re.search(r"(?s)toplinks(.*?)</(?:nav|ul)>", shown(client, list_of("jobrun", query)))
    links = re.findall(r'<a href="([^"]*)">', found[1]) if found else []
    return [link.replace("&amp;", "&") for link in links if "date-back" not in link]


@pytest.mark.slow
def test_the_dates_are_those_of_the_time_zone(admin_client: Client, settings: Settings) -> None:
    settings.TIME_ZONE = "Asia/Tokyo"
    first, second, third = ran(), ran(at=LONG_AGO + timedelta(days=40)), ran(at=LONG_AGO + timedelta(days=400))
    assert hierarchy(admin_client) == ["?started_at__year=2025", "?started_at__year=2026"]
    assert listed(admin_client, "?started_at__year=2024") == []
    assert listed(admin_client, "?started_at__year=2025") == [second.pk, first.pk]
    months = hierarchy(admin_client, "?started_at__year=2025")
    assert months == ["?started_at__month=1&started_at__year=2025", "?started_at__month=2&started_at__year=2025"]
    assert listed(admin_client, months[0]) == [first.pk]
    days = hierarchy(admin_client, months[0])
    assert days == ["?started_at__day=1&started_at__month=1&started_at__year=2025"]
    assert listed(admin_client, days[0]) == [first.pk]
    assert hierarchy(admin_client, days[0]) == []
    assert listed(admin_client, "?started_at__year=2026") == [third.pk]
    assert "2025-01-01 08:30 JST" in shown(admin_client, page_of("jobrun", first.pk))


def test_of_one_year_the_months_are_offered_and_of_one_month_the_days(admin_client: Client) -> None:
    ran(at=LONG_AGO)
    ran(at=LONG_AGO - timedelta(days=2))
    expected = [f"?started_at__day={day}&started_at__month=12&started_at__year=2024" for day in (29, 30, 31)]
    assert hierarchy(admin_client) == expected
    ran(at=LONG_AGO - timedelta(days=32))
    expected = [f"?started_at__month={month}&started_at__year=2024" for month in (11, 12)]
    assert hierarchy(admin_client) == expected


def test_where_nothing_ran_there_are_no_dates(admin_client: Client) -> None:
    assert hierarchy(admin_client) == []
    assert hierarchy(admin_client, "?started_at__year=2024") == []


def test_a_day_on_which_the_clocks_change_is_one_day(admin_client: Client, settings: Settings) -> None:
    settings.TIME_ZONE = "Europe/Rome"
    for hour in 21, 22, 23, 24 + 21, 24 + 22, 24 + 23:
        ran(at=datetime(2025, 10, 25, tzinfo=UTC) + timedelta(hours=hour))
    days = hierarchy(admin_client)
    assert [re.findall("day=([0-9]+)", day) for day in days] == [["25"], ["26"], ["27"]]
    assert [len(listed(admin_client, day)) for day in days] == [1, 4, 1]


# --- the page of a run


def test_one_that_goes_on_leads_to_its_lock(admin_client: Client) -> None:
    start_run("nightly", name="shop")
    runs().update(started_at=DBNow() - 2 * MINUTE)
    links = Page(shown(admin_client, page_of("jobrun"))).links
    assert {page_of("jobstatus", "nightly"), page_of("joblock", "shop")} <= {*links}
    assert re.search(r"2\xa0min\xa0\d+\xa0s", shown(admin_client, page_of("jobrun")))


def test_one_that_has_ended_leads_to_no_lock(admin_client: Client) -> None:
    start_run("nightly", name="shop")
    expire("shop")
    take("shop")
    assert last_run().status == "abandoned"
    assert page_of("joblock", "shop") not in Page(shown(admin_client, page_of("jobrun"))).links


@pytest.mark.slow
def test_one_of_a_one_off_leads_to_it_and_back(admin_client: Client) -> None:
    singleton_job("nightly")(lambda: None).enqueue()
    ticked()
    row, run = one_offs().get(), last_run()
    assert page_of("oneoffjob", row.pk) in Page(shown(admin_client, page_of("jobrun", run.pk))).links
    assert page_of("jobrun", run.pk) in Page(shown(admin_client, page_of("oneoffjob", row.pk))).links


def test_one_by_hand_shows_its_user_and_leads_to_its_one_off(admin_client: Client) -> None:
    singleton_job("nightly")(lambda: None)
    act(admin_client, "jobstatus", "run_now", "nightly")
    ticked()
    for url in page_of("jobrun"), list_of("jobrun"):
        assert 'by hand<span class="singlejob-note">admin</span>' in shown(admin_client, url)
    assert page_of("oneoffjob") in Page(shown(admin_client, page_of("jobrun"))).links


def test_so_does_one_that_goes_on(admin_client: Client) -> None:
    begin()
    row, run = one_offs().get(), last_run()
    runs().update(trigger="one_off")
    assert page_of("oneoffjob", row.pk) in Page(shown(admin_client, page_of("jobrun", run.pk))).links
    assert page_of("jobrun", run.pk) in Page(shown(admin_client, page_of("oneoffjob", row.pk))).links
    assert page_of("joblock", "nightly") in Page(shown(admin_client, page_of("jobrun", run.pk))).links


def test_of_an_earlier_attempt_it_leads_nowhere(admin_client: Client) -> None:
    begin()
    runs().update(trigger="one_off")
    one_offs().update(token=uuid4())
    assert page_of("oneoffjob") not in Page(shown(admin_client, page_of("jobrun"))).links


def test_the_whole_error_is_shown(admin_client: Client) -> None:
    failed = ran(status="failed", error="ValueError: <b>\nline two", traceback="Traceback\n  line <one>\nline two")
    shown_page = shown(admin_client, page_of("jobrun", failed.pk))
    assert '<pre class="singlejob-text" tabindex="0">Traceback\n  line &lt;one&gt;\nline two</pre>' in shown_page
    abandoned = ran(status="abandoned", error="It died.\nAlas")
    shown_page = shown(admin_client, page_of("jobrun", abandoned.pk))
    assert '<pre class="singlejob-text" tabindex="0">It died.\nAlas</pre>' in shown_page
