"""What a service such as healthchecks.io hears of the runs, and that it holds nobody up."""

from __future__ import annotations

import logging
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

from django_singlejob import JobInterrupted, SkipRun, command_job, current_run, singleton_job
from django_singlejob.exceptions import SingleJobError
from django_singlejob.models import JobLock, JobRun, OneOffJob
from django_singlejob.running import runner
from tests.children import kill_alone
from tests.contract.acts import expire, fall_behind, lose, take
from tests.databases import APPS
from tests.ping_server import Heard, ping_server
from tests.ports import quiet_port
from tests.processes.workers import SETTINGS, enqueue
from tests.waiting import a_moment, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_django import Settings

    from tests.children import Spawn
    from tests.fixtures import Elsewhere
    from tests.ping_server import PingServer

SENTRY = "tests.integrations.sentry_settings"

pytest_plugins = "tests.fixtures"
pytestmark = [pytest.mark.usefixtures("fresh_process"), pytest.mark.django_db(transaction=True, available_apps=APPS)]


@pytest.fixture
def answer() -> str:
    return "ok"


@pytest.fixture
def server(answer: str) -> Iterator[PingServer]:
    with ping_server(answer) as server:
        yield server


@pytest.fixture
def pinged(server: PingServer, settings: Settings) -> PingServer:
    """The setting names this server."""
    settings.SINGLEJOB = {**settings.SINGLEJOB, "PING_URL": server.url}
    return server


def heard(server: PingServer, count: int = 2) -> list[Heard]:
    """What the server has heard, once that is so much, and no more."""
    eventually(lambda: len(server.heard) >= count)
    a_moment()
    assert len(server.heard) == count, server.heard
    return server.heard


def fail() -> None:
    raise ValueError("no such customer: " + 2000 * "x")


def skip() -> None:
    raise SkipRun("holiday")


def be_interrupted() -> None:
    raise JobInterrupted(15)


def test_a_run_is_pinged_when_it_begins_and_when_it_succeeds(pinged: PingServer) -> None:
    run: Any = singleton_job("nightly")(current_run)()
    token = str(run.lease.token)
    start, end = heard(pinged)
    assert start == Heard("GET", "/secret/nightly/start", "", token, {})
    assert end == Heard("GET", "/secret/nightly", "", token, {})


def test_a_failure_is_pinged_with_the_error_on_one_line(pinged: PingServer) -> None:
    with pytest.raises(ValueError, match="no such customer"):
        singleton_job("nightly")(fail)()
    start, end = heard(pinged)
    assert (end.method, end.path, end.rid) == ("POST", "/secret/nightly/fail", start.rid)
    assert end.body.startswith("ValueError: no such customer: xxx")
    assert len(end.body) == 1000


def test_a_run_that_was_cut_short_has_not_succeeded(pinged: PingServer) -> None:
    with pytest.raises(JobInterrupted):
        singleton_job("nightly")(be_interrupted)()
    assert [each.path for each in heard(pinged)] == ["/secret/nightly/start", "/secret/nightly/fail"]


def test_nor_has_a_slot_that_was_run_by_hand(pinged: PingServer) -> None:
    job = singleton_job("nightly", schedule="@daily", time_zone="UTC")(press_ctrl_c)
    with pytest.raises(KeyboardInterrupt):
        runner.run(job, trigger="manual", slot=datetime(2026, 11, 22, tzinfo=UTC))
    assert [each.path for each in heard(pinged)] == ["/secret/nightly/start", "/secret/nightly/fail"]


def press_ctrl_c() -> None:
    raise KeyboardInterrupt


def test_a_run_that_skips_itself_is_well(pinged: PingServer) -> None:
    singleton_job("nightly")(skip)()
    assert [each.path for each in heard(pinged)] == ["/secret/nightly/start", "/secret/nightly"]


def test_a_call_that_does_not_run_is_not_pinged(pinged: PingServer) -> None:
    take("nightly")
    singleton_job("nightly")(fail)()
    assert heard(pinged, 0) == []


def test_an_async_job_is_pinged(pinged: PingServer) -> None:
    async def work() -> None: ...

    singleton_job("nightly")(work).run()
    assert [each.path for each in heard(pinged)] == ["/secret/nightly/start", "/secret/nightly"]


def test_a_job_may_have_a_url_of_its_own(pinged: PingServer) -> None:
    url = pinged.url.replace("{name}", "4711/?create=1")
    singleton_job("nightly", ping_url=url)(lambda: None)()
    start, end = heard(pinged)
    assert (start.path, start.rest) == ("/secret/4711/start", {"create": ["1"]})
    assert (end.path, end.rest) == ("/secret/4711/", {"create": ["1"]})


def test_the_name_is_quoted(pinged: PingServer) -> None:
    singleton_job("shop:nightly.1")(lambda: None)()
    assert [each.path for each in heard(pinged)] == ["/secret/shop%3Anightly.1/start", "/secret/shop%3Anightly.1"]


def test_a_command_may_have_a_url_of_its_own(server: PingServer) -> None:
    command_job("report", "today", name="nightly", ping_url=server.url)()
    assert [each.path for each in heard(server)] == ["/secret/nightly/start", "/secret/nightly"]


