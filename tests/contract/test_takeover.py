"""Takeover: dead holders are replaced, live ones are not, and a robbed holder finds out and harms no one."""

from __future__ import annotations

import json
from datetime import timedelta
from threading import Event
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connection

from django_singlejob import SKIPPED, LockHeld, job_lock, singleton_job
from django_singlejob.database import transactions
from django_singlejob.locking.clear import Watchman, clear, dead_locks
from django_singlejob.locking.liveness import Watch
from django_singlejob.locking.request import Reason, Refusal
from django_singlejob.models.jobs import gates
from django_singlejob.models.locks import JobLockQuerySet, locks
from django_singlejob.models.runs import runs
from django_singlejob.process import clock
from django_singlejob.process.clock import DBNow, local_now, utc_now
from django_singlejob.signals import lock_taken_over
from tests.contract.acts import (
    BEAT,
    HOUR,
    MINUTE,
    SECOND,
    ask,
    everything,
    expire,
    gate,
    lock,
    lose,
    nth_fence,
    set_the_databases_clock,
    start_run,
    stop_the_clock,
    take,
)
from tests.databases import APPS
from tests.waiting import PATIENCE, eventually

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from django_singlejob.models import JobLock
    from tests.children import Spawn
    from tests.contract.conftest import Ahead, Elsewhere
    from tests.proxy import Proxy

pytestmark = pytest.mark.django_db(transaction=True, available_apps=APPS)

#: Of holders that send heartbeats. However busy the machine is, none of these comes two intervals late.
LEASE = 6 * SECOND


def at(level: str, *databases: str) -> Any:
    env = {"SINGLEJOB_TEST_ISOLATION": level}
    return pytest.param(env, id=level.replace(" ", "-"), marks=pytest.mark.on_database(*databases))


ISOLATION_LEVELS = [
    at("", "sqlite"),
    at("read uncommitted", "mysql"),
    at("read committed", "postgresql", "mysql"),
    at("repeatable read", "postgresql", "mysql"),
    at("serializable", "postgresql", "mysql"),
]


#: How many processes race for a dead holder's lock, in how many rounds.
RACES = [pytest.param(3, 2, id="short"), pytest.param(8, 6, id="long", marks=pytest.mark.long)]


@pytest.mark.parametrize(("size", "rounds"), RACES)
@pytest.mark.parametrize("isolation", ISOLATION_LEVELS)
def test_of_many_processes_one_takes_over(spawn: Spawn, isolation: dict[str, str], size: int, rounds: int) -> None:
    check_that_one_takes_over(spawn, isolation, size, rounds)


@pytest.mark.parametrize(("size", "rounds"), RACES)
@pytest.mark.on_database("sqlite")
def test_of_many_processes_one_takes_over_with_djangos_defaults(
    spawn: Spawn, plain_sqlite: dict[str, str], size: int, rounds: int
) -> None:
    check_that_one_takes_over(spawn, plain_sqlite, size, rounds)


def check_that_one_takes_over(spawn: Spawn, env: dict[str, str], size: int, rounds: int) -> None:
    child = spawn.code(
        f"from tests.contract.crowd import race_for_the_dead; race_for_the_dead({size}, {rounds})", **env
    )
    assert child.finish() == 0
    fences = json.loads(child.output.splitlines()[-1])
    assert [len(each) for each in fences] == [1] * rounds
    assert sorted(fences) == fences


def test_the_dead_run_is_abandoned_and_run_again() -> None:
    start_run()
    expire()
    assert start_run(max_attempts=2).grant.attempt == 2
    assert list(runs().order_by("pk").values_list("status", "attempt")) == [("abandoned", 1), ("running", 2)]
    assert (gate().run_count, gate().last_status, gate().consecutive_failures) == (1, "", 1)


def test_attempts_are_counted_up_to_the_most_and_then_begin_anew() -> None:
    attempts = []
    for _ in range(4):
        attempts.append(start_run(max_attempts=3).grant.attempt)
        expire()
    assert attempts == [1, 2, 3, 1]


def test_a_takeover_is_told() -> None:
    reported = []

    def listen(name: str, lease: Any, lock: Any, **_: Any) -> None:
        reported.append((name, lock.token, lease.token))

    lock_taken_over.connect(listen)
    try:
        dead, successor = lose()
    finally:
        lock_taken_over.disconnect(listen)
    assert reported == [("nightly", dead.token, successor.token)]


@pytest.mark.slow
def test_a_holder_with_an_expired_row_that_sends_heartbeats_keeps_its_lock() -> None:
    """For example, after the database's clock was set forward: every lease has expired, and every holder is alive."""
    with job_lock("nightly", lease=LEASE) as lease:
        expire()
        assert isinstance(ask(), Refusal)
        lease.check()
        assert lock().token == lease.token


