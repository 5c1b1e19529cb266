"""Real workers as monitoring sees them: while they are idle, when they end, and when they die."""

from __future__ import annotations

import os
import random
import signal
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from django_singlejob.admin.overview import headline
from django_singlejob.jobs.names import WORKER_LOCK
from django_singlejob.locking.clear import clear
from django_singlejob.models import JobLock, OneOffJob
from django_singlejob.models.passes import passes
from django_singlejob.monitoring.verdict import judge
from django_singlejob.monitoring.workers import REMEMBERED, SeenWorker, workers
from django_singlejob.process.clock import DBNow
from tests.children import ROOT
from tests.contract.acts import expire
from tests.databases import APPS
from tests.processes.workers import SETTINGS, end, one_off, worker
from tests.waiting import eventually, work_for

if TYPE_CHECKING:
    from pathlib import Path
    from uuid import UUID

    from tests.children import Child, Spawn
    from tests.proxy import Proxy

    Env = dict[str, str]

pytest_plugins = ["tests.fixtures"]
pytestmark = pytest.mark.django_db(transaction=True, available_apps=APPS)

FIRST, SECOND = f"{WORKER_LOCK}.1", f"{WORKER_LOCK}.2"


def idle(spawn: Spawn, *options: str, **env: str) -> Child:
    """An idle worker that monitoring sees."""
    before = len(workers())
    child = worker(spawn, *options, **env)
    child.wait_for("database 'default'")
    eventually(lambda: len(workers()) == before + 1)
    return child


def holder_pid(seen: SeenWorker) -> int:
    return int(seen.holder.rpartition(" ")[2])


def token() -> UUID | None:
    return JobLock.objects.filter(name=FIRST).values_list("token", flat=True).first()


def test_an_idle_worker_is_seen_until_it_ends(spawn: Spawn) -> None:
    child = idle(spawn, "--queue", "mail", "--queue", "media")
    (seen,) = workers()
    assert (seen.queues, seen.is_once, seen.is_live) == (("mail", "media"), False, True)
    assert holder_pid(seen) == child.pid
    eventually(lambda: workers()[0].seen_at > seen.seen_at)  # its heartbeats
    child.send_signal(signal.SIGTERM)
    assert child.finish() == 0
    assert workers() == []
    assert "Traceback" not in child.output


def test_workers_have_different_numbers(spawn: Spawn) -> None:
    children = [idle(spawn), idle(spawn, "--queue", "mail")]
    assert {*JobLock.objects.values_list("name", flat=True)} == {FIRST, SECOND}
    assert [seen.queues for seen in workers()] == [(), ("mail",)]
    end(*children)
    assert workers() == []


def test_a_killed_worker_is_seen_as_dead_until_another_one_clears_its_lock(spawn: Spawn) -> None:
    victim = idle(spawn)
    victim.kill()
    victim.wait()
    expire(FIRST)
    eventually(lambda: [seen.is_live for seen in workers()] == [False])
    successor = worker(spawn)
    eventually(lambda: [holder_pid(seen) for seen in workers()] == [successor.pid])
    assert [seen.is_live for seen in workers()] == [True]
    end(successor)


def is_cleared() -> None:
    assert clear(JobLock.objects.get(name=FIRST), force=True)


def test_a_lock_that_is_lost_while_idle_is_acquired_anew(spawn: Spawn) -> None:
    child = idle(spawn, "--queue", "mail")
    former = token()
    is_cleared()
    eventually(lambda: token() not in (None, former))
    assert [seen.queues for seen in workers()] == [("mail",)]
    assert "Others retry" not in child.output
    end(child)
    assert workers() == []


