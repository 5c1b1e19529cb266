"""When a lock may be taken from its holder, clock by clock. Nothing here touches a database or waits."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, strategies as st

from django_singlejob.locking.liveness import Watch, disagreement, margin, silence
from django_singlejob.models import JobLock
from django_singlejob.running.in_child import grace_of
from tests.contract.acts import lock, take

SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
ZERO = timedelta()
LEASE = MINUTE
INTERVAL = 10 * SECOND
RECOVERY = LEASE + 2 * INTERVAL
NOON = datetime(2026, 11, 22, 12, tzinfo=UTC)

seconds = st.integers(min_value=0, max_value=200)
few_seconds = st.integers(min_value=0, max_value=6)


class World:
    """The time that has passed since noon, and what each clock shows."""

    def __init__(self) -> None:
        self.passed = ZERO
        #: How far these clocks are ahead.
        self.database = self.holder = self.observer = ZERO
        self.row = JobLock(name="nightly", hostname="web-1", pid=4711, heartbeat_interval=INTERVAL, heartbeats=-1)
        self.row.timeline = 1
        self.beat()

    def beat(self) -> None:
        self.beat_at = self.passed
        self.row.token = UUID(int=1)
        self.row.heartbeats += 1
        self.row.heartbeat_at = NOON + self.passed + self.database
        self.row.expires_at = self.row.heartbeat_at + LEASE
        self.row.sent_at = NOON + self.passed + self.holder

    def pass_on(self, seconds: float) -> None:
        self.passed += timedelta(seconds=seconds)

    @property
    def lock(self) -> JobLock:
        """The row, as an observer reads it now."""
        self.row.now = NOON + self.passed + self.database
        self.row.is_stale = self.row.expires_at <= self.row.now
        self.row.is_impossible = self.row.heartbeat_at > self.row.now + SECOND
        return self.row

    @property
    def is_trusted(self) -> bool:
        """Whether the holder still trusts itself: it counts on a clock that never steps."""
        return self.passed < self.beat_at + LEASE

    @property
    def local_now(self) -> float:
        return 5000 + self.passed.total_seconds()

    def look(self, watch: Watch, *, slow: float = 0, stopped: float = 0) -> timedelta | None:
        """The observer asks for the row, which is read ``slow`` seconds later, and notes it ``stopped`` seconds after
        that."""
        asked_at = self.local_now
        self.pass_on(slow)
        row = self.lock
        self.pass_on(stopped)
        return watch.look(row, asked_at)

    def watched_until_dead(self, watch: Watch, *, step: float = 1.0, longest: timedelta = 3 * HOUR) -> timedelta:
        """When the holder counts as dead, for an observer that looks again and again."""
        until = self.passed + longest
        while self.look(watch) != ZERO:
            assert self.passed < until, "It is watched for ever."
            self.pass_on(step)
        return self.passed


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return at_work(monkeypatch)


def at_work(monkeypatch: pytest.MonkeyPatch) -> World:
    world = World()
    monkeypatch.setattr("django_singlejob.locking.liveness.local_now", lambda: world.local_now)
    monkeypatch.setattr("django_singlejob.locking.liveness.alias", lambda: "default")
    monkeypatch.setattr("django_singlejob.locking.liveness.is_on_one_host", lambda _: False)
    monkeypatch.setattr("django_singlejob.locking.liveness.sent_now", lambda: NOON + world.passed + world.observer)
    return world


# --- all clocks agree


def test_a_live_lease_is_not_watched(world: World) -> None:
    watch = Watch()
    for _ in range(59):
        assert world.look(watch) is None
        world.pass_on(1)


def test_a_dead_holder_is_watched_for_two_intervals_from_when_it_is_stale(world: World) -> None:
    watch = Watch()
    assert world.watched_until_dead(watch) == LEASE + 2 * INTERVAL


def test_the_time_left_is_returned(world: World) -> None:
    world.pass_on(60)
    watch = Watch()
    assert world.look(watch) == 2 * INTERVAL
    world.pass_on(5)
    assert world.look(watch) == 2 * INTERVAL - 5 * SECOND


def test_a_holder_that_sends_no_heartbeats_is_not_watched(world: World) -> None:
    world.row.heartbeat_interval = None
    watch = Watch()
    assert world.look(watch) is None
    world.pass_on(62)
    assert world.look(watch) == ZERO
    assert world.look(Watch()) == ZERO


@pytest.mark.parametrize("seconds", [60, 61, 61.9])
def test_for_a_moment_after_its_lease_it_is_left_alone(
    world: World, seconds: float, caplog: pytest.LogCaptureFixture
) -> None:
    """The clocks of two servers may be that far apart."""
    world.row.heartbeat_interval = None
    world.pass_on(seconds)
    assert world.look(Watch()) == timedelta(seconds=62 - seconds)
    assert not caplog.records


def test_the_moment_is_short_if_the_lease_is(world: World) -> None:
    world.row.heartbeat_interval = None
    world.row.expires_at = world.row.heartbeat_at + 3 * SECOND
    world.pass_on(3)
    assert world.look(Watch()) == SECOND


@pytest.mark.parametrize(("column", "value"), [("heartbeats", 99), ("token", UUID(int=2)), ("timeline", 99)])
def test_a_heartbeat_a_new_holder_and_a_failover_restart_it(world: World, column: str, value: Any) -> None:
    world.pass_on(60)
    watch = Watch()
    for _ in range(19):
        assert world.look(watch)
        world.pass_on(1)
    setattr(world.row, column, value)
    changed_at = world.passed
    assert world.watched_until_dead(watch) == changed_at + 2 * INTERVAL


@pytest.mark.parametrize("interval", [INTERVAL, SECOND, SECOND / 10])
def test_a_gap_longer_than_an_interval_restarts_it(world: World, interval: timedelta) -> None:
    """The observer was stopped or the database was away, so perhaps the holder could not send anything either."""
    world.row.heartbeat_interval = interval
    world.pass_on(60)
    watch = Watch()
    for _ in range(2):
        assert world.look(watch) == 2 * interval
        world.pass_on(interval.total_seconds() * 1.01)
    looked_at = world.passed
    assert world.watched_until_dead(watch, step=interval.total_seconds() / 4) == looked_at + 2 * interval


def test_a_gap_of_an_interval_does_not(world: World) -> None:
    world.pass_on(60)
    watch = Watch()
    assert world.look(watch) == 2 * INTERVAL
    world.pass_on(10)
    assert world.look(watch) == INTERVAL
    world.pass_on(10)
    assert world.look(watch) == ZERO


def test_a_gap_counts_from_when_a_look_began(world: World) -> None:
    """The row may have been read right then, and not again until this look ended."""
    world.pass_on(60)
    watch = Watch()
    world.look(watch, stopped=9)
    world.pass_on(9)
    assert world.look(watch) == 2 * INTERVAL
    world.pass_on(1)
    assert world.look(watch, stopped=9.5) == 2 * INTERVAL, "It lasts until this look ends."


@pytest.mark.parametrize("when", ["slow", "stopped"])
def test_only_the_time_between_two_looks_counts(world: World, when: str) -> None:
    world.pass_on(60)
    watch = Watch()
    assert world.look(watch, **{when: 2}) == 2 * INTERVAL
    world.pass_on(5)
    assert world.look(watch, **{when: 3}) == 2 * INTERVAL - 5 * SECOND


def test_the_first_look_may_take_any_time(world: World) -> None:
    world.pass_on(60)
    assert world.look(Watch(), slow=200, stopped=200) == 2 * INTERVAL
    world.row.heartbeat_interval = None
    assert world.look(Watch(), slow=200, stopped=200) == ZERO


@pytest.mark.parametrize("slow", [2, 4, 5])
def test_slow_looks_end_a_watch_too(world: World, slow: int) -> None:
    """If they take half an interval, there is no time left for pauses."""
    world.pass_on(60)
    watch = Watch()
    while world.look(watch, slow=slow) != ZERO:
        assert world.passed < 2 * LEASE
        world.pass_on(watch.pause(world.lock))
    assert world.passed >= LEASE + 2 * INTERVAL


@pytest.mark.slow
@given(looks=st.lists(st.tuples(few_seconds, few_seconds, few_seconds), max_size=30))
def test_however_long_looks_take_a_watch_has_no_gap(looks: list[tuple[int, int, int]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        world, watch, read_at = at_work(patch), Watch(), list[timedelta]()
        world.pass_on(60)
        for slow, stopped, pause in looks:
            read_at.append(world.passed + slow * SECOND)
            if world.look(watch, slow=slow, stopped=stopped) == ZERO:
                last = [instant for instant in read_at if instant >= read_at[-1] - 3 * INTERVAL]
                assert last[-1] - last[0] >= 2 * INTERVAL
                assert all(later - sooner <= INTERVAL for sooner, later in pairwise(last))
            world.pass_on(pause)


def test_looks_come_often_enough_not_to_leave_a_gap(world: World) -> None:
    assert 0 < Watch().pause(world.lock) < INTERVAL.total_seconds() / 2
    world.row.heartbeat_interval = None
    assert 0 < Watch().pause(world.lock) < 1


def test_it_knows_since_when_the_lock_is_suspected(world: World) -> None:
    """A change and a gap restart the watch. If that goes on for ever, the caller has to give up."""
    watch = Watch()

    def suspected_at() -> float | None:
        world.look(watch)
        return watch.suspected_at

    assert suspected_at() is None
    world.pass_on(60)
    began_at = suspected_at()
    assert began_at is not None
    world.pass_on(15)
    world.row.token = UUID(int=2)
    assert suspected_at() == began_at
    world.beat()
    assert suspected_at() is None


def test_an_interval_that_no_holder_can_keep_counts_as_a_second(world: World) -> None:
    world.row.heartbeat_interval = timedelta(microseconds=1)
    world.pass_on(60)
    watch = Watch()
    assert watch.pause(world.lock) > 0.1
    assert world.look(watch) == 2 * SECOND


# --- one clock is set


@pytest.mark.parametrize("step", [2 * MINUTE, HOUR, 400 * 24 * HOUR])
def test_a_databases_clock_that_is_set_ahead_robs_nobody(world: World, step: timedelta) -> None:
    world.database += step
    assert world.watched_until_dead(Watch()) == RECOVERY
    assert not world.is_trusted


@pytest.mark.parametrize("step", [2 * SECOND, HOUR, 400 * 24 * HOUR])
def test_a_databases_clock_that_is_set_back_blocks_no_lock(world: World, step: timedelta) -> None:
    watch = Watch()
    world.database -= step
    world.pass_on(1)
    assert world.lock.is_impossible == (step > 2 * SECOND)
    assert world.watched_until_dead(watch) <= LEASE + 2 * INTERVAL + 2 * SECOND
    assert not world.is_trusted


@pytest.mark.parametrize("step", [2 * MINUTE, HOUR, 400 * 24 * HOUR])
def test_a_servers_clock_alone_robs_nobody(world: World, step: timedelta) -> None:
    """Either the observer's clock is ahead, or the holder's is behind."""
    world.observer += step
    assert world.watched_until_dead(Watch()) == LEASE + 2 * INTERVAL


@pytest.mark.parametrize("step", [2 * MINUTE, HOUR, 400 * 24 * HOUR])
def test_a_servers_clock_makes_us_wait_a_lease_at_the_most(world: World, step: timedelta) -> None:
    world.observer -= step
    world.pass_on(100)
    assert world.watched_until_dead(Watch()) == 100 * SECOND + RECOVERY


def test_an_observer_that_has_seen_the_row_before_has_less_to_wait(world: World) -> None:
    watch = Watch()
    world.pass_on(30)
    assert world.look(watch) is None
    world.database += HOUR
    world.observer -= HOUR
    world.pass_on(30)
    assert world.watched_until_dead(watch) == 30 * SECOND + RECOVERY


def test_a_gap_does_not_make_it_forget_since_when_the_row_is_unchanged(world: World) -> None:
    watch = Watch()
    assert world.look(watch) is None
    world.database += HOUR
    world.observer -= HOUR
    world.pass_on(1000)
    looked_at = world.passed
    assert world.watched_until_dead(watch) == looked_at + 2 * INTERVAL


@pytest.mark.parametrize("interval", [INTERVAL, None])
@pytest.mark.parametrize("skew", [20, 500, 2000])
def test_clocks_that_are_as_right_as_clocks_are_rob_nobody(world: World, skew: int, interval: timedelta | None) -> None:
    """Two faults: the holder is silent, and the database's clock is set ahead. It is not a fault if the clocks of two
    servers are a few milliseconds apart, and an interrupt takes a moment to reach the job."""
    world.row.heartbeat_interval = interval
    world.database += HOUR
    world.observer += timedelta(milliseconds=skew)
    world.watched_until_dead(Watch(), step=0.01)
    assert not world.is_trusted


def test_an_observer_that_is_stopped_while_it_looks_has_not_watched_meanwhile(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each look reads the clock once."""
    world.pass_on(1000)
    watch = Watch()
    monkeypatch.setattr("django_singlejob.process.clock.local_now", lambda: world.local_now + 30)
    assert world.look(watch)