@pytest.mark.slow
def test_who_sends_heartbeats_is_not_among_the_dead() -> None:
    take("hourly")
    expire("hourly")
    with job_lock("nightly", lease=LEASE):
        expire()
        assert [lock.name for lock in dead_locks()] == ["hourly"]


def test_each_heartbeat_begins_the_watch_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    let_it_pass = stop_the_clock(monkeypatch)
    take(heartbeat_interval=SECOND)
    expire()
    watch = Watch()
    for beat in 1, 2:
        locks().update(heartbeats=beat)
        assert left(watch) == 2 * SECOND
        let_it_pass(SECOND)
        assert left(watch) == SECOND
    let_it_pass(SECOND)
    assert left(watch) == timedelta()


def left(watch: Watch) -> timedelta | None:
    return watch.look(lock(), clock.local_now())


@pytest.mark.parametrize("caller", [ask, lambda: Watchman().dead()], ids=["acquire", "clear"])
def test_a_look_counts_from_before_the_row_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, caller: Callable[[], object]
) -> None:
    take()
    times, read, look = [], JobLockQuerySet.watched, Watch.look
    request = transactions.transaction_in_one_request

    def reading(*asked: Any) -> Any:
        times.append(local_now())
        return read(*asked)

    def looking(watch: Watch, lock: JobLock, asked_at: float) -> timedelta | None:
        times.append(asked_at)
        return look(watch, lock, asked_at)

    def asking(*asked: Any) -> Any:
        times.append(local_now())
        return request(*asked)

    monkeypatch.setattr(transactions, "transaction_in_one_request", asking)
    monkeypatch.setattr(JobLockQuerySet, "watched", reading)
    monkeypatch.setattr(Watch, "look", looking)
    caller()
    read_at, asked_at = times
    assert asked_at <= read_at


@pytest.mark.slow
def test_a_heartbeat_in_the_last_moment_saves_the_holder(ahead: Ahead) -> None:
    lease = take()
    expire()
    ahead(lambda: locks().renew(lease.name, lease.token, MINUTE, utc_now()))
    assert isinstance(ask(), Refusal)
    assert (gate().fence, gate().token) == (lease.fence, lease.token)
    assert lease.release()


SIGNS_OF_LIFE = [{"heartbeats": 1}, {"expires_at": DBNow() + MINUTE}]


@pytest.mark.parametrize("sign", SIGNS_OF_LIFE, ids=lambda sign: next(iter(sign)))
def test_one_sign_of_life_after_the_look_is_enough(sign: dict[str, Any]) -> None:
    """There are two such signs, because either clock may be wrong."""
    take()
    expire()
    seen = lock()
    locks().update(**sign)
    before = everything()
    assert not locks().take_over(seen, {"pid": 5})
    assert not clear(seen)
    assert everything() == before


def test_only_what_was_seen_is_cleared() -> None:
    take()
    expire()
    seen = lock()
    successor = take()
    assert not clear(seen, force=True)
    assert not clear(lock())
    successor.check()
    expire()
    assert not clear(seen)
    assert clear(lock())
    assert not successor.release()


# --- wrong clocks


@pytest.mark.slow
@pytest.mark.parametrize("heartbeat_interval", [None, BEAT])
def test_a_step_of_the_databases_clock_robs_no_silent_holder(heartbeat_interval: timedelta | None) -> None:
    holder = take(lease=2 * SECOND, heartbeat_interval=heartbeat_interval)
    set_the_databases_clock(HOUR)
    successor = take()
    assert holder.lost
    successor.check()


@pytest.mark.parametrize("error", [HOUR, -HOUR])
def test_a_servers_clock_makes_no_lease_longer_or_shorter(monkeypatch: pytest.MonkeyPatch, error: timedelta) -> None:
    take("nightly")
    with monkeypatch.context() as wrong:
        wrong.setattr("django_singlejob.process.clock.utc_now", lambda: utc_now() + error)
        take("hourly")
        assert not lock("nightly").is_suspected
    hourly = lock("hourly")
    assert not hourly.is_suspected
    assert timedelta() < hourly.expires_at - hourly.now <= MINUTE