@pytest.mark.on_database("postgresql", "mysql")
@pytest.mark.parametrize("is_lock_gone", [False, True])
def test_an_idle_worker_is_seen_again_after_an_outage(
    spawn: Spawn, proxy: Proxy, through_proxy: Env, is_lock_gone: bool
) -> None:
    child = idle(spawn, **through_proxy)
    proxy.go_down()
    eventually(JobLock.objects.stale().exists)
    if is_lock_gone:
        is_cleared()
    proxy.come_back()
    eventually(lambda: [seen.is_live for seen in workers()] == [True])
    end(child)
    assert workers() == []


@pytest.mark.on_database("postgresql", "mysql")
def test_an_idle_worker_does_not_wait_for_a_database_that_is_away(
    spawn: Spawn, proxy: Proxy, through_proxy: Env, tmp_path: Path
) -> None:
    """If it waited for its lease of an hour to end, so would this test."""
    (tmp_path / "hour_settings.py").write_text(
        "from datetime import timedelta\n"
        "from tests.settings import *\n"
        "SINGLEJOB = {**SINGLEJOB, 'LEASE': timedelta(hours=1)}\n"
    )
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    child = idle(spawn, **through_proxy, DJANGO_SETTINGS_MODULE="hour_settings", PYTHONPATH=path)
    proxy.go_down()
    child.wait_for("The worker retries until it does")
    child.send_signal(signal.SIGTERM)
    assert child.finish() == 0
    assert "is left to expire" in child.output


def test_no_signal_at_a_random_moment_of_its_start_leaves_a_lock(spawn: Spawn) -> None:
    for _ in range(6):
        child = worker(spawn)
        child.wait_for("database 'default'")
        work_for(random.uniform(0, 0.2))
        child.send_signal(signal.SIGTERM)
        assert child.finish() == 0
        assert not JobLock.objects.exists()


@pytest.mark.parametrize("mode", ["--once", "--drain"])
def test_one_that_ends_by_itself_is_remembered_for_a_while(spawn: Spawn, mode: str) -> None:
    child = spawn.command("singleton_worker", mode, "--queue", "mail", **SETTINGS)
    assert child.finish() == 0
    (seen,) = workers()
    assert (seen.queues, seen.is_once, seen.is_live) == (("mail",), True, True)
    assert holder_pid(seen) == child.pid
    assert "database" not in child.output
    passes().update(seen_at=DBNow() - REMEMBERED)
    assert workers() == []


def check(spawn: Spawn, *options: str) -> tuple[int, str]:
    """The exit status of `singleton_status --check`, and its first line."""
    child = spawn.command("singleton_status", "--check", *options, **SETTINGS)
    status = child.finish()
    return status, child.output.splitlines()[0]


def overdue(queue: str) -> None:
    """A one-off that has been waiting in the queue for an hour."""
    late = one_off("nobody.knows.it")
    late.queue_name, late.run_after = queue, DBNow() - timedelta(hours=1)
    late.save()


@pytest.mark.usefixtures("fresh_process")
def test_the_verdict_on_real_workers(spawn: Spawn) -> None:
    assert check(spawn)[0] == 0  # nothing is due
    overdue("mail")
    status, told = check(spawn)
    assert (status, "1 without any worker (queue mail)" in told) == (2, True)

    victim = idle(spawn, "--queue", "default")
    status, told = check(spawn)
    assert (status, "1 unserved (queue mail)" in told) == (2, True)
    OneOffJob.objects.update(status="cancelled")
    assert check(spawn)[0] == 0

    victim.kill()
    victim.wait()
    expire(FIRST)
    status, told = check(spawn)
    assert (status, "1 dead (worker django_singlejob.worker.1)" in told) == (2, True)
    clear(JobLock.objects.get(name=FIRST), force=True)

    assert spawn.command("singleton_worker", "--once", **SETTINGS).finish() == 0
    overdue("media")
    status, told = check(spawn)
    assert (status, "1 late (queue media)" in told) == (1, True)  # a pass serves it, and does not know the job
    verdict = judge()
    assert [finding.subject for finding in verdict.findings] == ["media"]
    assert headline(verdict)[1].startswith("Warning: 1 ")
