"""The admin's list of locks, and how to clear one."""

from __future__ import annotations

import logging
import re
import time
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from django.contrib.admin.models import LogEntry
from django.db import connections
from django.db.models import F
from django.test import Client, override_settings
from django.urls import reverse

from django_singlejob.admin import locks as admin_locks
from django_singlejob.clock import DBNow, utc_now
from django_singlejob.querysets.jobs import gates
from django_singlejob.querysets.locks import locks
from django_singlejob.querysets.runs import runs
from django_singlejob.signals import lock_taken_over
from tests.admin.pages import VIEW, Page, act, all_rows, begin, clear_page, list_of, messages_of, page_of, shown
from tests.contract.acts import (
    BEAT,
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
    found = re.findall(r'class="field-name"><a href="[^"]*">([^<]*)<', shown(client, list_of("joblock", query)))
    return [name.strip() for name in found]


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
    assert [text.split()[0] for text in page.fields["lock"]] == ["hourly", "nightly"]
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
    assert 'type="submit" class="deletelink"' not in shown(operator, clear_page("nightly"))
    page = Page(shown(forcer, clear_page("nightly")))
    assert page.fields["force"] == ["nightly"]
    assert "Its holder is alive. If you clear the lock, another server may run the job at the same time" in page.text


def test_one_that_nobody_holds_cannot_be_cleared(operator: Client) -> None:
    for query in "", "?name=", "?name=nightly", "?name=%00", "?name=NIGHTLY&name=nightly":
        assert "lock" not in Page(shown(operator, f"{reverse(CLEAR)}{query}")).fields
    assert "The lock nightly is already free." in shown(operator, clear_page("nightly"))


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
    monkeypatch.setattr("django_singlejob.admin.locks.clear", lambda *_, **__: False)
    (message,) = confirm(operator, chosen)
    assert message == "The lock nightly was not cleared, because its holder gave a sign of life. Look again."
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


FORGED = [
    *("", " ", "nightly", "nightly x 0", "nightly {token}", "nightly {token} x", "nightly {token} 0 0"),
    *("\0 {token} 0", "night\0ly {token} 0", "<b>nightly</b> {token} 0", "{token} nightly 0", "nightly {token} 1e0"),
    *("nightly {token} " + "9" * 5000, "n" * 201 + " {token} 0", "NIGHTLY {token} 0"),
]


@pytest.mark.slow
def test_text_that_no_page_of_ours_wrote_is_not_a_lock(admin_client: Client) -> None:
    stand_still()
    before = all_rows()
    for text in FORGED:
        (message,) = confirm(admin_client, [text.format(token=lock().token)], "nightly")
        assert message.endswith("is not a lock."), text
    assert all_rows() == before


@pytest.mark.slow
def test_what_is_made_by_hand_clears_nothing_either(operator: Client) -> None:
    stand_still()
    before = all_rows()
    for text in "nightly {other} 0", "nightly {token} 1", "nightly {token} -1", "hourly {token} 0":
        confirm(operator, [text.format(token=lock().token, other=uuid4())])
    assert all_rows() == before
    assert entries() == []


# --- a live one


def test_a_live_one_is_left_alone(operator: Client, forcer: Client) -> None:
    begin()
    before = all_rows()
    chosen = seen(forcer, "nightly")
    for client in operator, forcer:
        (message,) = confirm(client, chosen)
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


class Clock:
    """The clocks of this process, moved by each `sleep`, which calls `meanwhile`."""

    def __init__(self) -> None:
        self.passed = 0.0
        self.meanwhile: Callable[[], object] = lambda: None

    def local_now(self) -> float:
        return 1000.0 + self.passed

    def utc_now(self) -> datetime:
        return utc_now() + timedelta(seconds=self.passed)

    def sleep(self, seconds: float) -> None:
        self.passed += seconds
        self.meanwhile()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for name in "local_now", "utc_now", "sleep":
        monkeypatch.setattr(f"django_singlejob.admin.locks.{name}", getattr(clock, name))
    for module in "clock", "locking.liveness", "database":
        monkeypatch.setattr(f"django_singlejob.{module}.local_now", clock.local_now)
    monkeypatch.setattr("django_singlejob.database.utc_now", clock.utc_now)
    return clock


CLEARED = "The lock nightly was cleared"
ALIVE = "The lock nightly was not cleared, because its holder ("


def test_one_that_only_seems_dead_is_watched_before_it_is_cleared(operator: Client, clock: Clock) -> None:
    """After an outage of the database, every lease is stale and every holder alive."""
    lease = begin("nightly", heartbeat_interval=timedelta(seconds=10))
    expire()

    def come_back() -> None:
        if clock.passed > 15:
            lease.renew()
            expire()

    clock.meanwhile = come_back
    (answer,) = confirm(operator, seen(operator, "nightly"))
    assert answer.startswith(ALIVE)
    assert 15 < clock.passed <= 20
    assert not is_free()


@pytest.mark.slow
def test_it_is_cleared_when_its_heartbeats_stood_still(operator: Client) -> None:
    begin("nightly", heartbeat_interval=timedelta(seconds=0.3))
    expire()
    begun_at = time.monotonic()
    (answer,) = confirm(operator, seen(operator, "nightly"))
    assert answer.startswith(CLEARED)
    assert time.monotonic() - begun_at >= 0.6
    assert is_free()


def test_several_are_watched_at_the_same_time(operator: Client, clock: Clock) -> None:
    for name in "nightly", "hourly":
        begin(name, heartbeat_interval=timedelta(seconds=10))
        expire(name)
    answers = confirm(operator, seen(operator, "nightly", "hourly"))
    assert ["was cleared" in answer for answer in answers] == [True, True]
    assert clock.passed == pytest.approx(20)


@pytest.mark.slow
def test_no_request_waits_for_a_minute(operator: Client, forcer: Client, clock: Clock) -> None:
    begin("nightly", heartbeat_interval=timedelta(seconds=30))
    expire()
    text = shown(operator, clear_page("nightly"))
    assert "its heartbeats are watched for 20\xa0s" in text
    assert "stay on this page for 1\xa0min\xa00\xa0s before you click" in text
    (answer,) = confirm(operator, seen(operator, "nightly"))
    assert answer.startswith("The lock nightly was not cleared: watch it for ")
    assert clock.passed <= 20
    confirm(forcer, seen(forcer, "nightly"), "nightly")
    assert is_free()


def test_a_person_who_waited_on_the_page_waits_no_longer_than_a_request_may(operator: Client, clock: Clock) -> None:
    begin("nightly", heartbeat_interval=timedelta(seconds=30))
    expire()
    chosen = seen(operator, "nightly")
    clock.sleep(61)
    (answer,) = confirm(operator, chosen)
    assert answer.startswith(CLEARED)
    assert clock.passed == pytest.approx(81)


def test_a_holder_that_comes_back_after_the_page_was_opened_is_alive(operator: Client, clock: Clock) -> None:
    """No matter how long ago that was: the database may have been away until just before the click."""
    lease = begin("nightly", heartbeat_interval=timedelta(seconds=30))
    expire()
    chosen = seen(operator, "nightly")
    clock.sleep(600)
    clock.meanwhile = lease.renew
    (answer,) = confirm(operator, chosen)
    assert answer.startswith(ALIVE)
    assert not is_free()


def test_the_databases_clock_alone_clears_nothing(operator: Client, clock: Clock) -> None:
    begin("nightly", heartbeat_interval=timedelta(seconds=5))
    set_the_databases_clock(HOUR)
    (answer,) = confirm(operator, seen(operator, "nightly"))
    assert answer.startswith("The lock nightly was not cleared: watch it for ")
    assert clock.passed < 20
    assert not is_free()


@pytest.mark.slow
def test_one_whose_last_heartbeat_lies_in_the_future_is_shown_as_impossible_and_cleared(
    operator: Client, clock: Clock
) -> None:
    """The database's clock has been set back since the holder died."""
    begin("nightly", heartbeat_interval=timedelta(seconds=5))
    expire()
    set_the_databases_clock(-HOUR)
    assert names(operator, "?state=impossible") == ["nightly"]
    assert names(operator, "?state=held") == []
    assert "the database&#x27;s clock was set back" in shown(operator, list_of("joblock"))
    assert "the database's clock was set back" in Page(shown(operator, clear_page("nightly"))).text
    (answer,) = confirm(operator, seen(operator, "nightly"))
    assert answer.startswith(CLEARED)


@pytest.mark.slow
@pytest.mark.parametrize("interval", [10 * BEAT, 30 * BEAT], ids=["as by default", "longer"])
def test_a_lock_whose_watch_takes_all_the_time_that_a_request_has_is_cleared(
    operator: Client, monkeypatch: pytest.MonkeyPatch, interval: timedelta
) -> None:
    """By default, two intervals are 20 seconds, and a request may watch for as long. Here, everything is a tenth."""
    monkeypatch.setattr(admin_locks, "LONGEST_WATCH", 20 * BEAT)
    begin("nightly", heartbeat_interval=interval)
    expire()
    chosen = seen(operator, "nightly")
    time.sleep(2 * max(interval - 10 * BEAT, timedelta()).total_seconds() * 1.5)
    (answer,) = confirm(operator, chosen)
    assert answer.startswith(CLEARED)
    assert is_free()


def test_a_user_that_waits_for_as_long_as_the_admin_says_may_clear(operator: Client, clock: Clock) -> None:
    """The clocks disagree. A click does not reset the time that is counted from when the page was opened."""
    begin("nightly", heartbeat_interval=timedelta(seconds=2))
    set_the_databases_clock(HOUR)
    chosen = seen(operator, "nightly")
    (answer,) = confirm(operator, chosen)
    assert "watch it for " in answer
    clock.sleep((MINUTE + 10 * SECOND).total_seconds())
    (answer,) = confirm(operator, chosen)
    assert answer.startswith(CLEARED)


@pytest.mark.parametrize("text", ["nightly {token} 0 0.0", "nightly {token} 0 0.0:forged", ""])
def test_only_what_a_page_has_shown_is_cleared(operator: Client, text: str) -> None:
    stand_still()
    (answer,) = confirm(operator, [text.format(token=lock().token)])
    assert "is not a lock" in answer
    assert not is_free()


@override_settings(USE_THOUSAND_SEPARATOR=True)
def test_one_of_many_heartbeats_can_be_cleared_where_numbers_have_separators(operator: Client) -> None:
    stand_still()
    locks().update(heartbeats=123_456)
    confirm(operator, seen(operator, "nightly"))
    assert is_free()