@pytest.mark.on_database("postgresql", "mysql")
def test_a_heartbeat_that_arrives_late_makes_the_row_no_older_than_its_holder_trusts(elsewhere: Elsewhere) -> None:
    """On a slow network, several heartbeats are under way at once and arrive in any order. If then the holder is cut
    off and the database's clock is set ahead, only the time in the row keeps others from taking over too early."""
    lease = take()
    may_go, is_sent = Event(), Event()

    def delay(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if sql.startswith("UPDATE"):  # by now, the statement says when it was sent
            is_sent.set()
            may_go.wait(PATIENCE)
        return execute(sql, params, many, context)

    def send_late() -> None:
        with connection.execute_wrapper(delay):
            lease.renew()

    late = elsewhere(send_late)
    assert is_sent.wait(PATIENCE)
    lease.renew()
    sent_at = lock().sent_at
    may_go.set()
    late.result(PATIENCE)
    assert (lock().heartbeats, lock().sent_at) == (2, sent_at)


def test_the_lock_of_a_dead_holder_is_not_blocked_by_a_clock_that_was_set_back(monkeypatch: pytest.MonkeyPatch) -> None:
    stop_the_clock(monkeypatch)
    take(heartbeat_interval=BEAT)
    expire()
    set_the_databases_clock(-HOUR)
    seen = lock()
    assert (seen.is_impossible, seen.is_stale) == (True, False)
    assert take().fence == nth_fence(2)


@pytest.mark.slow
def test_a_live_holder_keeps_its_lock_when_the_clock_is_set_back() -> None:
    with job_lock("nightly", lease=LEASE) as lease:
        set_the_databases_clock(-HOUR)
        assert isinstance(ask(), Refusal)
        lease.check()
        assert not lock().is_impossible


@pytest.mark.on_database("postgresql", "mysql")
@pytest.mark.parametrize("holders_clock_ahead", [HOUR, 2 * HOUR])
def test_a_long_lease_is_left_to_a_later_command(holders_clock_ahead: timedelta) -> None:
    """A command does not stay for hours to see a whole lease pass."""
    take(lease=HOUR)
    expire()
    locks().update(sent_at=utc_now() + holders_clock_ahead)
    answer = ask()
    assert isinstance(answer, Refusal)
    assert answer.reason == Reason.UNDECIDED
    assert "The database's clock was " in answer.detail
    assert "behind its holder's at the last heartbeat" in answer.detail
    locks().update(sent_at=utc_now() - HOUR)
    assert take().fence == nth_fence(2)


def test_an_undecided_call_is_skipped_and_says_why(caplog: pytest.LogCaptureFixture) -> None:
    job = singleton_job("nightly")(lambda: "ran")
    take(lease=HOUR)
    set_the_databases_clock(2 * HOUR)
    assert job() is SKIPPED
    assert "It could not be decided whether the lock 'nightly' is free: The lock 'nightly' is stale by" in caplog.text
    outcome = job.run()
    assert (outcome.reason, outcome.holder) == (Reason.UNDECIDED, lock().holder)
    with pytest.raises(LockHeld, match="could not be decided"), job_lock("nightly"):
        pytest.fail("it came in")


# --- outages


@pytest.mark.on_database("postgresql", "mysql")
def test_a_holder_outlives_an_outage_of_the_database(spawn: Spawn, proxy: Proxy, database_url: str) -> None:
    # After the outage, it has a third of its lease to come back, however busy the machine is.
    holder = spawn.code(
        """
        from datetime import timedelta
        from django_singlejob import LeaseLost, job_lock
        from tests.waiting import eventually, work_for, work_until_ended

        with job_lock("nightly", lease=timedelta(seconds=12)) as lease:
            print("ready")
            try:
                while True:
                    lease.check()
                    work_for(0.01)
            except LeaseLost:
                print("distrusts itself")
            eventually(lambda: not lease.lost)
            print("trusts itself again")
            work_until_ended()
        """,
        DATABASE_URL=proxy.url(database_url),
    )
    holder.wait_for("ready")
    proxy.go_down()
    holder.wait_for("distrusts itself")
    eventually(lambda: lock().is_stale)
    proxy.come_back()
    assert isinstance(ask(), Refusal)
    holder.wait_for("trusts itself again")
    assert gate().fence == nth_fence(1)


@pytest.mark.slow
def test_a_late_finish_is_no_death(ahead: Ahead) -> None:
    """Its lease was too short, but it finishes just before another process takes over."""
    slow = start_run()
    expire()
    end = ahead(lambda: finish_inside(slow))
    answer = ask(job_name="nightly", trigger="call", max_attempts=2, min_interval=timedelta(hours=1))
    end.result()
    assert isinstance(answer, Refusal)
    assert answer.reason == Reason.ALREADY_RAN


def finish_inside(lease: Any) -> None:
    gates().finish(lease.name, lease.token, "successful", timedelta())
    assert locks().release(lease.name, lease.token)


def test_a_call_waits_for_the_death_of_the_holder_and_not_for_its_life(monkeypatch: pytest.MonkeyPatch) -> None:
    stop_the_clock(monkeypatch)
    job = singleton_job("nightly")(lambda: "ran")
    take(heartbeat_interval=BEAT)
    assert job() is SKIPPED
    expire()
    assert job() == "ran"
