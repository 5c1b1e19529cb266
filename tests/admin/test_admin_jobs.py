"""The admin's list of jobs, the page of a job, and the actions there."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from django.contrib.admin.models import LogEntry
from django.urls import reverse

from django_singlejob import job_lock, singleton_job
from django_singlejob.admin.forms import PauseForm
from django_singlejob.jobs import registry
from django_singlejob.models.jobs import gates
from django_singlejob.models.one_offs import one_offs
from django_singlejob.models.runs import runs
from django_singlejob.process.clock import DBNow
from tests.admin.pages import Page, act, clear_page, list_of, page_of, shown
from tests.contract.acts import HOUR, MINUTE, expire, last_run, start_run, tick, ticked
from tests.waiting import PATIENCE

if TYPE_CHECKING:
    from django.test import Client
    from pytest_django import Settings

    from tests.admin.people import LogIn
    from tests.fixtures import Elsewhere

pytest_plugins = ["tests.fixtures", "tests.admin.people"]
pytestmark = [pytest.mark.usefixtures("fresh_process"), pytest.mark.django_db]

SEEN = "The next free worker will run the job nightly."
ASKED = "The job nightly waits for a worker, and none has been seen. Start singleton_worker."


@pytest.fixture
def ran() -> list[str]:
    """What the job has done so far."""
    return []


@pytest.fixture
def nightly(fresh_process: None, ran: list[str]) -> Any:
    """A job that nobody has called yet, so it has no row."""
    return singleton_job("nightly")(lambda *_: ran.append("nightly"))


def names(client: Client, query: str = "") -> list[str]:
    """The names of the jobs in the list, from top to bottom."""
    found = re.findall(r'class="field-title"><a href="[^"]*">(.*?)</a>', shown(client, list_of("jobstatus", query)))
    return [name.strip().replace("<wbr>", "") for name in found]


def entries(name: str = "nightly") -> list[str]:
    """The messages about the job in the admin's log, oldest first."""
    found = LogEntry.objects.filter(object_id=name, content_type__model="jobstatus").order_by("pk")
    assert all(entry.is_change() and entry.object_repr == name for entry in found)
    return [entry.get_change_message() for entry in found]


# --- the list


def live(*states: str) -> None:
    """Create a job in each of these states, named after it."""
    for state in states:
        gates().remember(state)
        gates().filter(name=state).update(last_started_at=DBNow() - 2 * HOUR)
    gates().filter(name="failing").update(consecutive_failures=1, last_status="failed")
    gates().filter(name="overdue").update(schedule="0 * * * *", time_zone="UTC", next_slot=DBNow() - HOUR)
    gates().filter(name="paused").update(paused=True)
    for name in {"running", "stale"} & set(states):
        start_run(name)
    if "stale" in states:
        expire("stale")
    if "unseen" in states:
        gates().filter(name="unseen").delete()
        singleton_job("unseen", schedule=HOUR)(lambda: None)


STATES = ["failing", "idle", "overdue", "paused", "running", "stale", "unseen"]


def test_the_worst_come_first(admin_client: Client) -> None:
    live(*STATES)
    assert names(admin_client) == ["failing", "overdue", "stale", "unseen", "idle", "paused", "running"]


@pytest.mark.slow
def test_they_are_filtered_by_state(admin_client: Client) -> None:
    live(*STATES)
    for state in STATES:
        assert names(admin_client, f"?state={state}") == [state]
    assert names(admin_client, "?state=attention") == ["failing", "overdue", "stale", "unseen"]
    assert names(admin_client, "?state=strange") == []


def test_they_are_searched_for_by_a_part_of_the_name(admin_client: Client) -> None:
    live("shop.report:daily", "shop.mail", "idle")
    assert names(admin_client, "?q=REPORT") == ["shop.report:daily"]
    assert names(admin_client, "?q=shop.") == ["shop.mail", "shop.report:daily"]
    assert names(admin_client, "?q=shop.&state=failing") == []
    assert names(admin_client, "?q=%25") == []


@pytest.mark.slow
def test_more_than_fifty_take_several_pages(admin_client: Client) -> None:
    for number in range(80):
        singleton_job(f"job_{number:03}")(lambda: None)
    expected = [f"job_{number:03}" for number in range(80)]
    assert names(admin_client) == expected[:50]
    assert "80 jobs" in shown(admin_client, list_of("jobstatus"))
    assert names(admin_client, "?p=2") == expected[50:]
    assert names(admin_client, "?all=") == expected[:50]
    beyond = admin_client.get(list_of("jobstatus", "?p=3"))
    assert (beyond.status_code, beyond.headers["Location"]) == (302, list_of("jobstatus", "?e=1"))


