"""The admin's list of locks, and how to clear one."""

from __future__ import annotations

import logging
import re
from datetime import UTC, datetime, timedelta
from threading import get_ident
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from django.contrib.admin.models import LogEntry
from django.core.signing import Signer
from django.db import connection, connections
from django.db.models import F
from django.test import Client, override_settings
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from django_singlejob.admin import locks as admin_locks
from django_singlejob.admin.clearing import Sighting, read, sign
from django_singlejob.database import timeline
from django_singlejob.locking.clear import clear_at_once
from django_singlejob.models.jobs import JobStatusQuerySet, gates
from django_singlejob.models.locks import locks
from django_singlejob.models.runs import runs
from django_singlejob.process import clock
from django_singlejob.process.clock import DBNow, utc_now
from django_singlejob.process.holder import this_process
from django_singlejob.signals import lock_taken_over
from tests.admin.pages import (
    VIEW,
    Page,
    act,
    all_rows,
    begin,
    clear_page,
    list_of,
    messages_of,
    page_of,
    shown,
    user_of,
)
from tests.contract.acts import (
    HOUR,
    MINUTE,
    SECOND,
    expire,
    gate,
    is_free,
    last_run,
    lock,
    set_the_databases_clock,
    start_run,
    take,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from django_singlejob import Lease
    from django_singlejob.models import JobLock
    from tests.admin.people import LogIn

pytest_plugins = ["tests.fixtures", "tests.admin.people"]
pytestmark = [pytest.mark.usefixtures("fresh_process"), pytest.mark.django_db]

CLEAR = "admin:django_singlejob_joblock_clear"


@pytest.fixture
def forcer(log_in: LogIn) -> Client:
    return log_in("forcer", *VIEW, "force_joblock")


@pytest.fixture
def heard() -> Iterator[list[Any]]:
    """The locks that were taken from their holders."""
    found: list[Any] = []

    def listen(name: str, **facts: Any) -> None:
        found.append((name, facts["lease"], facts["lock"].token))

    lock_taken_over.connect(listen)
    yield found
    lock_taken_over.disconnect(listen)


def stand_still(name: str = "nightly") -> None:
    """A holder died while it ran a job of this name."""
    begin(name)
    expire(name)


def seen(client: Client, *names: str) -> list[str]:
    """What the page that asks whether to clear these locks sends if the user confirms."""
    return Page(shown(client, clear_page(*names))).fields["lock"]


def confirm(client: Client, chosen: list[str], *force: str) -> list[str]:
    """Confirm. Returns the messages to the user."""
    return messages_of(client.post(reverse(CLEAR), {"lock": chosen, "force": force}, follow=True))


def entries() -> list[tuple[str, str, bool, str]]:
    """The admin's log: the model, the key, whether it is a deletion, and the message of each entry."""
    found = LogEntry.objects.select_related("content_type").order_by("pk")
    return [
        (entry.content_type.model, entry.object_id or "", entry.is_deletion(), entry.get_change_message())
        for entry in found
        if entry.content_type
    ]


# --- the list, and the page of a lock


def names(client: Client, query: str = "") -> list[str]:
    """The names of the locks in the list, from top to bottom."""
    found = re.findall(r'class="field-title"><a href="[^"]*">(.*?)</a>', shown(client, list_of("joblock", query)))
    return [name.strip().replace("<wbr>", "") for name in found]


@pytest.mark.slow
def test_the_stale_ones_come_first(admin_client: Client) -> None:
    for name in "hourly", "nightly", "weekly", "yearly":
        begin(name)
    expire("weekly")
    locks().filter(name="yearly").update(hostname="web-7", command="make coffee")
    assert names(admin_client) == ["weekly", "hourly", "nightly", "yearly"]
    assert names(admin_client, "?state=stale") == ["weekly"]
    assert names(admin_client, "?state=held") == ["hourly", "nightly", "yearly"]
    assert names(admin_client, "?state=strange") == ["weekly", "hourly", "nightly", "yearly"]
    assert names(admin_client, "?hostname=web-7") == ["yearly"]
    assert names(admin_client, "?q=night") == ["nightly"]
    assert names(admin_client, "?q=coffee") == ["yearly"]


def test_a_narrow_list_tells_for_how_long_a_holder_has_been_silent(admin_client: Client) -> None:
    """Not "stale" above "for 3 h", since that is for how long the lock has been held."""
    begin("nightly")
    locks().update(acquired_at=DBNow() - 3 * HOUR, heartbeat_at=DBNow())
    assert 'singlejob-narrow">for 3\xa0h\xa00\xa0min<' in shown(admin_client, list_of("joblock"))
    locks().update(heartbeat_at=DBNow() - 2 * HOUR, expires_at=DBNow() - HOUR)
    assert 'singlejob-narrow">silent for 2\xa0h\xa00\xa0min<' in shown(admin_client, list_of("joblock"))


def test_it_leads_to_its_job_and_its_run(admin_client: Client) -> None:
    start_run("nightly", name="shop:floor_1")
    links = Page(shown(admin_client, page_of("joblock", "shop:floor_1"))).links
    run = list_of("jobrun", f"?token={lock('shop:floor_1').token.hex}")
    assert {page_of("jobstatus", "nightly"), run, clear_page("shop%3Afloor_1")} <= {*links}
    assert any(link.startswith(page_of("jobrun")) for link in Page(shown(admin_client, run)).links)


def test_one_of_no_job_leads_to_none(admin_client: Client) -> None:
    take("block")
    links = Page(shown(admin_client, page_of("joblock", "block"))).links
    assert not [link for link in links if "/jobstatus/" in link and "/change/" in link]


def test_one_whose_run_is_not_in_the_history_any_more_is_shown(admin_client: Client) -> None:
    begin()
    runs().all().delete()
    assert "nightly" in shown(admin_client, page_of("joblock"))


def test_it_is_held_up_against_the_mean(admin_client: Client) -> None:
    begin()
    gates().update(mean_duration=MINUTE, run_count=5)
    assert "singlejob-busy" in shown(admin_client, page_of("joblock"))
    locks().update(acquired_at=DBNow() - HOUR)
    page = shown(admin_client, page_of("joblock"))
    assert "singlejob-warn" in page
    assert "mean 1\xa0min\xa00\xa0s" in page


@pytest.mark.parametrize(
    ("held_for", "kind"), [(2 * HOUR, "busy"), (4 * HOUR, "warn")], ids=["as usual", "overrunning"]
)
def test_its_bar_warns_from_the_overrun_factor_on(admin_client: Client, held_for: timedelta, kind: str) -> None:
    begin()
    gates().update(mean_duration=HOUR, run_count=5)
    locks().update(acquired_at=DBNow() - held_for)
    assert f'height="10" class="singlejob-{kind}"' in shown(admin_client, page_of("joblock"))
    expire()
    assert 'height="10" class="singlejob-bad"' in shown(admin_client, page_of("joblock"))


def test_a_user_without_the_permission_finds_no_way_to_clear_it(viewer: Client, operator: Client) -> None:
    stand_still()
    for url in page_of("joblock"), page_of("jobstatus"):
        assert clear_page("nightly") not in Page(shown(viewer, url)).links
        assert clear_page("nightly") in Page(shown(operator, url)).links
    assert not Page(shown(viewer, list_of("joblock"))).fields


# --- the confirmation page


def test_the_action_only_asks(operator: Client) -> None:
    stand_still("nightly")
    stand_still("hourly")
    before = all_rows()
    response = operator.post(list_of("joblock"), {"action": "clear", "_selected_action": ["nightly", "hourly"]})
    page = Page(response.content.decode())
    assert page.fields["name"] == ["hourly", "nightly"]
    assert len(page.fields["lock"]) == 2
    assert all_rows() == before
    assert entries() == []


def test_to_choose_all_of_none_is_to_choose_none(operator: Client) -> None:
    stand_still()
    chosen = {"action": "clear", "select_across": "1", "index": "0"}
    assert not Page(operator.post(list_of("joblock"), chosen).content.decode()).fields["lock"]
    assert not is_free()


def test_it_names_the_holder_the_job_and_what_will_be(operator: Client) -> None:
    start_run("nightly", name="shop")
    expire("shop")
    locks().update(hostname="web-7", pid=4711, command="make coffee", slot=DBNow())
    text = Page(shown(operator, clear_page("shop"))).text
    for part in "shop", "web-7, pid 4711", "make coffee", "nightly", "recorded as abandoned", "is run again":
        assert part in text
    locks().update(slot=None, job_name="")
    text = Page(shown(operator, clear_page("shop"))).text
    assert "none (a block of code or a command)" in text
    assert "is run again" not in text


def test_a_live_one_is_not_offered_without_the_permission_to_force_it(operator: Client, forcer: Client) -> None:
    begin()
    page = Page(shown(operator, clear_page("nightly")))
    assert not page.fields.keys() & {"lock", "force"}
    assert "Its holder is alive, so you cannot clear it." in page.text
    assert "singlejob-delete" not in shown(operator, clear_page("nightly"))
    page = Page(shown(forcer, clear_page("nightly")))
    assert page.fields["force"] == ["nightly"]
    assert "Its holder is alive. If you clear the lock, another server may run the job at the same time" in page.text


def test_one_that_nobody_holds_cannot_be_cleared(operator: Client) -> None:
    take("nightly").finish()
    for query in "", "?name=nightly", "?name=NIGHTLY&name=nightly":
        assert "lock" not in Page(shown(operator, f"{reverse(CLEAR)}{query}")).fields
    assert "The lock nightly is already free." in shown(operator, clear_page("nightly"))


@pytest.mark.parametrize("name", ["", "\0", "nobody", "backup is free. Call 555-0100. The lock nightly"])
def test_what_an_address_names_that_no_row_knows_is_not_said_to_be_free(operator: Client, name: str) -> None:
    take("nightly").finish()
    response = operator.get(reverse(CLEAR), {"name": name}, follow=True)
    assert response.redirect_chain == [(list_of("joblock"), 302)]
    [message] = messages_of(response)
    assert message.startswith("lock with ID ")
    assert message.endswith("exist. Perhaps it was deleted?")
    assert name.replace("\0", r"\x00") in message
    assert "is already free" not in response.content.decode()
    both = operator.get(reverse(CLEAR), {"name": [name, "nightly"]})
    assert Page(both.content.decode()).text.count("is already free.") == 1


# --- a stale one


def test_it_is_cleared(operator: Client, heard: list[Any], caplog: pytest.LogCaptureFixture) -> None:
    stand_still()
    locks().update(hostname="web-7", pid=4711)
    dead, fence = lock(), gate().fence
    with caplog.at_level(logging.WARNING, "django_singlejob"):
        assert confirm(operator, seen(operator, "nightly")) == [
            "The lock nightly was cleared; its holder was web-7, pid 4711."
        ]
    assert is_free()
    assert (gate().fence, gate().token) == (fence + 1, None)
    run = last_run()
    assert (run.status, run.error) == ("abandoned", "The lock was cleared in the admin by operator.")
    assert heard == [("nightly", None, dead.token)]
    message = "Cleared; its holder was web-7, pid 4711."
    assert entries() == [("joblock", "nightly", True, message), ("jobstatus", "nightly", False, message)]
    logged = "The lock 'nightly' (web-7, pid 4711) was cleared in the admin by operator."
    (record,) = [record for record in caplog.records if "cleared" in record.message]
    assert record.message == logged
    assert vars(record).items() >= {"singlejob_lock": "nightly", "singlejob_token": str(dead.token)}.items()
    assert "Cleared; its holder was" in shown(operator, page_of("jobstatus", "nightly").replace("change", "history"))
    assert take().release()


def test_several_are_cleared_and_each_has_a_message(operator: Client) -> None:
    stand_still("nightly")
    stand_still("hourly")
    stand_still("weekly")
    chosen = seen(operator, "nightly", "hourly", "weekly")
    take("hourly")
    answers = confirm(operator, chosen)
    assert [answer.split()[2] for answer in answers] == ["hourly", "nightly", "weekly"]
    assert [is_free(name) for name in ("nightly", "hourly", "weekly")] == [True, False, True]
    assert len(entries()) == 4


def test_one_without_a_job_is_in_the_history_of_its_name(operator: Client) -> None:
    take("block")
    expire("block")
    confirm(operator, seen(operator, "block"))
    assert is_free("block")
    assert [entry[:2] for entry in entries()] == [("joblock", "block"), ("jobstatus", "block")]


def test_one_of_another_name_is_in_the_history_of_the_job(operator: Client) -> None:
    start_run("nightly", name="a:b_1")
    expire("a:b_1")
    confirm(operator, seen(operator, "a:b_1"))
    assert is_free("a:b_1")
    assert [entry[:2] for entry in entries()] == [("joblock", "a:b_1"), ("jobstatus", "nightly")]


# --- what happens between the page and the click


def changes_hands() -> None:
    take()


def changes_hands_and_is_stale_again() -> None:
    take()
    expire()


def beats() -> None:
    assert locks().renew("nightly", lock().token, MINUTE, utc_now())


def beats_and_is_stale_again() -> None:
    locks().update(heartbeats=F("heartbeats") + 1)


MEANWHILE = {
    changes_hands: "The lock nightly was not cleared, because it has a new holder (",
    changes_hands_and_is_stale_again: "The lock nightly was not cleared, because it has a new holder (",
    beats: "The lock nightly was not cleared, because its holder (",
    beats_and_is_stale_again: "The lock nightly was not cleared, because its holder (",
}


@pytest.mark.parametrize(("meanwhile", "answer"), MEANWHILE.items(), ids=[act.__name__ for act in MEANWHILE])
def test_a_lock_that_is_not_as_it_was_shown_is_left_alone(
    operator: Client, heard: list[Any], meanwhile: Callable[[], None], answer: str
) -> None:
    stand_still()
    chosen = seen(operator, "nightly")
    meanwhile()
    heard.clear()
    before = all_rows()
    (message,) = confirm(operator, chosen)
    assert message.startswith(answer)
    assert all_rows() == before
    assert (heard, entries()) == ([], [])


def test_one_that_cannot_be_cleared_at_the_last_moment_is_left_alone(
    operator: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else is faster after we have looked, or is inside a fenced transaction."""
    stand_still()
    chosen = seen(operator, "nightly")
    monkeypatch.setattr(admin_locks, "clear_at_once", lambda *_, **__: False)
    (message,) = confirm(operator, chosen)
    assert message.startswith("The lock nightly was not cleared, because its holder gave a sign of life just now.")
    assert entries() == []


def test_nor_is_one_that_changed_hands_cleared_by_force(forcer: Client) -> None:
    begin()
    chosen = seen(forcer, "nightly")
    locks().update(token=uuid4())
    before = all_rows()
    (message,) = confirm(forcer, chosen, "nightly")
    assert "it has a new holder" in message
    assert all_rows() == before


def test_one_that_was_released_meanwhile_is_free(operator: Client) -> None:
    lease = begin()
    expire()
    chosen = seen(operator, "nightly")
    assert lease.release()
    before = all_rows()
    assert confirm(operator, chosen) == ["The lock nightly is already free."]
    assert all_rows() == before
    assert entries() == []


def assert_refused(answers: list[str]) -> None:
    (answer,) = [answer for answer in answers if answer != WORDS]
    assert answer.startswith("The row 'nightly' of the table django_singlejob_joblock cannot be read (TypeError: ")
    assert answer.endswith("correct it in the database.")


# --- a live one


def test_a_live_one_is_left_alone(operator: Client, forcer: Client) -> None:
    begin()
    before = all_rows()
    for client in operator, forcer:
        (message,) = confirm(client, [sign(Sighting.of(lock()), user_of(client))])
        assert message.startswith("The lock nightly was not cleared, because its holder (")
    assert all_rows() == before
    assert entries() == []


def test_by_force_it_is_cleared(forcer: Client, heard: list[Any]) -> None:
    lease = begin()
    chosen = seen(forcer, "nightly")
    assert locks().renew("nightly", lease.token, MINUTE, utc_now())  # as live holders do
    (message,) = confirm(forcer, chosen, "nightly")
    assert message.startswith("The lock nightly was cleared by force; its holder was ")
    assert is_free()
    assert not lease.release()
    assert last_run().error == "The lock was cleared by force in the admin by forcer."
    assert heard == [("nightly", None, lease.token)]
    assert [entry[3].startswith("Cleared by force; its holder was ") for entry in entries()] == [True, True]


def test_only_the_chosen_locks_are_forced(forcer: Client) -> None:
    begin("nightly")
    begin("hourly")
    stand_still("weekly")
    confirm(forcer, seen(forcer, "nightly", "hourly", "weekly"), "nightly", "never")
    assert [is_free(name) for name in ("nightly", "hourly", "weekly")] == [True, False, True]
    assert {message.startswith("Cleared by force") for *_, name, _, message in entries() if name == "weekly"} == {False}


def test_a_user_without_the_permission_to_force_changes_nothing(
    operator: Client, forcer: Client, heard: list[Any]
) -> None:
    begin("nightly")
    stand_still("hourly")
    chosen = seen(forcer, "hourly", "nightly")
    before = all_rows()
    for force in "nightly", "hourly", "", "never":
        assert operator.post(reverse(CLEAR), {"lock": chosen, "force": force}).status_code == 403
    assert all_rows() == before
    assert (heard, entries()) == ([], [])


# --- the web


def test_it_takes_a_token_of_the_form(django_user_model: Any) -> None:
    stand_still()
    client = Client(enforce_csrf_checks=True)
    client.force_login(django_user_model.objects.create(username="admin", is_staff=True, is_superuser=True))
    sent = {"lock": seen(client, "nightly")}
    assert client.post(reverse(CLEAR), sent).status_code == 403
    assert not is_free()
    sent |= {"csrfmiddlewaretoken": [client.cookies["csrftoken"].value]}
    assert client.post(reverse(CLEAR), sent).status_code == 302
    assert is_free()


@pytest.mark.django_db(transaction=True)
def test_it_is_cleared_where_each_request_is_a_transaction(
    admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)
    stand_still()
    (message,) = confirm(admin_client, seen(admin_client, "nightly"))
    assert message.startswith("The lock nightly was cleared; its holder was ")
    assert is_free()
    assert len(entries()) == 2
    assert act(admin_client, "jobstatus", "pause", "nightly") != []
    assert gate().paused


# --- the watch


INTERVAL = 10 * SECOND
CLEARED = "The lock nightly was cleared"
LEFT = "The lock nightly was not cleared, because "


def fall_silent(name: str = "nightly", **terms: Any) -> Lease:
    """Somebody who sends heartbeats runs a job of this name, and the last heartbeat was long ago."""
    lease = begin(name, **{"heartbeat_interval": INTERVAL} | terms)
    expire(name)
    locks().filter(name=name).update(sent_at=lock(name).sent_at - HOUR)
    return lease


def earlier(client: Client, chosen: list[str], *, database: timedelta, server: timedelta) -> list[str]:
    """As if the page had been shown so much earlier, by these clocks."""
    user = user_of(client)
    sightings = [read(text, user) for text in chosen]
    return [
        sign(seen._replace(database_at=seen.database_at - database, server_at=seen.server_at - server), user)
        for seen in sightings
        if seen
    ]


def pass_by(client: Client, chosen: list[str], time: timedelta) -> list[str]:
    return earlier(client, chosen, database=time, server=time)


def click(client: Client, chosen: list[str], *force: str, **more: Any) -> tuple[list[str], list[str]]:
    """Click. Returns the messages, and what is on the page then."""
    sent = {"lock": chosen, "force": force, "name": ["nightly"]} | more
    response = client.post(reverse(CLEAR), sent, follow=True)
    return messages_of(response), Page(response.content.decode()).fields["lock"]


@pytest.fixture
def nobody_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    usual, web_thread = vars(clock)["time"], get_ident()

    def sleep(seconds: float) -> None:
        assert get_ident() != web_thread, f"A web thread sleeps for {seconds} s."
        usual.sleep(seconds)

    monkeypatch.setattr(clock, "time", SimpleNamespace(**vars(usual) | {"sleep": sleep}))


@pytest.mark.usefixtures("nobody_sleeps")
def test_a_click_before_the_watch_is_over_is_answered_at_once(operator: Client) -> None:
    """After an outage of the database, every lease is stale and every holder alive."""
    fall_silent()
    chosen = seen(operator, "nightly")
    before = all_rows()
    (answer,), again = click(operator, chosen)
    assert answer.startswith(f"{LEFT}its watch is not over yet: ")
    assert answer.endswith("\xa0s are left.")
    assert again == chosen, "The watch begins anew."
    assert all_rows() == before
    assert entries() == []


@pytest.mark.usefixtures("nobody_sleeps")
def test_a_click_afterwards_clears_it_at_once(operator: Client) -> None:
    fall_silent()
    chosen = pass_by(operator, seen(operator, "nightly"), 2 * INTERVAL)
    (answer,), again = click(operator, chosen)
    assert answer.startswith(CLEARED)
    assert is_free()
    assert again == []
    assert len(entries()) == 2


def test_a_request_asks_no_more_often_for_more_locks(operator: Client) -> None:
    """What it does not clear, it has looked at in one query, before and after."""
    for name in "nightly", "hourly", "weekly":
        fall_silent(name)
    lengths = []
    for names in (["nightly"], ["nightly", "hourly", "weekly"]):
        chosen = seen(operator, *names)
        with CaptureQueriesContext(connection) as queries:
            click(operator, chosen)
        lengths.append(len([query for query in queries if "django_singlejob_joblock" in query["sql"].lower()]))
    assert lengths == [2, 2]


@pytest.mark.slow
def test_the_page_says_from_when_on_the_button_works(operator: Client) -> None:
    fall_silent()
    page = shown(operator, clear_page("nightly"))
    (left,) = re.findall(r'data-left="([0-9.]+)"', page)
    assert float(left) == 20
    text = Page(page).text
    assert "its heartbeats are watched first" in text
    assert "The button works from " in text
    assert "longer than usual" not in text
    stand_still("hourly")
    assert "data-left" not in shown(operator, clear_page("hourly")), "A lock without heartbeats is not watched."


@override_settings(USE_THOUSAND_SEPARATOR=True, LANGUAGE_CODE="de")
def test_a_script_can_read_it_in_every_language(operator: Client) -> None:
    fall_silent(lease=3 * HOUR, heartbeat_interval=HOUR)
    (left,) = re.findall(r'data-left="([^"]*)"', shown(operator, clear_page("nightly")))
    assert float(left) == 7200


def test_one_whose_watch_takes_a_minute_can_be_cleared_as_well(operator: Client) -> None:
    fall_silent(heartbeat_interval=30 * SECOND)
    chosen = pass_by(operator, seen(operator, "nightly"), 50 * SECOND)
    (answer,), chosen = click(operator, chosen)
    (left,) = re.findall(r"(\d+)\xa0s are left", answer)
    assert 1 <= int(left) <= 10
    (answer,), _ = click(operator, pass_by(operator, chosen, 10 * SECOND))
    assert answer.startswith(CLEARED)


@pytest.mark.parametrize("clock", ["database", "server"])
@pytest.mark.parametrize("step", [5 * SECOND, 400 * 24 * HOUR])
def test_one_clock_that_was_set_ahead_ends_no_watch(operator: Client, clock: str, step: timedelta) -> None:
    """Of two servers, one that is ahead answers the click; or the database failed over to a server that is ahead."""
    fall_silent()
    passed = {"database": 5 * SECOND, "server": 5 * SECOND} | {clock: 5 * SECOND + step}
    chosen = earlier(operator, seen(operator, "nightly"), **passed)
    (answer,), again = click(operator, chosen)
    assert answer.startswith(f"{LEFT}its watch is not over yet")
    assert again == chosen
    assert not is_free()


@pytest.mark.parametrize("clock", ["database", "server"])
def test_a_clock_that_was_set_back_begins_a_new_watch(operator: Client, clock: str) -> None:
    """Otherwise the watch would not be over before that clock has caught up."""
    fall_silent()
    passed = {"database": MINUTE, "server": MINUTE} | {clock: -HOUR}
    (answer,), again = click(operator, earlier(operator, seen(operator, "nightly"), **passed))
    assert answer.startswith(f"{LEFT}the clocks of the servers, or the database's, were set back")
    assert not is_free()
    (answer,), _ = click(operator, pass_by(operator, again, 2 * INTERVAL))
    assert answer.startswith(CLEARED)


def test_the_databases_clock_alone_clears_nothing(operator: Client) -> None:
    begin(heartbeat_interval=5 * SECOND)
    set_the_databases_clock(HOUR)
    page = shown(operator, clear_page("nightly"))
    assert "longer than usual, because the clocks of the servers and of the database disagree" in Page(page).text
    chosen = pass_by(operator, Page(page).fields["lock"], 15 * SECOND)
    (answer,), again = click(operator, chosen)
    assert "its watch is not over yet" in answer
    assert not is_free()
    (answer,), _ = click(operator, pass_by(operator, again, MINUTE))
    assert answer.startswith(CLEARED)


@pytest.mark.slow
def test_one_whose_last_heartbeat_lies_in_the_future_is_shown_as_impossible_and_cleared(operator: Client) -> None:
    """The database's clock has been set back since the holder died."""
    fall_silent(heartbeat_interval=5 * SECOND)
    set_the_databases_clock(-HOUR)
    assert names(operator, "?state=impossible") == ["nightly"]
    assert names(operator, "?state=held") == []
    assert "the database&#x27;s clock was set back" in shown(operator, list_of("joblock"))
    assert "the database's clock was set back" in Page(shown(operator, clear_page("nightly"))).text
    (answer,), _ = click(operator, pass_by(operator, seen(operator, "nightly"), 10 * SECOND))
    assert answer.startswith(CLEARED)


def gives_a_sign_of_life() -> None:
    locks().update(heartbeats=F("heartbeats") + 1)


def is_run_by_another_that_fell_silent() -> None:
    locks().update(token=uuid4())


def is_released_and_taken_again() -> None:
    locks().all().delete()
    fall_silent()


CHANGES = {
    gives_a_sign_of_life: "gave a sign of life. Its watch has restarted.",
    is_run_by_another_that_fell_silent: "Its watch has restarted.",
    is_released_and_taken_again: "Its watch has restarted.",
}


@pytest.mark.parametrize(("change", "words"), CHANGES.items(), ids=[change.__name__ for change in CHANGES])
def test_a_lock_that_changed_is_watched_anew(operator: Client, change: Callable[[], None], words: str) -> None:
    fall_silent()
    chosen = pass_by(operator, seen(operator, "nightly"), HOUR / 10)
    change()
    before = lock().now
    (answer,), again = click(operator, chosen)
    assert answer.startswith(LEFT)
    assert answer.endswith(words)
    (sighting,) = [read(text, user_of(operator)) for text in again]
    assert sighting
    assert sighting.database_at >= before
    assert not is_free()


def test_a_holder_that_comes_back_just_before_the_click_keeps_it(operator: Client) -> None:
    lease = fall_silent()
    chosen = pass_by(operator, seen(operator, "nightly"), 2 * INTERVAL)
    lease.renew()
    (answer,), again = click(operator, chosen)
    assert answer.startswith(f"{LEFT}its holder (")
    assert answer.endswith("is alive.")
    assert again == []
    assert lock().token == lease.token


def test_a_holder_that_comes_back_after_the_click_was_judged_keeps_it(
    operator: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The write that clears the lock is the judge."""
    lease = fall_silent()
    chosen = pass_by(operator, seen(operator, "nightly"), 2 * INTERVAL)

    def come_back_first(lock: JobLock, **terms: Any) -> bool | None:
        lease.renew()
        expire()
        return clear_at_once(lock, **terms)

    monkeypatch.setattr(admin_locks, "clear_at_once", come_back_first)
    (answer,), again = click(operator, chosen)
    assert answer == f"{LEFT}its holder gave a sign of life just now. Its watch has restarted."
    assert len(again) == 1
    assert again != chosen
    assert lock().token == lease.token
    assert entries() == []


def test_the_watch_of_one_whose_gate_is_busy_goes_on(operator: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fenced transaction is a sign of life too, but it may be that of a caller."""
    fall_silent()
    monkeypatch.setattr(JobStatusQuerySet, "is_at_hand", lambda *_: False)
    chosen = pass_by(operator, seen(operator, "nightly"), 2 * INTERVAL)
    (answer,), again = click(operator, chosen)
    assert answer == f"{LEFT}its holder, or another process, is writing at the moment."
    assert again == chosen
    monkeypatch.undo()
    (answer,), _ = click(operator, again)
    assert answer.startswith(CLEARED)


@pytest.mark.usefixtures("nobody_sleeps")
def test_a_forced_click_does_not_wait_either(forcer: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    begin()
    monkeypatch.setattr(JobStatusQuerySet, "is_at_hand", lambda *_: False)
    chosen = seen(forcer, "nightly")
    (answer,), again = click(forcer, chosen, "nightly")
    assert answer == f"{LEFT}its holder, or another process, is writing at the moment."
    assert len(again) == 1
    monkeypatch.undo()
    (answer,), _ = click(forcer, again, "nightly")
    assert answer.startswith("The lock nightly was cleared by force")


def test_a_page_that_was_open_for_long_begins_a_new_watch(operator: Client, forcer: Client) -> None:
    fall_silent()
    for client, force in (operator, []), (forcer, ["nightly"]):
        chosen = pass_by(client, seen(client, "nightly"), HOUR)
        (answer,), again = click(client, chosen, *force)
        assert answer == f"{LEFT}this page was open for too long. Its watch has restarted."
        assert again != chosen
        assert not is_free()


@pytest.mark.on_database("postgresql")
def test_a_failover_begins_a_new_watch(operator: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline, "_silent", set())
    fall_silent()
    chosen = pass_by(operator, seen(operator, "nightly"), 2 * INTERVAL)
    monkeypatch.setattr(timeline, "SQL", "7")
    (answer,), again = click(operator, chosen)
    assert answer == f"{LEFT}the database failed over to another server. Its watch has restarted."
    (answer,), _ = click(operator, pass_by(operator, again, 2 * INTERVAL))
    assert answer.startswith(CLEARED)


def test_of_two_clicks_at_once_one_clears_it(operator: Client, forcer: Client) -> None:
    fall_silent()
    both = [(client, pass_by(client, seen(client, "nightly"), 2 * INTERVAL)) for client in (operator, forcer)]
    answers = [click(client, chosen)[0] for client, chosen in both]
    assert [answer.startswith(CLEARED) for (answer,) in answers] == [True, False]
    assert answers[1] == ["The lock nightly is already free."]
    assert len(entries()) == 2


def test_the_back_button_and_a_reload_clear_nothing_twice(operator: Client) -> None:
    fall_silent()
    chosen = pass_by(operator, seen(operator, "nightly"), 2 * INTERVAL)
    click(operator, chosen)
    successor = fall_silent()
    (answer,), _ = click(operator, chosen)
    assert "it has a new holder" in answer
    assert lock().token == successor.token


def test_the_ones_whose_watch_is_over_are_cleared_and_the_others_stay(operator: Client) -> None:
    stand_still("hourly")
    fall_silent("nightly")
    chosen = seen(operator, "hourly", "nightly")
    answers, again = click(operator, chosen)
    assert [answer.split()[2:5] for answer in answers] == [["hourly", "was", "cleared;"], ["nightly", "was", "not"]]
    assert again == chosen[1:]
    assert is_free("hourly")


def test_a_click_that_takes_too_long_leaves_the_rest_for_the_next(
    operator: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "hourly", "nightly":
        stand_still(name)
    monkeypatch.setattr(admin_locks, "LONGEST_CLEAR", 0)
    chosen = seen(operator, "hourly", "nightly")
    answers, again = click(operator, chosen)
    assert {answer.partition(", ")[2] for answer in answers} == {"because the others took too long. Click again."}
    assert again == chosen
    monkeypatch.undo()
    assert click(operator, again)[1] == []
    assert is_free("nightly")


LONG_AGO, FAR_OFF = datetime(1001, 1, 1, tzinfo=UTC), datetime(9998, 1, 1, tzinfo=UTC)
MADE_BY_HAND: list[dict[str, Any]] = [
    {"heartbeat_at": LONG_AGO, "expires_at": LONG_AGO, "sent_at": FAR_OFF},
    {"heartbeat_at": FAR_OFF, "expires_at": FAR_OFF, "sent_at": LONG_AGO},
    {"heartbeat_at": FAR_OFF, "expires_at": LONG_AGO, "sent_at": FAR_OFF, "heartbeat_interval": 876_600 * HOUR},
    {"heartbeat_at": LONG_AGO, "expires_at": FAR_OFF, "sent_at": LONG_AGO, "heartbeat_interval": HOUR / 10**9},
]


@pytest.mark.parametrize("facts", MADE_BY_HAND)
def test_a_row_that_was_made_by_hand_ends_no_page(forcer: Client, facts: dict[str, Any]) -> None:
    begin()
    locks().update(**facts)
    chosen = seen(forcer, "nightly")
    click(forcer, chosen)
    click(forcer, pass_by(forcer, chosen, HOUR))
    if not is_free():
        click(forcer, seen(forcer, "nightly"), "nightly")
    assert is_free()


# --- what the page sends back


STRANGE = [
    *("", " ", "nightly", "nightly {token} 0", "nightly {token} 0 0.0:forged", ":", "\0", "é:ü", ".:", "\0:\0"),
    *("nightly {token} " + "9" * 5000, "n" * 201 + " {token} 0"),
]
WORDS = "Some locks were not cleared, because this page was changed or was made for another user. Look again."


@pytest.mark.slow
def test_text_that_no_page_of_ours_wrote_clears_nothing(admin_client: Client) -> None:
    stand_still()
    (genuine,) = seen(admin_client, "nightly")
    texts = [text.format(token=lock().token) for text in STRANGE]
    texts += [genuine[:-1], f"{genuine}x", genuine.swapcase(), Signer(salt="other").sign_object([1])]
    ours = Signer(salt="django_singlejob.sighting")
    others: list[Any] = [[], [1] * 7, {}, None, "1234567"]
    texts += [ours.sign_object(facts) for facts in others]
    before = all_rows()
    for text in texts:
        answers, again = click(admin_client, [text], "nightly")
        assert answers == [WORDS], text
        assert len(again) == 1, "Its watch has restarted."
        assert click(admin_client, [text], name=["\0", "never"]) == ([WORDS], []), text
    assert all_rows() == before


def test_whatever_is_missing_of_what_was_shown_is_reported(operator: Client) -> None:
    """The text or the name, of one lock among others. A text that is sent twice does not change anything."""
    stand_still()
    stand_still("hourly")
    texts = seen(operator, "hourly")
    assert click(operator, texts)[0] == [WORDS, *cleared("hourly")]
    stand_still("hourly")
    texts = seen(operator, "hourly")
    assert click(operator, [*texts, "changed"], name=["hourly"])[0] == [WORDS, *cleared("hourly")]
    stand_still("hourly")
    texts = seen(operator, "hourly")
    assert click(operator, [*texts, *texts], name=["hourly"])[0] == cleared("hourly")
    assert not is_free()


def cleared(name: str) -> list[str]:
    holder = this_process()
    return [f"The lock {name} was cleared; its holder was {holder.hostname}, pid {holder.pid}."]


def test_what_one_user_was_shown_another_cannot_send(operator: Client, forcer: Client) -> None:
    stand_still()
    chosen = seen(forcer, "nightly")
    answers, again = click(operator, chosen)
    assert answers == [WORDS]
    assert not is_free()
    assert again != chosen
    click(operator, again)
    assert is_free()


def test_what_was_signed_with_a_key_that_was_replaced_since_clears_nothing(operator: Client) -> None:
    """All that was signed before somebody got to know the key."""
    stand_still()
    (text,), user = seen(operator, "nightly"), user_of(operator)
    with override_settings(SECRET_KEY="another"):
        assert read(text, user) is None
    with override_settings(SECRET_KEY="another", SECRET_KEY_FALLBACKS=["only-for-tests"]):
        assert read(text, user)


@override_settings(USE_THOUSAND_SEPARATOR=True)
def test_one_of_many_heartbeats_can_be_cleared_where_numbers_have_separators(operator: Client) -> None:
    stand_still()
    locks().update(heartbeats=123_456)
    confirm(operator, seen(operator, "nightly"))
    assert is_free()
