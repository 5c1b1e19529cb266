"""How far a run is: in the lists of jobs and of locks, and on the pages of a job, of a lock and of a run."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from html import unescape
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone, translation

from django_singlejob import singleton_job
from django_singlejob.models import JobLock, JobRun, JobStatus
from tests.admin.pages import Page, list_of, page_of, shown
from tests.admin.test_admin_queries import fill, fill_history
from tests.contract.acts import MINUTE, SECOND, expire, start_run

if TYPE_CHECKING:
    from django.test import Client

pytest_plugins = ["tests.fixtures", "tests.admin.people"]
pytestmark = [pytest.mark.usefixtures("fresh_process"), pytest.mark.django_db]

KINDS = ["job", "jobs", "lock", "locks", "run"]
each_page = pytest.mark.parametrize("kind", KINDS)
HOSTILE = '<script>alert(1)</script>" onload="x\u202e\u2066\x1b[31m\0'


def address(kind: str) -> str:
    match kind:
        case "jobs" | "locks":
            return list_of({"jobs": "jobstatus", "locks": "joblock"}[kind])
        case "run":
            return page_of("jobrun", JobRun.objects.latest("pk").pk)
    return page_of({"job": "jobstatus", "lock": "joblock"}[kind], "nightly")


def text(client: Client, kind: str) -> str:
    """All text, without the places where a line may end."""
    return Page(shown(client, address(kind)).replace("<wbr>", "")).text


def bars(client: Client, kind: str) -> list[tuple[str, str]]:
    """The value and the label of each bar."""
    found = re.findall(r"<progress ([^>]*)></progress>", shown(client, address(kind)))
    values: list[dict[str, str]] = [dict(re.findall(r'([a-z-]+)="([^"]*)"', bar)) for bar in found]
    assert all(value["max"] == "1" for value in values)
    return [(value["value"], unescape(value["aria-label"])) for value in values]


def begin(progress: object) -> None:
    """A run begins, and its heartbeat writes this into its lock's row."""
    start_run()
    assert JobLock.objects.update(progress=progress) == 1


def end() -> None:
    """A run begins, and ends."""
    nightly = singleton_job("nightly")(print)
    nightly()


@each_page
def test_there_are_a_bar_figures_and_the_last_line(viewer: Client, kind: str) -> None:
    begin({"done": 120, "total": 500, "text": "importing", "output": "row 120: Ada Lovelace"})
    assert bars(viewer, kind) == [("0.240", "120 of 500, importing")]
    words = text(viewer, kind)
    assert "120 of 500, importing" in words.splitlines()
    assert "row 120: Ada Lovelace" in words.replace("\n", "")


@pytest.mark.parametrize("kind", ["locks", "run"])
@pytest.mark.parametrize("stored", [{}, [1, 2], "text", 3, {"done": "3", "total": [], "text": None}])
def test_nothing_is_shown_if_there_is_nothing_to_begin(viewer: Client, kind: str, stored: Any) -> None:
    begin(stored)
    assert bars(viewer, kind) == []
    assert "Progress" not in text(viewer, kind).splitlines()


@pytest.mark.parametrize("kind", ["locks", "run"])
@pytest.mark.parametrize(
    ("progress", "expected"),
    [
        ({"done": 120, "text": "importing"}, "120, importing"),
        ({"done": 0, "total": 0}, "0 of 0"),
        ({"done": 1234, "total": 0}, "1,234 of 0"),
        ({"output": "row 120"}, "row 120"),
    ],
)
def test_there_is_no_bar_if_the_share_is_not_known(viewer: Client, kind: str, progress: object, expected: str) -> None:
    begin(progress)
    assert bars(viewer, kind) == []
    assert expected in text(viewer, kind).splitlines()


@each_page
def test_more_than_all_is_a_full_bar(viewer: Client, kind: str) -> None:
    begin({"done": 1600, "total": 500})
    assert bars(viewer, kind) == [("1.000", "1,600 of 500")]


@pytest.mark.parametrize("kind", ["locks", "run"])
@pytest.mark.parametrize("stored", [[HOSTILE], HOSTILE, {"text": [HOSTILE], "output": {HOSTILE: HOSTILE}, "done": {}}])
def test_what_somebody_wrote_by_hand_does_no_harm(viewer: Client, kind: str, stored: Any) -> None:
    begin(stored)
    page = shown(viewer, address(kind))
    assert "<script>alert" not in page
    assert not {"\u202e", "\u2066", "\x1b", "\0"} & set(page)


@each_page
def test_hostile_texts_are_escaped_and_cut(viewer: Client, kind: str) -> None:
    begin(
        {
            "done": 1,
            "total": 3,
            "text": HOSTILE.strip("\0") + "a" * 10_000,
            "output": HOSTILE.strip("\0") + "b" * 199,
        }
    )
    page = shown(viewer, address(kind))
    assert not {"\u202e", "\u2066", "\x1b"} & set(page)
    assert not Page(page.partition("<main")[2]).inline
    words = Page(page).text.replace("\n", "")
    assert r"\u202e" in words
    for letter, most in ("a", 80), ("b", 200):
        assert letter * 10 in words
        assert letter * most not in words


def test_a_list_shows_less_of_the_last_line_than_a_page(viewer: Client) -> None:
    begin({"output": "b" * 150})
    for kind, is_whole in {"job": True, "jobs": False, "lock": False, "locks": False, "run": True}.items():
        assert ("b" * 150 in text(viewer, kind).replace("\n", "")) == is_whole, kind


@each_page
def test_a_dead_holder_has_no_bar(viewer: Client, kind: str) -> None:
    """It does not run. But it is worth knowing how far it has come."""
    begin({"done": 120, "total": 500, "text": "importing", "output": "row 120"})
    expire()
    assert bars(viewer, kind) == []
    for words in "120 of 500, importing", "row 120":
        assert words in text(viewer, kind).splitlines()