# --- one host, which has one clock that never steps


@pytest.fixture
def host(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr("django_singlejob.locking.liveness.is_on_one_host", lambda _: True)
    return world


@pytest.mark.parametrize("interval", [None, INTERVAL])
@pytest.mark.parametrize("step", [2 * MINUTE, HOUR])
def test_a_host_whose_clock_is_set_robs_nobody(host: World, interval: timedelta | None, step: timedelta) -> None:
    host.row.heartbeat_interval = interval
    host.database += step
    assert host.watched_until_dead(Watch()) == LEASE + 2 * (interval or SECOND)
    assert not host.is_trusted


def test_on_one_host_it_takes_no_longer_than_usual(host: World) -> None:
    host.database -= HOUR
    host.pass_on(100)
    assert host.watched_until_dead(Watch()) == 100 * SECOND + 2 * INTERVAL


def test_a_holder_from_before_the_host_was_started_is_dead(host: World) -> None:
    """The clock that never steps has restarted."""
    host.pass_on(10)
    host.database += HOUR
    host.observer = -24 * HOUR
    assert host.watched_until_dead(Watch()) == 10 * SECOND + 2 * INTERVAL


# --- any number of clocks


@pytest.mark.slow
@given(
    which=st.sampled_from(["database", "observer", "holder"]),
    step=st.integers(min_value=-10_000, max_value=10_000),
    set_at=seconds,
    beaten_at=st.integers(min_value=0, max_value=59),
    came_at=seconds,
)
def test_no_single_clock_robs_a_holder_or_keeps_its_lock_for_long(
    which: str, step: int, set_at: int, beaten_at: int, came_at: int
) -> None:
    """Whenever it is set: before the last heartbeat, before the observer starts, or while it watches."""
    with pytest.MonkeyPatch.context() as patch:
        world, watch, left = at_work(patch), Watch(), None
        while left != ZERO:
            now = world.passed // SECOND
            if now == beaten_at:
                world.beat()
            if now == set_at:
                setattr(world, which, step * SECOND)
            if now >= came_at:
                left = world.look(watch)
            world.pass_on(1)
        assert not world.is_trusted
        usual = max(beaten_at * SECOND + LEASE, came_at * SECOND) + 2 * INTERVAL
        # Until the clock is set, or the row has been seen for a lease, the lock may look live.
        assert world.passed <= max(usual, set_at * SECOND) + LEASE + 2 * INTERVAL + SECOND


# --- messages


def test_it_says_once_which_clocks_disagree_and_by_how_much(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.database += HOUR
    world.watched_until_dead(Watch())
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert record.message == (
        "The lock 'nightly' is stale by the database's clock, but not by the clocks of its holder (web-1, pid 4711) "
        "and this server. It is left alone until a lease has passed by one of these clocks. The database's clock was "
        "0 seconds ahead of its holder's at the last heartbeat, and is 1 hour ahead of this server's. "
        "Synchronize all clocks with NTP."
    )


def test_it_says_that_the_clock_was_set_back(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.database -= HOUR
    world.watched_until_dead(Watch())
    (record,) = caplog.records
    assert record.message.startswith(
        "The last heartbeat of the lock 'nightly' lies in the future: the database's clock was set back. "
    )
    assert "is 1 hour behind this server's" in record.message


def test_one_host_has_one_clock(host: World) -> None:
    """It says nothing of other clocks: those of its heartbeats do not show the time of day."""
    host.database += HOUR
    message = disagreement(host.lock)
    assert "The clock of this host was changed." in message
    assert "NTP" not in message


def test_it_says_nothing_while_they_agree(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.watched_until_dead(Watch())
    assert caplog.records == []


def test_it_says_what_is_known_of_the_holder(world: World) -> None:
    world.pass_on(80)
    assert silence(world.lock) == "Its lease expired, and no heartbeat was seen for 1 minute 20 seconds"
    world.row.heartbeat_interval = None
    assert silence(world.lock) == "Its lease expired; it sends no heartbeats"
    world.database -= HOUR
    assert silence(world.lock).startswith("Its last heartbeat lies in the future because the database's clock was set")


@pytest.mark.django_db
@pytest.mark.parametrize("seconds", [0.3, 1, 2.9, 3, 60, 3600])
@pytest.mark.parametrize("has_heartbeats", [True, False])
def test_a_body_is_killed_before_anybody_else_may_have_its_lock(seconds: float, has_heartbeats: bool) -> None:
    length = timedelta(seconds=seconds)
    lease = take(lease=length, heartbeat_interval=length / 6 if has_heartbeats else None)
    assert 0 < grace_of(lease) <= margin(lock()).total_seconds() / 2
