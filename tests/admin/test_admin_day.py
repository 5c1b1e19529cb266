from __future__ import annotations

import re
from collections import Counter
from datetime import UTC, datetime, timedelta
from html import unescape
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from django_singlejob.admin import day
from django_singlejob.admin.slots import Day, SlotState, Span, begin_of, quarter_of
from django_singlejob.models.jobs import gates
from django_singlejob.monitoring.health import Health, State
from django_singlejob.process.clock import utc_now
from tests.admin.pages import Page, page_of, shown
from tests.admin.test_admin_slots import NOW, known, ran
from tests.contract.acts import HOUR

if TYPE_CHECKING:
    from django.test import Client
    from pytest_django import Settings

pytest_plugins = ["tests.fixtures", "tests.admin.people"]
pytestmark = [pytest.mark.usefixtures("fresh_process"), pytest.mark.django_db]

URL = "/admin/django_singlejob/overview/day/"
HOSTILE = "<script>alert('it is ours')</script>\"'&"
BAD, NOT_RUN, RUNNING, SUCCESSFUL, _SKIPPED, TO_COME = SlotState


def said(client: Client, url: str = URL) -> str:
    main = shown(client, url).partition("<main")[2]
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", f"<{main}")).split())


# --- all jobs


def test_each_job_has_a_row_that_says_what_is_in_it(viewer: Client) -> None:
    top = NOW.replace(minute=0)
    known(next_slot=top + 2 * HOUR)
    for ago, status in (4, "successful"), (3, "failed"):
        ran(top - ago * HOUR, status=status)
    page = shown(viewer, URL)
    (label,) = re.findall(r'role="img" aria-label="([^"]*)"', page)
    assert re.fullmatch(r"nightly: 1 bad, [34] not run, 1 successful, 2[234] to come", label)
    assert f'href="{day.page_of("nightly")}"' in page
    colours = re.findall(r'class="singlejob-(\w+)"><title>([^<]*)</title>', page)
    assert [(colour, text.partition(": ")[2]) for colour, text in colours][:3] == [
        ("good", "1 successful"),
        ("bad", "1 bad"),
        ("warn", "1 not run"),
    ]
    assert colours[-1][1].endswith("1 to come")


def test_the_legend_has_the_colour_of_each_state(viewer: Client) -> None:
    legend = re.findall(r'singlejob-badge singlejob-(\w+)">([^<]*)<', shown(viewer, URL))
    assert legend[:2] == [("quiet", "to come"), ("quiet", "skipped")], "One is after now, and the other before it."
    assert legend[2:] == [("good", "successful"), ("busy", "running"), ("warn", "not run"), ("bad", "bad")]


