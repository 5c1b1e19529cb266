from __future__ import annotations

import threading
import time
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from functools import partial
from threading import Event
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from django.db import DataError, InterfaceError, OperationalError, connection

from django_singlejob import JobTimeout, Lease, LeaseLost
from django_singlejob.clock import local_now
from django_singlejob.locking import crew, heartbeat
from django_singlejob.locking.heartbeat import Pulse
from django_singlejob.locking.keeper import kept_alive
from django_singlejob.querysets.locks import JobLockQuerySet, locks
from django_singlejob.received_signals import start_thread
from django_singlejob.signals import lease_lost
from tests.contract.acts import MINUTE, committing, lock, take
from tests.locking.keeping import BEAT, PATIENCE, keep, never, threads, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from django_singlejob.locking.keeper import Keeper
    from tests.fixtures import Elsewhere

pytest_plugins = "tests.fixtures"
pytestmark = [
    pytest.mark.usefixtures("fresh_process"),
    pytest.mark.django_db(transaction=True, available_apps=["django_singlejob"]),
]


@pytest.fixture
def losses() -> Iterator[list[Any]]:
    """The leases that were reported as lost."""
    heard: list[Any] = []

    def hear(name: str, lease: Lease, **kwargs: object) -> None:
        assert (kwargs["sender"], name) == (Lease, lease.name)
        heard.append(lease)

    lease_lost.connect(hear)
    yield heard
    lease_lost.disconnect(hear)


@pytest.mark.slow
def test_heartbeats_go_on_while_the_body_runs_and_end_with_it() -> None:
    lease = take(heartbeat_interval=BEAT)
    keep(lease, lambda: wait_until(lambda: lock().heartbeats >= 2))
    wait_until(lambda: not threads("heartbeats"))
    beats = lock().heartbeats
    time.sleep(3 * BEAT.total_seconds())
    assert lock().heartbeats == beats
    assert lock().heartbeat_at > lock().acquired_at


def test_a_body_shorter_than_an_interval_opens_no_other_connection() -> None:
    lease = take(heartbeat_interval=timedelta(minutes=1))
    keep(lease, lambda: time.sleep(0.1))
    assert lock().heartbeats == 0


def test_without_an_interval_there_are_no_heartbeats() -> None:
    lease = take(heartbeat_interval=None)
    keep(lease, lambda: time.sleep(0.1))
    assert lock().heartbeats == 0


def test_the_threads_are_daemons_with_names() -> None:
    lease = take(heartbeat_interval=BEAT)
    keep(lease, lambda: wait_until(lambda: threads("keeper of leases") and threads("heartbeats")))
    ours = [*threads("keeper of leases"), *threads("heartbeats")]
    assert all(thread.daemon for thread in threading.enumerate() if thread.name in ours)


@pytest.mark.django_db
def test_in_a_transaction_of_the_tests_there_is_no_thread(fresh_keeper: Keeper) -> None:
    keep(take(heartbeat_interval=BEAT), lambda: None)
    assert fresh_keeper._thread is None


@pytest.mark.django_db
def test_but_max_runtime_counts_there_too() -> None:
    with pytest.raises(JobTimeout):
        keep(take(heartbeat_interval=BEAT), lambda: wait_until(never), max_runtime=2 * BEAT)
    assert lock().heartbeats == 0


@pytest.mark.slow
def test_a_body_past_its_time_is_interrupted_once() -> None:
    lease = take(heartbeat_interval=BEAT)

    def body() -> None:
        with pytest.raises(JobTimeout):
            wait_until(never)
        beats = lock().heartbeats
        wait_until(lambda: lock().heartbeats > beats + 1)

    keep(lease, body, max_runtime=2 * BEAT)
    lease.check()


def test_a_lock_that_is_gone_is_noticed_at_the_next_heartbeat(losses: list[Lease]) -> None:
    lease = take(heartbeat_interval=BEAT)

    def body() -> None:
        locks()._raw_delete("default")
        wait_until(never)

    with pytest.raises(LeaseLost):
        keep(lease, body)
    wait_until(lambda: losses == [lease])
    with pytest.raises(LeaseLost, match="taken over, cleared, or its row was deleted"):
        lease.check()


# --- heartbeats that do not get through


