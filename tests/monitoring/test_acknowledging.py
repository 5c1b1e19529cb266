"""What somebody has acknowledged is shown, and alarms nobody: no reader of the verdict, until it ends."""

from __future__ import annotations

from datetime import timedelta
from io import StringIO
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError

import django_singlejob
from django_singlejob import singleton_job
from django_singlejob.models.alerts import alerts
from django_singlejob.models.jobs import database_now, gates
from django_singlejob.models.notes import notes
from django_singlejob.models.runs import runs
from django_singlejob.monitoring.acknowledging import acknowledge
from django_singlejob.monitoring.health import Level
from django_singlejob.monitoring.verdict import judge
from django_singlejob.process.clock import DBNow
from tests.admin.pages import Page, act, list_of, messages_of, page_of, shown
from tests.contract.acts import HOUR, MINUTE, take

if TYPE_CHECKING:
    from django.test import Client
    from pytest_django import Settings

pytest_plugins = ["tests.fixtures", "tests.admin.people"]
pytestmark = [pytest.mark.usefixtures("fresh_process"), pytest.mark.django_db]

DAY = timedelta(days=1)
HOSTILE = "<script>alert('it is ours')</script>\"'&"


@pytest.fixture(autouse=True)
def failing(fresh_process: None) -> None:
    """The job has failed three times in a row."""
    singleton_job("nightly")(print)
    gates().create(name="nightly", consecutive_failures=3, last_status="failed", last_started_at=DBNow() - HOUR)


def succeeded(ago: timedelta) -> None:
    facts = {"fence": 1, "token": uuid4(), "trigger": "schedule", "hostname": "web-1", "pid": 1, "attempt": 1}
    at = database_now() - ago
    runs().create(job_name="nightly", status="successful", started_at=at - MINUTE, finished_at=at, **facts)


def known(until: Any = None, kind: str = "failing") -> None:
    acknowledge("nightly", [kind], until, by="anna", reason="supplier down")


def command(*arguments: str) -> str:
    out = StringIO()
    call_command("singleton_status", *arguments, stdout=out)
    return out.getvalue()


# --- until when


def test_it_alarms_nobody_and_is_shown() -> None:
    assert judge().level == Level.CRITICAL
    known()
    verdict = judge()
    assert verdict.level == Level.OK
    (found,) = verdict.findings
    assert found.level == Level.CRITICAL
    assert found.acknowledged
    assert (found.acknowledged.by, found.acknowledged.reason) == ("anna", "supplier down")
    assert notes().get().kind == "acknowledged"


def test_it_ends_by_itself() -> None:
    known(database_now() + MINUTE)
    alerts().update(acknowledged_until=DBNow())
    assert judge().level == Level.CRITICAL


def test_a_success_since_then_ends_it_and_an_earlier_one_does_not() -> None:
    succeeded(ago=HOUR)
    known()
    assert judge().level == Level.OK
    succeeded(ago=-MINUTE)
    assert judge().level == Level.CRITICAL


def test_another_kind_is_not_muted() -> None:
    known(kind="overdue")
    assert judge().level == Level.CRITICAL


def test_it_can_be_acknowledged_anew() -> None:
    known()
    acknowledge("nightly", ["failing"], None, by="bob", reason="")
    (found,) = judge().findings
    assert found.acknowledged
    assert found.acknowledged.by == "bob"
    assert alerts().count() == 1


