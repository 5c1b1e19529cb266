from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from html import unescape
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode
from uuid import uuid4

import pytest
from django.contrib import admin
from django.contrib.admin.utils import quote
from django.contrib.auth.models import Permission
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import translation
from django.utils.html import escape

from django_singlejob import singleton_job
from django_singlejob.admin import gantt, history, job_lines, overview, troubles
from django_singlejob.jobs import registry
from django_singlejob.models.jobs import gates
from django_singlejob.models.locks import locks
from django_singlejob.models.one_offs import one_offs
from django_singlejob.models.runs import runs
from django_singlejob.process.clock import DBNow
from django_singlejob.running.enqueue import Order, place
from tests.contract.acts import HOUR, MINUTE, SECOND, expire, scheduled, start_run, take, ticked

if TYPE_CHECKING:
    from django.test import Client
    from pytest_django import Settings

pytest_plugins = "tests.fixtures"
pytestmark = [pytest.mark.usefixtures("fresh_process"), pytest.mark.django_db]

URL = "/admin/django_singlejob/overview/"
NEEDED = ["view_jobstatus", "view_joblock", "view_jobrun"]


@pytest.fixture
def viewer(client: Client, django_user_model: Any) -> Client:
    """A user with permission to see the overview, and nothing that is not on it."""
    return log_in(client, django_user_model, *NEEDED)


def log_in(client: Client, django_user_model: Any, *permissions: str) -> Client:
    person = django_user_model.objects.create(username="clerk", is_staff=True)
    person.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    client.force_login(person)
    return client


def page(client: Client, at: str = URL, **query: str) -> str:
    response = client.get(at, query)
    assert response.status_code == 200
    return response.content.decode()


def said(client: Client, at: str = URL, **query: str) -> str:
    """The page's text, without its tags."""
    _head, _live, body = page(client, at, **query).partition('id="singlejob-live"')
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", f"<div {body}")).split())


def headline(client: Client) -> tuple[str, str]:
    """The colour and the text of the headline."""
    found = re.search(r'singlejob-badge singlejob-(\w+)" id="singlejob-headline">([^<]+)<', page(client))
    assert found
    return found[1], found[2]


def ran(ago: timedelta = MINUTE, **columns: Any) -> int:
    """Create a run that began this long ago and took a second, or whose live holder is still running it. Returns its
    primary key."""
    second = timedelta(seconds=1)
    facts = {"job_name": "nightly", "fence": 1, "token": uuid4(), "trigger": "call", "hostname": "web-1", "pid": 1}
    times = {"started_at": DBNow() - ago, "finished_at": DBNow() - ago + second, "duration": second}
    run = runs().create(**{"status": "successful"} | facts | times | columns)
    if run.status == "running":
        take(f"lock-of-{run.pk}")
        locks().filter(name=f"lock-of-{run.pk}").update(token=run.token)
    return run.pk


def known(name: str = "nightly", **columns: Any) -> None:
    """A job that has run."""
    gates().remember(name)
    gates().filter(name=name).update(last_started_at=DBNow() - HOUR, **columns)


def wait_for_a_worker(**columns: Any) -> None:
    one_off = place(Order(job_name="nightly"), [], {})
    one_offs().filter(pk=one_off.pk).update(**columns)


# --- the first ten seconds


def test_where_nothing_is_all_is_well(viewer: Client) -> None:
    assert headline(viewer) == ("good", "All is well")
    assert "There are no jobs yet" in said(viewer)
    assert "Nothing is running." in said(viewer)


def test_where_nothing_is_enabled_it_says_so_and_nothing_needs_attention(viewer: Client, settings: Settings) -> None:
    known(consecutive_failures=1)
    settings.SINGLEJOB = {"ENABLED": False}
    assert headline(viewer) == ("warn", "Nothing runs: disabled by SINGLEJOB[&#x27;ENABLED&#x27;]")
    assert "Needs attention" not in said(viewer)


def test_idle_jobs_are_well(viewer: Client) -> None:
    known()
    known("hourly")
    assert headline(viewer) == ("good", "All is well")
    assert "2 idle" in said(viewer)
    assert "Needs attention" not in said(viewer)
    assert 'href="?state=idle#singlejob-jobs"' in page(viewer)


