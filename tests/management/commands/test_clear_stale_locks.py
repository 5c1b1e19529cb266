"""`clear_stale_locks`, called in this process; `processes/` covers its signals and exit statuses."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from io import StringIO
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from django.core.management import CommandError, call_command
from django.db import connection

from django_singlejob.locking.liveness import LONGEST_WATCH
from django_singlejob.locking.recording import ORPHANED
from django_singlejob.models.jobs import gates
from django_singlejob.models.locks import JobLockQuerySet, locks
from django_singlejob.process import clock
from django_singlejob.process.clock import DBNow, local_now, utc_now
from tests.contract.acts import (
    HOUR,
    SECOND,
    everything,
    expire,
    gate,
    is_free,
    last_run,
    lock,
    nth_fence,
    set_the_databases_clock,
    start_run,
    take,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from django_singlejob.models import JobLock

pytest_plugins = "tests.fixtures"
pytestmark = [pytest.mark.usefixtures("fresh_process"), pytest.mark.django_db]

MINUTE = timedelta(minutes=1)


class Clocks:
    """This machine's clocks. They go on only while somebody sleeps, and then `meanwhile` happens, once."""

    def __init__(self) -> None:
        self.passed = 0.0
        self.meanwhile: Callable[[], object] | None = None
        self._local, self._utc = local_now(), utc_now().timestamp()

    def sleep(self, seconds: float) -> None:
        self.passed += seconds
        act, self.meanwhile = self.meanwhile, None
        if act:
            act()

    def monotonic(self, *_: object) -> float:
        return self._local + self.passed

    def time(self) -> float:
        return self._utc + self.passed


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    """Holders are watched for hours, which take no time."""
    clocks = Clocks()
    here = {"sleep": clocks.sleep, "time": clocks.time}
    stopped = SimpleNamespace(**here, monotonic=clocks.monotonic, clock_gettime=clocks.monotonic)
    monkeypatch.setattr(clock, "time", stopped)
    return clocks


def told(*command: str) -> str:
    """The command's output."""
    output = StringIO()
    call_command(*command, stdout=output, stderr=output, no_color=True)
    return output.getvalue()


# --- clear_stale_locks


def test_a_dead_holders_lock_is_cleared_and_its_run_abandoned() -> None:
    start_run()
    expire()
    said = told("clear_stale_locks")
    assert said.startswith("Cleared nightly (held by ")
    assert is_free()
    assert (last_run().status, last_run().error) == ("abandoned", "The lock was cleared by clear_stale_locks.")
    assert (gate().token, gate().fence, gate().last_status) == (None, nth_fence(2), "abandoned")


def test_it_tells_who_held_it_and_since_when() -> None:
    start_run()
    expire()
    seen = lock()
    said = told("clear_stale_locks")
    assert f"held by {seen.holder}" in said
    assert f"since {seen.acquired_at:%F %T} UTC, last heartbeat {seen.heartbeat_at:%F %T} UTC" in said


def test_a_live_lease_is_not_touched() -> None:
    start_run()
    before = everything()
    assert told("clear_stale_locks") == "No stale locks.\n"
    assert everything() == before


@pytest.mark.usefixtures("clocks")
def test_a_lock_whose_last_heartbeat_lies_in_the_future_is_cleared() -> None:
    take(heartbeat_interval=10 * SECOND)
    expire()
    set_the_databases_clock(-HOUR)
    assert told("clear_stale_locks").startswith("Cleared nightly (held by ")
    assert is_free()


def test_what_the_clocks_disagree_about_is_left_and_said() -> None:
    take(lease=HOUR)
    set_the_databases_clock(2 * HOUR)
    said = told("clear_stale_locks")
    assert said.startswith("Left nightly (held by ")
    assert re.search(r"for at least (1 hour|59 min).*\. The lock 'nightly' is stale by the database's clock, ", said)
    wrong = r"The database's clock was 2 hours behind its holder's at the last heartbeat, and is \d+ seconds? "
    assert re.search("The clock of this host was changed." if connection.vendor == "sqlite" else wrong, said)
    assert "No stale locks" not in said
    assert not is_free()


