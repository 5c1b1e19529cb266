"""A database that hangs: the second signal ends the process, whatever it is doing."""

from __future__ import annotations

import shutil
import signal
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest
from django.db import connection

from django_singlejob.models import JobLock, JobStatus
from tests.databases import APPS, PostgreSQL
from tests.processes.conftest import GRANT, RELEASE
from tests.processes.workers import SETTINGS, enqueue
from tests.waiting import a_moment, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.children import Child, Spawn
    from tests.proxy import Proxy

pytestmark = [
    pytest.mark.django_db(transaction=True, available_apps=APPS),
    pytest.mark.on_database("postgresql", "mysql"),
]

# Less than the longest call without a signal, and more than any burst lasts.
A_SECOND_THOUGHT = 1.5
GIVEN_UP = "After a second signal, a database call did not return"

Env = dict[str, str]


def insist(child: Child) -> None:
    """Send SIGTERM twice: the second one ends it. Without that, it would hang for longer than any test waits."""
    child.send_signal(signal.SIGTERM)
    time.sleep(A_SECOND_THOUGHT)
    assert child.poll() is None, "It ended at the first signal."
    second_at = time.monotonic()
    eventually(lambda: ends_if_it_is_told_again(child))
    print(f"It took {time.monotonic() - second_at:.2f} s from the second signal.")
    assert child.finish() == 143
    assert child.output.count(GIVEN_UP) == 1
    assert "Traceback" not in child.output


def ends_if_it_is_told_again(child: Child) -> bool:
    """It may have heard the first signal so late that the next one counts as one with that."""
    child.send_signal(signal.SIGTERM)
    a_moment()
    return child.poll() is not None


def test_in_the_commit_of_a_grant_which_is_then_in_doubt(
    single_statement: bool, spawn: Spawn, proxy: Proxy, through_proxy: Env
) -> None:
    JobStatus.objects.create(name="quick")  # so that the grant is the first COMMIT
    proxy.fall_silent_at(GRANT[single_statement])
    child = spawn.command("run_singleton", "quick", **through_proxy)
    assert proxy.fell_silent.wait(30)
    eventually(JobLock.objects.filter(name="quick").exists)
    insist(child)
    assert "quick ran" not in child.output
    assert "held" not in child.output
    assert JobLock.objects.filter(name="quick").exists()  # it is left to expire


def test_in_the_first_look_at_a_lock(spawn: Spawn, proxy: Proxy, through_proxy: Env) -> None:
    proxy.fall_silent_at(b"django_singlejob_joblock")
    child = spawn.command("run_singleton", "quick", **through_proxy)
    assert proxy.fell_silent.wait(30)
    insist(child)
    assert "quick ran" not in child.output
    assert not JobLock.objects.exists()


def test_while_it_connects(spawn: Spawn, proxy: Proxy, through_proxy: Env) -> None:
    proxy.black_hole()
    child = spawn.command("run_singleton", "quick", **through_proxy)
    eventually(lambda: proxy.has_clients)
    insist(child)


def test_in_a_statement_of_the_job_which_may_clean_up(spawn: Spawn, proxy: Proxy, through_proxy: Env, go: Path) -> None:
    proxy.fall_silent_at(b"needle")
    child = spawn.command("run_singleton", "asks_the_database", **through_proxy)
    child.wait_for("started")
    go.touch()
    assert proxy.fell_silent.wait(30)
    insist(child)
    # MySQL's driver waits in C, where nothing is raised: the job's process is killed.
    assert ("cleaned up" in child.output) == (connection.vendor == "postgresql")


def test_in_the_commit_of_a_release(
    single_statement: bool, spawn: Spawn, proxy: Proxy, through_proxy: Env, go: Path
) -> None:
    child = spawn.command("run_singleton", "until_told", **through_proxy)
    child.wait_for("started")
    proxy.fall_silent_at(RELEASE[single_statement])
    go.touch()
    assert proxy.fell_silent.wait(30)
    insist(child)


def test_behind_a_shell_command(spawn: Spawn, proxy: Proxy, through_proxy: Env) -> None:
    child = spawn.command("run_singleton", "nightly", "--", "sh", "-c", "echo started; exec sleep 60", **through_proxy)
    child.wait_for("started")
    proxy.black_hole()
    insist(child)


def test_behind_a_coroutine(spawn: Spawn, proxy: Proxy, through_proxy: Env) -> None:
    child = spawn.command("run_singleton", "async_nap", **through_proxy)
    child.wait_for("started")
    proxy.black_hole()
    insist(child)
    assert "cleaned up" in child.output


def test_at_the_exit_of_the_process(spawn: Spawn, proxy: Proxy, through_proxy: Env) -> None:
    child = spawn.command("run_singleton", "leaves_a_lock", **through_proxy)
    child.wait_for("started")
    proxy.fall_silent_at(b"left")
    child.send_signal(signal.SIGTERM)
    assert proxy.fell_silent.wait(30)
    time.sleep(A_SECOND_THOUGHT)
    second_at = time.monotonic()
    child.send_signal(signal.SIGTERM)
    assert child.finish() in (143, -signal.SIGTERM)
    print(f"It took {time.monotonic() - second_at:.2f} s from the second signal.")
    assert JobLock.objects.filter(name="left").exists()  # to expire


def test_in_a_worker_that_looks_for_what_is_due(spawn: Spawn, proxy: Proxy, through_proxy: Env) -> None:
    child = spawn.command("singleton_worker", "--interval", "0.1", **SETTINGS | through_proxy)
    proxy.fall_silent_at(b"SELECT")
    assert proxy.fell_silent.wait(30)
    insist(child)


