"""The signals that are sent, and that a receiver's error breaks nothing."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from django.dispatch import Signal

from django_singlejob import (
    SKIPPED,
    CurrentRun,
    Job,
    Lease,
    LeaseLost,
    LockHeld,
    current_run,
    job_lock,
    signals,
    singleton_job,
)
from django_singlejob.locking.clear import clear
from django_singlejob.models import JobLock, JobRun
from django_singlejob.models.locks import locks
from tests.contract.acts import (
    MINUTE,
    expire,
    fall_behind,
    gate,
    hourly,
    is_free,
    last_run,
    lock,
    start_run,
    take,
    tick,
)

if TYPE_CHECKING:
    from collections.abc import Iterator


pytest_plugins = "tests.fixtures"
pytestmark = [pytest.mark.usefixtures("fresh_process"), pytest.mark.django_db]

ALL = {name: signal for name, signal in vars(signals).items() if isinstance(signal, Signal)}


#: A user connects with `sender=`. Django compares senders by identity.
SENDERS = {
    "job_started": Job,
    "job_finished": Job,
    "job_skipped": Job,
    "job_paused": Job,
    "job_resumed": Job,
    "schedule_changed": Job,
    "run_stopped": Job,
    "slot_misfired": Job,
    "lease_lost": Lease,
    "lock_taken_over": JobLock,
}


class Word(NamedTuple):
    """A signal that was sent."""

    signal: str
    name: str
    arguments: dict[str, Any]


@pytest.fixture
def heard() -> Iterator[list[Word]]:
    """All signals that are sent, in order."""
    words: list[Word] = []
    names = {signal: name for name, signal in ALL.items()}

    def listen(signal: Signal, sender: Any, name: str, **arguments: Any) -> None:
        words.append(Word(names[signal], name, arguments))

    for of, signal in ALL.items():
        signal.connect(listen, sender=SENDERS[of])
    yield words
    for of, signal in ALL.items():
        signal.disconnect(listen, sender=SENDERS[of])


@pytest.fixture
def broken_receivers() -> Iterator[None]:
    """A receiver listens to every signal and raises."""

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
    assert [(word.signal, word.name) for word in heard] == [("job_started", "nightly"), ("job_finished", "nightly")]
    started, finished = heard
    assert started.arguments == {"run": run}
    duration = finished.arguments.pop("duration")
    assert finished.arguments == {"run": run, "status": "successful", "error": None}
    assert finished.arguments["status"] in JobRun.Status
    assert timedelta() <= duration == last_run().duration


def built(*parts: object) -> str:
    """A name that is a new object each time it is built."""
    return "-".join(map(str, parts))


def test_a_receiver_of_one_sender_is_told_of_any_name(heard: list[Word]) -> None:
    nightly = singleton_job(built("nightly", 1))(lambda: None)
    assert nightly.name is not built("nightly", 1)
    nightly()
    take(built("nightly", 1))
    nightly()
    expire(built("nightly", 1))
    nightly()
    assert [(word.signal, word.name) for word in heard] == [
        ("job_started", "nightly-1"),
        ("job_finished", "nightly-1"),
        ("job_skipped", "nightly-1"),
        ("lock_taken_over", "nightly-1"),
        ("job_started", "nightly-1"),
        ("job_finished", "nightly-1"),
    ]


def test_and_of_slots_that_nobody_ran(heard: list[Word]) -> None:
    job: Any = singleton_job(built("nightly", 2), schedule=hourly(ago=30 * MINUTE))(lambda: None)
    fall_behind(job, 3)
    list(tick())
    assert ("slot_misfired", "nightly-2") in [(word.signal, word.name) for word in heard]


def test_an_async_job_has_the_same_sender(heard: list[Word]) -> None:
    async def work() -> None: ...

    singleton_job(built("nightly", 3))(work).run()
    assert [(word.signal, word.name) for word in heard] == [("job_started", "nightly-3"), ("job_finished", "nightly-3")]


def test_one_of_another_sender_is_told_nothing() -> None:
    for signal in ALL.values():
        signal.connect(never, sender=JobRun)
    singleton_job("nightly")(lambda: None)()
    for signal in ALL.values():
        signal.disconnect(never, sender=JobRun)


def never(**arguments: Any) -> None:
    pytest.fail("Somebody else was meant.")


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
    assert (word.signal, word.name) == ("lock_taken_over", "nightly")
    assert word.arguments["lease"] is successor
    assert (word.arguments["lock"], word.arguments["lock"].token) == (before, dead.token)
    assert word.arguments["lock"].heartbeat_at == before.heartbeat_at


def test_so_does_a_tick_that_clears_a_dead_holders_lock(heard: list[Word]) -> None:
    dead = start_run()
    expire()
    assert list(tick()) == []
    assert [(word.signal, word.name) for word in heard] == [("lock_taken_over", "nightly")]
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
    assert (word.signal, word.name, word.arguments["lease"]) == ("lock_taken_over", "nightly", None)
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
