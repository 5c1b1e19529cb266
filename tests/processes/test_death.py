"""Holders that die, and holders that are only presumed dead."""

from __future__ import annotations

import signal
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from django_singlejob import LockHeld, job_lock
from django_singlejob.models import JobLock, JobRun, JobStatus
from tests.app.models import Counter
from tests.databases import APPS
from tests.processes.witness import ends
from tests.waiting import eventually

if TYPE_CHECKING:
    from pathlib import Path

    from tests.processes.conftest import Call

pytestmark = [
    pytest.mark.django_db(transaction=True, available_apps=APPS),
    pytest.mark.usefixtures("single_statement"),
]

PATIENCE = timedelta(minutes=1)


def test_a_killed_holders_lock_is_taken_over_by_exactly_one_when_its_lease_has_ended(call: Call, go: Path) -> None:
    holder = call("patient()")
    holder.wait_for("attempt 1")
    others = [call("patient()") for _ in range(4)]
    holder.kill()
    holder.wait()
    dead = JobLock.objects.get()
    with pytest.raises(LockHeld), job_lock("patient"):
        pass

    eventually(lambda: any("attempt 2" in other.output for other in others))
    successor = JobLock.objects.get()
    assert successor.attempt == 2
    assert successor.acquired_at >= dead.expires_at
    assert JobRun.objects.get(token=dead.token).status == "abandoned"

    assert ends("patient") == ["abandoned", "running"]
    go.touch()
    for other in others:
        assert other.finish() == 0
    assert sum("attempt 2" in other.output for other in others) == 1
    assert ends("patient") == ["abandoned", *["successful"] * 4]


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
    with job_lock("stops_while_writing", wait=PATIENCE):
        zombie.send_signal(signal.SIGCONT)
        zombie.wait_for("raised")
    assert "committed" not in zombie.output
    assert not Counter.objects.exists()
