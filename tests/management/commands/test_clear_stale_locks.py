"""The commands as they are called in this process; `processes/` has their signals and exit statuses."""

from __future__ import annotations

import time
from datetime import timedelta
from io import StringIO
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from django.core.management import CommandError, call_command
from django.db import connection

from django_singlejob import clearing
from django_singlejob.clock import DBNow
from django_singlejob.management.commands import clear_stale_locks
from django_singlejob.orders import Order, place
from django_singlejob.querysets import JobLockQuerySet, gates, locks, runs
from django_singlejob.queue import one_offs
from tests.contract.acts import (
    HOUR,
    everything,
    expire,
    gate,
    is_free,
    last_run,
    lock,
    set_the_databases_clock,
    start_run,
    take,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pytest_django import Settings

    from django_singlejob import Lease
    from django_singlejob.models import JobLock
    from tests.fixtures import Elsewhere

pytest_plugins = "tests.fixtures"
pytestmark = [pytest.mark.usefixtures("fresh_process"), pytest.mark.django_db]
committed = pytest.mark.django_db(transaction=True, available_apps=["django_singlejob"])

BEAT = timedelta(seconds=0.1)
MINUTE = timedelta(minutes=1)
DAY = timedelta(days=1)


def told(*command: str) -> str:
    """What the command says."""
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
    assert (gate().token, gate().fence, gate().last_status) == (None, 2, "abandoned")


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
    assert "), for 59 minutes 59 seconds at least. The lock 'nightly' is stale by the database's clock, " in said
    wrong = "The database's clock was 2 hours behind its holder's at the last heartbeat, and is 0 seconds"
    assert ("The clock of this host was set." if connection.vendor == "sqlite" else wrong) in said
    assert not is_free()


def test_it_does_not_go_on_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a look takes longer than the heartbeat interval, each one begins the watch anew."""
    take(heartbeat_interval=BEAT / 2)
    expire()
    surveyed = JobLockQuerySet.surveyed

    def slowly(rows: JobLockQuerySet) -> list[JobLock]:
        time.sleep(BEAT.total_seconds())
        return surveyed(rows)

    monkeypatch.setattr(JobLockQuerySet, "surveyed", slowly)
    monkeypatch.setattr(clearing, "LONGEST_WATCH", 5 * BEAT)
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


def test_dead_holders_are_watched_for_two_heartbeats_all_at_once() -> None:
    names = [f"nightly-{number}" for number in range(12)]
    for name in names:
        take(name, heartbeat_interval=BEAT)
        expire(name)
    begun_at = time.monotonic()
    said = told("clear_stale_locks")
    assert 2 <= (time.monotonic() - begun_at) / BEAT.total_seconds() < 2 * len(names)
    assert said.count("Cleared") == len(names)


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


def test_a_sign_of_life_in_the_last_moment_saves_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    lease = take()
    expire()
    watched = [lock()]
    lease.renew()
    monkeypatch.setattr(clear_stale_locks, "dead_locks", lambda _: watched)
    assert told("clear_stale_locks").startswith("Left nightly: it changed hands, ")
    assert lock().token == lease.token


@pytest.fixture
def writer(elsewhere: Elsewhere, breakable_connection: None) -> Iterator[Callable[[Lease], None]]:
    """Begins a fenced transaction of a lease; we do not wait long for its end."""
    writers = []

    def write(lease: Lease) -> None:
        with lease.atomic():
            time.sleep(3 * BEAT.total_seconds())

    def begin(lease: Lease) -> None:
        with connection.cursor() as cursor:
            cursor.execute("PRAGMA busy_timeout = 1")
        writers.append(elsewhere(write, lease))
        while not lease.is_only_writer:
            time.sleep(0.01)

    yield begin
    for writer in writers:
        writer.result(10)


@committed
@pytest.mark.on_database("sqlite")
def test_somebody_at_the_gate_is_somebody_alive(writer: Callable[[Lease], None]) -> None:
    lease = take(heartbeat_interval=BEAT)
    expire()
    writer(lease)
    assert told("clear_stale_locks").startswith("Left nightly: ")
    assert lock().token == lease.token


@committed
@pytest.mark.on_database("sqlite")
def test_force_waits_for_somebody_in_the_way(writer: Callable[[Lease], None]) -> None:
    writer(take())
    assert told("clear_stale_locks", "--force", "nightly").startswith("Cleared nightly (")


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
    with pytest.raises(CommandError, match=r"Nobody holds a lock called 'nightly'\. Held are: none\."):
        told("clear_stale_locks", "--force", "nightly")
    take("hourly")
    take("weekly")
    with pytest.raises(CommandError, match=r"Held are: hourly, weekly\."):
        told("clear_stale_locks", "--force", "nightly")


def test_runs_without_a_lock_are_abandoned() -> None:
    start_run()
    locks()._raw_delete("default")
    said = told("clear_stale_locks")
    assert said == "No stale locks.\nRuns that had no lock any more, now abandoned: 1.\n"
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


# --- prune_singletons


def has_run(*, ago: timedelta) -> None:
    facts = {"fence": 1, "token": uuid4(), "trigger": "call", "hostname": "web-1", "pid": 1}
    gates().remember("nightly")
    runs().create(job_name="nightly", status="successful", started_at=DBNow() - ago, **facts)


@pytest.mark.parametrize(
    ("options", "count"),
    [
        ([], 1),
        (["--days", "1"], 2),
        (["--days", "0"], 3),
        (["--days", "100"], 0),
        (["--days", "100", "--keep", "1"], 2),
        (["--days", "100", "--keep", "0"], 3),
    ],
)
def test_old_runs_are_pruned(options: list[str], count: int) -> None:
    for ago in MINUTE, 2 * DAY, 31 * DAY:
        has_run(ago=ago)
    assert told("prune_singletons", "--dry-run", *options) == (
        f"Runs that would be deleted: {count}.\nOne-offs that would be deleted: 0.\n"
    )
    assert runs().count() == 3
    assert told("prune_singletons", *options) == f"Runs deleted: {count}.\nOne-offs deleted: 0.\n"
    assert runs().count() == 3 - count


@pytest.mark.parametrize(
    ("options", "count"),
    [([], 1), (["--days", "1"], 2), (["--days", "0"], 3), (["--days", "100"], 0), (["--keep", "0"], 1)],
)
def test_one_offs_that_ended_long_ago_are_pruned(options: list[str], count: int) -> None:
    for ago in MINUTE, 2 * DAY, 31 * DAY:
        place(Order(job_name="nightly"), [], {}, status="done", finished_at=DBNow() - ago)
    place(Order(job_name="nightly"), [], {}, run_after=DBNow() - 31 * DAY)
    assert f"One-offs that would be deleted: {count}.\n" in told("prune_singletons", "--dry-run", *options)
    assert one_offs().count() == 4
    assert f"One-offs deleted: {count}.\n" in told("prune_singletons", *options)
    assert one_offs().ended().count() == 3 - count
    assert one_offs().waiting().count() == 1


def test_how_much_history_there_is_is_a_setting(settings: Settings) -> None:
    settings.SINGLEJOB = {"HISTORY_DAYS": 100, "HISTORY_KEEP": 1}
    for _ in range(3):
        has_run(ago=31 * DAY)
    assert told("prune_singletons").startswith("Runs deleted: 2.\n")
    settings.SINGLEJOB = {"HISTORY_DAYS": 0}
    assert told("prune_singletons").startswith("Runs deleted: 1.\n")


@pytest.mark.parametrize("number", ["-1", "1.5", "many", ""])
def test_what_is_no_number_is_refused(number: str) -> None:
    with pytest.raises(CommandError, match=f"'{number}' is not a whole number of 0 or more"):
        told("prune_singletons", f"--days={number}")


def test_longer_than_there_is_time_prunes_nothing() -> None:
    has_run(ago=DAY)
    assert told("prune_singletons", "--days", "9999999999").startswith("Runs deleted: 0.\n")
