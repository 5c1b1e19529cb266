"""*Stop* in the admin: where it is offered, what its page says, and that it hits what the page showed or nothing."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode
from uuid import uuid4

import pytest
from django.contrib.admin.models import LogEntry
from django.urls import reverse

from django_singlejob import singleton_job
from django_singlejob.models.locks import locks
from django_singlejob.models.one_offs import one_offs
from django_singlejob.models.runs import runs
from django_singlejob.process.holder import this_process
from tests.admin.pages import VIEW, Page, begin, list_of, messages_of, page_of, shown, stop_page
from tests.contract.acts import SECOND, expire, lock, start_run, take

if TYPE_CHECKING:
    from django.test import Client

    from django_singlejob import Lease
    from django_singlejob.models import OneOffJob
    from tests.admin.people import LogIn

pytest_plugins = ["tests.fixtures", "tests.admin.people"]
pytestmark = [pytest.mark.usefixtures("fresh_process"), pytest.mark.django_db]

STOP = "admin:django_singlejob_joblock_stop"
WORKER = "django_singlejob.worker.1"


def start(job_name: str = "nightly", **terms: Any) -> Lease:
    return start_run(job_name, heartbeat_interval=20 * SECOND, **terms)


@pytest.fixture
def ada(log_in: LogIn) -> Client:
    return log_in("ada", *VIEW, "stop_joblock")


def start_a_task() -> OneOffJob:
    worker = take(WORKER, heartbeat_interval=20 * SECOND)
    now = lock(WORKER).acquired_at
    row = one_offs().create(task_path="shop.tasks.send", max_attempts=3, created_at=now, run_after=now)
    assert one_offs().claim(row, worker.token, this_process())
    return one_offs().get()


def link_on(client: Client, url: str) -> str:
    """The link to the page that asks; empty if there is none."""
    return next((link for link in Page(shown(client, url)).links if link.startswith(reverse(STOP))), "")


def confirm(client: Client, url: str) -> list[str]:
    """Click on the button of the page that asks. Returns the messages."""
    return messages_of(client.post(reverse(STOP), Page(shown(client, url)).fields, follow=True))


def words_on(client: Client, url: str) -> str:
    return re.sub(r"\s+", " ", Page(shown(client, url)).text)


# --- where it is offered


@pytest.mark.parametrize("model", ["jobrun", "joblock", "jobstatus", "oneoffjob"])
def test_a_run_is_stopped_from_each_of_its_pages(ada: Client, model: str) -> None:
    singleton_job("nightly")(lambda: None)
    begin("nightly", heartbeat_interval=20 * SECOND)
    page = link_on(ada, page_of(model))
    assert page
    assert confirm(ada, page) == ["The run of nightly is asked to stop: its holder finds out with its next heartbeat."]
    assert lock().stopped_by == "ada"
    assert link_on(ada, page_of(model)) == "" or model == "oneoffjob"


@pytest.mark.parametrize("model", ["jobrun", "joblock", "jobstatus", "oneoffjob"])
def test_it_is_not_offered_to_others(log_in: LogIn, model: str) -> None:
    singleton_job("nightly")(lambda: None)
    begin("nightly", heartbeat_interval=20 * SECOND)
    for permissions in VIEW, [name for name in (*VIEW, "stop_joblock") if name != "view_joblock"]:
        if model == "joblock" and "view_joblock" not in permissions:
            continue
        assert link_on(log_in(f"viewer {len(permissions)} {permissions[0]}", *permissions), page_of(model)) == ""


def test_after_a_click_the_page_is_seen_that_had_the_link(ada: Client) -> None:
    start()
    for model in "jobrun", "jobstatus":
        sent = Page(shown(ada, link_on(ada, page_of(model)))).fields
        locks().update(stopped_by="")
        assert ada.post(reverse(STOP), sent).headers["Location"] == page_of(model)
        locks().update(stopped_by="")
    assert ada.post(reverse(STOP), {"from": "elsewhere", "back": "//evil"}).headers["Location"] == list_of("joblock")


def test_the_page_says_whose_token_it_is_and_not_what_its_address_says(ada: Client) -> None:
    start("nightly")
    token = lock("nightly").token.hex
    page = f"{reverse(STOP)}?run={token}:harmless"
    assert "harmless" not in shown(ada, page)
    assert confirm(ada, page) == ["The run of nightly is asked to stop: its holder finds out with its next heartbeat."]


def test_nor_does_it_call_what_is_over_as_its_address_does(ada: Client) -> None:
    lease = start_run("nightly")
    lease.finish()
    unknown = uuid4()
    for token, name in (lease.token, "nightly"), (unknown, unknown.hex):
        sent = {"run": f"{token.hex}:harmless"}
        assert f"{name} cannot be stopped: it is not running." in words_on(ada, f"{reverse(STOP)}?{urlencode(sent)}")
        messages = messages_of(ada.post(reverse(STOP), sent, follow=True))
        assert messages == [f"The run of {name} was not stopped: it is not running."]
    take("nightly")
    assert "nightly cannot be stopped" in words_on(ada, f"{reverse(STOP)}?run={lease.token.hex}")


def test_an_attempt_that_has_not_begun_yet_is_not_said_to_be_over(ada: Client) -> None:
    task = start_a_task()
    assert "Nothing was selected." in words_on(ada, f"{reverse(STOP)}?task={task.pk}:{task.version + 1}")
    assert one_offs().get().stopped_by == ""


def test_several_are_stopped_from_the_list_of_locks(ada: Client) -> None:
    start("nightly")
    start("hourly")
    take("block")
    sent = {"action": "stop", "_selected_action": ["nightly", "hourly", "block"]}
    page = Page(ada.post(list_of("joblock"), sent).content.decode())
    assert "2 runs are asked to end" in page.text
    assert "block cannot be stopped: its holder sends no heartbeats, so it would not find out." in page.text
    assert len(messages_of(ada.post(reverse(STOP), page.fields, follow=True))) == 2
    assert dict(locks().values_list("name", "stopped_by")) == {"nightly": "ada", "hourly": "ada", "block": ""}


def test_one_offs_in_progress_are_stopped_from_their_list(ada: Client) -> None:
    task = start_a_task()
    begin("nightly", heartbeat_interval=20 * SECOND)
    waiting = singleton_job("nightly")(lambda: None).enqueue()
    sent = {"action": "stop", "_selected_action": [str(row.pk) for row in one_offs()]}
    page = Page(ada.post(list_of("oneoffjob"), sent).content.decode())
    assert f"nightly #{waiting.pk} cannot be stopped: it is not running." in page.text
    response = ada.post(reverse(STOP), page.fields, follow=True)
    assert response.redirect_chain[-1][0] == list_of("oneoffjob")
    assert len(messages_of(response)) == 2
    assert (lock().stopped_by, one_offs().get(pk=task.pk).stopped_by) == ("ada", "ada")


# --- what the page says


def test_the_page_says_whom_it_is_about_and_what_will_happen(ada: Client) -> None:
    start(name="shared")
    holder = this_process()
    text = words_on(ada, stop_page("shared"))
    for words in (
        "1 run is asked to end",
        f"Job or task nightly Holder {holder.hostname}, pid {holder.pid}",
        "Asked to end by its holder's next heartbeat, in 20\xa0s at most".replace("\xa0", " "),
        "Killed 10 s after that, if a command runs it.",
    ):
        assert words in text, text


def test_and_of_a_task_that_it_has_to_ask(ada: Client) -> None:
    row = start_a_task()
    page = link_on(ada, page_of("oneoffjob"))
    text = words_on(ada, page)
    assert "Asked to end when it calls raise_if_stopped()." in text
    assert "Killed" not in text
    assert confirm(ada, page) == [f"The run of shop.tasks.send #{row.pk} is asked to stop: it ends as soon as it asks."]
    assert one_offs().get().stopped_by == "ada"
    assert "stopped by ada, and has not asked yet" in words_on(ada, page_of("oneoffjob"))


def test_the_pages_of_a_stopped_run_say_who_has_stopped_it(ada: Client) -> None:
    start()
    confirm(ada, stop_page("nightly"))
    words = words_on(ada, page_of("jobrun"))
    assert "It was stopped by ada. Its holder finds out with its next heartbeat." in words
    assert re.search(r"Next heartbeat in (1\d|20)\ss", words)
    for url in page_of("joblock"), list_of("joblock"):
        assert "stopped by ada" in words_on(ada, url)


@pytest.mark.parametrize(
    "query", ["", "?run=nonsense", "?task=1", "?task=x:y", "?task=99:1", "?run=%00", "?task=%00:1"]
)
def test_what_is_none_of_ours_is_passed_over(ada: Client, query: str) -> None:
    assert "Nothing was selected." in words_on(ada, reverse(STOP) + query)


# --- what it hits


def test_what_has_ended_meanwhile_and_its_successor_are_left_alone(ada: Client) -> None:
    lease = start()
    sent = Page(shown(ada, stop_page("nightly"))).fields
    lease.release()
    start()
    message = ["The run of nightly was not stopped: it is not running."]
    assert messages_of(ada.post(reverse(STOP), sent, follow=True)) == message
    assert lock().stopped_by == ""
    assert not LogEntry.objects.exists()


def test_nor_is_a_later_attempt_at_a_task_hit(ada: Client) -> None:
    row = start_a_task()
    sent = Page(shown(ada, link_on(ada, page_of("oneoffjob")))).fields
    assert row.token
    one_offs().release(row.token)
    assert one_offs().claim(one_offs().get(), row.token, this_process())
    message = [f"The run of shop.tasks.send #{row.pk} was not stopped: it is not running."]
    assert messages_of(ada.post(reverse(STOP), sent, follow=True)) == message
    assert one_offs().get().stopped_by == ""


def test_a_second_user_is_told(ada: Client, log_in: LogIn) -> None:
    start()
    sent = Page(shown(ada, stop_page("nightly"))).fields
    ada.post(reverse(STOP), sent)
    bob = log_in("bob", *VIEW, "stop_joblock")
    assert messages_of(bob.post(reverse(STOP), sent, follow=True)) == [
        "The run of nightly was not stopped: it was stopped already."
    ]
    assert "nightly cannot be stopped: it was stopped already." in words_on(bob, stop_page("nightly"))
    assert lock().stopped_by == "ada"


def test_a_silent_holder_is_not_stopped(ada: Client) -> None:
    start()
    expire()
    assert link_on(ada, page_of("jobrun")) == link_on(ada, page_of("joblock")) == ""
    text = words_on(ada, stop_page("nightly"))
    assert "nightly cannot be stopped: its holder sends no heartbeats any more: clear its stale lock." in text


def test_it_is_in_the_log_of_the_lock_and_of_the_job(ada: Client) -> None:
    start(name="shared")
    confirm(ada, stop_page("shared"))
    entries = [(entry.content_type and entry.content_type.model, entry.object_id) for entry in LogEntry.objects.all()]
    assert sorted(map(str, entries)) == ["('joblock', 'shared')", "('jobstatus', 'nightly')"]


def test_a_get_changes_nothing_and_a_user_without_the_permission_is_refused(ada: Client, log_in: LogIn) -> None:
    start()
    page = stop_page("nightly")
    sent = Page(shown(ada, page)).fields
    viewer = log_in("viewer", *VIEW)
    assert viewer.get(page).status_code == viewer.post(reverse(STOP), sent).status_code == 403
    assert log_in("blind", "stop_joblock").post(reverse(STOP), sent).status_code == 403
    assert lock().stopped_by == ""
    assert runs().get().status == "running"
