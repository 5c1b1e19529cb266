"""A database that goes away for a while, drops a connection in the middle of an answer, or falls silent."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest
from django.db import connection

from django_singlejob import LockHeld, job_lock
from django_singlejob.models import JobLock, JobRun, JobStatus
from tests.app.models import Counter
from tests.databases import APPS
from tests.processes.conftest import GRANT, RELEASE
from tests.processes.witness import ends, is_over
from tests.processes.workers import SETTINGS, all_are_done, end, enqueue
from tests.waiting import eventually, work_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.children import Spawn
    from tests.processes.conftest import Act, Call
    from tests.proxy import Proxy

pytestmark = [
    pytest.mark.django_db(transaction=True, available_apps=APPS),
    pytest.mark.on_database("postgresql", "mysql"),
    pytest.mark.usefixtures("single_statement"),
]

Env = dict[str, str]


@pytest.mark.parametrize("ends_meanwhile", [True, False])
def test_a_restart_of_the_database_does_not_harm_a_job(
    call: Call, go: Path, proxy: Proxy, through_proxy: Env, ends_meanwhile: bool
) -> None:
    child = call("until_told()", **through_proxy)
    child.wait_for("started")
    proxy.go_down()
    if ends_meanwhile:
        go.touch()
    work_for(1)  # a heartbeat of the job comes meanwhile, and the lease lasts longer than that
    proxy.come_back()
    go.touch()
    child.wait_for("returned None")
    assert is_over("until_told", "successful")


def test_a_grant_that_takes_longer_than_the_lease_is_checked_again(
    call: Call, go: Path, proxy: Proxy, through_proxy: Env, single_statement: bool
) -> None:
    """As when a standby or a node is lost. A run that failed before it began would cost its slot."""
    JobStatus.objects.create(name="until_told")
    proxy.fall_silent_at(GRANT[single_statement])
    child = call("until_told()", **through_proxy)
    eventually(JobLock.objects.stale().exists)
    proxy.come_back()
    child.wait_for("started")
    assert not JobLock.objects.stale().exists()
    go.touch()
    child.wait_for("returned None")
    assert is_over("until_told", "successful")


def test_killed_connections_do_not_harm_a_job(call: Call, go: Path, kill_connections: Act) -> None:
    child = call("until_told()")
    child.wait_for("started")
    kill_connections()
    beats = JobLock.objects.get().heartbeats
    eventually(lambda: JobLock.objects.get().heartbeats > beats)
    kill_connections()
    go.touch()
    child.wait_for("returned None")
    assert is_over("until_told", "successful")


@pytest.mark.parametrize("has_gate", [False, True], ids=["cut at the gate", "cut at the grant"])
def test_a_grant_whose_answer_is_cut_off_is_ours(
    call: Call, go: Path, proxy: Proxy, through_proxy: Env, has_gate: bool, single_statement: bool
) -> None:
    if has_gate:  # so that the grant is the first COMMIT
        JobStatus.objects.create(name="until_told")
    proxy.cut_answer_to(GRANT[has_gate and single_statement])
    child = call("until_told()", **through_proxy)
    child.wait_for("started")
    assert proxy.answer_cut.is_set()
    assert JobRun.objects.get().token == JobLock.objects.get().token
    assert ends("until_told") == ["running"]
    go.touch()
    child.wait_for("returned None")
    assert is_over("until_told", "successful")


def test_a_release_whose_answer_is_cut_off_is_a_release_and_counts_once(
    call: Call, go: Path, proxy: Proxy, through_proxy: Env, single_statement: bool
) -> None:
    child = call("until_told()", **through_proxy)
    child.wait_for("started")
    proxy.cut_answer_to(RELEASE[single_statement])
    go.touch()
    child.wait_for("returned None")
    assert proxy.answer_cut.is_set()
    assert is_over("until_told", "successful")


def test_a_holder_distrusts_itself_though_its_heartbeat_is_stuck(call: Call, proxy: Proxy, through_proxy: Env) -> None:
    child = call("waits_for_better_times()", **through_proxy)
    child.wait_for("started")
    proxy.black_hole()
    child.wait_for("caught")
    assert "recovered" not in child.output


IN_COMMIT = "datname = current_database() AND wait_event = 'PgSleep'"


@pytest.fixture
def slow_commits() -> Iterator[None]:
    """Every COMMIT of a write to a counter takes an hour."""
    table = Counter._meta.db_table
    with connection.cursor() as cursor:
        cursor.execute(
            "CREATE FUNCTION take_an_hour() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN PERFORM pg_sleep(3600); RETURN NULL; END $$"
        )
        cursor.execute(
            f"CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON {table} DEFERRABLE INITIALLY DEFERRED "
            "FOR EACH ROW EXECUTE FUNCTION take_an_hour()"
        )
    yield
    with connection.cursor() as cursor:
        # The server does not notice that its client is gone, and would go on sleeping.
        cursor.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {IN_COMMIT}")
        cursor.execute(f"DROP TRIGGER slow ON {table}")
        cursor.execute("DROP FUNCTION take_an_hour")


@pytest.mark.on_database("postgresql")
@pytest.mark.usefixtures("slow_commits")
def test_a_holder_that_loses_its_lease_in_a_commit_that_hangs_gets_lease_lost(spawn: Spawn, go: Path) -> None:
    """The error is not a driver's complaint about the state of its connection."""
    child = spawn.command("run_singleton", "commits_when_told")
    child.wait_for("wrote")
    go.touch()
    eventually(is_in_commit)
    JobLock.objects.all().delete()
    child.wait_for("ended by LeaseLost")
    assert child.finish() == 75
    assert not Counter.objects.exists()


def is_in_commit() -> bool:
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT 1 FROM pg_stat_activity WHERE {IN_COMMIT}")
        return cursor.fetchone() is not None


def test_a_worker_whose_sessions_end_while_it_rests_goes_on(spawn: Spawn, database_url: str) -> None:
    limits = {
        "postgresql": "options=-c%20idle_session_timeout%3D1s",
        "mysql": "init_command=SET%20SESSION%20wait_timeout%3D1",
    }
    env = SETTINGS | {"DATABASE_URL": f"{database_url}?{limits[connection.vendor]}"}
    child = spawn.command("singleton_worker", "--interval", "3", **env)
    for _ in range(3):
        enqueue("quick")
        eventually(all_are_done)
        work_for(2)  # longer than a session may rest
    assert child.poll() is None
    assert "Traceback" not in child.output
    end(child)


def test_after_an_outage_longer_than_the_lease_a_live_holder_still_has_its_lock(
    call: Call, go: Path, proxy: Proxy, through_proxy: Env
) -> None:
    holder = call("waits_for_better_times()", **through_proxy)
    holder.wait_for("started")
    proxy.go_down()
    holder.wait_for("caught")
    eventually(JobLock.objects.stale().exists)
    # For others the outage ends a moment sooner, so the lock that they find is stale.
    threading.Timer(0.1, proxy.come_back).start()
    with pytest.raises(LockHeld), job_lock("waits_for_better_times"):
        pass
    holder.wait_for("recovered")
    go.touch()
    holder.wait_for("returned None")
    assert is_over("waits_for_better_times", "successful")


def test_after_an_outage_longer_than_the_lease_a_holder_that_gave_up_still_releases(
    call: Call, proxy: Proxy, through_proxy: Env
) -> None:
    holder = call("believes_what_it_is_told()", **through_proxy)
    holder.wait_for("started")
    proxy.go_down()
    holder.wait_for("gave up")
    proxy.come_back()
    holder.wait_for("raised LeaseLost")
    assert is_over("believes_what_it_is_told", "failed")