@pytest.mark.slow
def test_a_failed_heartbeat_is_not_a_loss_and_soon_followed_by_another(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    lease = take(heartbeat_interval=timedelta(seconds=2))
    failed_at: list[float] = []
    renew = lease.renew

    def fail_first() -> None:
        failed_at.append(time.monotonic())
        if len(failed_at) == 1:
            raise OperationalError("the network is away")
        renew()

    monkeypatch.setattr(lease, "renew", fail_first)
    keep(lease, lambda: wait_until(lambda: lock().heartbeats))
    assert failed_at[1] - failed_at[0] < 1.5
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "A heartbeat of 'nightly' failed and will be retried soon: the network is away" in caplog.text


def test_a_thread_that_cannot_be_started_is_not_a_loss(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    wait_until(lambda: not threads("heartbeats"))
    lease = take(heartbeat_interval=BEAT)
    refused: list[str] = []

    def refuse_first(target: Callable[[], None], name: str) -> threading.Thread:
        if "heartbeats" in name and not refused:
            refused.append(name)
            raise RuntimeError("can't start new thread")
        return start_thread(target, name)

    monkeypatch.setattr(crew, "start_thread", refuse_first)
    keep(lease, lambda: wait_until(lambda: lock().heartbeats and "can't start new thread" in caplog.text))
    assert len(refused) == 1
    assert "A heartbeat of 'nightly' failed and will be retried soon: can't start new thread" in caplog.text


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Lease], Event]]:
    """Holds up the heartbeats of a lease until the event is set, like a driver that waits for the network."""
    moved = Event()

    def hold_up(lease: Lease) -> Event:
        renew = lease.renew

        def renew_late() -> None:
            moved.wait(PATIENCE)
            renew()

        monkeypatch.setattr(lease, "renew", renew_late)
        return moved

    yield hold_up
    moved.set()
    wait_until(lambda: not threads("heartbeats"))


@pytest.mark.slow
def test_a_heartbeat_that_is_stuck_hides_no_loss(stuck: Callable[[Lease], Event], losses: list[Lease]) -> None:
    lease = take(lease=4 * BEAT, heartbeat_interval=BEAT)
    stuck(lease)
    begun_at = time.monotonic()
    with pytest.raises(LeaseLost):
        keep(lease, lambda: wait_until(never))
    assert time.monotonic() - begun_at < 5
    wait_until(lambda: losses == [lease])
    with pytest.raises(LeaseLost, match="was not renewed for"):
        lease.check()


@pytest.mark.slow
def test_heartbeats_that_are_stuck_do_not_pile_up(stuck: Callable[[Lease], Event]) -> None:
    wait_until(lambda: not threads("heartbeats"))
    lease = take(heartbeat_interval=BEAT / 2)
    moved = stuck(lease)

    def body() -> None:
        wait_until(lambda: len(threads("heartbeats")) == heartbeat.MOST_BEATS)
        time.sleep(4 * BEAT.total_seconds())

    keep(lease, body)
    assert len(threads("heartbeats")) == heartbeat.MOST_BEATS
    moved.set()


@pytest.mark.slow
def test_a_lease_can_be_unproven_for_a_while_and_then_proven_again(
    stuck: Callable[[Lease], Event], losses: list[Lease]
) -> None:
    lease = take(lease=4 * BEAT, heartbeat_interval=BEAT)
    moved = stuck(lease)

    def body() -> None:
        with pytest.raises(LeaseLost):
            wait_until(never)
        moved.set()
        wait_until(lambda: not lease.lost)
        time.sleep(4 * BEAT.total_seconds())
        lease.check()

    keep(lease, body)
    wait_until(lambda: losses == [lease])