def test_a_job_may_do_without(pinged: PingServer) -> None:
    singleton_job("nightly", ping_url="")(lambda: None)()
    assert heard(pinged, 0) == []


@pytest.mark.parametrize("url", ["ftp://example.org/1", "example.org/1", "file:///etc/passwd", False, 1, " "])
def test_what_is_no_url_of_a_web_server_is_refused_and_not_shown(url: Any) -> None:
    told = rf"^Job 'nightly': ping_url is of the type {type(url).__name__}, but must be an ASCII URL .+ https://"
    with pytest.raises(SingleJobError, match=told):
        singleton_job("nightly", ping_url=url)(lambda: None)


def test_the_url_is_not_shown_with_the_job() -> None:
    assert "secret" not in repr(singleton_job("nightly", ping_url="https://example.org/secret")(lambda: None))


@pytest.mark.on_database("postgresql", "mysql")
def test_of_many_runs_each_start_arrives_before_its_end(pinged: PingServer, elsewhere: Elsewhere) -> None:
    jobs = [singleton_job(f"job-{number}")(lambda: None) for number in range(20)]
    for run in [elsewhere(job) for job in jobs]:
        run.result()
    seen: dict[str, list[str]] = {}
    for each in heard(pinged, 40):
        seen.setdefault(each.rid, []).append(each.path)
    assert sorted(seen.values()) == sorted([f"/secret/{job.name}/start", f"/secret/{job.name}"] for job in jobs)


# --- a server that does not answer as it should


def warnings(caplog: pytest.LogCaptureFixture, count: int = 2) -> list[str]:
    eventually(lambda: len(caplog.records) >= count)
    a_moment()
    assert {record.levelno for record in caplog.records} == {logging.WARNING}
    assert "secret" not in caplog.text
    return [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ("not_found", "the status is 404"),
        ("redirect", "the status is 301"),
        ("garbage", "BadStatusLine"),
        ("never", "timed out"),
    ],
)
def test_a_ping_that_is_not_received_is_one_warning_without_the_secret(
    pinged: PingServer, caplog: pytest.LogCaptureFixture, why: str
) -> None:
    assert singleton_job("nightly")(lambda: 7)() == 7
    expected = f"A ping of the job 'nightly' to 127.0.0.1 was not received: {why}"
    assert warnings(caplog) == [expected, expected]
    assert len(heard(pinged)) == 2


def test_nor_does_it_matter_if_there_is_no_server(settings: Settings, caplog: pytest.LogCaptureFixture) -> None:
    settings.SINGLEJOB = {"PING_URL": f"http://127.0.0.1:{quiet_port()}/secret/{{name}}"}
    assert singleton_job("nightly")(lambda: 7)() == 7
    assert [words.rpartition(": ")[2] for words in warnings(caplog)] == ["[Errno 111] Connection refused"] * 2


# --- real commands


def tokens(server: PingServer) -> set[str]:
    return {str(UUID(each.rid)) for each in server.heard}


def test_a_command_pings_from_its_own_process(spawn: Spawn, server: PingServer) -> None:
    assert spawn.command("run_singleton", "quick", SINGLEJOB_TEST_PING_URL=server.url).finish() == 0
    assert server.paths == ["/secret/quick/start", "/secret/quick"]
    assert tokens(server) == {str(JobRun.objects.get().token)}


def test_a_start_is_pinged_while_the_job_runs(spawn: Spawn, server: PingServer) -> None:
    spawn.command("run_singleton", "nap", SINGLEJOB_TEST_PING_URL=server.url)
    eventually(lambda: server.paths == ["/secret/nap/start"])
    assert JobLock.objects.filter(name="nap").exists()


def test_a_shell_command_that_fails_is_pinged(spawn: Spawn, server: PingServer) -> None:
    command = ("run_singleton", "backup", "--", "sh", "-c", "exit 3")
    assert spawn.command(*command, SINGLEJOB_TEST_PING_URL=server.url).finish() == 3
    assert server.paths == ["/secret/backup/start", "/secret/backup/fail"]
    assert server.heard[1].body == "CommandFailed: The command exited with status 3."


def test_a_worker_pings_for_all_its_jobs_and_not_for_pruning(spawn: Spawn, server: PingServer) -> None:
    for number in range(6):
        enqueue(f"many-{number}", number, 0.0, "")
    env = SETTINGS | {"SINGLEJOB_TEST_PING_URL": server.url}
    assert spawn.command("singleton_worker", "--drain", "--processes", "4", **env).finish() == 0
    ends = [f"/secret/many-{number}" for number in range(6)]
    assert sorted(server.paths) == sorted([*ends, *(f"{end}/start" for end in ends)])
    assert len(tokens(server)) == 6
    for token in tokens(server):
        start, end = (each.path for each in server.heard if each.rid == token)
        assert start == f"{end}/start"


def kill(spawn: Spawn, server: PingServer, *command: str, lock: str) -> None:
    """The server dies during the run, and its lease is over by now."""
    child = spawn.command("run_singleton", *command, SINGLEJOB_TEST_PING_URL=server.url)
    eventually(lambda: len(server.heard) == 1)
    kill_alone(child)
    expire(lock)


