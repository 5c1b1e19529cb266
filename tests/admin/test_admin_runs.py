"""The admin's list of runs, and the page of a run."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from django.db import connections
from django.test.utils import CaptureQueriesContext

from django_singlejob import singleton_job
from django_singlejob.admin import read_only, runs as page
from django_singlejob.models import JobLock, JobRun
from django_singlejob.models.jobs import database_now, gates
from django_singlejob.models.one_offs import one_offs
from django_singlejob.models.runs import runs
from django_singlejob.process.clock import DBNow
from tests.admin.pages import VIEW, Page, act, begin, list_of, messages_of, page_of, shown
from tests.contract.acts import MINUTE, SECOND, expire, last_run, start_run, take, ticked

if TYPE_CHECKING:
    from django.test import Client
    from pytest_django import Settings


pytest_plugins = ["tests.fixtures", "tests.admin.people"]
pytestmark = [pytest.mark.usefixtures("fresh_process"), pytest.mark.django_db]

LONG_AGO = datetime(2024, 12, 31, 23, 30, tzinfo=UTC)


def ran(job_name: str = "nightly", at: datetime = LONG_AGO, **facts: Any) -> JobRun:
    """Create a run that has ended."""
    gates().remember(job_name)
    gates().filter(name=job_name).update(last_started_at=at)
    usual = {"fence": 1, "token": uuid4(), "trigger": "call", "hostname": "web-1", "pid": 1, "status": "successful"}
    return runs().create(job_name=job_name, started_at=at, **{"finished_at": at + MINUTE} | usual | facts)


def listed(client: Client, query: str = "") -> list[int]:
    """The runs in the list, from top to bottom."""
    return [int(key) for key in re.findall(r"jobrun/(\d+)/change/", shown(client, list_of("jobrun", query)))]


# --- the list


def test_the_newest_come_first(admin_client: Client) -> None:
    old, new, older = ran(), ran(at=LONG_AGO + MINUTE), ran(at=LONG_AGO - MINUTE)
    assert listed(admin_client) == [new.pk, old.pk, older.pk]
    assert listed(admin_client, "?o=2") == [older.pk, old.pk, new.pk]


def test_the_list_of_failed_runs_says_which_jobs_have_failed_most_this_week(admin_client: Client) -> None:
    now = database_now()
    for name, count in {"b<b>": 1, "often": 3}.items():
        for number in range(count):
            ran(name, at=now - number * MINUTE, status="failed")
    ran("long_ago", status="failed")
    page = Page(shown(admin_client, list_of("jobrun", "?status__exact=failed")))
    assert "In the last 7 days: often 3, b<b> 1" in " ".join(page.text.split()).replace(" ,", ",")
    assert list_of("jobrun", "?job_name=often&status__exact=failed") in page.links
    assert "In the last 7 days" not in Page(shown(admin_client, list_of("jobrun"))).text


@pytest.mark.slow
@pytest.mark.parametrize("model", ["jobrun", "joblock", "oneoffjob"])
def test_a_filter_offers_no_value_that_only_the_address_has(admin_client: Client, model: str) -> None:
    begin()
    names = {"jobrun": ("job_name", "server"), "joblock": ("hostname",), "oneoffjob": ("name", "queue_name__exact")}
    for name in names[model]:
        page = shown(admin_client, list_of(model, f"?{name}=call-555-0100"))
        assert "0 " in Page(page).text
        assert "call-555-0100" not in Page(page).text
    assert "nightly" in Page(shown(admin_client, list_of("jobrun", "?job_name=nightly"))).text


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


def test_one_that_skipped_itself_has_a_reason_and_no_error(admin_client: Client) -> None:
    run = ran(status="skipped", error="holiday")
    assert listed(admin_client, "?status__exact=skipped") == [run.pk]
    assert "holiday" in shown(admin_client, list_of("jobrun"))
    found = shown(admin_client, page_of("jobrun", run.pk))
    assert '<th scope="row">Reason</th><td>holiday</td>' in found
    assert "What went wrong" not in found


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
    monkeypatch.setattr(read_only, "MOST_LINKS", 2)
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
    monkeypatch.setattr("django_singlejob.admin.read_only.MOST_COUNTED", 3)
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


# --- what went wrong


ORIGIN = "/srv/shop/jobs.py\n23\nnightly\nsend(<all>)"
TRACEBACK = """Traceback (most recent call last):
  File "/srv/shop/jobs.py", line 23, in nightly
    send(<all>)
  File "/usr/lib/python3.12/smtplib.py", line 405, in getreply
    raise SMTPServerDisconnected("closed")
