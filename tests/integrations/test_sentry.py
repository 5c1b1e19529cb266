"""What Sentry hears of the runs: a server that stands for it takes down what the SDK sends from real commands."""

from __future__ import annotations

import json
import signal
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from django.utils.dateparse import parse_datetime

from django_singlejob import singleton_job
from django_singlejob.integrations.sentry import monitor_config, monitor_slug
from django_singlejob.models import JobRun
from tests.children import kill_alone
from tests.contract.acts import expire, fall_behind
from tests.databases import APPS
from tests.ping_server import ping_server
from tests.processes.workers import one_off
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tests.children import Child, Spawn
    from tests.ping_server import Heard, PingServer

pytest_plugins = "tests.fixtures"
pytestmark = [pytest.mark.usefixtures("fresh_process"), pytest.mark.django_db(transaction=True, available_apps=APPS)]

MINUTE = timedelta(minutes=1)


@pytest.fixture
def sentry() -> Iterator[PingServer]:
    with ping_server() as server:
        yield server


def environment(sentry: PingServer) -> dict[str, str]:
    return {
        "DJANGO_SETTINGS_MODULE": "tests.integrations.sentry_settings",
        "SENTRY_DSN": f"http://key@127.0.0.1:{sentry.server_port}/1",
    }


def command(spawn: Spawn, sentry: PingServer, *arguments: str) -> Child:
    return spawn.command(*arguments, **environment(sentry))


def items(sentry: PingServer, kind: str) -> list[dict[str, Any]]:
    """The parts of this type of all envelopes, in the order in which they arrived."""
    return items_of(sentry.heard, kind)


def items_of(requests: Iterable[Heard], kind: str) -> list[dict[str, Any]]:
    found = []
    for each in requests:
        lines = [json.loads(line) for line in each.body.splitlines() if line]
        found += [part for header, part in zip(lines[1::2], lines[2::2], strict=True) if header["type"] == kind]
    return found


def check_ins(sentry: PingServer) -> list[dict[str, Any]]:
    return items(sentry, "check_in")


def events(sentry: PingServer) -> list[dict[str, Any]]:
    return items(sentry, "event")


def due(name: str) -> None:
    """A slot of the job is due."""
    fall_behind(singleton_job(name, schedule="@yearly")(lambda: None))


# --- check-ins


def test_a_run_of_a_slot_checks_in_twice_under_one_id(spawn: Spawn, sentry: PingServer) -> None:
    due("checked")
    assert command(spawn, sentry, "run_singleton", "checked").finish() == 0
    begun, ended = check_ins(sentry)
    assert begun["check_in_id"] == ended["check_in_id"] == JobRun.objects.get().token.hex
    assert [each["status"] for each in (begun, ended)] == ["in_progress", "ok"]
    assert [each["monitor_slug"] for each in (begun, ended)] == ["checked"] * 2
    assert timedelta(seconds=ended["duration"]) == JobRun.objects.get().duration
    assert begun["monitor_config"] == ended["monitor_config"]
    assert begun["monitor_config"] == {
        "schedule": {"type": "crontab", "value": "0 0 1 1 *"},
        "timezone": "UTC",
        "checkin_margin": 5,
        "max_runtime": 10,
    }
    assert events(sentry) == []


def test_a_run_that_fails_checks_in_as_an_error(spawn: Spawn, sentry: PingServer) -> None:
    due("checked_and_fails")
    assert command(spawn, sentry, "singleton_worker", "--once").finish() == 1
    begun, ended = check_ins(sentry)
    assert begun["check_in_id"] == ended["check_in_id"]
    assert [each["status"] for each in (begun, ended)] == ["in_progress", "error"]
    [event] = events(sentry)
    assert event["tags"] == tags("checked_and_fails")
    assert parse_datetime(event["tags"]["slot"]) == JobRun.objects.get().slot


def said(sentry: PingServer) -> list[tuple[str, str]]:
    """The token of the run that each check-in names, and what it says."""
    return [(each["check_in_id"], each["status"]) for each in check_ins(sentry)]


def tokens() -> list[str]:
    return [token.hex for token in JobRun.objects.order_by("pk").values_list("token", flat=True)]


def begin(spawn: Spawn, sentry: PingServer, job: str) -> Child:
    child = command(spawn, sentry, "run_singleton", job)
    child.wait_for("started")
    return child


def cut_off(spawn: Spawn, sentry: PingServer, job: str = "checked_and_waits") -> None:
    """A deploy ends the run with SIGTERM."""
    child = begin(spawn, sentry, job)
    child.terminate()
    assert child.finish() == 128 + signal.SIGTERM


def die(spawn: Spawn, sentry: PingServer, job: str = "checked_and_waits") -> None:
    """The server dies during the run, and its lease is over by now."""
    child = begin(spawn, sentry, job)
    eventually(lambda: len(check_ins(sentry)) % 2 == 1)
    kill_alone(child)
    expire(job)


