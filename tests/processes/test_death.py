"""Holders that die, and holders that are only presumed dead."""

from __future__ import annotations

import signal
import time
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from django_singlejob import LockHeld, job_lock
from django_singlejob.models import JobLock, JobRun, JobStatus
from tests.app.jobs import LEASE, SHORT_LEASE
from tests.app.models import Counter
from tests.databases import APPS
from tests.processes.witness import ends, eventually

if TYPE_CHECKING:
    from tests.processes.conftest import Call

pytestmark = [
    pytest.mark.django_db(transaction=True, available_apps=APPS),
    pytest.mark.usefixtures("single_statement"),
]

POLL = timedelta(seconds=1.5)
# Enough for five processes on a busy machine with two cores. Without a takeover, the holder's sleep would have to end.
SLACK = timedelta(seconds=6)
PATIENCE = timedelta(seconds=30)


def test_a_killed_holders_lock_is_taken_over_by_exactly_one_as_soon_as_its_lease_has_ended(call: Call) -> None:
    holder = call("patient_nap()")
    holder.wait_for("attempt 1")
    others = [call("patient_nap()") for _ in range(4)]
    holder.kill()
    holder.wait()
    dead = JobLock.objects.get()
    with pytest.raises(LockHeld), job_lock("patient_nap"):
        pass

    eventually(lambda: any("attempt 2" in other.output for other in others))
    successor = JobLock.objects.get()
    assert successor.attempt == 2
    assert successor.acquired_at >= dead.expires_at
    assert successor.acquired_at - dead.heartbeat_at <= LEASE + LEASE / 3 + POLL + SLACK
    assert JobRun.objects.get(token=dead.token).status == "abandoned"

    eventually(lambda: sum("returned SKIPPED" in other.output for other in others) == 3)
    assert ends("patient_nap") == ["abandoned", "running"]
    assert JobLock.objects.get().token == successor.token


def test_a_zombie_that_wakes_after_a_takeover_commits_nothing_and_changes_nothing(call: Call) -> None:
    zombie = call("stops_then_writes()")
    zombie.wait_for("stopping")
    with job_lock("stops_then_writes", wait=PATIENCE) as successor:
        gate = JobStatus.objects.values().get(name="stops_then_writes")
        zombie.send_signal(signal.SIGCONT)
        assert zombie.finish() == 0
        assert "raised LeaseLost" in zombie.output
        assert JobStatus.objects.values().get(name="stops_then_writes") == gate
        assert JobLock.objects.get().token == successor.token
    assert not Counter.objects.exists()
    assert ends("stops_then_writes") == ["abandoned"]


def test_a_zombie_is_interrupted_in_the_middle_of_its_work(call: Call) -> None:
    zombie = call("stops_then_works()")
    zombie.wait_for("stopping")
    with job_lock("stops_then_works", wait=PATIENCE) as successor:
        zombie.send_signal(signal.SIGCONT)
        zombie.wait_for("caught")
        zombie.wait_for("raised LeaseLost")
        successor.check()


@pytest.mark.on_database("postgresql", "mysql")
def test_a_holder_that_is_stopped_inside_a_fenced_transaction_blocks_others_for_ten_leases_only(call: Call) -> None:
    zombie = call("stops_while_writing()")
    zombie.wait_for("stopping")
    stopped_at = time.monotonic()
    with job_lock("stops_while_writing", wait=PATIENCE):
        assert time.monotonic() - stopped_at < (10 * SHORT_LEASE + 2 * POLL + SLACK).total_seconds()
        zombie.send_signal(signal.SIGCONT)
        zombie.wait_for("raised")
    assert "committed" not in zombie.output
    assert not Counter.objects.exists()