smtplib.SMTPServerDisconnected: closed
"""


def text_of(client: Client, run: JobRun) -> str:
    """The page of the run as people read it, on one line."""
    return " ".join(Page(shown(client, page_of("jobrun", run.pk)).replace("<wbr>", "")).text.split())


def test_it_begins_with_what_went_wrong(viewer: Client) -> None:
    failed = ran(status="failed", error="SMTPServerDisconnected: closed", traceback=TRACEBACK, origin=ORIGIN)
    words = text_of(viewer, failed)
    places = [
        words.index("What went wrong"),
        words.index("SMTPServerDisconnected: closed"),
        words.index("In your code: nightly, line 23 of /srv/shop/jobs.py send(<all>)"),
        words.index("Traceback (most recent call last)"),
        words.index("Began"),
        words.index("Its neighbours"),
    ]
    assert places == sorted(places)


OURS = f"""  File "{page.__file__}", line 151, in _carried_out
    run.value = let_in(run.body)
                ~~~~~~^^^^^^^^^^
  File "/opt/lib/django_singlejob/running/runner.py", line 411, in body
    value = self.job.func(*self.args, **self.kwargs)
"""


def test_the_frames_of_the_package_are_folded(viewer: Client) -> None:
    first, *rest = TRACEBACK.splitlines(keepends=True)
    failed = ran(status="failed", error="closed", traceback=first + OURS + "".join(rest) + "\n" + OURS)
    found = shown(viewer, page_of("jobrun", failed.pk))
    folded = re.findall(r"<details><summary>(.*?)</summary><pre[^>]*>(.*?)</pre></details>", found, re.DOTALL)
    assert [words for words, _ in folded] == ["2 frames of django_singlejob"] * 2
    assert all("let_in(run.body)" in text and "nightly" not in text for _, text in folded)
    seen = re.sub(r"(?s)<details>.*?</details>", "", found.partition('class="singlejob-traceback"')[2])
    assert "let_in" not in seen
    assert "in nightly\n    send(&lt;all&gt;)\n" in seen
    assert found.count("let_in(run.body)") == 2


def test_where_nothing_went_wrong_the_facts_come_first(viewer: Client) -> None:
    words = text_of(viewer, ran())
    assert "What went wrong" not in words
    assert "Traceback" not in words


def test_a_long_error_leaves_room_for_the_frame(viewer: Client) -> None:
    message = "x" * 900
    failed = ran(
        status="failed", error=f"ValueError: {message}", traceback=TRACEBACK.replace("closed\n", f"{message}\n")
    )
    assert "ValueError: " + "x" * 287 + "…" in text_of(viewer, failed)
    abandoned = ran(status="abandoned", error=message)
    assert message in text_of(viewer, abandoned)


def test_hostile_text_stays_text(viewer: Client) -> None:
    evil = "</code><script>alert(1)</script>\u202e"
    texts = [text.replace("nightly", evil).replace("send(<all>)", evil) for text in (TRACEBACK, ORIGIN)]
    failed = ran(status="failed", error=evil, traceback=texts[0], origin=texts[1].replace("shop", evil))
    page = shown(viewer, page_of("jobrun", failed.pk))
    assert "<script>alert" not in page
    assert "\u202e" not in page
    assert page.count("\\u202e") >= 5
    assert Page(page).inline == []


def test_a_run_of_a_dead_holder_looks_dead(viewer: Client) -> None:
    start_run("nightly")
    page, words = list_of("jobrun"), text_of(viewer, last_run())
    assert "No live process is running it." not in words
    assert 'singlejob-busy">running' in shown(viewer, page)
    expire()
    for url in page, page_of("jobrun"):
        assert 'singlejob-bad">stale' in shown(viewer, url)
        assert 'singlejob-busy">' not in shown(viewer, url)
    assert "No live process is running it." in text_of(viewer, last_run())


@pytest.mark.on_database("sqlite")
@pytest.mark.usefixtures("newer_release")
def test_a_run_that_a_newer_release_recorded_is_shown(viewer: Client) -> None:
    assert "evaporated" in text_of(viewer, ran(status="evaporated", trigger="wish"))


# --- its neighbours


def neighbours_of(client: Client, run: JobRun) -> dict[str, list[int]]:
    """The runs that its page links to, by what it calls them."""
    parts = re.split("<dt>(.*?)</dt>", shown(client, page_of("jobrun", run.pk)))[1:]
    found = zip(parts[::2], parts[1::2], strict=True)
    return {name: [int(key) for key in re.findall(r"jobrun/(\d+)/change/", links)] for name, links in found}


def test_the_runs_before_and_after_it_are_those_of_its_job(viewer: Client) -> None:
    first, second, third, fourth = (ran(at=LONG_AGO + number * MINUTE) for number in range(4))
    ran("hourly", at=LONG_AGO + 1.5 * MINUTE)
    before, after, of_slot = "The run before", "The run after", "Other attempts at its slot"
    assert neighbours_of(viewer, second) == {before: [first.pk], after: [third.pk], of_slot: []}
    assert neighbours_of(viewer, first) == {before: [], after: [second.pk], of_slot: []}
    assert neighbours_of(viewer, fourth) == {before: [third.pk], after: [], of_slot: []}


def test_the_other_attempts_at_its_slot_are_shown(viewer: Client) -> None:
    slot: dict[str, Any] = {"slot": LONG_AGO, "trigger": "schedule"}
    one = ran(status="abandoned", hostname="web-1", **slot)
    two = ran(status="failed", hostname="web-2", attempt=2, at=LONG_AGO + MINUTE, **slot)
    ran(at=LONG_AGO + MINUTE / 2, slot=LONG_AGO - MINUTE)
    three = ran(attempt=3, at=LONG_AGO + 2 * MINUTE, **slot)
    ran("hourly", **slot)
    assert neighbours_of(viewer, two)["Other attempts at its slot"] == [one.pk, three.pk]
    assert "web-2" in text_of(viewer, one)


def test_a_longer_history_takes_no_more_queries(
    viewer: Client, django_assert_max_num_queries: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("django_singlejob.admin.history.NEAR", 3)
    some = [ran(at=LONG_AGO + number * MINUTE, slot=LONG_AGO) for number in range(12)]
    viewer.get(page_of("jobrun", some[6].pk))  # the first request also reads content types
    with django_assert_max_num_queries(10):
        found = neighbours_of(viewer, some[6])
    assert found["Other attempts at its slot"] == [run.pk for run in [*some[3:6], *some[7:10]]]


# --- run again


def again(client: Client, run: JobRun) -> tuple[str, str, dict[str, list[str]]] | None:
    """The button of its page: the list that it posts to, the action, and what is posted with it."""
    page = shown(client, page_of("jobrun", run.pk))
    button = re.search(r'formaction="([^"]+)" name="action" value="([^"]+)"', page)
    return (button[1], button[2], Page(page).fields) if button else None


def press(client: Client, run: JobRun) -> list[str]:
    button = again(client, run)
    assert button
    url, action, fields = button
    sent = {name: values for name, values in fields.items() if name in ("_selected_action", "back", "version")}
    return messages_of(client.post(url, sent | {"action": action}, follow=True))


@pytest.mark.parametrize(("trigger", "words"), [("schedule", "Run again"), ("call", "Run now"), ("command", "Run now")])
def test_a_job_is_run_again_as_from_its_page(log_in: Any, trigger: str, words: str) -> None:
    singleton_job("nightly")(lambda: None)
    operator = log_in("operator", *VIEW, "run_jobstatus")
    failed = ran(status="failed", error="x", trigger=trigger)
    assert words in text_of(operator, failed)
    assert press(operator, failed) == [
        "The job nightly waits for a worker, and none has been seen. Start singleton_worker."
    ]
    assert one_offs().get().requested_by == "operator"
    assert press(operator, failed) == ["The job nightly is already waiting for a free worker. Is a worker running?"]
    assert one_offs().count() == 1


def test_a_one_off_is_retried_with_its_arguments(operator: Client) -> None:
    outcomes = iter([ValueError("no"), None])

    def mail(number: int) -> None:
        if error := next(outcomes):
            raise error

    singleton_job("mail")(mail).enqueue(4711)
    ticked()
    assert press(operator, last_run("mail")) == ["1 one-off will be retried as soon as a worker is free."]
    assert again(operator, last_run("mail")) is None
    assert f"It is retried as the one-off #{one_offs().get().pk}" in text_of(operator, last_run("mail"))
    ticked()
    assert one_offs().get().status == "done"
    assert again(operator, last_run("mail")) is None


def test_one_that_changed_since_it_was_shown_is_left_alone(operator: Client) -> None:
    singleton_job("mail")(lambda: 1 / 0).enqueue()
    ticked()
    button = again(operator, last_run("mail"))
    assert button
    sent = {name: button[2][name] for name in ("_selected_action", "back", "version")}
    one_offs().all().retry()
    one_offs().update(status="failed")
    assert "1 was left alone" in act(operator, "oneoffjob", "retry", **sent)[0]


def test_what_cannot_be_run_again_has_no_button(operator: Client, viewer: Client, log_in: Any) -> None:
    singleton_job("nightly")(lambda: None)
    singleton_job("mail")(lambda number: None)
    for run in ran("unknown"), ran("mail"), ran(status="running", finished_at=None), ran(trigger="one_off"):
        assert again(operator, run) is None
    failed = ran(status="failed")
    assert again(viewer, failed) is None
    assert again(log_in("blind", "view_jobrun", "run_jobstatus"), failed) is None
    assert again(log_in("runner", "view_jobrun", "view_jobstatus", "run_jobstatus"), failed)


def form_of(client: Client, run: JobRun) -> str:
    """The URL of the form that its page leads to, which is empty if there is none."""
    found = [link for link in Page(shown(client, page_of("jobrun", run.pk))).links if "oneoffjob/add/?" in link]
    return found[0] if found else ""


def test_run_again_leads_to_a_form_with_its_arguments_and_runs_nothing(operator: Client) -> None:
    mail = singleton_job("mail")(lambda number, language: 1 / 0)
    mail.using(queue_name="slow", priority=7).enqueue(4711, language="</textarea><b>")
    ticked()
    fields = Page(page := shown(operator, form_of(operator, last_run("mail")))).fields
    assert "[4711]" in page
    assert "&lt;/textarea&gt;&lt;b&gt;" in page
    assert '<option value="mail" selected>' in page
    assert (fields["queue_name"], fields["priority"]) == (["slow"], ["7"])
    assert one_offs().count() == 1
    assert "are not recorded" not in text_of(operator, last_run("mail"))


def test_of_another_run_the_form_knows_the_job_and_the_page_says_so(operator: Client) -> None:
    singleton_job("nightly")(lambda: None)
    singleton_job("mail")(lambda number: None)
    note = "The arguments of this run are not recorded."
    for name, is_noted in ("nightly", False), ("mail", True):
        run = ran(name)
        assert f'<option value="{name}" selected>' in shown(operator, form_of(operator, run))
        assert (note in text_of(operator, run)) == is_noted
    assert one_offs().count() == 0


def test_the_form_is_for_those_who_may_use_it(operator: Client, viewer: Client, log_in: Any) -> None:
    singleton_job("mail")(lambda secret: 1 / 0).enqueue("call-555-0100")
    ticked()
    run = last_run("mail")
    url = form_of(operator, run)
    assert "call-555-0100" in shown(operator, url)
    assert form_of(viewer, run) == ""
    blind = log_in("blind", "view_jobrun", "add_oneoffjob")
    assert "call-555-0100" not in shown(blind, url)
    assert "like=" not in form_of(blind, run)
    for other in ran("unknown"), ran("mail", status="running", finished_at=None):
        assert form_of(operator, other) == ""
    for key in "0", "x", "99999999999999999999", "-1", "":
        assert "call-555-0100" not in shown(operator, re.sub(r"like=\d+", f"like={key}", url))


def test_arguments_that_are_too_long_for_the_form_are_left_out(operator: Client) -> None:
    singleton_job("mail")(lambda text: 1 / 0).enqueue("x" * 20_000)
    ticked()
    page = shown(operator, form_of(operator, last_run("mail")))
    assert "Its arguments are too long for this form." in page
    assert "xxxxx" not in page


def test_no_link_has_a_lookup_that_is_refused(viewer: Client) -> None:
    """Django's own link to clear all filters would, if there is a date."""
    begin()
    day = runs().get().started_at
    date = f"started_at__day={day.day}&started_at__month={day.month}&started_at__year={day.year}"
    page = shown(viewer, list_of("jobrun", f"?{date}&status__exact=failed"))
    assert "Clear all filters" in page
    for link in Page(page).links:
        if link.startswith("?"):
            assert viewer.get(list_of("jobrun", link)).status_code == 200, link


