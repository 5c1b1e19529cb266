"""The page of a job that gives it another schedule: first it shows the slots to come, now and then."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.admin.utils import quote
from django.urls import reverse

from django_singlejob import singleton_job
from django_singlejob.models import JobNote, JobStatus
from tests.admin.pages import OPERATE, Page, list_of, messages_of, page_of, shown, user_of
from tests.contract.acts import HOUR, everything, fall_behind, gate, scheduled, start_run, ticked
from tests.waiting import PATIENCE

if TYPE_CHECKING:
    from django.test import Client

    from tests.admin.people import LogIn
    from tests.fixtures import Elsewhere

pytest_plugins = ["tests.fixtures", "tests.admin.people"]
pytestmark = [pytest.mark.usefixtures("fresh_process"), pytest.mark.django_db]

NEW, ZONE = "30 2 * * *", "Europe/Rome"
CHANGE, RESET = "Change the schedule…", "Reset the schedule…"
CODE = ("0 4 * * *", "Asia/Kathmandu")
SOMEBODY = "The schedule of the job nightly was not changed, because somebody else has just changed it."


@pytest.fixture
def nightly(fresh_process: None) -> Any:
    """A job that follows the schedule in the code."""
    job = scheduled(schedule=CODE[0], time_zone=CODE[1])
    ticked()
    return job


def url_of(name: str = "nightly", *, reset: bool = False) -> str:
    url = reverse("admin:django_singlejob_jobstatus_schedule", args=[quote(name)])
    return f"{url}?reset=yes" if reset else url


def send(client: Client, button: str, page: Page, *, reset: bool = False, **given: str) -> Any:
    """Click a button of the page, after these fields were filled in."""
    sent = {name: values[0] for name, values in page.fields.items()}
    return client.post(url_of(reset=reset), sent | given | {button: "yes"}, follow=True)


def asked(client: Client, *, reset: bool = False) -> Page:
    return Page(shown(client, url_of(reset=reset)))


def previewed(client: Client, **given: str) -> Page:
    filled: Any = {"schedule": NEW, "time_zone": ZONE, "reason": "trial"} | given
    return Page(send(client, "preview", asked(client), **filled).content.decode())


def save(client: Client, **given: str) -> list[str]:
    return messages_of(send(client, "save", previewed(client, **given)))


def own() -> tuple[str, str]:
    return gate().own_schedule, gate().own_time_zone


# --- the preview


@pytest.mark.usefixtures("nightly")
def test_the_form_has_the_schedule_of_now(admin_client: Client) -> None:
    page = asked(admin_client)
    assert (page.fields["schedule"], page.fields["time_zone"]) == ([CODE[0]], [CODE[1]])
    assert "previewed" not in page.fields
    assert page.inline == []
    assert "04:00 +0545" in page.text


@pytest.mark.usefixtures("nightly")
def test_the_slots_are_shown_across_a_change_of_clocks_and_nothing_is_changed(admin_client: Client) -> None:
    before = everything()
    page = previewed(admin_client)
    assert everything() == before
    assert not LogEntry.objects.exists()
    now, then = page.text.split("Now")[1].split("Then")
    assert "At 04:00" in now
    assert now.count("04:00 +0545") == 10
    assert "Clocks change" not in now
    assert "At 02:30" in then
    before_change, after_change = then.split("Clocks change")
    zones = [("02:30 CET", "02:30 CEST"), ("02:30 CEST", "02:30 CET")]
    assert any(old in before_change and new in after_change for old, new in zones)
    assert page.inline == []


@pytest.mark.usefixtures("nightly")
def test_slots_that_are_left_out_are_told_from_those_that_follow(admin_client: Client) -> None:
    page = previewed(admin_client, schedule="* * * * *")
    assert page.text.split("Then")[1].count("…") == 1
    page = previewed(admin_client, schedule="0 4 1 * *")
    assert page.text.split("Then")[1].count("…") == 0


def test_a_slot_that_is_due_is_run_first(admin_client: Client, nightly: Any) -> None:
    due = "A slot is due. It is run first."
    assert due not in previewed(admin_client).text
    fall_behind(nightly)
    assert due in previewed(admin_client).text
    (answer,) = save(admin_client)
    assert answer.endswith(due)
    assert own() == (NEW, ZONE)
    assert gate().schedule == CODE[0]


def test_a_job_that_nobody_has_called_yet_has_a_preview(admin_client: Client) -> None:
    scheduled(schedule=HOUR)
    page = asked(admin_client)
    assert page.fields["schedule"] == ["P0DT01H00M00S"]
    assert not JobStatus.objects.exists()
    assert save(admin_client, schedule="PT15M", time_zone="")
    assert own() == ("P0DT00H15M00S", "UTC")


# --- to save it


@pytest.mark.usefixtures("nightly")
def test_it_is_saved_and_both_logs_say_so(operator: Client) -> None:
    page = previewed(operator, reason="fewer <mails>")
    response = send(operator, "save", page)
    assert response.redirect_chain == [(page_of("jobstatus", "nightly"), 302)]
    assert messages_of(response) == ["The job nightly has another schedule now: At 02:30 every day (Europe/Rome)."]
    assert own() == (gate().schedule, gate().time_zone) == (NEW, ZONE)
    note = JobNote.objects.get(kind="schedule_edited")
    assert (note.job_name, note.by, note.reason) == ("nightly", "operator", "fewer <mails>")
    entry = LogEntry.objects.get()
    assert (entry.object_id, entry.is_change(), entry.user) == ("nightly", True, user_of(operator))
    assert entry.get_change_message() == f"Changed the schedule to {NEW} {ZONE}. Reason: fewer <mails>"


def test_an_h_is_what_it_stands_for(admin_client: Client, nightly: Any) -> None:
    assert save(admin_client, schedule="H H * * *", time_zone="")
    minute, hour, *_ = own()[0].split()
    assert minute.isdecimal()
    assert hour.isdecimal()
    assert own()[1] == nightly.time_zone


@pytest.mark.usefixtures("nightly")
def test_only_what_was_shown_is_saved(admin_client: Client) -> None:
    response = send(admin_client, "save", previewed(admin_client), schedule="0 5 * * *")
    assert messages_of(response) == ["These are not the slots that you saw last. Look at them before you save."]
    assert own() == ("", "")
    page = Page(response.content.decode())
    assert "At 05:00" in page.text
    assert messages_of(send(admin_client, "save", page, reason="trial"))[0].startswith("The job nightly has another")
    assert own() == ("0 5 * * *", ZONE)


@pytest.mark.usefixtures("nightly")
def test_to_save_without_a_preview_shows_it_first(admin_client: Client) -> None:
    given: Any = {"schedule": NEW, "time_zone": ZONE, "reason": "trial"}
    assert "previewed" in Page(send(admin_client, "save", asked(admin_client), **given).content.decode()).fields
    assert own() == ("", "")


@pytest.mark.usefixtures("nightly")
@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"schedule": "0 25 * * *"}, "the hour cannot be &#x27;25&#x27;"),
        ({"schedule": "<b>"}, "&#x27;&lt;b&gt;&#x27; is not a valid schedule"),
        ({"schedule": "0 0 30 2 *"}, "the day of month cannot be &#x27;30&#x27; in that month"),
        ({"schedule": "P99999999D"}, "must be at most 36525 days"),
        ({"schedule": "0 4 * * * " * 30}, "at most 200 characters"),
        ({"schedule": ""}, "This field is required."),
        ({"time_zone": "Mars/<b>"}, "&#x27;Mars/&lt;b&gt;&#x27; is not a valid time zone"),
        ({"time_zone": "localtime"}, "is not the same on every server"),
        ({"time_zone": "../../etc/passwd"}, "is not a valid time zone"),
        ({"time_zone": "\0"}, "Null characters are not allowed."),
        ({"reason": " "}, "This field is required."),
        ({"reason": "x" * 201}, "at most 200 characters"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_makes_no_sense_is_complained_about(admin_client: Client, given: Any, complaint: str) -> None:
    before = everything()
    filled: Any = {"schedule": NEW, "time_zone": ZONE, "reason": "trial"} | given
    for button in "preview", "save":
        answer = send(admin_client, button, asked(admin_client), **filled)
        assert answer.status_code == 200
        assert complaint in answer.content.decode()
        assert "<b>" not in answer.content.decode()
    assert everything() == before


@pytest.mark.usefixtures("nightly")
def test_the_same_again_is_no_change(admin_client: Client) -> None:
    save(admin_client)
    assert "The job already has this schedule." in previewed(admin_client).text
    assert save(admin_client) == []
    assert LogEntry.objects.count() == 1


# --- others


@pytest.mark.usefixtures("nightly")
@pytest.mark.parametrize("button", ["preview", "save"])
@pytest.mark.parametrize("reset", [False, True])
def test_somebody_else_has_changed_it_since_the_page_was_made(admin_client: Client, button: str, reset: bool) -> None:
    save(admin_client)
    page = asked(admin_client, reset=True) if reset else previewed(admin_client, schedule="0 6 * * *")
    JobStatus.objects.update(own_schedule="0 5 * * *", own_time_zone="UTC")
    answer = send(admin_client, button, page, reset=reset, reason="trial")
    assert messages_of(answer) == [SOMEBODY]
    assert own() == ("0 5 * * *", "UTC")
    fresh = Page(answer.content.decode()).fields
    assert (fresh["own_schedule"], fresh["own_time_zone"]) == (["0 5 * * *"], ["UTC"])
    assert LogEntry.objects.count() == 1


@pytest.mark.usefixtures("nightly")
def test_or_in_that_moment(admin_client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    page = previewed(admin_client)
    monkeypatch.setattr("django_singlejob.admin.schedules.give_schedule", lambda *_, **__: False)
    assert messages_of(send(admin_client, "save", page)) == [SOMEBODY]
    assert not LogEntry.objects.exists()


@pytest.mark.usefixtures("nightly")
def test_if_its_gate_is_busy_the_page_can_be_sent_again(admin_client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    page = previewed(admin_client)
    with monkeypatch.context() as patch:
        patch.setattr("django_singlejob.admin.schedules.give_schedule", lambda *_, **__: None)
        answer = send(admin_client, "save", page)
    (words,) = messages_of(answer)
    assert words.endswith("because another transaction is using it. Try again.")
    assert not LogEntry.objects.exists()
    again = Page(answer.content.decode())
    assert again.fields["reason"] == ["trial"]
    assert messages_of(send(admin_client, "save", again))[0].startswith("The job nightly has another schedule now")


@pytest.mark.on_database("postgresql", "mysql")
@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("nightly")
def test_nobody_waits_for_a_fenced_transaction(admin_client: Client, elsewhere: Elsewhere) -> None:
    page = previewed(admin_client)
    with start_run().atomic():
        answer = elsewhere(send, admin_client, "save", page).result(PATIENCE)
        assert messages_of(answer)[0].endswith("because another transaction is using it. Try again.")
    assert own() == ("", "")


# --- the code's again


@pytest.mark.usefixtures("nightly")
def test_a_reset_is_shown_first_too(admin_client: Client) -> None:
    save(admin_client)
    page = asked(admin_client, reset=True)
    assert not {"schedule", "time_zone"} & page.fields.keys()
    assert "Preview" not in page.text
    now, then = page.text.split("Now")[1].split("Then")
    assert "At 02:30" in now
    assert "At 04:00" in then
    answer = send(admin_client, "save", page, reset=True)
    assert "This field is required." in answer.content.decode()
    assert own() == (NEW, ZONE)
    answers = messages_of(send(admin_client, "save", page, reset=True, reason="over"))
    assert answers == ["The job nightly has another schedule now: At 04:00 every day (Asia/Kathmandu)."]
    assert own() == ("", "")
    assert (gate().schedule, gate().time_zone) == CODE
    assert LogEntry.objects.latest("pk").get_change_message() == "Reset the schedule to the code's. Reason: over"
    assert JobNote.objects.filter(kind="schedule_edited").latest("pk").reason == "over"


@pytest.mark.usefixtures("nightly")
def test_without_an_operators_schedule_there_is_nothing_to_reset(admin_client: Client) -> None:
    answer = admin_client.get(url_of(reset=True), follow=True)
    assert answer.redirect_chain == [(page_of("jobstatus", "nightly"), 302)]
    assert messages_of(answer) == ["The job nightly already has the schedule of the code."]


# --- the page of the job


def buttons(client: Client, name: str = "nightly") -> list[str]:
    """Those that lead to the page, and each leads there."""
    page = shown(client, page_of("jobstatus", name))
    found = {url_of(name): CHANGE, url_of(name, reset=True): RESET}
    assert all((url in Page(page).links) is (label in page) for url, label in found.items())
    return [label for label in found.values() if label in page]


@pytest.mark.usefixtures("nightly")
def test_it_says_that_an_operators_schedule_is_in_force(admin_client: Client) -> None:
    assert buttons(admin_client) == [CHANGE]
    assert "Given by an operator" not in shown(admin_client, page_of("jobstatus", "nightly"))
    save(admin_client, reason="first")
    save(admin_client, schedule="0 5 * * *", reason="fewer <mails>")
    JobNote.objects.filter(reason="fewer <mails>").update(by="<ada>")
    page = shown(admin_client, page_of("jobstatus", "nightly"))
    for text in (
        "Given by an operator",
        "At 05:00 every day (Europe/Rome)",
        "&lt;ada&gt;",
        "fewer &lt;mails&gt;",
        " ago",
    ):
        assert text in page
    assert "In the code" in page
    assert "At 04:00 every day (Asia/Kathmandu)" in page
    assert "first" not in Page(page).text.split("Given by an operator")[1].split("In the code")[0]
    assert buttons(admin_client) == [CHANGE, RESET]


@pytest.mark.usefixtures("nightly")
def test_even_if_nobody_knows_by_whom_or_what_it_means(admin_client: Client) -> None:
    JobStatus.objects.update(own_schedule="<moon>", own_time_zone="Moon/<b>")
    page = shown(admin_client, page_of("jobstatus", "nightly"))
    assert "&lt;moon&gt; (Moon/&lt;b&gt;)" in page
    assert buttons(admin_client) == [CHANGE, RESET]
    assert asked(admin_client).fields["schedule"] == ["<moon>"]
    assert "<moon>" not in shown(admin_client, url_of())
    assert messages_of(send(admin_client, "save", asked(admin_client, reset=True), reset=True, reason="odd"))
    assert own() == ("", "")


def refused(client: Client, name: str = "nightly", *, reset: bool = False) -> str:
    """Why the page leads back to that of the job."""
    before = everything()
    given = {"schedule": NEW, "time_zone": ZONE, "reason": "trial", "previewed": f"{NEW} {ZONE}", "save": "yes"}
    client.post(url_of(name, reset=reset), given)
    assert everything() == before
    answer = client.get(url_of(name, reset=reset), follow=True)
    assert answer.redirect_chain == [(page_of("jobstatus", name), 302)]
    return messages_of(answer)[-1]


def test_one_that_is_not_to_be_changed_can_be_reset_only(admin_client: Client) -> None:
    scheduled(schedule=CODE[0], editable=False)
    ticked()
    assert buttons(admin_client) == []
    assert "editable=False" in refused(admin_client)
    JobStatus.objects.update(own_schedule=NEW, own_time_zone=ZONE)
    assert buttons(admin_client) == [RESET]
    assert "editable=False" in refused(admin_client)
    assert messages_of(send(admin_client, "save", asked(admin_client, reset=True), reset=True, reason="over"))
    assert own() == ("", "")


@pytest.mark.parametrize("reset", [False, True])
def test_one_without_a_schedule_gets_none(admin_client: Client, reset: bool) -> None:
    singleton_job("nightly")(lambda: None)
    JobStatus.objects.create(name="nightly")
    JobStatus.objects.update(own_schedule=NEW, own_time_zone=ZONE)
    assert buttons(admin_client) == []
    assert "Given by an operator" not in shown(admin_client, page_of("jobstatus", "nightly"))
    assert "has no schedule in the code" in refused(admin_client, reset=reset)


@pytest.mark.parametrize("reset", [False, True])
def test_nor_does_one_that_this_release_does_not_know(admin_client: Client, reset: bool) -> None:
    start_run("weekly").release()
    JobStatus.objects.filter(name="weekly").update(own_schedule=NEW, own_time_zone=ZONE)
    assert buttons(admin_client, "weekly") == []
    assert "At 02:30 every day (Europe/Rome)" in shown(admin_client, page_of("jobstatus", "weekly"))
    assert refused(admin_client, "weekly", reset=reset) == "This release of the code does not define this job."


@pytest.mark.parametrize("name", ["never", "<b>", "a\0b", "a" * 300])
def test_nor_does_one_that_nobody_knows(admin_client: Client, name: str) -> None:
    for answer in admin_client.get(url_of(name), follow=True), admin_client.post(url_of(name), follow=True):
        assert answer.redirect_chain == [(list_of("jobstatus"), 302)]
        assert "doesn’t exist" in messages_of(answer)[0]  # noqa: RUF001
        assert "<b>" not in answer.content.decode()


# --- who may


@pytest.mark.usefixtures("nightly")
def test_it_takes_a_permission_of_its_own(log_in: LogIn) -> None:
    others = [name for name in OPERATE if name != "change_schedule_jobstatus"]
    refused = [log_in("other", *others), log_in("blind", "change_schedule_jobstatus")]
    before = everything()
    for client in refused:
        for url in url_of(), url_of(reset=True):
            assert client.get(url).status_code == client.post(url, {"save": "yes"}).status_code == 403
    assert everything() == before
    assert buttons(refused[0]) == []
    doer = log_in("doer", "view_jobstatus", "change_schedule_jobstatus")
    assert buttons(doer) == [CHANGE]
    assert save(doer)
    assert own() == (NEW, ZONE)