def test_what_runs_is_told_with_its_holder(viewer: Client) -> None:
    start_run()
    locks().update(hostname="web-7", acquired_at=DBNow() - 2 * HOUR)
    assert headline(viewer) == ("good", "All is well")
    assert "1 running" in said(viewer)
    assert re.search(r"Running now Job State nightly running for 2 h 0 min, web-7, pid \d+ ", said(viewer))


def test_a_stale_lock_needs_attention(viewer: Client) -> None:
    start_run()
    expire()
    locks().update(hostname="web-7")
    assert headline(viewer) == ("bad", "Critical: 1 problem needs attention")
    assert re.search(r"nightly stale since \S+, .+ ago The lock 'nightly' is held by web-7, pid", said(viewer))
    assert re.search(r"Running now Job State nightly stale silent for .+, web-7, pid \d+ ", said(viewer))
    assert "running" not in said(viewer).partition("stale silent for")[2]
    assert f'<a href="{reverse("admin:django_singlejob_jobstatus_change", args=["nightly"])}">nightly</a>' in page(
        viewer
    )


def test_a_stale_lock_of_no_job_too(viewer: Client) -> None:
    take("deploy:web")
    expire("deploy:web")
    assert headline(viewer) == ("bad", "Critical: 1 problem needs attention")
    assert "1 lock of no job" in said(viewer)
    assert f'<a href="{reverse("admin:django_singlejob_joblock_change", args=["deploy_3Aweb"])}">' in page(viewer)


def test_a_failing_job_is_told_with_its_last_error(viewer: Client) -> None:
    known(consecutive_failures=3)
    ran(2 * HOUR, status="failed", error="ValueError: the first")
    last = ran(HOUR, status="failed", error="ValueError: the last\nand more")
    assert headline(viewer) == ("bad", "Critical: 1 problem needs attention")
    words = r"nightly failing since .+ ago , 3 failures in a row The last 3 runs of the job 'nightly' did not succeed\."
    assert re.search(words, said(viewer))
    assert "run the job again. ValueError: the last" in said(viewer)
    assert "and more" not in said(viewer)
    of_the_run = reverse("admin:django_singlejob_jobrun_change", args=[last])
    assert f'<a href="{of_the_run}">ValueError: the last</a>' in page(viewer)


@pytest.mark.parametrize("errors", [[], [""]], ids=["pruned", "not recorded"])
def test_a_failing_job_without_an_error_leads_to_its_runs(viewer: Client, errors: list[str]) -> None:
    known(consecutive_failures=3)
    for error in errors:
        ran(HOUR, status="failed", error=error)
    of_the_job = reverse("admin:django_singlejob_jobrun_changelist")
    assert f'<a href="{of_the_job}?job_name=nightly">Its runs</a>' in page(viewer)


def test_the_worst_comes_first(viewer: Client) -> None:
    scheduled("almost", schedule="30 2 * * *")
    known("zealous", consecutive_failures=1)
    start_run("middling")
    expire("middling")
    assert headline(viewer) == ("bad", "Critical: 3 problems need attention")
    places = [said(viewer).index(name) for name in ("middling", "zealous", "almost")]
    assert places == sorted(places)


def test_a_paused_job_is_counted_and_well(viewer: Client) -> None:
    known(paused=True, consecutive_failures=3)
    assert headline(viewer) == ("good", "All is well")
    assert "1 paused" in said(viewer)


@pytest.mark.slow
def test_many_troubles_are_cut(viewer: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overview, "MOST_ROWS", 2)
    monkeypatch.setattr(troubles, "MOST_ROWS", 2)
    monkeypatch.setattr(job_lines, "MOST_LINES", 2)
    for number in range(5):
        known(f"job-{number}", consecutive_failures=1)
        take(f"lock-{number}")
    assert headline(viewer) == ("bad", "Critical: 5 problems need attention")
    assert "And 3 more jobs" in said(viewer)
    assert said(viewer).count("And 3 more") == 3
    assert "job-2" not in said(viewer)
    assert "lock-2" not in said(viewer)


# --- one-offs


@pytest.fixture
def one_off_viewer(client: Client, django_user_model: Any) -> Client:
    return log_in(client, django_user_model, *NEEDED, "view_oneoffjob")