@pytest.mark.parametrize(("away", "words"), [(-MINUTE, "is past"), (8 * DAY, "is more than 7 days away")])
def test_it_ends_within_a_week(away: timedelta, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        known(database_now() + away)
    assert not alerts().exists()


# --- failures=


def test_a_job_says_after_how_many_failures_it_is_critical() -> None:
    singleton_job("patient", failures=4)(print)
    singleton_job("impatient", failures=2)(print)
    for name in "patient", "impatient":
        gates().create(name=name, consecutive_failures=3, last_status="failed", last_started_at=DBNow())
    levels = judge(failures=9).levels
    assert levels == {"patient": Level.WARNING, "impatient": Level.CRITICAL, "nightly": Level.WARNING}


# --- the readers


@pytest.mark.urls("django_singlejob.urls")
def test_all_readers_follow(client: Client, settings: Settings) -> None:
    settings.ALLOWED_HOSTS = ["*"]
    assert client.get("/health/").status_code == 503
    known()
    assert client.get("/health/").status_code == 200
    assert command("--check").startswith("OK: all is well; 1 acknowledged.")
    status = django_singlejob.status()
    assert (status.level, status.jobs[0].level) == ("ok", "critical")
    assert (status.findings[0].acknowledged_by, bool(status.findings[0].acknowledged_until)) == ("anna", True)


def test_the_command_acknowledges_what_is_wrong_now() -> None:
    assert command("--acknowledge", "nightly", "--because", "known").startswith("Acknowledged until ")
    text = command()
    assert "OK: all is well; 1 acknowledged." in text
    assert "ACKNOWLEDGED by " in text
    assert "(known): The last 3 runs" in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--acknowledge", "nonsense"], "Nothing is wrong with 'nonsense'."),
        (["--acknowledge", "nightly", "--until", "2020-01-01"], "is past. Give an instant within 7 days."),
        (["--because", "x"], "--until and --because go with --acknowledge NAME."),
        (["--send-test"], "Neither SINGLEJOB\\['NOTIFY'\\] nor a job's notify has an address."),
    ],
)
def test_bad_input_is_refused(arguments: list[str], words: str) -> None:
    with pytest.raises(CommandError, match=words):
        command(*arguments)
    assert not alerts().exists()


# --- the admin


def test_the_page_of_a_job_asks_and_acknowledges(operator: Client) -> None:
    assert 'value="acknowledge"' in shown(operator, page_of("jobstatus", "nightly"))
    chosen = {"action": "acknowledge", "_selected_action": "nightly", "back": "nightly"}
    asked = operator.post(list_of("jobstatus"), chosen).content.decode()
    assert "alarms nobody until then" in asked
    confirmed = chosen | {"confirmed": "1", "reason": HOSTILE}
    (message,) = messages_of(operator.post(list_of("jobstatus"), confirmed, follow=True))
    assert "is acknowledged until" in message
    page = shown(operator, "/admin/django_singlejob/overview/")
    assert "All is well" in page
    assert "acknowledged by operator until" in Page(page).text
    assert HOSTILE not in page
    assert "acknowledged by operator until" in Page(shown(operator, page_of("jobstatus", "nightly"))).text


def test_a_week_is_the_longest_and_others_may_not(operator: Client, viewer: Client) -> None:
    until = database_now() + 9 * DAY
    sent = {"confirmed": "1", "until_0": f"{until:%Y-%m-%d}", "until_1": "12:00:00"}
    chosen = {"action": "acknowledge", "_selected_action": "nightly"}
    assert "Enter an instant within a week." in operator.post(list_of("jobstatus"), chosen | sent).content.decode()
    act(viewer, "jobstatus", "acknowledge", "nightly", confirmed="1")
    assert not alerts().exists()


def test_where_nothing_is_wrong_there_is_nothing_to_acknowledge(operator: Client) -> None:
    gates().update(consecutive_failures=0)
    assert 'value="acknowledge"' not in shown(operator, page_of("jobstatus", "nightly"))
    assert act(operator, "jobstatus", "acknowledge", "nightly") == ["Nothing is wrong with these jobs."]


# --- findings


def test_a_failing_job_says_when_it_last_succeeded_and_whether_an_attempt_runs() -> None:
    succeeded(ago=2 * HOUR)
    (found,) = judge(with_last_runs=True).findings
    assert "The last success ended 2 hours ago." in str(found.what_happened)
    assert "run the job again" in str(found.what_to_do)
    take("nightly")
    (found,) = judge().findings
    assert str(found.what_to_do) == "An attempt is running now."