def test_the_server_that_takes_over_checks_in_the_end_of_the_dead_run(spawn: Spawn, sentry: PingServer) -> None:
    due("checked_and_waits_at_first")
    die(spawn, sentry, "checked_and_waits_at_first")
    assert command(spawn, sentry, "run_singleton", "checked_and_waits_at_first").finish() == 0
    dead, again = tokens()
    assert said(sentry) == [(dead, "in_progress"), (dead, "error"), (again, "in_progress"), (again, "ok")]
    assert check_ins(sentry)[1]["monitor_config"] == check_ins(sentry)[0]["monitor_config"]


def test_so_does_the_command_that_clears_its_lock(spawn: Spawn, sentry: PingServer) -> None:
    due("checked_and_waits")
    die(spawn, sentry)
    assert command(spawn, sentry, "clear_stale_locks").finish() == 0
    [dead] = tokens()
    assert said(sentry) == [(dead, "in_progress"), (dead, "error")]
    assert command(spawn, sentry, "clear_stale_locks").finish() == 0
    assert len(said(sentry)) == 2


def test_a_run_that_a_deploy_cuts_off_goes_on_with_its_rerun(spawn: Spawn, sentry: PingServer) -> None:
    due("checked_and_waits_at_first")
    cut_off(spawn, sentry, "checked_and_waits_at_first")
    first = tokens()[0]
    assert said(sentry) == [(first, "in_progress")]
    assert command(spawn, sentry, "run_singleton", "checked_and_waits_at_first").finish() == 0
    assert said(sentry) == [(first, "in_progress"), (first, "in_progress"), (first, "ok")]


def test_the_second_time_in_a_row_is_an_error_and_so_is_the_third(spawn: Spawn, sentry: PingServer) -> None:
    due("checked_and_waits")
    for _ in range(3):
        cut_off(spawn, sentry)
    first, _, third = tokens()
    assert said(sentry) == [
        *[(first, "in_progress"), (first, "in_progress"), (first, "error")],
        *[(third, "in_progress"), (third, "error")],
    ]


def test_if_the_rerun_dies_the_end_of_the_first_run_is_checked_in(spawn: Spawn, sentry: PingServer) -> None:
    due("checked_and_waits")
    cut_off(spawn, sentry)
    begin(spawn, sentry, "checked_and_waits").kill_all()
    expire("checked_and_waits")
    assert command(spawn, sentry, "clear_stale_locks").finish() == 0
    assert said(sentry)[-1] == (tokens()[0], "error")


def test_a_run_that_a_user_stops_is_an_error(spawn: Spawn, sentry: PingServer) -> None:
    """Its slot is not run again."""
    due("checked_and_waits")
    child = begin(spawn, sentry, "checked_and_waits")
    assert command(spawn, sentry, "singleton_stop", "checked_and_waits").finish() == 0
    child.finish()
    assert [status for _, status in said(sentry)] == ["in_progress", "error"]


def test_a_run_by_hand_does_not_check_in(spawn: Spawn, sentry: PingServer) -> None:
    assert command(spawn, sentry, "run_singleton", "checked", "--now").finish() == 0
    assert check_ins(sentry) == []


@pytest.mark.parametrize(
    ("settings", "config"),
    [
        ({"schedule": "@daily", "time_zone": "Europe/Rome"}, {"type": "crontab", "value": "0 0 * * *"}),
        ({"schedule": timedelta(minutes=90)}, {"type": "interval", "value": 90, "unit": "minute"}),
        ({"schedule": timedelta(hours=2)}, {"type": "interval", "value": 2, "unit": "hour"}),
        ({"schedule": timedelta(days=3)}, {"type": "interval", "value": 3, "unit": "day"}),
        ({"schedule": timedelta(days=14)}, {"type": "interval", "value": 2, "unit": "week"}),
        ({"schedule": timedelta(seconds=90)}, None),
        ({}, None),
    ],
)
def test_a_monitor_follows_the_schedule(settings: dict[str, Any], config: dict[str, Any] | None) -> None:
    found = monitor_config(singleton_job("nightly", **settings)(lambda: None))
    zone = settings.get("time_zone", "UTC")
    rest = {"timezone": zone, "checkin_margin": 5, "max_runtime": 40_320}
    assert found == (None if config is None else {"schedule": config, **rest})


def test_its_limits_are_whole_minutes() -> None:
    job = singleton_job("nightly", schedule="@daily", misfire_grace=timedelta(), max_runtime=MINUTE * 1.5)(lambda: None)
    found: Any = monitor_config(job)
    assert (found["checkin_margin"], found["max_runtime"]) == (1, 2)


def test_a_name_that_sentry_does_not_allow_is_changed() -> None:
    long = monitor_slug(60 * "x" + "1")
    assert monitor_slug("nightly-report_1") == "nightly-report_1"
    assert monitor_slug("shop:nightly.report_1").startswith("shop-nightly-report_1-")
    assert len({monitor_slug(name) for name in ("a.b", "a-b", "a:b", "a_b")}) == 4
    assert len(long) == 50
    assert long != monitor_slug(60 * "x" + "2")


