"""The page of the ledger, of all jobs and of one: what became of each slot, and what is to come."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from html import unescape
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode
from uuid import uuid4

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from django_singlejob import current_run, singleton_job
from django_singlejob.admin import ledger
from django_singlejob.control.pausing import pause
from django_singlejob.locking.grant import plan
from django_singlejob.models.jobs import gates
from django_singlejob.models.notes import notes
from django_singlejob.models.one_offs import one_offs
from django_singlejob.models.runs import runs
from django_singlejob.monitoring.ledger import worst_first
from django_singlejob.process.clock import DBNow, utc_now
from django_singlejob.running import runner
from tests.admin.pages import Page, act, page_of, shown
from tests.contract.acts import HOUR, MINUTE, SECOND, ticked

if TYPE_CHECKING:
    from django.test import Client
    from pytest_django import Settings

pytest_plugins = ["tests.fixtures", "tests.admin.people"]
pytestmark = [pytest.mark.usefixtures("fresh_process"), pytest.mark.django_db]

URL = "/admin/django_singlejob/overview/ledger/"
HOSTILE = "<script>alert('it is ours')</script>\"'&"
DAY = timedelta(days=1)
# The newest slot, and the schedule: it has just been due.
TOP, EACH_HOUR = utc_now(), "* * * * *"


@pytest.fixture(autouse=True)
def just_due(monkeypatch: pytest.MonkeyPatch) -> None:
    top = utc_now().replace(second=0, microsecond=0) - 10 * MINUTE
    monkeypatch.setattr(f"{__name__}.TOP", top)
    monkeypatch.setattr(f"{__name__}.EACH_HOUR", f"{top.minute} * * * *")


def known(name: str = "nightly", schedule: str = "", zone: str = "UTC", **columns: Any) -> None:
    facts = {"schedule": schedule or EACH_HOUR, "time_zone": zone, "last_started_at": TOP, "next_slot": TOP + HOUR}
    gates().create(name=name, **facts | columns)


def ran(slot: datetime, name: str = "nightly", status: str = "successful", **columns: Any) -> None:
    facts = {"fence": 1, "token": uuid4(), "trigger": "schedule", "hostname": "web-1", "pid": 1, "attempt": 1}
    facts |= {"lock": name, "duration": MINUTE}
    times = {"started_at": slot + SECOND, "finished_at": None if status == "running" else slot + MINUTE}
    runs().create(job_name=name, slot=slot, status=status, **facts | times | columns)


def a_day(name: str = "nightly", **statuses: str) -> None:
    """The job has run each hour; ``ago_3="failed"``: except that it failed three hours ago; ``"none"``: not at all."""
    for ago in range(20):
        if (status := statuses.get(f"ago_{ago}", "successful")) != "none":
            ran(TOP - ago * HOUR, name, status, error="KeyError: 'customer'" if status == "failed" else "")


def said(client: Client, **query: Any) -> str:
    main = shown(client, f"{URL}?{urlencode(query)}").partition("<main")[2].replace("<wbr>", "")
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", f"<{main}")).split())


def drawn(client: Client, **query: Any) -> list[tuple[str, str]]:
    """The colour and the title of each shape of the strips."""
    page = shown(client, f"{URL}?{urlencode(query)}")
    return [(tone, title.partition(": ")[2]) for tone, title in re.findall(r'-(\w+)"><title>([^<]*)</title>', page)]


# --- all jobs


def test_each_job_has_a_row_that_says_what_became_of_its_slots(viewer: Client) -> None:
    singleton_job("nightly", schedule=EACH_HOUR)(print)
    known()
    a_day(ago_3="failed", ago_6="none")
    text = said(viewer)
    assert "1 missed, 1 failed, 18 ran" in text
    assert "KeyError: 'customer'" in text
    assert "nothing that is recorded says why" in text
    shapes = drawn(viewer)
    assert [shape for shape in shapes if shape[0] == "bad"] == [("bad", "missed"), ("bad", "failed")]
    assert ("good", "ran") in shapes
    assert ("quiet", "to come") in shapes
    assert f'href="{ledger.page_of("nightly")}' in shown(viewer, URL)


def test_beside_a_slot_are_why_and_run(viewer: Client, operator: Client) -> None:
    singleton_job("nightly", schedule=EACH_HOUR)(print)
    known()
    a_day(ago_3="failed")
    page = shown(operator, URL)
    slot = (TOP - 3 * HOUR).isoformat()
    assert f"why/?{urlencode({'job': 'nightly', 'at': slot})}" in unescape(page)
    assert f'name="slot" value="{slot}"' in page
    assert 'name="slot"' not in shown(viewer, URL)


def test_what_happened_for_the_same_reason_is_one_line(viewer: Client) -> None:
    known()
    a_day(**{f"ago_{ago}": "none" for ago in range(3, 8)})
    for kind, ago in ("paused", 7), ("resumed", 2):
        told = {"reason": "supplier down", "by": "ada"} if kind == "paused" else {}
        notes().create(job_name="nightly", kind=kind, at=TOP - ago * HOUR - MINUTE, **told)
    text = said(viewer)
    assert "supplier down" in text
    assert "And 4 more slots, until" in text
    assert "5 paused" in text


def test_those_in_trouble_come_first_and_the_others_on_other_pages(
    viewer: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger, "PER_PAGE", 2)
    for name in ("a", "b", "c"):
        known(name)
        ran(TOP, name, "failed" if name == "c" else "successful")
    names = [
        re.findall(r'aria-label="(\w): ', shown(viewer, f"{URL}?page={number}&since=&hours=5"))
        for number in ("1", "2", "x")
    ]
    assert names == [["c", "a"], ["b"], ["c", "a"]]
    assert "Page 1 of 2" in said(viewer)
    (following,) = {link for link in Page(shown(viewer, f"{URL}?hours=5")).links if "page=2" in link}
    assert "hours=5" in following


def test_one_that_was_missed_or_is_late_is_in_trouble(viewer: Client) -> None:
    for name in ("early", "late", "missed", "well"):
        known(name, next_slot=TOP - 2 * HOUR if name == "late" else TOP + HOUR)
    times = {"first_slot": TOP - HOUR, "last_slot": TOP - HOUR}
    notes().create(job_name="missed", kind="missed", at=TOP, details="dropped", number=1, **times)
    notes().create(job_name="early", kind="missed", at=TOP, details="dropped", number=1, first_slot=TOP, last_slot=TOP)
    assert worst_first(TOP - 3 * HOUR, TOP) == ["late", "missed", "early", "well"]


@pytest.mark.parametrize("query", [{}, {"hours": 24, "since": "2026-11-22 18:00"}])
def test_without_jobs_it_says_so(viewer: Client, query: dict[str, Any]) -> None:
    singleton_job("called")(print)
    assert "There are no jobs yet that have a schedule." in said(viewer, **query)


def test_the_overview_and_the_page_of_a_job_lead_there(viewer: Client) -> None:
    known()
    assert f'href="{URL}"' in shown(viewer, reverse("admin:django_singlejob_overview_changelist"))
    assert f'href="{URL}?job=nightly"' in shown(viewer, page_of("jobstatus", "nightly"))


def test_who_may_not_see_the_overview_is_not_led_there(log_in: Any) -> None:
    known()
    clerk = log_in("clerk", "view_jobstatus")
    assert URL not in shown(clerk, page_of("jobstatus", "nightly"))
    assert clerk.get(URL).status_code == 403


# --- one job


def test_of_one_job_each_slot_has_a_line(viewer: Client) -> None:
    known()
    a_day(ago_3="failed", ago_6="none")
    text = said(viewer, job="nightly")
    assert text.count(" on web-1, ") == 19
    when = f"{TOP - 3 * HOUR:%Y-%m-%d %H:%M} UTC"
    assert re.search(rf"{when} failed run #\d+ , at [-\d]+ [\d:]+ UTC on web-1, 1 min 0 s KeyError: 'customer'", text)
    (run,) = runs().filter(status="failed")
    assert page_of("jobrun", run.pk) in Page(shown(viewer, f"{URL}?job=nightly")).links


def test_of_very_many_slots_those_of_one_outcome_have_one_line(viewer: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "MOST_SINGLE", 5)
    known()
    a_day(ago_3="failed")
    text = said(viewer, job="nightly")
    assert "And 15 more slots, until" in text
    assert "And 2 more slots, until" in text


@pytest.mark.parametrize("name", ["unknown", "a\0b", HOSTILE, "x" * 1000])
def test_a_job_that_is_not_there_has_none(viewer: Client, name: str) -> None:
    known()
    assert viewer.get(URL, {"job": name}).status_code == 404


def test_a_hostile_name_is_harmless(viewer: Client) -> None:
    known(HOSTILE)
    ran(TOP - HOUR, HOSTILE, "failed")
    for url in URL, ledger.page_of(HOSTILE):
        assert HOSTILE not in shown(viewer, url)
        assert HOSTILE in Page(shown(viewer, url)).text.replace("\n", "")


@pytest.mark.on_database("sqlite", "mysql")
def test_a_job_is_called_as_its_row_calls_it(viewer: Client) -> None:
    """MySQL takes capital letters for small ones."""
    known("nightly")
    response = viewer.get(URL, {"job": "NIGHTLY"})
    assert response.status_code == 404 or "NIGHTLY" not in Page(response.content.decode()).text


def test_a_job_without_a_schedule_has_no_slots(viewer: Client) -> None:
    singleton_job("nightly")(print)
    gates().create(name="nightly", last_started_at=TOP)
    text = said(viewer, job="nightly")
    assert "It has no schedule." in text
    assert "no slots" in text


# --- which slots


def test_a_night_is_chosen_on_the_wall_clock_of_the_job(viewer: Client) -> None:
    begin = datetime(2026, 3, 29, tzinfo=UTC)
    known(schedule="30 * * * *", zone="Europe/Berlin", next_slot=begin + DAY)
    for hour in range(-3, 9):
        ran(begin + hour * HOUR + HOUR / 2)
    text = said(viewer, job="nightly", since="2026-03-29 00:00", hours=5)
    assert "2026-03-29 00:00:00 CET to 2026-03-29 06:00:00 CEST" in text
    assert "5 ran" in text
    found = re.findall(r" (\d\d:\d\d) CES?T ran", text)
    assert found == ["00:30", "01:30", "03:30", "04:30", "05:30"]


def test_earlier_and_later_lead_on(viewer: Client) -> None:
    known()
    query = {"job": "nightly", "since": "2026-11-22 18:00", "hours": 14}
    links = [unescape(link) for link in Page(shown(viewer, f"{URL}?{urlencode(query)}")).links if "hours=14" in link]
    assert links == [
        "?job=nightly&since=2026-11-22+04%3A00%2B00%3A00&hours=14",
        "?job=nightly&since=2026-11-23+08%3A00%2B00%3A00&hours=14",
    ]
    for link in links:
        assert "Enter" not in shown(viewer, f"{URL}{link}")


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ({"since": "yesterday"}, "Enter an instant"),
        ({"since": "9999-12-31T23:59"}, "Enter an instant"),
        ({"since": "\0"}, "Null characters are not allowed."),
        ({"hours": "many"}, "Enter a whole number."),
        ({"hours": 0}, "Ensure this value is greater than or equal to 1."),
        ({"hours": 10**9}, "Ensure this value is less than or equal to 168."),
    ],
)
def test_bad_input_is_told(viewer: Client, query: dict[str, Any], words: str) -> None:
    known()
    for more in {}, {"job": "nightly"}:
        assert words in said(viewer, **query, **more)


def test_before_its_first_slot_there_is_no_record(viewer: Client) -> None:
    known()
    a_day()
    assert "there is no record." in said(viewer, job="nightly")
    assert "There is no record of a slot." in said(viewer, job="nightly", since="2020-11-22 18:00")


# --- what is to come


def test_slots_to_come_are_in_their_order(viewer: Client) -> None:
    soon = TOP + HOUR
    known("seldom", f"{soon:%M} {soon:%H} * * *", next_slot=soon)
    known("later", f"{soon + HOUR:%M} {soon + HOUR:%H} * * *", next_slot=soon + HOUR)
    known("often")
    text = said(viewer).partition("What is to come")[2]
    assert re.search(r"often : 24 slots", text)
    assert re.search(r"UTC seldom [-\d]+ [\d:]+ UTC later", text)
    assert said(viewer, job="often").count(f"{soon + 2 * HOUR:%Y-%m-%d %H:%M} UTC") == 1
    assert "What is to come" not in said(viewer, since="2020-11-22 18:00")


@pytest.mark.parametrize(("query", "to_come"), [({}, "00:00 CET nightly"), ({"job": "nightly"}, "08:00 JST")])
def test_all_jobs_are_shown_in_the_zone_of_the_project_and_one_in_its_own(
    viewer: Client, settings: Settings, query: dict[str, str], to_come: str
) -> None:
    settings.TIME_ZONE = "Europe/Berlin"
    known(schedule="0 8 * * *", zone="Asia/Tokyo", next_slot=datetime(2098, 12, 31, 23, tzinfo=UTC))
    query |= {"since": "2099-01-01 00:00", "hours": "24"}
    assert f"2099-01-01 {to_come}" in said(viewer, **query).partition("What is to come")[2]
    assert f"<title>{to_come[:5]}-" in shown(viewer, f"{URL}?{urlencode(query)}")


def test_of_a_job_each_minute_that_resumes_later_the_slots_come_then(viewer: Client) -> None:
    known(schedule="* * * * *", paused=True, paused_until=DBNow() + 2 * HOUR)
    text = said(viewer, job="nightly").partition("What is to come")[2]
    assert text.count("UTC") == 50
    assert "later slots are left out" in text


def test_of_a_paused_job_nothing_is_to_come_until_it_is_resumed(viewer: Client) -> None:
    singleton_job("nightly", schedule=EACH_HOUR)(print)
    known(paused=True)
    text = said(viewer, job="nightly")
    assert "The job is paused, so nothing is to come." in text
    assert "to come" not in [title for _tone, title in drawn(viewer)]
    gates().update(paused_until=DBNow() + 5 * HOUR)
    assert "24 slots are" not in said(viewer, job="nightly")
    assert said(viewer, job="nightly").partition("What is to come")[2].count("UTC") in (19, 20)


def test_a_job_that_no_server_has_requested_has_slots_to_come(viewer: Client) -> None:
    singleton_job("nightly", schedule="@hourly")(print)
    assert said(viewer, job="nightly").partition("What is to come")[2].count("UTC") == 24


def test_what_stands_out_is_said(viewer: Client) -> None:
    """In an hour that is lost, in a crowd, and where a run takes longer than the time between two slots."""
    for number in range(5):
        singleton_job(f"job_{number}", schedule="0 12 * * *", time_zone="UTC")(print)
    singleton_job("lost", schedule="30 2 * * *", time_zone="Europe/Berlin")(print)
    singleton_job("slow", schedule="*/10 * * * *")(print)
    gates().create(name="slow", run_count=9, mean_duration=HOUR)
    text = said(viewer, since="2099-03-28 12:00", hours=24)
    assert "clocks change in Europe/Berlin, and 02:00 to 03:00 is left out." in text
    assert "lost: runs once, at 03:00, in place of 02:30." in text
    assert "6 jobs begin at 2099-03-28 12:00:00 UTC. To spread them out, write H for the minute." in text
    assert re.search(r"slow takes 1 h 0 min on average, longer than the 10 min 0 s between", text)


# --- run a slot by hand


def missed() -> tuple[Any, datetime, list[datetime | None]]:
    """A job whose slot three hours ago failed."""
    said = list[datetime | None]()

    def do() -> None:
        said.append(current_run().slot)  # type: ignore[union-attr]

    job: Any = singleton_job("nightly", schedule=EACH_HOUR)(do)
    known()
    a_day(ago_3="failed")
    return job, TOP - 3 * HOUR, said


def test_a_slot_is_run_by_the_next_worker(operator: Client) -> None:
    _job, slot, said_by_it = missed()
    (slot,) = runs().filter(status="failed").values_list("slot", flat=True)  # type: ignore[assignment]
    before = gates().values_list("next_slot", "last_slot").get()
    act(operator, "jobstatus", "run_now", "nightly", slot=slot.isoformat())
    row = one_offs().get()
    assert (row.retried_slot, row.requested_by) == (slot, "operator")
    ticked()
    assert said_by_it == [slot]
    assert gates().values_list("next_slot", "last_slot").get() == before
    assert runs().has_succeeded("nightly", slot)
    text = said(operator, job="nightly")
    assert "20 ran" in text
    assert "failed" not in text
    act(operator, "jobstatus", "run_now", "nightly", slot=slot.isoformat())
    assert one_offs().count() == 1


@pytest.mark.parametrize(
    ("offset", "words"),
    [
        (0 * HOUR, "was run successfully"),
        (HOUR, "is not a slot"),
        (-3 * HOUR - MINUTE, "is not a slot"),
    ],
)
def test_any_other_slot_is_refused(operator: Client, offset: timedelta, words: str) -> None:
    missed()
    (answer,) = act(operator, "jobstatus", "run_now", "nightly", slot=(TOP + offset).isoformat())
    assert words in answer
    assert not one_offs().exists()


@pytest.mark.django_db(transaction=True)
def test_who_was_about_to_run_it_by_hand_looks_again(operator: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    job, slot, said_by_it = missed()
    before = list[Any]()

    def planned(request: Any, snapshot: Any) -> Any:
        found = plan(request, snapshot)
        if request.slot and not before:
            before.append(act(operator, "jobstatus", "run_now", "nightly", slot=slot.isoformat()))
        return found

    monkeypatch.setattr("django_singlejob.locking.acquire.plan", planned)
    runner.run(job, trigger="manual", slot=slot)
    assert before
    ticked()
    assert said_by_it == [slot]


@pytest.mark.parametrize("most", [1, 2])
def test_one_whose_attempts_are_used_up_is_run(operator: Client, most: int) -> None:
    singleton_job("nightly", schedule=EACH_HOUR, max_attempts=most)(print)
    known(abandoned=True, last_slot=TOP, last_attempt=most)
    a_day(ago_0="abandoned")
    act(operator, "jobstatus", "run_now", "nightly", slot=TOP.isoformat())
    assert one_offs().get().retried_slot == TOP


def test_one_of_an_earlier_schedule_is_run(operator: Client) -> None:
    singleton_job("nightly", schedule="7 3 1 1 *")(print)
    known(schedule="7 3 1 1 *", next_slot=TOP + 5 * DAY)
    a_day(ago_3="none")
    details = json.dumps({"before": [EACH_HOUR, "UTC"], "after": ["7 3 1 1 *", "UTC"]})
    change = {"kind": "schedule_changed", "at": TOP + MINUTE, "first_slot": TOP + 5 * DAY, "details": details}
    notes().create(job_name="nightly", **change)
    act(operator, "jobstatus", "run_now", "nightly", slot=(TOP - 3 * HOUR).isoformat())
    assert one_offs().get().retried_slot == TOP - 3 * HOUR
    text = said(operator, job="nightly")
    assert f"schedule changed: from {EACH_HOUR} UTC to 7 3 1 1 * UTC" in text
    assert "It waits for a worker." in text


def test_a_paused_job_offers_no_run(operator: Client) -> None:
    missed()
    assert 'name="slot"' in shown(operator, URL)
    pause("nightly")
    for url in URL, f"{URL}?job=nightly":
        assert 'name="slot"' not in shown(operator, url)


def test_so_is_one_that_runs_or_waits_for_its_retry(operator: Client) -> None:
    _job, slot, _said = missed()
    runs().filter(slot=slot).update(status="running")
    (answer,) = act(operator, "jobstatus", "run_now", "nightly", slot=slot.isoformat())
    assert "is running" in answer
    runs().filter(slot=slot).update(status="failed")
    act(operator, "jobstatus", "run_now", "nightly", slot=slot.isoformat())
    one_offs().update(run_after=DBNow() + HOUR)
    act(operator, "jobstatus", "run_now", "nightly", slot=slot.isoformat())
    assert one_offs().count() == 1


@pytest.mark.parametrize("slot", ["yesterday", "2026-11-22T03:00", HOSTILE])
def test_what_is_no_slot_is_refused(operator: Client, slot: str) -> None:
    missed()
    chosen = {"action": "run_now", "_selected_action": "nightly", "slot": slot}
    assert operator.post(reverse("admin:django_singlejob_jobstatus_changelist"), chosen).status_code == 400
    assert not one_offs().exists()


# --- its costs


def test_the_page_takes_as_many_queries_however_long_the_history_is(viewer: Client) -> None:
    def queries() -> int:
        with CaptureQueriesContext(connection) as captured:
            shown(viewer, URL)
        return len(captured)

    known()
    a_day()
    few = queries()
    for ago in range(20, 400):
        ran(TOP - ago * HOUR)
    assert queries() == few
    known("another")
    a_day("another")
    assert queries() == few


@pytest.mark.parametrize("zone", ["Asia/Kathmandu", "Australia/Lord_Howe"])
def test_hours_are_whole_also_where_zones_are_not(viewer: Client, zone: str, settings: Settings) -> None:
    settings.TIME_ZONE = zone
    known()
    labels = re.findall(r'y="12" text-anchor="middle">(\d\d:\d\d)<', shown(viewer, URL))
    assert labels
    assert {label[3:] for label in labels} == {"00"}
