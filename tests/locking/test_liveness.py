"""When a lock may be taken from its holder, clock by clock. Nothing here touches a database or waits."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from uuid import UUID

import pytest
from hypothesis import given, strategies as st

from django_singlejob.locking.liveness import LONGEST_STAY, Watch, silence
from django_singlejob.models import JobLock

SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
ZERO = timedelta()
LEASE = MINUTE
INTERVAL = 10 * SECOND
RECOVERY = LEASE + 2 * INTERVAL
NOON = datetime(2026, 11, 22, 12, tzinfo=UTC)


class World:
    """The time that has passed since noon, and what each clock shows."""

    def __init__(self) -> None:
        self.passed = ZERO
        #: How far these clocks are ahead.
        self.database = self.holder = self.observer = ZERO
        self.row = JobLock(name="nightly", hostname="web-1", pid=4711, heartbeat_interval=INTERVAL, heartbeats=-1)
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

    def watched_until_dead(self, watch: Watch, *, step: float = 1.0, longest: timedelta = 3 * HOUR) -> timedelta:
        """When the holder counts as dead, for an observer that looks again and again."""
        until = self.passed + longest
        while watch.look(self.lock) != ZERO:
            assert self.passed < until, "It is watched for ever."
            self.pass_on(step)
        return self.passed


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return at_work(monkeypatch)


def at_work(monkeypatch: pytest.MonkeyPatch) -> World:
    world = World()

    def local_now() -> float:
        return 5000 + world.passed.total_seconds()

    monkeypatch.setattr("django_singlejob.locking.liveness.local_now", local_now)
    monkeypatch.setattr("django_singlejob.locking.liveness.alias", lambda: "default")
    monkeypatch.setattr("django_singlejob.locking.liveness.is_on_one_host", lambda _: False)
    monkeypatch.setattr("django_singlejob.locking.liveness.sent_now", lambda: NOON + world.passed + world.observer)
    return world


# --- all clocks agree


def test_a_live_lease_is_not_watched(world: World) -> None:
    watch = Watch()
    for _ in range(59):
        assert watch.look(world.lock) is None
        world.pass_on(1)


def test_a_dead_holder_is_watched_for_two_intervals_from_when_it_is_stale(world: World) -> None:
    watch = Watch()
    assert world.watched_until_dead(watch) == LEASE + 2 * INTERVAL


def test_an_observer_that_comes_late_watches_for_two_intervals(world: World) -> None:
    world.pass_on(1000)
    assert world.watched_until_dead(Watch()) == 1000 * SECOND + 2 * INTERVAL


def test_the_time_left_is_returned(world: World) -> None:
    world.pass_on(60)
    watch = Watch()
    assert watch.look(world.lock) == 2 * INTERVAL
    world.pass_on(5)
    assert watch.look(world.lock) == 2 * INTERVAL - 5 * SECOND


def test_a_holder_that_sends_no_heartbeats_is_not_watched(world: World) -> None:
    world.row.heartbeat_interval = None
    watch = Watch()
    assert watch.look(world.lock) is None
    world.pass_on(60)
    assert watch.look(world.lock) == ZERO
    assert Watch().look(world.lock) == ZERO


def test_a_heartbeat_restarts_it(world: World) -> None:
    world.pass_on(60)
    watch = Watch()
    for _ in range(19):
        assert watch.look(world.lock)
        world.pass_on(1)
    world.row.heartbeats += 1
    beaten_at = world.passed
    assert world.watched_until_dead(watch) == beaten_at + 2 * INTERVAL


def test_so_does_a_new_holder(world: World) -> None:
    world.pass_on(60)
    watch = Watch()
    for _ in range(19):
        assert watch.look(world.lock)
        world.pass_on(1)
    world.row.token = UUID(int=2)
    begun_at = world.passed
    assert world.watched_until_dead(watch) == begun_at + 2 * INTERVAL


@pytest.mark.parametrize("interval", [INTERVAL, SECOND, SECOND / 10])
def test_a_gap_longer_than_an_interval_restarts_it(world: World, interval: timedelta) -> None:
    """The observer was stopped or the database was away, so perhaps the holder could not send anything either."""
    world.row.heartbeat_interval = interval
    world.pass_on(60)
    watch = Watch()
    for _ in range(2):
        assert watch.look(world.lock) == 2 * interval
        world.pass_on(interval.total_seconds() * 1.01)
    looked_at = world.passed
    assert world.watched_until_dead(watch, step=watch.pause(world.lock)) == looked_at + 2 * interval


def test_a_gap_of_an_interval_does_not(world: World) -> None:
    world.pass_on(60)
    watch = Watch()
    assert watch.look(world.lock) == 2 * INTERVAL
    world.pass_on(10)
    assert watch.look(world.lock) == INTERVAL
    world.pass_on(10)
    assert watch.look(world.lock) == ZERO


def test_looks_come_often_enough_not_to_leave_a_gap(world: World) -> None:
    assert 0 < Watch().pause(world.lock) < INTERVAL.total_seconds() / 2
    world.row.heartbeat_interval = None
    assert 0 < Watch().pause(world.lock) < 1


def test_a_watch_may_be_cut_short_but_not_the_lease(world: World) -> None:
    watch = Watch()
    world.pass_on(100)
    assert watch.look(world.lock, most=5 * SECOND) == 5 * SECOND
    world.pass_on(5)
    assert watch.look(world.lock, most=5 * SECOND) == ZERO
    world.beat()
    world.database += HOUR
    assert watch.look(world.lock, most=5 * SECOND) == RECOVERY


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
    assert watch.look(world.lock) is None
    world.database += HOUR
    world.observer -= HOUR
    world.pass_on(30)
    assert world.watched_until_dead(watch) == 30 * SECOND + RECOVERY


def test_a_gap_does_not_make_it_forget_since_when_the_row_is_unchanged(world: World) -> None:
    watch = Watch()
    assert watch.look(world.lock) is None
    world.database += HOUR
    world.observer -= HOUR
    world.pass_on(1000)
    looked_at = world.passed
    assert world.watched_until_dead(watch) == looked_at + 2 * INTERVAL


@pytest.mark.parametrize("skew", [20, 500, 2000])
def test_clocks_that_are_as_right_as_clocks_are_rob_nobody(world: World, skew: int) -> None:
    """Two faults: the holder is silent, and the database's clock is set ahead. It is not a fault if the clocks of two
    servers are a few milliseconds apart, and an interrupt takes a moment to reach the job."""
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
    monkeypatch.setattr("django_singlejob.clock.local_now", lambda: 5000 + world.passed.total_seconds() + 30)
    assert watch.look(world.lock)


def test_what_somebody_else_has_seen_counts_for_the_lease_but_not_for_the_watch(world: World) -> None:
    world.database += HOUR
    assert Watch().look(world.lock) == RECOVERY
    assert Watch().look(world.lock, unchanged_for=RECOVERY) == 2 * INTERVAL
    assert Watch().look(world.lock, unchanged_for=RECOVERY / 2) == RECOVERY / 2


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
    assert host.watched_until_dead(Watch()) == LEASE + 2 * (interval or ZERO)
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

seconds = st.integers(min_value=0, max_value=200)


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
                left = watch.look(world.lock)
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


def test_nobody_stays_for_hours() -> None:
    assert timedelta(minutes=2) <= LONGEST_STAY <= timedelta(minutes=5)


def test_looks_of_an_unchanged_world_only_come_nearer(world: World) -> None:
    world.pass_on(60)
    watch = Watch()
    left: list[timedelta] = []
    while rest := watch.look(world.lock):
        left.append(rest)
        world.pass_on(1)
    assert all(later < sooner for sooner, later in pairwise(left))
