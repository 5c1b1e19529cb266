"""Two faults at once: the second comes during the first. Nobody gets the lock beside a holder that trusts itself."""

from __future__ import annotations

import signal
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from django_singlejob import job_lock
from django_singlejob.database import transactions
from django_singlejob.models import JobLock
from django_singlejob.models.jobs import gates
from django_singlejob.process.clock import local_now
from tests.app.jobs import LEASE
from tests.contract.acts import HOUR, expire, set_the_databases_clock, take
from tests.databases import APPS
from tests.processes.witness import ends
from tests.waiting import a_moment, eventually, work_for

if TYPE_CHECKING:
    from pathlib import Path

    from tests.children import Child, Spawn
    from tests.processes.conftest import Act, Call
    from tests.proxy import Proxy

pytestmark = [
    pytest.mark.django_db(transaction=True, available_apps=APPS),
    pytest.mark.usefixtures("single_statement"),
]

on_a_server = pytest.mark.on_database("postgresql", "mysql")
LONG = timedelta(minutes=1)

Env = dict[str, str]


def taken_over_at(name: str) -> float:
    """The instant at which we get the lock that we wait for, on the same clock as the holder's."""
    with job_lock(name, wait=LONG):
        return local_now()


def last_trusted_at(holder: Child, go: Path) -> float:
    go.touch()
    holder.wait_for("last trusted at")
    (line,) = [line for line in holder.output.splitlines() if line.startswith("last trusted at")]
    return float(line.split()[-1])


# --- a network that is gone, and a session that is ended or a clock that is set meanwhile


@on_a_server
@pytest.mark.parametrize("is_fenced", [True, False], ids=["fenced", "unfenced"])
def test_a_holder_whose_session_is_ended_while_it_is_cut_off_does_not_trust_itself_beside_its_successor(
    call: Call, go: Path, proxy: Proxy, through_proxy: Env, kill_connections: Act, is_fenced: bool
) -> None:
    holder = call(f"samples_its_trust(is_fenced={is_fenced})", **through_proxy)
    holder.wait_for("sampling")
    proxy.black_hole()
    kill_connections()
    granted_at = taken_over_at("samples_its_trust")
    a_moment()  # to see a holder that still trusts itself
    assert last_trusted_at(holder, go) < granted_at


@on_a_server
def test_a_holder_that_is_cut_off_outlives_a_step_of_the_databases_clock(
    call: Call, go: Path, proxy: Proxy, through_proxy: Env
) -> None:
    """As after a failover to a server whose clock is ahead."""
    holder = call("samples_its_trust()", **through_proxy)
    holder.wait_for("sampling")
    eventually(JobLock.objects.filter(heartbeats__gt=0).exists)
    proxy.black_hole()
    set_the_databases_clock(HOUR, "samples_its_trust")
    granted_at = taken_over_at("samples_its_trust")
    a_moment()
    assert last_trusted_at(holder, go) < granted_at


# --- a process that is stopped between the grant and the body

STOPPED_BEFORE_ITS_BODY = """
import asyncio
from django_singlejob import job_lock, singleton_job
from django_singlejob.signals import job_started, lock_taken_over
from tests.app.jobs import LEASE, say, stop
from tests.waiting import a_moment

def stop_here(**_):
    stop()
    a_moment()  # all threads stop during this

lock_taken_over.connect(stop_here)

@singleton_job(lease=LEASE)
def stopped():
    say("ran")

@singleton_job("stopped_async", lease=LEASE)
async def stopped_async():
    say("ran")

def block():
    with job_lock("block", lease=LEASE):
        say("ran")

try:
    {call}
except Exception as error:
    say("raised", type(error).__name__)
"""


@pytest.mark.parametrize(
    ("name", "call"),
    [("stopped", "stopped()"), ("stopped_async", "asyncio.run(stopped_async())"), ("block", "block()")],
    ids=["job", "async job", "block"],
)
@pytest.mark.parametrize("has_successor", [True, False])
def test_a_process_that_was_stopped_past_its_lease_begins_only_if_it_still_has_the_lock(
    spawn: Spawn, name: str, call: str, has_successor: bool
) -> None:
    take(name)  # this lease sends no heartbeats, so no watch is needed to take the lock over
    expire(name)
    child = spawn.code(STOPPED_BEFORE_ITS_BODY.format(call=call))
    child.wait_for("stopping")
    work_for(LEASE.total_seconds())
    if has_successor:
        with job_lock(name, wait=LONG):
            child.send_signal(signal.SIGCONT)
            assert child.finish() == 0
    else:
        child.send_signal(signal.SIGCONT)
        assert child.finish() == 0
    assert ("ran" in child.output) is not has_successor
    assert not JobLock.objects.exists()
    assert set(ends(name)) <= {"abandoned" if has_successor else "successful"}


# --- an attempt that cannot be decided


def test_an_attempt_that_others_block_comes_back_in_time_and_is_not_reported_as_held(spawn: Spawn) -> None:
    """The lock is free, but the row of its gate stays locked for longer than any attempt lasts. On MySQL, a statement
    would wait for it for 50 seconds."""
    gates().remember("quick")
    with transactions.fenced(transactions.alias(), 2 * LONG):
        gates().touch("quick")
        # Without options, SQLite waits for 5 seconds.
        child = spawn.command("run_singleton", "quick", "--wait", "8", SINGLEJOB_TEST_SQLITE_DEFAULTS="1")
        assert child.finish(25) == 69
    assert "quick: undecided, retried for 5 seconds, but others were in the way each time (" in child.output
    assert "held" not in child.output
    assert spawn.command("run_singleton", "quick").finish() == 0