# --- events


def tags(job: str) -> dict[str, str]:
    run = JobRun.objects.get()
    slot = {"slot": run.slot.isoformat()} if run.slot else {}
    return {"job": job, "run": str(run.pk), **slot}


@pytest.mark.parametrize("job", ["fails", "fails_async"])
@pytest.mark.parametrize("how", [[], ["--inline"]])
def test_a_run_that_fails_is_one_event(spawn: Spawn, sentry: PingServer, job: str, how: list[str]) -> None:
    assert command(spawn, sentry, "run_singleton", job, *how).finish() == 1
    [event] = events(sentry)
    assert event["exception"]["values"][0]["type"] == "ValueError"
    assert event["exception"]["values"][0]["stacktrace"]["frames"][-1]["function"] in ("fails", "fails_async")
    assert event["tags"] == tags(job)
    assert check_ins(sentry) == []


def test_a_run_that_takes_too_long_is_one_error(spawn: Spawn, sentry: PingServer) -> None:
    enqueue("takes_too_long")
    command(spawn, sentry, "singleton_worker", "--drain").finish()
    [event] = events(sentry)
    assert event["level"] == "error"
    assert event["tags"] == tags("takes_too_long")


def test_so_is_one_that_has_to_be_killed_for_it(spawn: Spawn, sentry: PingServer) -> None:
    arguments = json.dumps(["swallows every exception"])
    command(spawn, sentry, "run_singleton", "stubborn_for_too_long", "--args", arguments).finish()
    [event] = events(sentry)
    assert event["level"] == "error"
    assert event["tags"] == tags("stubborn_for_too_long")


def enqueue(job: str = "", task: str = "") -> None:
    """A one-off of the job, of the task, or of the task that is the job."""
    row = one_off(job)
    row.task_path, row.backend = (f"tests.app.sentry_jobs.{task}", "default") if task else ("", "")
    row.save()


def test_a_task_that_fails_is_one_event(spawn: Spawn, sentry: PingServer) -> None:
    enqueue(task="fails_as_task")
    assert command(spawn, sentry, "singleton_worker", "--drain").finish() == 0
    [event] = events(sentry)
    assert event["exception"]["values"][0]["type"] == "ValueError"


def test_so_is_a_task_that_is_a_job(spawn: Spawn, sentry: PingServer) -> None:
    enqueue("fails_as_both", "fails_as_both")
    assert command(spawn, sentry, "singleton_worker", "--drain").finish() == 0
    [event] = events(sentry)
    assert event["exception"]["values"][0]["type"] == "ValueError"
    assert event["tags"] == tags("fails_as_both")


def test_what_a_job_captures_itself_is_tagged(spawn: Spawn, sentry: PingServer) -> None:
    assert command(spawn, sentry, "run_singleton", "captures").finish() == 0
    [event] = events(sentry)
    assert event["message"] == "halfway"
    assert event["tags"] == tags("captures")


def test_a_failure_that_the_callers_own_code_captures_is_tagged(spawn: Spawn, sentry: PingServer) -> None:
    child = spawn.code(
        """
        import sentry_sdk
        from tests.app.sentry_jobs import fails
        try:
            fails()
        except ValueError:
            sentry_sdk.capture_exception()
        sentry_sdk.capture_message("after the run")
        """,
        **environment(sentry),
    )
    assert child.finish() == 0
    failure, after = events(sentry)
    assert failure["tags"] == tags("fails")
    assert after["tags"] == {}


def test_an_event_of_a_child_does_not_use_the_connection_of_its_parent(spawn: Spawn, sentry: PingServer) -> None:
    """The worker has one open from its check-ins, and sends more on it after the child has failed."""
    due("checked")
    for _ in range(3):
        enqueue("fails")
    command(spawn, sentry, "singleton_worker", "--drain", "--processes", "1").finish()
    kinds = [[len(items_of(on, kind)) for kind in ("check_in", "event")] for on in sentry.heard_on.values()]
    assert sorted(kinds) == [[0, 1], [0, 1], [0, 1], [2, 0]]


def test_the_package_says_nothing_to_sentry_without_the_integration(spawn: Spawn, sentry: PingServer) -> None:
    due("checked")
    env = environment(sentry) | {"SENTRY_WITHOUT": "1"}
    assert spawn.command("run_singleton", "checked", **env).finish() == 0
    assert sentry.heard == []


def test_a_server_that_hangs_keeps_neither_the_job_nor_its_command(spawn: Spawn) -> None:
    due("checked_and_fails")
    with ping_server("never") as sentry:
        child = command(spawn, sentry, "run_singleton", "checked_and_fails")
        assert child.finish() == 1
        assert JobRun.objects.get().status == "failed"