def test_one_offs_that_are_late_are_told(one_off_viewer: Client) -> None:
    wait_for_a_worker(run_after=DBNow() - 2 * HOUR)
    wait_for_a_worker(run_after=DBNow() - 4 * MINUTE)
    assert headline(one_off_viewer) == ("bad", "Critical: 1 problem needs attention")
    assert (
        "2 one-offs are due in the queue 'default', the oldest for 2 hours. No worker is alive. Start singleton_worker."
    ) in said(one_off_viewer)
    assert list_of_one_offs(status__exact="waiting", queue_name__exact="default") in page(one_off_viewer)


def list_of_one_offs(**query: str) -> str:
    found = f"{reverse('admin:django_singlejob_oneoffjob_changelist')}?{urlencode(query)}"
    return f'href="{escape(found)}"'


def test_one_offs_that_failed_lately_are_told(one_off_viewer: Client) -> None:
    for ago in (MINUTE, HOUR / 2, 2 * HOUR):
        wait_for_a_worker(status="failed", finished_at=DBNow() - ago)
    wait_for_a_worker(status="done", finished_at=DBNow() - MINUTE, queue_name="a&b")
    assert headline(one_off_viewer) == ("bad", "Critical: 1 problem needs attention")
    assert "2 of 2 one-offs of the queue 'default' that finished in the last hour failed." in said(one_off_viewer)
    assert list_of_one_offs(status__exact="failed", queue_name__exact="default") in page(one_off_viewer)


def test_the_queues_and_the_workers_are_shown(one_off_viewer: Client) -> None:
    take("django_singlejob.worker.1", queues=["default", "mail"])
    wait_for_a_worker(run_after=DBNow() - MINUTE)
    shown = said(one_off_viewer)
    assert headline(one_off_viewer) == ("good", "All is well")
    assert re.search(r"Queues Queue Due Failed lately Workers default 1 for 1 min \d+ s 0 1 mail 0 0 1 ", shown)
    assert re.search(r"Workers 1 alive Worker State Queues \S+, pid \d+ alive default, mail$", shown)
    assert "django_singlejob.worker.1" not in shown.partition("Running now")[2].partition("The last")[0]


def test_a_dead_worker_comes_first(viewer: Client) -> None:
    for number in range(3):
        take(f"django_singlejob.worker.{number}")
    expire("django_singlejob.worker.2")
    locks().filter(name="django_singlejob.worker.2").update(hostname="web-7")
    assert re.search(r"Workers 2 alive 1 dead Worker State Queues web-7, pid \d+ dead all ", said(viewer))


def test_a_worker_that_died_is_told_with_its_lock(viewer: Client) -> None:
    take("django_singlejob.worker.1")
    expire("django_singlejob.worker.1")
    assert headline(viewer) == ("bad", "Critical: 1 problem needs attention")
    assert re.search(r"worker django_singlejob.worker.1 dead since .+ ago The worker ", said(viewer))
    lock_page = reverse("admin:django_singlejob_joblock_change", args=[quote("django_singlejob.worker.1")])
    assert f'<a href="{lock_page}">' in page(viewer)


@pytest.mark.slow
def test_many_queues_and_workers_are_cut(one_off_viewer: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overview, "MOST_ROWS", 2)
    monkeypatch.setattr(troubles, "MOST_ROWS", 2)
    monkeypatch.setattr(job_lines, "MOST_LINES", 2)
    for number in range(5):
        wait_for_a_worker(queue_name=f"queue-{number}", run_after=DBNow() - HOUR - number * MINUTE)
        take(f"django_singlejob.worker.{number}")
        expire(f"django_singlejob.worker.{number}")
        take(f"lock-{number}")
        expire(f"lock-{number}")
    shown = said(one_off_viewer)
    assert headline(one_off_viewer) == ("bad", "Critical: 15 problems need attention")
    for told in ("And 5 more locks", "And 3 more queues", "And 5 more workers", "And 3 more"):
        assert told in shown
    assert len(re.findall(r"And 3 more\b", shown)) == 4