def test_the_worst_jobs_come_first_and_the_others_on_other_pages(
    viewer: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(day, "PER_PAGE", 2)
    for name in ("a", "b", "c"):
        known(name, next_slot=utc_now() + HOUR)
    gates().filter(name="c").update(consecutive_failures=1)
    names = [re.findall(r'aria-label="(\w): ', shown(viewer, f"{URL}?page={number}")) for number in ("1", "2", "x")]
    assert names == [["c", "a"], ["b"], ["c", "a"]]
    assert "Page 1 of 2" in said(viewer)
    assert "failing" in said(viewer)
    assert 'href="?page=2"' in shown(viewer, URL)


def test_without_jobs_it_says_so(viewer: Client) -> None:
    assert "There are no jobs yet." in said(viewer)


def test_the_overview_and_the_page_of_a_job_lead_there(viewer: Client) -> None:
    known(next_slot=utc_now() + HOUR)
    assert f'href="{URL}"' in shown(viewer, reverse("admin:django_singlejob_overview_changelist"))
    assert f'href="{URL}?job=nightly"' in shown(viewer, page_of("jobstatus", "nightly"))


def test_who_may_not_see_the_overview_is_not_led_there(log_in: Any) -> None:
    known(next_slot=utc_now() + HOUR)
    clerk = log_in("clerk", "view_jobstatus")
    assert URL not in shown(clerk, page_of("jobstatus", "nightly"))
    assert clerk.get(URL).status_code == 403


# --- one job


def test_a_job_has_a_table_of_its_hours(viewer: Client) -> None:
    top = NOW.replace(minute=0)
    known(next_slot=top + 2 * HOUR)
    ran(top - 2 * HOUR)
    text = said(viewer, f"{URL}?job=nightly")
    hour = f"{top - 2 * HOUR:%H}"
    assert re.search(rf"\b{hour}:00 UTC {hour}:00-{hour}:15: 1 successful 1 successful", text)
    assert "The next 24 hours" in text


@pytest.mark.parametrize("name", ["unknown", "", "a\0b", HOSTILE, "x" * 1000])
def test_a_job_that_is_not_there_has_none(viewer: Client, name: str) -> None:
    known(next_slot=utc_now() + HOUR)
    assert viewer.get(URL, {"job": name}).status_code == 404


@pytest.mark.on_database("sqlite", "mysql")
def test_a_job_is_called_as_its_row_calls_it(viewer: Client) -> None:
    """MySQL takes capital letters for small ones."""
    known("nightly")
    response = viewer.get(URL, {"job": "NIGHTLY"})
    assert response.status_code == 404 or "NIGHTLY" not in Page(response.content.decode()).text


def test_a_paused_job_has_nothing_to_come(viewer: Client) -> None:
    known(next_slot=utc_now() + HOUR, paused=True)
    text = said(viewer, f"{URL}?job=nightly")
    assert "The job is paused, so nothing is to come." in text
    assert "1 to come" not in text


def test_of_very_many_runs_it_says_since_when(viewer: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(day, "MOST_OF_ONE", 1)
    monkeypatch.setattr(day, "MOST_OF_MANY", 1)
    known(next_slot=utc_now() + HOUR)
    for ago in range(1, 4):
        ran(NOW.replace(minute=0) - ago * HOUR)
    for url in URL, f"{URL}?job=nightly":
        assert "There are very many runs. Only those since" in said(viewer, url)


@pytest.mark.parametrize("url", [URL, f"{URL}?job=nightly"])
def test_both_pages_take_as_many_queries_however_much_there_is(viewer: Client, url: str) -> None:
    def queries() -> int:
        with CaptureQueriesContext(connection) as captured:
            shown(viewer, url)
        return len(captured)

    known(next_slot=utc_now() + HOUR)
    ran(NOW - HOUR)
    few = queries()
    for number in range(30):
        known(f"job-{number}", next_slot=utc_now() + HOUR)
        ran(NOW - HOUR, f"job-{number}", status="failed")
        ran(NOW - number * HOUR / 2)
    assert queries() == few <= 10


# --- the layout


def laid(zone: str, now: datetime, settings: Settings) -> list[day.Hour]:
    settings.TIME_ZONE = zone
    span = Span(now=now)
    quarters = {quarter: Counter([TO_COME]) for quarter in range(span.first, span.last + 1)}
    health = Health(name="nightly", state=State.IDLE, status=None, lock=None)
    return day._hours(Day(health=health, quarters=quarters, since=None), span)


@pytest.mark.parametrize(
    ("now", "labels"),
    [
        ((2026, 3, 29, 12), ["Sun 29, 00:00 CET", "01:00 CET", "03:00 CEST", "04:00 CEST"]),
        ((2026, 10, 25, 12), ["Sun 25, 00:00 CEST", "01:00 CEST", "02:00 CEST", "02:00 CET", "03:00 CET"]),
    ],
)
def test_when_clocks_change_an_hour_is_missing_or_comes_twice(
    now: tuple[int, ...], labels: list[str], settings: Settings
) -> None:
    hours = laid("Europe/Rome", datetime(*now, tzinfo=UTC), settings)  # type: ignore[arg-type, misc]
    found = [hour.label for hour in hours]
    begin = found.index(labels[0])
    assert found[begin : begin + len(labels)] == labels
    assert [hour.words for hour in hours[begin : begin + len(labels)]] == ["4 to come"] * len(labels)
    begins = [hour.begin.astimezone(UTC) for hour in hours]
    assert {later - earlier for earlier, later in pairwise(begins)} == {HOUR}


@pytest.mark.parametrize("zone", ["Asia/Kathmandu", "Australia/Lord_Howe", "Asia/Kolkata"])
def test_hours_are_whole_also_where_zones_are_not(zone: str, settings: Settings) -> None:
    hours = laid(zone, datetime(2026, 4, 4, 12, tzinfo=UTC), settings)
    assert {hour.begin.minute for hour in hours[1:]} <= {0, 30}
    assert sum(hour.counts[TO_COME] for hour in hours) == 193


def test_neighbours_of_one_state_are_drawn_as_one() -> None:
    span = Span(now=NOW)
    states = [SUCCESSFUL, SUCCESSFUL, BAD, SUCCESSFUL]
    quarters = {span.first + number: Counter([state]) for number, state in enumerate(states)}
    quarters[span.first + 9] = Counter([SUCCESSFUL, NOT_RUN])
    health = Health(name="nightly", state=State.IDLE, status=None, lock=None)
    shapes = list(day._stretches(Day(health=health, quarters=quarters, since=None), span))
    assert [(shape[4], str(shape[5]).partition(": ")[2]) for shape in shapes] == [
        ("good", "2 successful"),
        ("bad", "1 bad"),
        ("good", "1 successful"),
        ("warn", "1 not run, 1 successful"),
    ]
    assert shapes[0][0] == 0
    assert begin_of(quarter_of(NOW)) + timedelta(minutes=7) == NOW