def test_in_a_pass_that_looks_for_what_is_due(spawn: Spawn, proxy: Proxy, through_proxy: Env) -> None:
    proxy.fall_silent_at(b"django_singlejob_oneoffjob")
    child = spawn.command("singleton_worker", "--once", **SETTINGS | through_proxy)
    assert proxy.fell_silent.wait(30)
    insist(child)


@pytest.mark.parametrize("name", ["until_told", "asks_the_database", "tasks.tells"])
@pytest.mark.parametrize("once", [False, True], ids=["all day", "once"])
def test_in_a_worker_that_runs(
    spawn: Spawn, proxy: Proxy, through_proxy: Env, go: Path, name: str, *, once: bool
) -> None:
    enqueue(name)
    options = ["--once", "-v2"] if once else ["--interval", "0.1"]
    child = spawn.command("singleton_worker", *options, **SETTINGS | through_proxy)
    child.wait_for("started")
    if not once:
        time.sleep(0.5)  # until its thread has noticed
    if name == "asks_the_database":
        proxy.fall_silent_at(b"needle")
        go.touch()
        assert proxy.fell_silent.wait(30)
    else:
        proxy.black_hole()
        time.sleep(0.5)  # until the worker looks again
    insist(child)


# --- a primary that has lost its standby


@pytest.fixture
def primary() -> Iterator[PostgreSQL]:
    folder = Path(tempfile.mkdtemp(prefix="singlejob-"))
    server = PostgreSQL(folder)
    server.create()
    server.start()
    yield server
    server.stop()
    shutil.rmtree(folder, ignore_errors=True)


def lose_standby(primary: PostgreSQL) -> None:
    """From now on, each COMMIT waits for the missing standby."""
    with psycopg.connect(primary.url, autocommit=True) as connection:
        connection.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
        connection.execute("SELECT pg_reload_conf()")
    eventually(lambda: standbys(primary) == "nobody")


def standbys(primary: PostgreSQL) -> str:
    with psycopg.connect(primary.url) as connection:
        row = connection.execute("SHOW synchronous_standby_names").fetchone()
        assert row
        return str(row[0])


def is_committing(primary: PostgreSQL) -> bool:
    with psycopg.connect(primary.url, autocommit=True) as connection:
        waits = "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
        return connection.execute(waits).fetchone() is not None


@pytest.mark.on_database("postgresql")
def test_in_the_commit_of_a_grant_that_waits_for_a_standby(spawn: Spawn, primary: PostgreSQL) -> None:
    env = {"DATABASE_URL": primary.url}
    assert spawn.command("migrate", **env).finish(60) == 0
    assert spawn.command("run_singleton", "quick", **env).finish() == 0  # the next COMMIT is that of a grant
    lose_standby(primary)
    child = spawn.command("run_singleton", "quick", "--now", **env)
    eventually(lambda: is_committing(primary))
    insist(child)
    assert "quick ran" not in child.output


@pytest.mark.on_database("postgresql")
def test_in_the_commit_of_a_release_that_waits_for_a_standby(spawn: Spawn, primary: PostgreSQL, go: Path) -> None:
    env = {"DATABASE_URL": primary.url}
    assert spawn.command("migrate", **env).finish(60) == 0
    child = spawn.command("run_singleton", "until_told", **env)
    child.wait_for("started")
    lose_standby(primary)
    go.touch()
    eventually(lambda: is_committing(primary))
    insist(child)


@pytest.mark.parametrize("has_begun", [False, True])
def test_without_a_signal_a_command_ends_that_has_hung_for_long(
    spawn: Spawn, proxy: Proxy, through_proxy: Env, has_begun: bool
) -> None:
    """And its job with it, long before that."""
    child = spawn.code(
        """
        from django_singlejob.management.commands.run_singleton import Command
        from django_singlejob.running import watch
        watch.LONGEST_CALL = 8.0
        Command().run_from_argv(["manage.py", "run_singleton", "until_told"])
        """,
        "run_singleton",
        **through_proxy,
    )
    if has_begun:
        child.wait_for("started")
    proxy.black_hole()
    assert child.finish() == 69
    assert "a database call did not return" in child.output


# --- a database that does not hang


def test_signals_that_the_job_handles_itself_end_nothing(spawn: Spawn) -> None:
    child = spawn.command("run_singleton", "reads_its_settings_again")
    child.wait_for("started")
    child.send_signal(signal.SIGHUP)
    child.wait_for("received 1")
    time.sleep(1.2)
    child.send_signal(signal.SIGHUP)
    assert child.finish() == 0


def test_a_job_that_cleans_up_on_commit_is_not_mistaken_for_a_hanging_one(spawn: Spawn) -> None:
    child = spawn.command("run_singleton", "cleans_up_on_commit")
    child.wait_for("started")
    child.send_signal(signal.SIGTERM)
    child.wait_for("cleaning up")
    time.sleep(1.2)
    child.send_signal(signal.SIGTERM)
    assert child.finish() == 143
    assert "cleaned up" in child.output
    assert not JobLock.objects.exists()


def test_a_job_may_leave_a_bell_that_is_closed(spawn: Spawn) -> None:
    child = spawn.command("run_singleton", "leaves_a_bell_that_is_closed")
    assert child.finish() == 0
    assert "Traceback" not in child.output