def test_of_very_many_it_says_so(one_off_viewer: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_singlejob.monitoring.queues.MOST", 2)
    for _ in range(3):
        wait_for_a_worker(run_after=DBNow() - HOUR)
    assert "2 or more one-offs are due" in said(one_off_viewer)


def test_who_may_not_see_one_offs_is_not_told_of_them(viewer: Client) -> None:
    wait_for_a_worker(run_after=DBNow() - HOUR, queue_name="secret")
    wait_for_a_worker(status="failed", finished_at=DBNow() - MINUTE, queue_name="secret")
    assert headline(viewer) == ("good", "All is well")
    assert "one-off" not in said(viewer)
    assert "secret" not in page(viewer)


# --- a line for each job


def lines(client: Client, **query: str) -> list[str]:
    """The text of each job's line. A line may end between the parts of a name."""
    _before, _table, rest = page(client, **query).partition('aria-labelledby="singlejob-jobs"')
    rows = re.findall(r"<tr>(.*?)</tr>", rest.partition("<tbody>")[2].partition("</table>")[0], re.DOTALL)
    return [" ".join(unescape(re.sub(r"<[^>]*>", " ", row.replace("<wbr>", ""))).split()) for row in rows]


def test_a_line_says_how_the_last_run_ended_and_when_the_next_is(viewer: Client) -> None:
    known(last_status="successful", last_finished_at=DBNow() - HOUR + MINUTE, next_slot=DBNow() + 2 * HOUR + MINUTE)
    (line,) = lines(viewer)
    assert re.fullmatch(r"nightly idle successful 5[89] min \S+ s ago 1 min 0 s in 2 h [01] min", line), line


def test_a_line_says_how_often_a_job_failed_and_for_how_long_it_is_due(viewer: Client) -> None:
    known(consecutive_failures=3, last_status="failed", last_finished_at=DBNow() - HOUR)
    known("tardy", schedule="* * * * *", time_zone="UTC", next_slot=DBNow() - 2 * HOUR)
    tardy, nightly = lines(viewer)
    assert nightly.startswith("nightly failing 3 in a row failed 1 h 0 min ago")
    assert re.fullmatch(r"tardy overdue by 2 h 0 min - - due for 2 h 0 min", tardy), tardy


def test_one_that_has_never_been_requested_has_a_line(viewer: Client) -> None:
    scheduled("almost", schedule="30 2 * * *")
    assert lines(viewer) == ["almost never requested is cron or a worker running? - - -"]


def test_the_troubled_ones_come_first_then_what_runs(viewer: Client) -> None:
    known("a")
    known("z", consecutive_failures=1)
    start_run("y")
    start_run("x")
    expire("x")
    assert [line.split()[0] for line in lines(viewer)] == ["x", "z", "y", "a"]


def test_jobs_are_filtered_by_state_and_by_name(viewer: Client) -> None:
    for name in ("carts", "prices", "Carts-2"):
        known(name, consecutive_failures=int(name == "carts"))
    assert [line.split()[0] for line in lines(viewer, q="cart")] == ["carts", "Carts-2"]
    assert [line.split()[0] for line in lines(viewer, q="cart", state="idle")] == ["Carts-2"]
    assert len(lines(viewer, state="exploded")) == 3
    assert "No job matches." in said(viewer, q="cart", state="running")
    assert "0 running" in said(viewer, state="running")
    shown = page(viewer, q="cart", state="idle")
    assert '<input type="hidden" name="state" value="idle">' in shown
    assert 'name="q" value="cart"' in shown
    assert '<a href="?q=cart#singlejob-jobs" aria-current="true">' in shown
    assert '<a href="?state=failing&amp;q=cart#singlejob-jobs">' in shown


@pytest.mark.parametrize("text", ["\0", "x" * 201, '"><script>alert(1)</script>', "%", "é"])
def test_any_text_can_be_looked_for(viewer: Client, text: str) -> None:
    known()
    assert lines(viewer, q=text) == []
    assert "<script>alert" not in page(viewer, q=text)


def test_the_worst_of_many_have_a_line_and_the_others_are_in_the_list(
    viewer: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_lines, "MOST_LINES", 2)
    for number in range(5):
        known(f"job-{number}", consecutive_failures=int(number == 4))
    assert [line.split()[0] for line in lines(viewer)] == ["job-4", "job-0"]
    assert "And 3 more jobs" in said(viewer)
    in_the_list = reverse("admin:django_singlejob_jobstatus_changelist")
    assert f'<a href="{in_the_list}">And 3 more jobs</a>' in page(viewer)
    assert f'<a href="{in_the_list}?state=idle&amp;q=job">And 2 more jobs</a>' in page(viewer, state="idle", q="job")


# --- progress, and acknowledging


def test_how_far_each_run_is_is_shown(viewer: Client) -> None:
    start_run()
    locks().update(progress={"done": 120, "total": 500, "text": "<b>importing</b>"})
    shown = page(viewer)
    assert 'class="singlejob-progress" max="1" value="0.240"' in shown
    assert "<b>importing" not in shown
    assert "120 of 500, &lt;b&gt;importing" in shown


def test_a_finding_says_since_when(viewer: Client) -> None:
    known(consecutive_failures=2, last_status="failed", last_finished_at=DBNow() - 72 * HOUR)
    assert re.search(r"failing since \d{4}-\d\d-\d\d \d\d:\d\d, 3 d 0 h ago , 2 failures in a row", said(viewer))


def test_a_finding_can_be_acknowledged_beside_it(client: Client, django_user_model: Any) -> None:
    known(consecutive_failures=1)
    operator = log_in(client, django_user_model, *NEEDED, "change_jobstatus")
    assert page(operator).count('value="acknowledge"') == 1
    sent = {"action": "acknowledge", "_selected_action": "nightly", "back": "nightly", "confirmed": "yes"}
    operator.post(reverse("admin:django_singlejob_jobstatus_changelist"), sent)
    assert headline(operator)[0] == "good"
    assert "acknowledged by clerk until" in said(operator)
    assert 'value="acknowledge"' not in page(operator)


def test_who_may_not_acknowledge_has_no_button(viewer: Client) -> None:
    known(consecutive_failures=1)
    assert 'value="acknowledge"' not in page(viewer)


def test_what_is_no_job_has_no_button(admin_client: Client) -> None:
    take("deploy:web")
    expire("deploy:web")
    assert "deploy:web" in page(admin_client)
    assert 'value="acknowledge"' not in page(admin_client)


# --- winners and lock cost


def winners_of(client: Client, **query: str) -> str:
    """The text of the page about the winners and the lock cost."""
    return said(client, at=f"{URL}winners/", **query)


def test_each_server_has_a_row_and_a_link_to_its_runs(viewer: Client) -> None:
    ran(hostname="web-1")
    ran(hostname="web 2&3", status="failed")
    shown = page(viewer, f"{URL}winners/")
    assert 'aria-label="web-1: 1 run; the last began at' in shown
    assert "web 2&amp;3: 1 run, 1 bad; the last" in shown
    query = urlencode({"server": "web 2&3"})
    assert f'href="{reverse("admin:django_singlejob_jobrun_changelist")}?{query}"' in shown


@pytest.mark.parametrize(("hours", "shown"), [("1", 1), ("6", 2), ("24", 3), ("72", 4)])
def test_it_goes_back_as_far_as_one_chooses(viewer: Client, hours: str, shown: int) -> None:
    for ago in (HOUR / 2, 5 * HOUR, 23 * HOUR, 71 * HOUR, 73 * HOUR):
        ran(ago)
    assert f"{shown} run" in winners_of(viewer, hours=hours)
    assert f'href="?hours={hours}" aria-current="true"' in page(viewer, f"{URL}winners/", hours=hours)


@pytest.mark.parametrize("hours", ["", "0", "-1", "7", "6.0", "1e9", "x", "६", "6\0"])
def test_odd_hours_are_the_usual_ones(viewer: Client, hours: str) -> None:
    assert "The last 6 hours" in winners_of(viewer, hours=hours)


def test_what_began_before_and_goes_on_is_shown(viewer: Client) -> None:
    ran(30 * HOUR, status="running", finished_at=None, duration=None)
    assert "1 run, 1 running" in winners_of(viewer)


@pytest.mark.parametrize("ago", [HOUR, 30 * HOUR])
def test_a_run_whose_holder_is_dead_does_not_look_as_if_it_ran(viewer: Client, ago: timedelta) -> None:
    ran(ago, status="running", finished_at=None, duration=None)
    locks().update(expires_at=DBNow() - MINUTE, heartbeat_at=DBNow() - ago)
    shown = winners_of(viewer)
    assert "1 run, 1 stale" in shown
    bars = re.findall(r'class="(singlejob-\w+)"><title>([^<]*)<', page(viewer, f"{URL}winners/"))
    assert [(colour, "nightly: stale, began at" in title) for colour, title in bars] == [("singlejob-bad", True)]


def test_nor_does_one_whose_lock_is_gone(viewer: Client) -> None:
    ran(status="running", finished_at=None, duration=None)
    locks().all().delete()
    assert "1 run, 1 stale" in winners_of(viewer)


def test_with_many_servers_each_has_few_lanes() -> None:
    now = datetime(2026, 7, 1, 12, tzinfo=UTC)
    begin = now - HOUR
    ended = [("failed", now), ("running", None), ("successful", now)]
    some = [
        history.RecordedRun(1, "nightly", status, f"web-{number}", begin + MINUTE, end, None)
        for number in range(20)
        for status, end in ended
    ]
    rows = gantt.rows(history.Period(now=now, begin=begin, runs=some, earlier=[], is_cut=False))
    assert {len(row.lanes) for row in rows} == {1}
    assert [bar.tone for bar in rows[0].lanes[0]] == ["good", "busy", "bad"]  # what is drawn last is on top


def test_of_very_many_runs_the_newest_are_shown(viewer: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "MOST", 3)
    for ago in range(1, 6):
        ran(ago * MINUTE, status="failed" if ago == 5 else "successful")
    assert "Only the newest 3 runs are counted and shown: those since" in winners_of(viewer)
    assert "3 runs" in winners_of(viewer)


def test_of_very_many_servers_those_with_most_runs_are_shown(viewer: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gantt, "MOST_SERVERS", 2)
    for hostname in ("web-1", "web-2", "web-2", "web-3", "web-3"):
        ran(hostname=hostname)
    assert "These are the 2 servers with the most runs." in winners_of(viewer)
    assert 'aria-label="web-1' not in page(viewer, f"{URL}winners/")


def test_who_won_is_told(viewer: Client) -> None:
    ran(hostname="web-1")
    for status in ("failed", "successful", "running"):
        ran(hostname="web-2", status=status)
    assert "web-2 3 (75%) 1 " in winners_of(viewer)
    assert "web-1 1 (25%) 0 " in winners_of(viewer)


def test_what_the_locks_cost_is_told(viewer: Client) -> None:
    for cost in (1, 2, 3, 900):
        ran(acquire_duration=timedelta(milliseconds=cost))
    shown = winners_of(viewer)
    assert "Least 1 ms Median 2 ms Mean 226 ms 95th percentile 900 ms Most 900 ms" in shown
    assert "up to 5 ms 3 (75%)" in shown
    assert "more 0 (0%)" in shown


def test_runs_without_a_cost_are_left_out(viewer: Client) -> None:
    ran()
    assert "No lock cost has been recorded." in winners_of(viewer)


def test_the_overview_leads_there_and_has_none_of_it(viewer: Client) -> None:
    ran(acquire_duration=timedelta(milliseconds=3))
    assert f'href="{URL}winners/"' in page(viewer)
    assert "Runs won" not in said(viewer)
    assert "95th percentile" not in said(viewer)


def test_the_winners_go_back_as_far_as_one_chooses(viewer: Client) -> None:
    ran(30 * HOUR, hostname="web-7")
    assert "web-7" not in winners_of(viewer)
    assert "web-7 1 (100%) 0 " in winners_of(viewer, hours="72")


# --- permissions


@pytest.mark.parametrize("missing", NEEDED)
def test_who_lacks_a_permission_sees_nothing_of_it(client: Client, django_user_model: Any, missing: str) -> None:
    log_in(client, django_user_model, *{*NEEDED, "view_oneoffjob", "change_jobstatus"} - {missing})
    assert client.get(URL).status_code == 403
    for url in reverse("admin:index"), reverse("admin:app_list", args=["django_singlejob"]):
        assert URL not in client.get(url).content.decode()


def test_it_is_the_first_entry_of_the_menu(viewer: Client) -> None:
    (app,) = [app for app in admin.site.get_app_list(request_of(viewer)) if app["app_label"] == "django_singlejob"]
    assert [model["object_name"] for model in app["models"]][:2] == ["Overview", "JobStatus"]
    with translation.override("de"):
        (app,) = [app for app in admin.site.get_app_list(request_of(viewer)) if app["app_label"] == "django_singlejob"]
        assert app["models"][0]["object_name"] == "Overview"


def request_of(client: Client) -> Any:
    return client.get(URL).wsgi_request


@pytest.mark.parametrize("path", ["add/", "nightly/change/", "nightly/delete/", "nightly/history/", "nightly/", "x"])
def test_it_has_no_other_page(client: Client, django_user_model: Any, path: str) -> None:
    known()
    client.force_login(django_user_model.objects.create(username="admin", is_staff=True, is_superuser=True))
    assert client.get(f"{URL}{path}").status_code == 404
    assert client.post(f"{URL}{path}").status_code == 404


# --- markup and queries


def test_headings_are_in_order(viewer: Client) -> None:
    known(consecutive_failures=1)
    ran()
    main = page(viewer).partition("<main")[2].partition("</main>")[0]
    levels = [int(level) for level in re.findall(r"<h(\d)", main)]
    assert levels[0] == 1
    assert set(levels[1:]) == {2}


def test_tables_say_what_their_cells_are(viewer: Client) -> None:
    known(consecutive_failures=1)
    start_run("running")
    ran(status="failed", acquire_duration=timedelta(milliseconds=3))
    shown = page(viewer).partition('<div class="singlejob-page"')[2]
    tables = re.findall(r"<table.*?</table>", shown, re.DOTALL)
    assert len(tables) == 3
    for table in tables:
        assert "<caption>" in table or "aria-labelledby" in table
        assert not re.search(r"<th(?! scope=| class=|ead)", table)


@pytest.mark.slow
def test_it_takes_as_many_queries_however_much_there_is(one_off_viewer: Client) -> None:
    fill("a", 1)
    few = queries_of(one_off_viewer)
    fill("b", 20)
    assert queries_of(one_off_viewer) == few <= 12


def fill(prefix: str, number: int) -> None:
    """Create this many jobs of each kind, servers and one-offs."""
    for count in range(number):
        name = f"{prefix}{count}"
        singleton_job(f"registered-{name}", schedule="30 2 * * *")(print)
        known(f"failing-{name}", consecutive_failures=1)
        start_run(f"running-{name}")
        take(f"lock-{name}")
        for status in ("successful", "failed"):
            ran(job_name=f"failing-{name}", hostname=name, status=status, acquire_duration=timedelta(milliseconds=1))
        ran(30 * HOUR, hostname=name, status="running", finished_at=None)
        wait_for_a_worker(run_after=DBNow() - HOUR)
        wait_for_a_worker(status="failed", finished_at=DBNow() - MINUTE)


def queries_of(client: Client) -> int:
    with CaptureQueriesContext(connection) as captured:
        page(client)
    return len(captured)


def test_the_refresh_leaves_messages_to_the_page_that_they_are_for(admin_client: Client) -> None:
    start_run("nightly")
    admin_client.post(
        reverse("admin:django_singlejob_jobstatus_changelist"),
        {"action": "pause", "_selected_action": "nightly", "confirmed": "yes"},
    )
    refreshed = admin_client.get(
        reverse("admin:django_singlejob_overview_changelist"), headers={"Singlejob-Refresh": "1"}
    ).content.decode()
    assert refreshed.count('id="singlejob-live"') == 1
    assert "<html" not in refreshed
    assert "is paused" in admin_client.get(reverse("admin:django_singlejob_jobstatus_changelist")).content.decode()


@pytest.mark.on_database("sqlite")
@pytest.mark.usefixtures("newer_release")
def test_a_run_of_a_status_that_only_a_newer_release_knows_is_shown(admin_client: Client) -> None:
    start_run("nightly")
    runs().update(status="exploded", finished_at=DBNow())
    assert "exploded" in page(admin_client, f"{URL}winners/")


def test_jobs_that_cannot_be_imported_need_attention_after_a_refresh_too(
    viewer: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(registry.failures, "shop.jobs", ModuleNotFoundError("No module named 'stripe'"))
    assert headline(viewer) == ("bad", "Critical: 1 problem needs attention")
    refreshed = viewer.get(URL, headers={"Singlejob-Refresh": "1"}).content.decode()
    for text in said(viewer), unescape(refreshed):
        assert "Some jobs cannot be registered: ModuleNotFoundError: No module named 'stripe'." in text


def test_a_pass_that_has_ended_is_not_alive(viewer: Client) -> None:
    ticked()
    assert "passes" in said(viewer)
    assert "alive" not in said(viewer)


def test_a_run_can_be_stopped_from_there_by_those_who_may(client: Client, django_user_model: Any) -> None:
    start_run(heartbeat_interval=20 * SECOND)
    assert "/stop/" not in page(log_in(client, django_user_model, *NEEDED))
    user = django_user_model.objects.get()
    user.user_permissions.add(Permission.objects.get(codename="stop_joblock"))
    (link,) = re.findall(r'href="([^"]*/stop/[^"]*)"', page(client))
    assert client.get(unescape(link)).status_code == 200