def test_the_server_that_takes_over_pings_for_the_dead_run(spawn: Spawn, server: PingServer) -> None:
    kill(spawn, server, "nap", lock="nap")
    assert spawn.command("clear_stale_locks", SINGLEJOB_TEST_PING_URL=server.url).finish() == 0
    start, fail = server.heard
    assert (fail.method, fail.path, fail.rid) == ("POST", "/secret/nap/fail", start.rid)
    run = JobRun.objects.get()
    assert fail.body == f"Abandoned: the lock was taken from {run.hostname}, pid {run.pid}."


def test_so_it_does_for_a_dead_shell_command(spawn: Spawn, server: PingServer) -> None:
    kill(spawn, server, "backup", "--lease=3", "--", "sleep", "60", lock="backup")
    assert spawn.command("run_singleton", "backup", "--", "true", SINGLEJOB_TEST_PING_URL=server.url).finish() == 0
    assert server.paths == ["/secret/backup/start", "/secret/backup/fail", "/secret/backup/start", "/secret/backup"]
    assert server.heard[0].rid == server.heard[1].rid != server.heard[2].rid


def test_neither_a_lock_without_a_run_nor_a_job_without_pings_is_pinged(pinged: PingServer) -> None:
    singleton_job("quiet", ping_url="")(fail)
    for name, terms in {"block": {}, "quiet": {"job_name": "quiet", "trigger": "call"}}.items():
        lose(name, **terms)
    assert heard(pinged, 0) == []


def test_of_two_deploys_in_a_row_only_the_second_is_a_failure(spawn: Spawn, server: PingServer) -> None:
    """What the first has cut off is run again."""
    fall_behind(singleton_job("checked_and_waits", schedule="@yearly")(lambda: None))
    env = SETTINGS | {"SINGLEJOB_TEST_PING_URL": server.url, "SENTRY_DSN": "", "DJANGO_SETTINGS_MODULE": SENTRY}
    for _ in range(2):
        child = spawn.command("run_singleton", "checked_and_waits", **env)
        child.wait_for("started")
        child.terminate()
        child.finish()
    [*starts, fail] = server.paths
    assert starts == ["/secret/checked_and_waits/start"] * 2
    assert fail == "/secret/checked_and_waits/fail"


def test_a_one_off_that_a_deploy_cuts_off_is_no_failure(spawn: Spawn, server: PingServer) -> None:
    enqueue("nap")
    env = SETTINGS | {"SINGLEJOB_TEST_PING_URL": server.url}
    child = spawn.command("singleton_worker", "--grace", "0", **env)
    eventually(lambda: server.paths == ["/secret/nap/start"])
    child.terminate()
    child.finish()
    assert OneOffJob.objects.get().status == "waiting"
    assert server.paths == ["/secret/nap/start"]


@pytest.mark.parametrize("answer", ["never", "slowly"])
def test_a_server_that_hangs_keeps_neither_the_job_nor_its_command(spawn: Spawn, server: PingServer) -> None:
    """The server hangs until the test ends."""
    child = spawn.command("run_singleton", "quick", SINGLEJOB_TEST_PING_URL=server.url)
    eventually(lambda: JobRun.objects.filter(status="successful").exists() and not JobLock.objects.exists())
    assert child.finish() == 0
    # The first one may have been given up while the process of the run ended.
    assert re.search("The process ended before [12] pings were sent.", child.output)
    assert "secret" not in child.output


def test_nor_does_a_name_server_that_hangs(spawn: Spawn) -> None:
    child = spawn.code(
        """
        import socket, sys, threading
        from django.core.management import call_command
        socket.getaddrinfo = lambda *args, **kwargs: threading.Event().wait()
        call_command("run_singleton", "quick")
        print("went on", flush=True)
        """,
        SINGLEJOB_TEST_PING_URL="https://pings.example.org/secret/{name}",
    )
    child.wait_for("went on")
    assert JobRun.objects.get().status == "successful"
    assert child.finish() == 0


def test_a_job_that_is_called_by_a_job_is_pinged_too(spawn: Spawn, server: PingServer) -> None:
    assert spawn.command("run_singleton", "calls_another", SINGLEJOB_TEST_PING_URL=server.url).finish() == 0
    inner, outer = (["/secret/quick/start", "/secret/quick"], ["/secret/calls_another/start", "/secret/calls_another"])
    assert [path for path in server.paths if path in inner] == inner
    assert [path for path in server.paths if path in outer] == outer


def test_without_a_url_nothing_is_imported(spawn: Spawn) -> None:
    child = spawn.code(
        """
        import sys
        from tests.app import jobs
        known = {*sys.modules} & {"urllib.request"}  # on some versions of Python, Django imports it
        jobs.tick()
        ours = ("django_singlejob.integrations", "urllib.request")
        print([name for name in sys.modules if name.startswith(ours) and name not in known])
        """
    )
    assert child.finish() == 0
    assert child.output == "[]\n"