def test_figures_are_written_as_the_user_writes_them(viewer: Client) -> None:
    begin({"done": 1234.5, "total": 2_000_000})
    with translation.override("de"):
        response = viewer.get(address("locks"), headers={"Accept-Language": "de"}).content.decode()
    assert "1234,5" in response
    assert "2.000.000" in response


# --- the page of a run that refreshes itself


def refreshed(client: Client, pk: int | None = None) -> str:
    """What a page that is open gets."""
    url = address("run") if pk is None else page_of("jobrun", pk)
    return client.get(url, headers={"Singlejob-Refresh": "1"}).content.decode()


def facts(page: str) -> dict[str, str]:
    """What the page says of now."""
    panel = page.partition("<h2>Now</h2>")[2].partition("</dl>")[0]
    found = re.findall(r"<dt>(.*?)</dt>\s*<dd[^>]*>(.*?)</dd>", panel, re.DOTALL)
    return {name: Page(value).text.replace("\xa0", " ").strip() for name, value in found}


def test_the_page_of_a_run_tells_what_is_now(viewer: Client) -> None:
    begin({"done": 120, "total": 500, "text": "importing"})
    JobStatus.objects.update(run_count=9, mean_duration=10 * MINUTE)
    JobLock.objects.update(
        acquired_at=timezone.now() - 5 * MINUTE - SECOND / 2,
        heartbeat_at=timezone.now() - 4 * SECOND,
        heartbeat_interval=10 * SECOND,
        command="manage.py singleton_worker",
    )
    now = facts(shown(viewer, address("run")))
    assert list(now) == ["State", "Elapsed", "Progress", "Holder", "Last heartbeat", "Next heartbeat"]
    assert now["State"] == "running"
    assert re.fullmatch(r"5 min \d+ s mean 10 min 0 s", " ".join(now["Elapsed"].split()))
    assert "120 of 500, importing" in now["Progress"]
    last = re.fullmatch(r"(\d\.\d) s ago", now["Last heartbeat"])
    following = re.fullmatch(r"in (\d\.\d) s", now["Next heartbeat"])
    assert last
    assert following
    assert float(last[1]) >= 4
    # One interval lies between them. Each figure leaves out a part of a tenth.
    assert 9.85 < float(last[1]) + float(following[1]) < 10.05
    assert JobLock.objects.get().holder in now["Holder"].replace("\n", "")
    assert "singleton_worker" in now["Holder"].replace("\n", "")


@pytest.mark.parametrize("interval", [None, timedelta(days=36_525)])
def test_nor_does_it_fail_for_an_interval_that_is_none_or_huge(viewer: Client, interval: timedelta | None) -> None:
    begin({"done": 1})
    JobLock.objects.update(heartbeat_interval=interval)
    assert ("Next heartbeat" in facts(shown(viewer, address("run")))) == bool(interval)


def test_its_holder_may_be_impossible(viewer: Client) -> None:
    begin({"done": 1, "total": 2})
    JobLock.objects.update(heartbeat_at=datetime(9998, 12, 31, 23, 59, tzinfo=UTC), heartbeat_interval=MINUTE)
    assert "Next heartbeat" not in facts(shown(viewer, address("run")))


def test_a_page_that_is_open_gets_only_what_changes(viewer: Client) -> None:
    begin({"done": 120, "total": 500})
    page = shown(viewer, address("run"))
    assert re.search(r'<script src="[^"]*django_singlejob/live.js" defer></script>', page)
    fresh = refreshed(viewer)
    assert fresh.count('id="singlejob-live"') == page.count('id="singlejob-live"') == 1
    assert "<html" not in fresh
    assert "data-over" not in fresh
    assert facts(fresh).keys() == facts(page).keys()


def test_when_it_has_ended_there_is_nothing_to_refresh(viewer: Client) -> None:
    end()
    page = shown(viewer, address("run"))
    assert "live.js" not in page
    assert "singlejob-refresh" not in page
    assert facts(page) == {}
    assert "data-over" in refreshed(viewer)


def test_one_of_a_dead_holder_goes_on_to_be_refreshed(viewer: Client) -> None:
    """Another server will record that it was abandoned."""
    begin({"done": 120, "total": 500})
    expire()
    fresh = refreshed(viewer)
    assert "data-over" not in fresh
    assert facts(fresh)["State"] == "stale"
    assert "No live process is running it." in fresh
    JobLock.objects.all().delete()
    assert facts(refreshed(viewer)) == {"State": "stale"}


def test_a_refresh_leaves_messages_to_the_page_that_they_are_for(operator: Client) -> None:
    start_run()
    operator.post(list_of("jobstatus"), {"action": "hide", "_selected_action": "nightly"})
    refreshed(operator)
    assert "hidden" in text(operator, "jobs")


def test_a_run_that_has_been_pruned_is_not_found(viewer: Client) -> None:
    start_run()
    pk = JobRun.objects.get().pk
    JobRun.objects.all().delete()
    assert "singlejob-live" not in refreshed(viewer, pk)


@pytest.mark.slow
def test_a_refresh_takes_as_many_queries_however_much_there_is(admin_client: Client) -> None:
    begin({"done": 120, "total": 500})
    pk = JobRun.objects.get().pk
    fill_history(["nightly"])
    refreshed(admin_client, pk)  # the first request also reads content types
    few = queries(admin_client, pk)
    fill(range(30))
    fill_history(["nightly"] * 30)
    assert queries(admin_client, pk) == few <= 11


def queries(client: Client, pk: int) -> int:
    with CaptureQueriesContext(connection) as captured:
        refreshed(client, pk)
    return len(captured)
