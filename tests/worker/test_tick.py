"""One pass over what is due, step by step; `contract/test_passes.py` has what it promises."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from django_singlejob import singleton_job
from django_singlejob.process.received_signals import deferred_signals
from django_singlejob.worker.loop import Worker
from django_singlejob.worker.tick import Plan, Tick
from tests.contract.acts import (
    BEAT,
    MINUTE,
    expire,
    fall_behind,
    hourly,
    is_free,
    last_run,
    scheduled,
    slots_run,
    stop_the_clock,
    take,
    tick,
    ticked,
)

if TYPE_CHECKING:
    pass


pytest_plugins = "tests.fixtures"
pytestmark = [pytest.mark.usefixtures("fresh_process"), pytest.mark.django_db]


def due(name: str = "nightly", slots: int = 1, **settings: Any) -> Any:
    job = scheduled(name, **settings)
    fall_behind(job, slots)
    return job


# --- what is run


def test_a_keyboard_interrupt_ends_the_pass() -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    job: Any = singleton_job("interrupted", schedule=hourly(ago=30 * MINUTE))(interrupt)
    fall_behind(job)
    due(schedule=hourly(ago=10 * MINUTE))
    with pytest.raises(KeyboardInterrupt):
        ticked()
    assert last_run("interrupted").status == "interrupted"
    assert slots_run("nightly") == []


@pytest.mark.parametrize("error", [KeyboardInterrupt, GeneratorExit])
def test_but_one_that_a_job_of_a_command_raises_does_not(error: type[BaseException]) -> None:
    """The command handles the signals: Ctrl-C would raise `JobInterrupted`."""

    def interrupt() -> None:
        raise error

    job: Any = singleton_job("broken", schedule=hourly(ago=30 * MINUTE))(interrupt)
    fall_behind(job)
    due(schedule=hourly(ago=10 * MINUTE))
    with deferred_signals():
        first, second = tick()
    assert (first.name, type(first.error), second.name, second.error) == ("broken", error, "nightly", None)
    assert last_run("broken").status == ("failed" if error is KeyboardInterrupt else "interrupted")


@pytest.mark.parametrize("plan", [Plan(once=True), Plan(drain=True)], ids=["once", "drain"])
def test_a_pass_does_not_watch_a_lock_for_ever(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its holder may show signs of life all the time, and never renew its lease."""
    stop_the_clock(monkeypatch)
    take(heartbeat_interval=BEAT)
    expire()
    with monkeypatch.context() as patch:
        patch.setattr("django_singlejob.worker.loop.LONGEST_TICK", 0)
        assert not list(Worker(plan).work())
    assert not is_free()
    assert not list(Worker(plan).work())
    assert is_free()


def test_a_child_that_a_job_forks_does_not_go_on_with_the_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """The child leaves the job's function too, with an exception. The rest of the pass is the parent's."""

    def leave_as_a_child() -> None:
        monkeypatch.setattr(os, "getpid", lambda: 0)
        raise SystemExit(0)

    job: Any = singleton_job("forks", schedule=hourly(ago=30 * MINUTE), heartbeat=False)(leave_as_a_child)
    fall_behind(job)
    due(schedule=hourly(ago=10 * MINUTE))
    with pytest.raises(SystemExit):
        ticked()
    assert slots_run("nightly") == []


# --- pruning


class Busy:
    """A pool whose runs do not end."""

    free, is_idle = 2, False

    def __init__(self) -> None:
        self.sent: list[Any] = []

    def send(self, run: Any) -> None:
        self.sent.append(run)


def test_it_prunes_once_at_a_time() -> None:
    pool: Any = Busy()
    tick = Tick(Plan(), pool, lane=pool)
    for _ in range(2):
        tick.may_prune = True
        tick.prune()
    assert len(pool.sent) == 1
