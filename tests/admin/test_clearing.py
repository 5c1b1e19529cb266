"""A look at a lock, to be compared with a later one, clock by clock. Nothing here touches a database or waits."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from django_singlejob.admin.clearing import Sighting
from tests.locking import test_liveness
from tests.locking.test_liveness import HOUR, INTERVAL, NOON, SECOND, ZERO, World, seconds


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return at_work(monkeypatch)


def at_work(monkeypatch: pytest.MonkeyPatch) -> World:
    world = test_liveness.at_work(monkeypatch)
    monkeypatch.setattr("django_singlejob.admin.clearing.sent_now", lambda: NOON + world.passed + world.observer)
    return world


@pytest.fixture
def stale(world: World) -> World:
    """A world whose holder died long ago."""
    world.pass_on(1000)
    return world


def test_a_look_at_a_live_lease_shows_nothing(world: World) -> None:
    sighting = Sighting.of(world.lock)
    world.pass_on(59)
    assert sighting.left(world.lock) is None
    world.pass_on(1)
    assert sighting.left(world.lock) == 2 * INTERVAL  # the margin of the lease, and the watch is over


CLOCKS = ["database", "observer"]


@pytest.mark.parametrize("back", CLOCKS)
def test_one_clock_set_ahead_and_the_other_back_make_it_no_shorter(stale: World, back: str) -> None:
    sighting = Sighting.of(stale.lock)
    stale.pass_on(1)
    for clock in CLOCKS:
        setattr(stale, clock, -HOUR if clock == back else HOUR)
    assert sighting.left(stale.lock) is None


def test_if_both_clocks_are_set_ahead_a_holder_that_sends_heartbeats_keeps_its_lock(stale: World) -> None:
    sighting = Sighting.of(stale.lock)
    stale.beat()
    stale.database = stale.observer = HOUR
    assert stale.lock.is_suspected
    assert sighting.left(stale.lock) is None


@pytest.mark.slow
@given(
    which=st.sampled_from(["database", "observer", "holder"]),
    step=st.integers(min_value=-10_000, max_value=10_000),
    set_at=seconds,
    beaten_at=st.integers(min_value=0, max_value=59),
    seen_at=seconds,
    pause=seconds,
)
def test_two_looks_rob_no_holder_that_trusts_itself(
    which: str, step: int, set_at: int, beaten_at: int, seen_at: int, pause: int
) -> None:
    """Whenever one clock is set, and however wrong it is from then on."""
    with pytest.MonkeyPatch.context() as patch:
        world, sighting = at_work(patch), None
        for now in range(seen_at + pause + 1):
            if now == beaten_at:
                world.beat()
            if now == set_at:
                setattr(world, which, step * SECOND)
            if now == seen_at:
                sighting = Sighting.of(world.lock)
            world.pass_on(1)
        assert sighting
        if sighting.left(world.lock) == ZERO:
            assert not world.is_trusted
            assert pause + 1 >= 20