def test_a_heartbeat_that_fails_after_the_body_is_nobodys_business(
    stuck: Callable[[Lease], Event], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = take(heartbeat_interval=BEAT)
    begun, go_on = Event(), Event()

    def fail_late() -> None:
        begun.set()
        go_on.wait(PATIENCE)
        raise OperationalError("the network is away")

    monkeypatch.setattr(lease, "renew", fail_late)
    keep(lease, lambda: begun.wait(PATIENCE))
    go_on.set()
    wait_until(lambda: not threads("heartbeats"))
    assert caplog.records == []
    assert connection.is_usable()


# --- the heartbeats of several leases


@contextmanager
def held(*names: str, **terms: Any) -> Iterator[dict[str, Lease]]:
    """Leases that are kept alive, by name. Nothing interrupts their bodies."""
    with ExitStack() as stack:
        leases = {name: take(name, **{"heartbeat_interval": BEAT} | terms) for name in names}
        for lease in leases.values():
            stack.enter_context(kept_alive(lease, Deaf()))
        yield leases


class Deaf:
    """What is interrupted by a loss, and takes no notice."""

    def fire(self, exception: type[BaseException]) -> None: ...


@pytest.fixture
def together(monkeypatch: pytest.MonkeyPatch) -> list[set[str]]:
    """The names of those that were renewed together, each time."""
    renew, seen = JobLockQuerySet.renew_together, []

    def note(self: JobLockQuerySet, leases: list[Lease], *others: Any) -> Any:
        seen.append({lease.name for lease in leases})
        return renew(self, leases, *others)

    monkeypatch.setattr(JobLockQuerySet, "renew_together", note)
    return seen


def beats(*names: str) -> int:
    """The heartbeats of the one of these that has sent the fewest."""
    return min(locks().filter(name__in=names).values_list("heartbeats", flat=True))


def alone(monkeypatch: pytest.MonkeyPatch, leases: Iterable[Lease]) -> list[str]:
    """The names of those that are renewed alone, from now on."""
    seen: list[str] = []
    for lease in leases:
        monkeypatch.setattr(lease, "renew", partial(noted_renewal, lease, seen))
    return seen


def noted_renewal(lease: Lease, seen: list[str]) -> None:
    seen.append(lease.name)
    Lease.renew(lease)


@pytest.mark.slow
def test_those_that_are_due_are_renewed_together(together: list[set[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    with held("first", "second", "third", heartbeat_interval=4 * BEAT) as leases:
        proven_at = [lease._state.proven_at for lease in leases.values()]
        seen = alone(monkeypatch, leases.values())
        wait_until(lambda: beats(*leases) >= 4)
        assert all(lease._state.proven_at > before for lease, before in zip(leases.values(), proven_at, strict=True))
        assert together[-1] == {"first", "second", "third"}
    assert seen == []


def test_leases_that_are_renewed_together_count_from_before_that_was_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    leases, renew = (
        [take(name, heartbeat_interval=MINUTE) for name in ("first", "second")],
        JobLockQuerySet.renew_together,
    )
    asked_at: list[float] = []

    def answer_late(self: JobLockQuerySet, *arguments: Any) -> Any:
        asked_at.append(local_now())
        answer = renew(self, *arguments)
        time.sleep(0.05)
        return answer

    monkeypatch.setattr(JobLockQuerySet, "renew_together", answer_late)
    assert heartbeat._renew_together([Pulse(lease, int) for lease in leases]) == []
    assert all(lease.grant.asked_at < lease._state.proven_at <= asked_at[0] for lease in leases)


def test_of_one_length_each(together: list[set[str]]) -> None:
    with held("first", "second"), held("third", "fourth", lease=2 * MINUTE):
        wait_until(lambda: beats("first", "second", "third", "fourth") >= 2)
    assert {frozenset(names) for names in together} <= {frozenset({"first", "second"}), frozenset({"third", "fourth"})}
    assert locks().get(name="third").lease == 2 * MINUTE


def test_a_heartbeat_that_is_due_soon_is_sent_along(fresh_keeper: Keeper) -> None:
    beats_of, pulses = fresh_keeper._heartbeats, [Pulse(take(name, heartbeat_interval=MINUTE), int) for name in "abc"]
    now = local_now()
    for pulse, in_seconds in zip(pulses, (0, 14, 16), strict=True):
        pulse.due_at = now + in_seconds
    beats_of.send(pulses)
    wait_until(lambda: beats("a", "b"))
    assert beats("c") == 0
    assert [round(pulse.due_at - now) for pulse in pulses] == [60, 60, 16]
    wait_until(lambda: not threads("heartbeats"))


@pytest.mark.slow
def test_a_stolen_lease_is_lost_alone(losses: list[Lease]) -> None:
    with held("first", "robbed", "third") as leases:
        wait_until(lambda: beats(*leases))
        locks().filter(name="robbed").update(token=uuid4())
        before = locks().get(name="robbed").heartbeats
        wait_until(lambda: losses == [leases["robbed"]])
        wait_until(lambda: beats("first", "third") > before + 2)
        assert [name for name, lease in leases.items() if lease.lost] == ["robbed"]
        assert locks().get(name="robbed").heartbeats == before


@pytest.mark.slow
@pytest.mark.on_database("postgresql", "mysql")
def test_a_row_that_is_locked_lets_no_other_lease_expire(elsewhere: Elsewhere, losses: list[Lease]) -> None:
    terms = {"lease": timedelta(seconds=1.5), "heartbeat_interval": timedelta(seconds=0.25)}
    begun = Event()

    def lock_the_row() -> None:
        locks().select_for_update().get(name="locked")

    with held("first", "locked", "third", **terms) as leases:
        busy = elsewhere(partial(committing, lock_the_row, begun, duration=4))
        begun.wait(PATIENCE)
        while not busy.done():
            assert not leases["first"].lost
            assert not leases["third"].lost
            time.sleep(0.02)
        assert losses == [leases["locked"]]
        wait_until(lambda: not leases["locked"].lost)


@pytest.mark.slow
@pytest.mark.on_database("postgresql", "mysql")  # SQLite's would keep its only writer
def test_a_driver_that_hangs_holds_up_the_leases_for_an_interval(
    monkeypatch: pytest.MonkeyPatch, losses: list[Lease]
) -> None:
    renew, go_on = JobLockQuerySet.renew_together, Event()
    hung: list[object] = []

    def hang_first(self: JobLockQuerySet, *arguments: Any) -> Any:
        if len(hung) < 3:
            hung.append(arguments)
            go_on.wait(PATIENCE)
            raise OperationalError("the connection died long ago")
        return renew(self, *arguments)

    wait_until(lambda: not threads("heartbeats"))
    monkeypatch.setattr(JobLockQuerySet, "renew_together", hang_first)
    with held("first", "second", lease=timedelta(seconds=3), heartbeat_interval=timedelta(seconds=0.5)) as leases:
        wait_until(lambda: beats(*leases))
        assert len(threads("heartbeats")) == 4
        go_on.set()
    assert losses == []
    wait_until(lambda: not threads("heartbeats"))


def test_a_lease_that_uses_up_its_threads_leaves_some_for_the_others(stuck: Callable[[Lease], Event]) -> None:
    with held("hasty", heartbeat_interval=BEAT / 2) as leases:
        stuck(leases["hasty"])
        wait_until(lambda: len(threads("heartbeats")) == heartbeat.MOST_BEATS)
        with held("patient", heartbeat_interval=2 * BEAT):
            wait_until(lambda: beats("patient") > 2)


@pytest.mark.slow
def test_if_the_connection_is_lost_they_are_soon_renewed_together_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    renew, errors = JobLockQuerySet.renew_together, [InterfaceError("the network is away")]

    def fail_first(self: JobLockQuerySet, *arguments: Any) -> Any:
        if errors:
            raise errors.pop()
        return renew(self, *arguments)

    monkeypatch.setattr(JobLockQuerySet, "renew_together", fail_first)
    begun_at = time.monotonic()
    with held("first", "second", heartbeat_interval=timedelta(seconds=2)) as leases:
        seen = alone(monkeypatch, leases.values())
        wait_until(lambda: beats(*leases))
    assert time.monotonic() - begun_at < 3.5
    assert {record.getMessage().split("'")[1] for record in caplog.records} == {"first", "second"}
    assert len(caplog.records) == 2
    assert "failed and will be retried soon: the network is away" in caplog.text
    assert seen == []


def test_after_any_other_error_they_are_renewed_one_by_one(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> Any:
        raise DataError("one of the rows has too many heartbeats")

    monkeypatch.setattr(JobLockQuerySet, "renew_together", fail)
    with held("first", "second") as leases:
        seen = alone(monkeypatch, leases.values())
        wait_until(lambda: beats(*leases) >= 2)
    assert set(seen) == {"first", "second"}
    assert caplog.records == []


def test_more_than_one_statement_can_renew_are_renewed_with_several(
    monkeypatch: pytest.MonkeyPatch, together: list[set[str]]
) -> None:
    monkeypatch.setattr(heartbeat, "AT_ONCE", 2)
    names = [f"lease-{number}" for number in range(6)]
    with held(*names):
        wait_until(lambda: beats(*names) >= 2)
    assert max(map(len, together)) == 2


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_an_error_ends_leaves_nothing_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    def break_the_log(*_: object, **__: object) -> None:
        failed.append(None)
        raise ValueError("the log is broken")

    def fail() -> None:
        raise OperationalError("the network is away")

    lease = take(heartbeat_interval=BEAT)
    failed: list[None] = []

    def body() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(heartbeat.logger, "warning", break_the_log)
            patch.setattr(lease, "renew", fail)
            wait_until(lambda: len(failed) > heartbeat.MOST_BEATS)
        wait_until(lambda: lock().heartbeats)

    keep(lease, body)