def test_a_lock_that_belongs_to_no_job_is_not_among_them(admin_client: Client) -> None:
    with job_lock("block", heartbeat=False):
        assert names(admin_client) == []
        assert "block" in shown(admin_client, page_of("jobstatus", "block"))
    assert names(admin_client) == []


def test_what_is_known_of_the_last_runs_is_shown(admin_client: Client, nightly: Any) -> None:
    nightly()
    singleton_job("hourly")(lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        registry.get("hourly").run()  # type: ignore[attr-defined]
    gates().filter(name="hourly").update(consecutive_failures=2)
    for url in list_of("jobstatus"), page_of("jobstatus", "hourly"):
        page = shown(admin_client, url).replace("<wbr>", "")
        assert "2 times in a row" in page
        assert "ZeroDivisionError: division by zero" in page
        assert "1 run, 1 of them bad" in page
    assert page_of("jobrun", last_run("hourly").pk) in Page(shown(admin_client, page_of("jobstatus", "hourly"))).links


def test_what_it_is_expected_to_do_is_shown(admin_client: Client) -> None:
    gates().remember("hourly")
    due = DBNow() + HOUR + 1.5 * MINUTE
    gates().update(schedule="5 * * * *", time_zone="UTC", next_slot=due, mean_duration=7 * MINUTE)
    page = shown(admin_client, list_of("jobstatus"))
    for text in "in 1\xa0h\xa01\xa0min", "At minute 5 of every hour", "mean 7\xa0min\xa00\xa0s":
        assert text in page


# --- the page


def test_to_look_at_a_job_does_not_run_it(admin_client: Client, nightly: object, ran: list[str]) -> None:
    """Django's templates call everything that is callable."""
    shown(admin_client, list_of("jobstatus"))
    shown(admin_client, page_of("jobstatus", "nightly"))
    assert ran == []


def test_a_job_that_has_no_row_yet_is_shown(admin_client: Client) -> None:
    @singleton_job(schedule=HOUR)
    def nightly() -> None:
        """Cleans <up>."""

    assert names(admin_client) == ["nightly"]
    page = shown(admin_client, page_of("jobstatus", "nightly"))
    for text in "never requested", "Every 1 hour", "Cleans &lt;up&gt;.", "It has not run yet.", "None is waiting.":
        assert text in page
    assert not gates().exists()


def test_one_that_the_code_does_not_know_any_more_too(admin_client: Client) -> None:
    live("nightly")
    assert names(admin_client) == ["nightly"]
    page = shown(admin_client, page_of("jobstatus", "nightly"))
    assert "This release of the code does not define this job." in page
    assert 'value="run_now"' not in page
    assert 'value="pause"' in page


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a:b", "a_b", "report_24", "a_3a", "a.b-c", "_".join("0123456789")])
def test_whatever_it_is_called(admin_client: Client, name: str, ran: list[str]) -> None:
    singleton_job(name)(lambda: ran.append(name))
    assert names(admin_client) == [name]
    page = Page(shown(admin_client, page_of("jobstatus", name)))
    assert page.fields["_selected_action"] == [name]
    act(admin_client, "jobstatus", "run_now", name, back=name)
    ticked()
    assert ran == [name]
    for url in Page(shown(admin_client, page_of("jobstatus", name))).links:
        if "django_singlejob" in url:
            assert admin_client.get(url).status_code == 200, url


def test_the_next_slots_are_shown_in_the_time_zone_of_the_job(admin_client: Client) -> None:
    gates().remember("nightly")
    facts = {"schedule": "0 1 * * *", "time_zone": "Asia/Tokyo"}
    gates().update(next_slot="2040-01-01T16:00Z", **facts)
    page = shown(admin_client, page_of("jobstatus", "nightly"))
    assert "(Asia/Tokyo)" in page
    assert [f"2040-01-0{day} 01:00 JST" in page for day in (1, 2, 3, 6, 7)] == [False, True, True, True, False]


def test_the_list_shows_next_slots_in_the_time_zone_of_the_project(admin_client: Client, settings: Settings) -> None:
    settings.TIME_ZONE = "Europe/Rome"
    gates().remember("nightly")
    gates().update(schedule="0 1 * * *", time_zone="Asia/Tokyo", next_slot="2040-01-01T16:00Z")
    listed = shown(admin_client, list_of("jobstatus"))
    assert "2040-01-01 17:00 CET" in listed
    assert "JST" not in listed
    assert "(Asia/Tokyo)" in listed


def test_a_schedule_of_a_newer_release_is_shown_as_it_is(admin_client: Client) -> None:
    gates().remember("nightly")
    gates().update(schedule="full moon", time_zone="Moon/Tycho", next_slot=DBNow() + HOUR)
    for url in list_of("jobstatus"), page_of("jobstatus", "nightly"):
        assert "full moon" in shown(admin_client, url)


def test_waiting_one_offs_and_servers_are_shown(admin_client: Client, nightly: Any) -> None:
    nightly()
    nightly()
    runs().filter(pk=last_run().pk).update(hostname="web-2")
    waiting, done = nightly.enqueue(), nightly.enqueue()
    one_offs().filter(pk=done.pk).update(status="done")
    page = Page(shown(admin_client, page_of("jobstatus", "nightly")))
    assert "web-2" in page.text
    assert page_of("oneoffjob", waiting.pk) in page.links
    assert page_of("oneoffjob", done.pk) not in page.links


def test_it_leads_to_its_lock(admin_client: Client) -> None:
    start_run("nightly", name="shop")
    page = Page(shown(admin_client, page_of("jobstatus", "nightly")))
    assert page_of("joblock", "shop") in page.links
    assert clear_page("shop") not in page.links
    expire("shop")
    assert clear_page("shop") in Page(shown(admin_client, page_of("jobstatus", "nightly"))).links


def test_a_user_who_may_not_see_locks_is_not_led_to_clear_one(log_in: LogIn) -> None:
    """That page would answer with 403."""
    start_run("nightly")
    expire()
    may = ["view_jobstatus", "clear_joblock"]
    pages = [
        Page(shown(log_in(f"user-{len(more)}", *may, *more), page_of("jobstatus", "nightly")))
        for more in ([], ["view_joblock"])
    ]
    assert [clear_page("nightly") in page.links for page in pages] == [False, True]


def test_the_line_beyond_which_it_is_overrunning_is_drawn_after_enough_runs(admin_client: Client, nightly: Any) -> None:
    nightly()
    runs().update(duration=2 * MINUTE)
    gates().update(mean_duration=MINUTE, run_count=4)
    assert "overrunning beyond" not in shown(admin_client, page_of("jobstatus", "nightly"))
    gates().update(run_count=5)
    assert "overrunning beyond 3\xa0min\xa00\xa0s" in shown(admin_client, page_of("jobstatus", "nightly"))


# --- run now


@pytest.mark.usefixtures("nightly")
def test_if_a_worker_has_been_seen_it_is_the_next_free_one(admin_client: Client, ran: list[str]) -> None:
    list(tick(["mail"]))
    assert act(admin_client, "jobstatus", "run_now", "nightly") == [ASKED]
    ticked()
    assert act(admin_client, "jobstatus", "run_now", "nightly") == [SEEN]


@pytest.mark.usefixtures("nightly")
def test_it_is_run_now_by_the_next_tick(admin_client: Client, ran: list[str]) -> None:
    assert act(admin_client, "jobstatus", "run_now", "nightly") == [ASKED]
    assert ran == []
    row = one_offs().get()
    assert (row.job_name, row.args, row.kwargs, row.priority, row.max_attempts) == ("nightly", [], {}, 100, 3)
    assert entries() == [f"Requested a run now: one-off {row.pk}."]
    ticked()
    assert ran == ["nightly"]
    assert (one_offs().get().status, last_run().trigger) == ("done", "manual")


@pytest.mark.usefixtures("nightly")
def test_it_records_who_requested_it(operator: Client) -> None:
    act(operator, "jobstatus", "run_now", "nightly")
    assert one_offs().get().requested_by == "operator"
    ticked()
    assert (last_run().trigger, last_run().requested_by) == ("manual", "operator")


@pytest.mark.usefixtures("nightly")
def test_a_user_name_that_a_database_may_reject_is_escaped(log_in: LogIn) -> None:
    client = log_in("ada\U0001f680" + "a" * 140, "run_jobstatus", "view_jobstatus")
    act(client, "jobstatus", "run_now", "nightly")
    ticked()
    assert last_run().requested_by == "ada\\U0001f680" + "a" * 140


@pytest.mark.slow
@pytest.mark.usefixtures("nightly")
def test_it_is_asked_for_once(admin_client: Client, ran: list[str]) -> None:
    act(admin_client, "jobstatus", "run_now", "nightly")
    (again,) = act(admin_client, "jobstatus", "run_now", "nightly")
    assert again.startswith("The job nightly is already waiting for a free worker")
    assert (one_offs().count(), len(entries())) == (1, 1)
    ticked()
    assert act(admin_client, "jobstatus", "run_now", "nightly") == [SEEN]
    assert one_offs().count() == 2


def test_one_that_waits_with_arguments_or_for_later_is_another(admin_client: Client, nightly: Any) -> None:
    nightly.enqueue(1)
    nightly.using(run_after=datetime.now(UTC) + HOUR).enqueue()
    assert act(admin_client, "jobstatus", "run_now", "nightly") == [ASKED]


def test_several_at_once(admin_client: Client, nightly: object) -> None:
    singleton_job("mail")(lambda address: address)
    live("weekly", "paused")
    gates().filter(name="paused").update(last_started_at=None)
    singleton_job("paused")(lambda: None)
    answers = act(admin_client, "jobstatus", "run_now", "mail", "nightly", "weekly", "paused", "never", "nightly")
    assert answers == [
        "The job mail cannot be run without arguments. Add a one-off with arguments instead.",
        ASKED,
        "The job weekly cannot be run, because this release of the code does not define it.",
        "The job paused is paused. Resume it first.",
        "The job nightly is already waiting for a free worker. Is a worker running?",
    ]
    assert [row.job_name for row in one_offs()] == ["nightly"]


@pytest.mark.usefixtures("nightly")
def test_from_its_page_it_leads_back_there(admin_client: Client) -> None:
    page = Page(shown(admin_client, page_of("jobstatus", "nightly")))
    sent = {name: page.fields[name] for name in ("_selected_action", "back")}
    response = admin_client.post(list_of("jobstatus"), sent | {"action": "run_now"})
    assert (response.status_code, response.headers["Location"]) == (302, page_of("jobstatus", "nightly"))
    elsewhere = admin_client.post(list_of("jobstatus"), sent | {"action": "run_now", "back": "//evil.example/"})
    assert elsewhere.headers["Location"].startswith(reverse("admin:index"))


@pytest.mark.usefixtures("nightly")
@pytest.mark.parametrize("action", ["run_now", "pause", "resume"])
def test_to_choose_all_of_none_is_to_choose_none(admin_client: Client, action: str) -> None:
    chosen = {"action": action, "select_across": "1", "index": "0"}
    for sent in chosen, chosen | {"_selected_action": "never"}:
        response = admin_client.post(list_of("jobstatus"), sent, follow=True)
        assert response.status_code == 200
    assert not one_offs().exists()
    assert not gates().filter(paused=True).exists()
    assert not LogEntry.objects.exists()


@pytest.mark.usefixtures("nightly")
def test_a_viewer_finds_no_buttons(viewer: Client, log_in: LogIn) -> None:
    buttons = {"run_now", "pause"}
    pages = {
        name: shown(client, page_of("jobstatus", "nightly"))
        for name, client in [
            ("viewer", viewer),
            ("runner", log_in("runner", "view_jobstatus", "run_jobstatus")),
            ("pauser", log_in("pauser", "view_jobstatus", "change_jobstatus")),
        ]
    }
    found = {name: {button for button in buttons if f'value="{button}"' in page} for name, page in pages.items()}
    assert found == {"viewer": set(), "runner": {"run_now"}, "pauser": {"pause"}}
    assert Page(shown(viewer, list_of("jobstatus"))).fields.keys() == set()


# --- pause and resume


@pytest.mark.slow
def test_a_paused_job_is_not_run(admin_client: Client, nightly: Any, ran: list[str]) -> None:
    answers = act(admin_client, "jobstatus", "pause", "nightly")
    assert answers == ["The job nightly is paused. No new runs will start; a run in progress continues to its end."]
    nightly.enqueue()
    assert not nightly()
    ticked()
    assert ran == []
    assert act(admin_client, "jobstatus", "pause", "nightly") == ["The job nightly was already paused."]
    assert names(admin_client, "?state=paused") == ["nightly"]
    assert 'value="resume"' in shown(admin_client, page_of("jobstatus", "nightly"))

    answers = act(admin_client, "jobstatus", "resume", "nightly")
    assert answers == ["The job nightly is no longer paused. It will run when it is due."]
    assert act(admin_client, "jobstatus", "resume", "nightly") == ["The job nightly was not paused."]
    ticked()
    assert ran == ["nightly"]
    assert entries() == ["Paused.", "Resumed."]


LATER = datetime(2999, 12, 1, 6, tzinfo=UTC)
UNTIL = {"until_0": "2999-12-01", "until_1": "06:00"}


def test_a_date_without_a_time_is_its_midnight() -> None:
    form = PauseForm({"until_0": "2999-12-01", "until_1": ""})
    assert form.is_valid()
    assert form.cleaned_data["until"] == datetime(2999, 12, 1, tzinfo=UTC)
    assert not PauseForm({"until_0": "", "until_1": "06:00"}).is_valid()
    assert PauseForm({}).is_valid()


@pytest.mark.usefixtures("nightly")
def test_a_button_pauses_until_a_day_that_it_names(admin_client: Client, settings: Any) -> None:
    settings.TIME_ZONE = "UTC"
    asked = admin_client.post(list_of("jobstatus"), {"action": "pause", "_selected_action": "nightly"})
    monday = next(value for label, value in asked.context["form"].days if label == "Until Monday, 00:00 UTC")
    act(admin_client, "jobstatus", "pause", "nightly", until_0=["", monday], until_1="", reason="")
    until = gates().get().paused_until
    assert until
    assert (until.weekday(), f"{until:%Y-%m-%d %H:%M:%S}") == (0, f"{monday} 00:00:00")


@pytest.mark.usefixtures("nightly")
def test_it_asks_until_when_and_why(admin_client: Client, settings: Any) -> None:
    settings.TIME_ZONE = "UTC"
    asked = admin_client.post(
        list_of("jobstatus"), {"action": "pause", "_selected_action": "nightly", "back": "nightly"}
    )
    fields = Page(asked.content.decode()).fields
    assert {"_selected_action", "until_0", "until_1", "reason", "confirmed", "back"} <= fields.keys()
    assert not gates().filter(paused=True).exists()

    answers = act(admin_client, "jobstatus", "pause", "nightly", **UNTIL, reason="<upgrade>")
    assert answers[0].endswith("It resumes by itself at 2999-12-01 06:00:00 UTC.")
    pause = gates().values_list("paused", "paused_until", "pause_reason", "paused_by").get()
    assert pause == (True, LATER, "<upgrade>", "admin")
    assert entries() == ["Paused until 2999-12-01 06:00:00 UTC. Reason: <upgrade>"]
    for url in list_of("jobstatus"), page_of("jobstatus", "nightly"):
        assert "until 2999-12-01 06:00:00 UTC, paused by admin: &lt;upgrade&gt;" in shown(admin_client, url)
    assert act(admin_client, "jobstatus", "pause", "nightly", **UNTIL) != ["The job nightly was already paused."]
    assert act(admin_client, "jobstatus", "pause", "nightly", **UNTIL) == ["The job nightly was already paused."]


@pytest.mark.usefixtures("nightly")
@pytest.mark.parametrize(
    ("sent", "complaint"),
    [
        ({"until_0": "2001-12-01", "until_1": "06:00"}, "Enter an instant in the future."),
        ({"until_0": "9999-12-31", "until_1": "23:59"}, "Enter an instant in the future."),
        ({"until_0": "tomorrow", "until_1": "06:00"}, "Enter a valid date."),
        ({"reason": "x" * 201}, "at most 200 characters"),
    ],
    ids=str,
)
def test_it_asks_again_if_the_answer_makes_no_sense(admin_client: Client, sent: Any, complaint: str) -> None:
    answer = {"action": "pause", "_selected_action": "nightly", "confirmed": "yes"} | sent
    assert complaint in admin_client.post(list_of("jobstatus"), answer).content.decode()
    assert not gates().filter(paused=True).exists()


def test_once_its_pause_has_ended_it_is_not_shown_as_paused(admin_client: Client, nightly: Any) -> None:
    nightly()
    gates().update(paused=True, paused_until=DBNow(), pause_reason="upgrade")
    page = shown(admin_client, page_of("jobstatus", "nightly"))
    assert 'value="resume"' not in page
    assert names(admin_client, "?state=paused") == []
    assert act(admin_client, "jobstatus", "run_now", "nightly") == [ASKED]


def test_a_job_is_paused_whose_lock_is_called_otherwise(admin_client: Client, ran: list[str]) -> None:
    job = singleton_job("nightly", lock="shop")(lambda: ran.append("nightly"))
    act(admin_client, "jobstatus", "pause", "nightly")
    assert not job()
    assert ran == []


@pytest.mark.usefixtures("nightly")
def test_the_entries_of_the_log_are_in_the_history_of_the_job(admin_client: Client) -> None:
    act(admin_client, "jobstatus", "pause", "nightly")
    history = page_of("jobstatus", "nightly").replace("/change/", "/history/")
    assert "Paused." in shown(admin_client, history)
    assert history in Page(shown(admin_client, page_of("jobstatus", "nightly"))).links


@pytest.mark.on_database("postgresql", "mysql")
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(("action", "paused"), [("pause", False), ("resume", True)])
def test_nobody_waits_for_a_fenced_transaction(
    admin_client: Client, nightly: Any, elsewhere: Elsewhere, action: str, paused: bool
) -> None:
    """It may take minutes, and a web server has few threads."""
    lease = start_run()
    gates().update(paused=paused)
    with lease.atomic():
        (answer,) = elsewhere(act, admin_client, "jobstatus", action, "nightly").result(PATIENCE)
    assert "because another transaction is using it. Try again." in answer
    assert gates().get(name="nightly").paused is paused
    assert not LogEntry.objects.exists()
    assert "inside a transaction" not in act(admin_client, "jobstatus", action, "nightly")[0]
    assert gates().get(name="nightly").paused is not paused


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("nightly")
def test_many_clicks_at_once_are_one(admin_client: Client, elsewhere: Elsewhere) -> None:
    clicks = [elsewhere(act, admin_client, "jobstatus", "run_now", "nightly") for _ in range(6)]
    assert all(click.result(PATIENCE) is not None for click in clicks)
    assert one_offs().count() == LogEntry.objects.count() == 1


def test_one_that_will_be_retried_later_is_not_run_beside(admin_client: Client, nightly: Any) -> None:
    row = nightly.enqueue()
    one_offs().filter(pk=row.pk).update(attempt=1, run_after=DBNow() + HOUR)
    assert act(admin_client, "jobstatus", "run_now", "nightly")[0].startswith(
        "The job nightly is already waiting for a free worker"
    )
    one_offs().update(attempt=0)
    assert act(admin_client, "jobstatus", "run_now", "nightly") == [ASKED]


@pytest.mark.usefixtures("nightly")
def test_all_at_once_is_refused(admin_client: Client) -> None:
    answers = act(admin_client, "jobstatus", "pause", "nightly", select_across="1")
    assert answers == ["Nothing was done. Select the rows page by page."]
    assert not gates().filter(paused=True).exists()


def test_what_was_written_by_hand_is_shown(admin_client: Client) -> None:
    start_run()
    longest = timedelta(days=36_525)
    gates().filter(name="nightly").update(
        mean_duration=longest, run_count=9, next_slot=datetime(9998, 12, 31, tzinfo=UTC)
    )
    shown(admin_client, list_of("jobstatus"))
    shown(admin_client, page_of("jobstatus", "nightly"))
    shown(admin_client, list_of("joblock"))
    assert admin_client.get(page_of("jobstatus", "x").replace("x/change", "%00/change")).status_code == 302


@pytest.mark.usefixtures("nightly")
def test_nothing_of_a_dead_holder_looks_as_if_it_were_running(admin_client: Client) -> None:
    start_run("nightly")
    pages = [list_of("jobstatus"), page_of("jobstatus", "nightly"), list_of("joblock"), page_of("joblock", "nightly")]
    assert ['class="singlejob-badge singlejob-busy"' in shown(admin_client, page) for page in pages] == [True] * 4
    expire()
    for page in pages:
        words = shown(admin_client, page)
        assert 'class="singlejob-badge singlejob-bad">stale' in words
        assert 'class="singlejob-badge singlejob-busy"' not in words
        assert 'class="singlejob-busy"><title>' not in words