# --- what it printed


def test_its_page_shows_what_it_printed_and_nothing_acts(admin_client: Client) -> None:
    run = ran(output="one\n\tindented <script>alert(1)</script>\n\x1b[31m\N{RIGHT-TO-LEFT OVERRIDE}\n")
    found = admin_client.get(page_of("jobrun", run.pk)).content.decode()
    assert "one\n\tindented &lt;script&gt;alert(1)&lt;/script&gt;\n\\x1b[31m\\u202e\n" in found
    assert "Until its end, 2024-12-31 23:31 UTC." in Page(found).text.replace("\n", "")


def test_while_it_runs_its_page_shows_what_the_last_heartbeat_told(admin_client: Client) -> None:
    start_run("nightly")
    JobLock.objects.update(
        progress={"output": "one\n<b>two</b>\n"}, heartbeat_at=LONG_AGO, heartbeat_interval=10 * SECOND
    )
    found = shown(admin_client, page_of("jobrun"))
    assert "one\n&lt;b&gt;two&lt;/b&gt;\n" in found
    assert found.index('id="singlejob-live"') < found.index("one\n&lt;b&gt;two")
    words = " ".join(Page(found).text.split())
    assert "As of the last heartbeat, 2024-12-31 23:30 UTC. It comes with each heartbeat, every 10 s" in words
    JobLock.objects.update(progress={})
    assert "The end of its output" not in shown(admin_client, page_of("jobrun"))


def test_without_output_there_is_no_panel(admin_client: Client) -> None:
    assert "singlejob-output" not in admin_client.get(page_of("jobrun", ran().pk)).content.decode()


def test_no_list_reads_the_output(admin_client: Client) -> None:
    ran(output="needle")
    with CaptureQueriesContext(connections[runs().db]) as queries:
        assert admin_client.get(list_of("jobrun")).status_code == 200
    assert not [query for query in queries if '"output"' in query["sql"] or "`output`" in query["sql"]]
