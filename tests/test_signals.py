"""What others are told, and that what they make of it breaks nothing."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from django.dispatch import Signal

from django_singlejob import SKIPPED, CurrentRun, LeaseLost, LockHeld, current_run, job_lock, signals, singleton_job
from django_singlejob.clearing import clear
from django_singlejob.models import JobRun
from django_singlejob.querysets import locks
from django_singlejob.scheduler import tick
from tests.contract.acts import expire, gate, is_free, last_run, lock, start_run, take

if TYPE_CHECKING:
    from collections.abc import Iterator


pytest_plugins = "tests.fixtures"
pytestmark = [pytest.mark.usefixtures("fresh_process"), pytest.mark.django_db]

ALL = {name: signal for name, signal in vars(signals).items() if isinstance(signal, Signal)}


class Word(NamedTuple):
    """One signal that was sent."""

    signal: str
    sender: Any
    arguments: dict[str, Any]


@pytest.fixture
def heard() -> Iterator[list[Word]]:
    """All that is sent, in order."""
    words: list[Word] = []
    names = {signal: name for name, signal in ALL.items()}

    def listen(signal: Signal, sender: Any, **arguments: Any) -> None:
        words.append(Word(names[signal], sender, arguments))

    for signal in ALL.values():
        signal.connect(listen)
    yield words
    for signal in ALL.values():
        signal.disconnect(listen)


@pytest.fixture
def broken_receivers() -> Iterator[None]:
    """Somebody listens to everything, and raises."""

    def fail(**arguments: Any) -> None:
        raise ZeroDivisionError

    for signal in ALL.values():
        signal.connect(fail)
    yield
    for signal in ALL.values():
        signal.disconnect(fail)


def divide(number: int) -> float:
    return 1 / number


def test_a_run_is_told_when_it_begins_and_when_it_has_ended(heard: list[Word]) -> None:
    job = singleton_job("nightly")(current_run)
    run = job()
    assert isinstance(run, CurrentRun)
    assert [(word.signal, word.sender) for word in heard] == [("job_started", "nightly"), ("job_finished", "nightly")]
    started, finished = heard
    assert started.arguments == {"run": run}
    duration = finished.arguments.pop("duration")
    assert finished.arguments == {"run": run, "status": "successful", "error": None}
    assert finished.arguments["status"] in JobRun.Status
    assert timedelta() <= duration == last_run().duration


def test_at_the_beginning_the_lock_is_held_and_at_the_end_it_is_free() -> None:
    seen: list[bool] = []

    def look(**arguments: Any) -> None:
        seen.append(is_free())

    signals.job_started.connect(look)
    signals.job_finished.connect(look)
    singleton_job("nightly")(lambda: None)()
    signals.job_started.disconnect(look)
    signals.job_finished.disconnect(look)
    assert seen == [False, True]


def test_a_failure_is_told_with_its_exception(heard: list[Word]) -> None:
    with pytest.raises(ZeroDivisionError) as failure:
        singleton_job("nightly")(divide)(0)
    assert (heard[-1].signal, heard[-1].arguments["status"]) == ("job_finished", "failed")
    assert heard[-1].arguments["error"] is failure.value


def test_a_loss_that_is_found_at_the_end_is_a_failure(heard: list[Word]) -> None:
    with pytest.raises(LeaseLost) as loss:
        singleton_job("nightly")(lambda: locks()._raw_delete("default"))()
    assert heard[-1].signal == "job_finished"
    assert (heard[-1].arguments["status"], heard[-1].arguments["error"]) == ("failed", loss.value)


@pytest.mark.parametrize("on_held", ["skip", "raise"])
def test_a_call_that_does_not_run_is_told_with_the_reason(heard: list[Word], on_held: Any) -> None:
    take()
    job = singleton_job("nightly", on_held=on_held)(divide)
    if on_held == "skip":
        assert job(1) == SKIPPED
    else:
        with pytest.raises(LockHeld):
            job(1)
    assert heard == [Word("job_skipped", "nightly", {"reason": "held"})]


def test_a_takeover_is_told_with_the_new_lease_and_the_old_row(heard: list[Word]) -> None:
    dead = start_run()
    expire()
    before = lock()
    successor = start_run()
    [word] = heard
    assert (word.signal, word.sender) == ("lock_taken_over", "nightly")
    assert word.arguments["lease"] is successor
    assert (word.arguments["lock"], word.arguments["lock"].token) == (before, dead.token)
    assert word.arguments["lock"].heartbeat_at == before.heartbeat_at


def test_so_does_a_tick_that_clears_a_dead_holders_lock(heard: list[Word]) -> None:
    dead = start_run()
    expire()
    assert list(tick()) == []
    assert [(word.signal, word.sender) for word in heard] == [("lock_taken_over", "nightly")]
    assert heard[0].arguments["lease"] is None
    assert heard[0].arguments["lock"].token == dead.token


@pytest.mark.parametrize("force", [True, False])
def test_so_does_whoever_clears_it(heard: list[Word], force: bool) -> None:
    holder = start_run()
    if not force:
        assert not clear(lock())
        expire()
    assert heard == []
    assert clear(lock(), force=force)
    [word] = heard
    assert (word.signal, word.sender, word.arguments["lease"]) == ("lock_taken_over", "nightly", None)
    assert (word.arguments["lock"].token, word.arguments["lock"].pid) == (holder.token, os.getpid())


def test_of_what_was_not_cleared_nothing_is_told(heard: list[Word]) -> None:
    start_run()
    seen = lock()
    expire()
    start_run()
    heard.clear()
    assert not clear(seen, force=True)
    assert not clear(seen)
    assert heard == []


def test_a_block_tells_nothing(heard: list[Word]) -> None:
    with job_lock("nightly"):
        pass
    assert heard == []


@pytest.mark.usefixtures("broken_receivers")
@pytest.mark.filterwarnings("ignore")
class TestReceiversThatRaise:
    def test_they_break_no_job(self, caplog: pytest.LogCaptureFixture) -> None:
        assert singleton_job("nightly")(divide)(1) == 1
        assert (last_run().status, gate().last_status) == ("successful", "successful")
        assert is_free()
        assert "ZeroDivisionError" in caplog.text

    def test_they_hide_no_exception(self) -> None:
        with pytest.raises(OSError, match="the jobs own"):
            singleton_job("nightly")(raise_own)()
        assert is_free()

    def test_they_break_no_skipping_and_no_takeover(self) -> None:
        start_run()
        job = singleton_job("nightly")(divide)
        assert job(1) == SKIPPED
        expire()
        assert job(1) == 1


def raise_own() -> None:
    raise OSError("the jobs own")
