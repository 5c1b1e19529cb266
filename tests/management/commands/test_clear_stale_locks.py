"""`clear_stale_locks`, called in this process; `processes/` covers its signals and exit statuses."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime, timedelta
from io import StringIO
from typing import TYPE_CHECKING

import pytest
from django.core.management import CommandError, call_command
from django.db import connection

from django_singlejob.clock import DBNow
from django_singlejob.locking import clear
from django_singlejob.querysets.jobs import gates
from django_singlejob.querysets.locks import JobLockQuerySet, locks
from tests.contract.acts import (
    HOUR,
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
    from django_singlejob.models import JobLock
    from tests.fixtures import Elsewhere

pytest_plugins = "tests.fixtures"
pytestmark = [pytest.mark.usefixtures("fresh_process"), pytest.mark.django_db]
committed = pytest.mark.django_db(transaction=True, available_apps=["django_singlejob"])

BEAT = timedelta(seconds=0.1)
MINUTE = timedelta(minutes=1)


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


@pytest.mark.slow
def test_a_lock_whose_last_heartbeat_lies_in_the_future_is_cleared() -> None:
    take(heartbeat_interval=BEAT)
    expire()
    set_the_databases_clock(-HOUR)
    assert told("clear_stale_locks").startswith("Cleared nightly (held by ")
    assert is_free()


def test_what_the_clocks_disagree_about_is_left_and_said() -> None:
    take(lease=HOUR)
    set_the_databases_clock(2 * HOUR)
    said = told("clear_stale_locks")
    assert said.startswith("Left nightly (held by ")
    assert ") for at least 1 hour 1 second. The lock 'nightly' is stale by the database's clock, " in said
    wrong = "The database's clock was 2 hours behind its holder's at the last heartbeat, and is 0 seconds"
    assert ("The clock of this host was changed." if connection.vendor == "sqlite" else wrong) in said
    assert "No stale locks" not in said
    assert not is_free()


@pytest.mark.slow
def test_it_does_not_go_on_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a look takes longer than the heartbeat interval, each one begins the watch anew."""
    take(heartbeat_interval=BEAT / 2)
    expire()
    watched = JobLockQuerySet.watched

    def slowly(rows: JobLockQuerySet) -> list[JobLock]:
        time.sleep(BEAT.total_seconds())
        return watched(rows)

    monkeypatch.setattr(JobLockQuerySet, "watched", slowly)
    monkeypatch.setattr(clear, "LONGEST_WATCH", 5 * BEAT)
    assert told("clear_stale_locks").startswith("Left nightly (held by ")
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


@pytest.mark.slow
def test_dead_holders_are_watched_for_two_heartbeats_all_at_once() -> None:
    interval = 5 * BEAT
    names = [f"nightly-{number}" for number in range(12)]
    for name in names:
        take(name, heartbeat_interval=interval)
        expire(name)
    begun_at = time.monotonic()
    said = told("clear_stale_locks")
    assert 2 <= (time.monotonic() - begun_at) / interval.total_seconds() < 2 * len(names)
    assert said.count("Cleared") == len(names)


@pytest.mark.slow
@committed
def test_a_sign_of_life_during_the_watch_saves_the_holder(elsewhere: Elsewhere) -> None:
    lease = take(heartbeat_interval=4 * BEAT)
    expire()

    def renew_soon() -> None:
        time.sleep(BEAT.total_seconds())
        lease.renew()

    renewal = elsewhere(renew_soon)
    assert told("clear_stale_locks") == "No stale locks.\n"
    renewal.result(10)
    assert lock().token == lease.token


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
    assert (last_run().status, last_run().error) == ("abandoned", "Its lock was deleted by hand.")


def test_overrunning_lists_those_that_are_late_and_clears_none() -> None:
    start_run("nightly")
    start_run("hourly")
    gates().update(run_count=5, mean_duration=MINUTE)
    locks().filter(name="nightly").update(acquired_at=DBNow() - 4 * MINUTE)
    before = everything()
    said = told("clear_stale_locks", "--overrunning")
    assert said.startswith("No stale locks.\nOverrunning: nightly (held by ")
    assert said.endswith("; its mean is 0:01:00.\n")
    assert "hourly" not in said
    assert everything() == before


def test_json_has_what_was_cleared() -> None:
    start_run()
    expire()
    dry = json.loads(told("clear_stale_locks", "--dry-run", "--format=json"))
    assert (dry["dry_run"], [found["name"] for found in dry["cleared"]]) == (True, ["nightly"])
    facts = json.loads(told("clear_stale_locks", "--format=json", "--overrunning"))
    (cleared,) = facts.pop("cleared")
    assert facts == {"left": [], "dry_run": False, "recorded": 0, "abandoned": 0, "overrunning": []}
    assert (cleared["name"], cleared["job_name"]) == ("nightly", "nightly")
    assert datetime.fromisoformat(cleared["heartbeat_at"]) < datetime.now(UTC)
    assert json.loads(told("clear_stale_locks", "--format=json"))["cleared"] == []


def test_it_can_be_quiet() -> None:
    start_run()
    expire()
    assert told("clear_stale_locks", "-v0") == told("clear_stale_locks", "-v0", "--format=json") == ""
    assert is_free()