def test_it_does_not_go_on_for_ever(monkeypatch: pytest.MonkeyPatch, clocks: Clocks) -> None:
    """If a look takes longer than the heartbeat interval, each one begins the watch anew."""
    take(heartbeat_interval=SECOND)
    expire()
    watched = JobLockQuerySet.watched

    def slowly(rows: JobLockQuerySet) -> list[JobLock]:
        clocks.sleep(2)
        return watched(rows)

    monkeypatch.setattr(JobLockQuerySet, "watched", slowly)
    assert told("clear_stale_locks").startswith("Left nightly (held by ")
    assert LONGEST_WATCH < timedelta(seconds=clocks.passed) < LONGEST_WATCH + 10 * SECOND
    assert not is_free()


def test_a_dry_run_only_says_what_it_would_do() -> None:
    start_run("hourly")
    locks()._raw_delete("default")
    start_run("nightly")
    expire("nightly")
    before = everything()
    said = told("clear_stale_locks", "--dry-run")
    assert said.startswith("Would clear nightly (held by ")
    assert said.count("\n") == 1
    assert everything() == before


def test_dead_holders_are_watched_for_two_heartbeats_all_at_once(clocks: Clocks) -> None:
    interval = 10 * SECOND
    names = [f"nightly-{number}" for number in range(12)]
    for name in names:
        take(name, heartbeat_interval=interval)
        expire(name)
    said = told("clear_stale_locks")
    assert 2 * interval <= timedelta(seconds=clocks.passed) < 3 * interval
    assert said.count("Cleared") == len(names)


def test_a_sign_of_life_during_the_watch_saves_the_holder(clocks: Clocks) -> None:
    lease = take(heartbeat_interval=10 * SECOND)
    expire()
    clocks.meanwhile = lease.renew
    assert told("clear_stale_locks") == "No stale locks.\n"
    assert (lock().token, lock().heartbeats) == (lease.token, 1)


def test_force_clears_one_lock_though_its_holder_is_alive() -> None:
    start_run("nightly")
    start_run("hourly")
    assert told("clear_stale_locks", "--force", "nightly").startswith("Cleared nightly (held by ")
    assert is_free("nightly")
    assert last_run("nightly").status == "abandoned"
    assert lock("hourly").token == gate("hourly").token


def test_force_can_be_tried_first() -> None:
    start_run()
    before = everything()
    assert told("clear_stale_locks", "--force", "nightly", "--dry-run").startswith("Would clear nightly (")
    assert everything() == before


def test_force_with_a_name_that_nobody_holds_says_which_are_held() -> None:
    with pytest.raises(CommandError, match=r"There is no lock called 'nightly'\. The locks held now: none\."):
        told("clear_stale_locks", "--force", "nightly")
    take("hourly")
    take("weekly")
    with pytest.raises(CommandError, match=r"The locks held now: hourly, weekly\."):
        told("clear_stale_locks", "--force", "nightly")


def test_runs_without_a_lock_are_abandoned() -> None:
    start_run()
    locks()._raw_delete("default")
    said = told("clear_stale_locks")
    assert said == "No stale locks.\nRuns whose locks no longer exist, now abandoned: 1.\n"
    assert (last_run().status, last_run().error) == ("abandoned", ORPHANED)


def test_overrunning_lists_those_that_are_late_and_clears_none() -> None:
    start_run("nightly")
    start_run("hourly")
    take("block")
    gates().update(run_count=5, mean_duration=MINUTE)
    locks().exclude(name="hourly").update(acquired_at=DBNow() - 4 * MINUTE)
    before = everything()
    said = told("clear_stale_locks", "--overrunning")
    assert said.startswith("No stale locks.\nOverrunning: nightly (held by ")
    assert said.endswith("; its mean is 0:01:00.\n")
    assert "hourly" not in said
    assert "block" not in said
    assert everything() == before


def test_json_has_what_was_cleared() -> None:
    start_run()
    expire()
    dry = json.loads(told("clear_stale_locks", "--dry-run", "--format=json"))
    assert (dry["dry_run"], [found["name"] for found in dry["cleared"]]) == (True, ["nightly"])
    facts = json.loads(told("clear_stale_locks", "--format=json", "--overrunning"))
    (cleared,) = facts.pop("cleared")
    assert facts == {"left": [], "dry_run": False, "abandoned": 0, "overrunning": []}
    assert (cleared["name"], cleared["job_name"]) == ("nightly", "nightly")
    assert datetime.fromisoformat(cleared["heartbeat_at"]) < datetime.now(UTC)
    assert json.loads(told("clear_stale_locks", "--format=json"))["cleared"] == []


def test_it_can_be_quiet() -> None:
    start_run()
    expire()
    assert told("clear_stale_locks", "-v0") == told("clear_stale_locks", "-v0", "--format=json") == ""
    assert is_free()
