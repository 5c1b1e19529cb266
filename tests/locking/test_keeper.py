from __future__ import annotations

import gc
import logging
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from threading import Event
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from django_singlejob import JobTimeout, Lease, LeaseLost
from django_singlejob.locking import keeper as keeper_module
from django_singlejob.locking.keeper import Keeper, Kept, kept_alive
from django_singlejob.querysets.locks import locks
from django_singlejob.received_signals import start_thread
from django_singlejob.signals import lease_lost
from tests.contract.acts import take
from tests.locking.keeping import BEAT, PATIENCE, keep, never, threads, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.children import Spawn

pytest_plugins = "tests.fixtures"
pytestmark = [
    pytest.mark.usefixtures("fresh_process"),
    pytest.mark.django_db(transaction=True, available_apps=["django_singlejob"]),
]

MINUTE = timedelta(minutes=1)


class Bell:
    """What is interrupted: it notes when, and with what."""

    def __init__(self) -> None:
        self.rung: list[type[BaseException]] = []

    def fire(self, exception: type[BaseException]) -> None:
        self.rung.append(exception)


@pytest.fixture
def looks(fresh_keeper: Keeper, monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """An element for each time that the keeper looked at the clock."""
    look = fresh_keeper._look
    seen: list[None] = []

    def note() -> float:
        seen.append(None)
        return look()

    monkeypatch.setattr(fresh_keeper, "_look", note)
    return seen


def lost(name: str) -> Lease:
    """A lease of which nobody knows yet that it is lost."""
    lease = take(name, heartbeat_interval=BEAT)
    locks().filter(name=name).delete()
    return lease


# --- coming and going


def test_runs_shorter_than_an_interval_share_one_thread_which_sleeps(
    fresh_keeper: Keeper, looks: list[None], monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[str] = []

    def start(target: Callable[[], object], name: str) -> threading.Thread:
        started.append(name)
        return start_thread(target, name)

    monkeypatch.setattr(keeper_module, "start_thread", start)
    lease = take(heartbeat_interval=timedelta(seconds=10))
    for _ in range(50):
        keep(lease, lambda: None)
    assert started == ["keeper of leases"]
    assert len(looks) <= 2
    assert not fresh_keeper._kept


@pytest.mark.slow
def test_without_leases_the_thread_ends_after_a_while_and_the_next_one_starts_another(
    fresh_keeper: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper_module, "LONGEST_WAIT", 0.05)
    lease = take(heartbeat_interval=MINUTE / 2)
    for _ in range(2):
        keep(lease, lambda: time.sleep(0.2))
        wait_until(lambda: not threads("keeper"))
        assert not fresh_keeper._is_watching


@pytest.mark.slow
def test_no_lease_is_left_to_a_thread_that_is_about_to_end(
    fresh_keeper: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper_module, "LONGEST_WAIT", 0.0005)
    lease = take()
    for count in range(300):
        bell = Bell()
        with kept_alive(lease, bell, timedelta(milliseconds=1)):
            wait_until(lambda bell=bell: bell.rung)  # type: ignore[misc]
        time.sleep(0.00001 * (count % 100))


def test_a_lease_that_needs_it_sooner_wakes_the_keeper(fresh_keeper: Keeper) -> None:
    patient, hasty = take("patient", heartbeat_interval=MINUTE / 2), take("hasty", heartbeat_interval=BEAT)
    with kept_alive(patient, Bell()):
        wait_until(lambda: fresh_keeper._looks_at < float("inf"))
        keep(hasty, lambda: wait_until(lambda: locks().get(name="hasty").heartbeats))
    assert locks().get(name="patient").heartbeats == 0


@pytest.mark.parametrize("comes_first", [True, False])
def test_a_lease_that_comes_while_the_keeper_looks_is_not_overlooked(
    fresh_keeper: Keeper, monkeypatch: pytest.MonkeyPatch, *, comes_first: bool
) -> None:
    lease, bell, look = take(), Bell(), fresh_keeper._look
    coming = [Kept(lease, bell, timedelta(seconds=0.01), fresh_keeper.wake)]
    came = list(coming)

    def look_while_it_comes() -> float:
        if comes_first and coming:
            fresh_keeper.watch(coming.pop())
        looks_at = look()
        if coming:
            fresh_keeper.watch(coming.pop())
        return looks_at

    with kept_alive(lease, Bell()):
        wait_until(lambda: fresh_keeper._looks_at < float("inf"))
        monkeypatch.setattr(fresh_keeper, "_look", look_while_it_comes)
        fresh_keeper.wake()
        wait_until(lambda: bell.rung)
        assert bell.rung == [JobTimeout]
        assert came


@pytest.mark.slow
def test_no_call_is_lost(fresh_keeper: Keeper) -> None:
    """If one were, the keeper would look 15 seconds later."""
    lease, missed = take(), []

    def come_and_go(number: int) -> None:
        for count in range(150):
            bell = Bell()
            with kept_alive(lease, bell, timedelta(microseconds=1 + 37 * (count % 20))):
                deadline = time.monotonic() + 5
                while not bell.rung and time.monotonic() < deadline:
                    time.sleep(0)
            if bell.rung != [JobTimeout]:
                missed.append((number, count))
                return

    with kept_alive(lease, Bell()), ThreadPoolExecutor(4) as pool:
        list(pool.map(come_and_go, range(4)))
    assert missed == []


def test_a_lease_whose_leaving_was_cut_short_is_not_watched_for_ever(fresh_keeper: Keeper) -> None:
    fresh_keeper.watch(Kept(take(), Bell(), None, fresh_keeper.wake))
    gc.collect()
    fresh_keeper.wake()
    wait_until(lambda: not fresh_keeper._kept)


def test_a_body_that_cannot_be_watched_does_not_begin(fresh_keeper: Keeper, monkeypatch: pytest.MonkeyPatch) -> None:
    lease = take(heartbeat_interval=BEAT)
    with monkeypatch.context() as patch:
        patch.setattr(keeper_module, "start_thread", refuse)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            keep(lease, lambda: pytest.fail("it began"))
    assert not fresh_keeper._kept
    keep(lease, lambda: wait_until(lambda: locks().get().heartbeats))


def refuse(*_: object) -> threading.Thread:
    raise RuntimeError("can't start new thread")


@pytest.mark.slow
@pytest.mark.usefixtures("fresh_keeper")
def test_a_body_that_released_its_lease_early_is_watched_without_haste(looks: list[None]) -> None:
    lease, bell = take(lease=4 * BEAT, heartbeat_interval=BEAT), Bell()
    with kept_alive(lease, bell, timedelta(seconds=1)):
        lease.release()
        wait_until(lambda: bell.rung)
    assert bell.rung == [JobTimeout]
    assert len(looks) < 20


# --- a keeper in trouble


def test_the_keeper_goes_on_after_an_error(
    fresh_keeper: Keeper, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    look, errors = fresh_keeper._look, [ZeroDivisionError("nobody expects it")]

    def fail_first() -> float:
        if errors:
            raise errors.pop()
        return look()

    monkeypatch.setattr(fresh_keeper, "_look", fail_first)
    keep(take(heartbeat_interval=BEAT), lambda: wait_until(lambda: locks().get().heartbeats))
    wait_until(lambda: "The keeper of the leases goes on after an error." in caplog.text)
    assert "nobody expects it" in caplog.text


def test_an_error_in_watching_one_lease_is_logged_once_and_the_others_are_watched(
    fresh_keeper: Keeper, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd, bell = take("odd", heartbeat_interval=BEAT), Bell()
    kept = Kept(odd, bell, None, fresh_keeper.wake)
    monkeypatch.setattr(kept, "look_at_the_clock", raise_an_error)
    fresh_keeper.watch(kept)
    keep(take("other", heartbeat_interval=BEAT), lambda: wait_until(lambda: locks().get(name="other").heartbeats > 2))
    fresh_keeper.leave(kept)
    wait_until(lambda: "Watching the lease on 'odd' failed." in caplog.text)
    assert caplog.text.count("Watching the lease") == 1


def raise_an_error() -> None:
    raise ZeroDivisionError


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_keeper_that_died_is_replaced_when_the_next_lease_comes(
    fresh_keeper: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    bell = Bell()
    with kept_alive(lost("first"), bell):
        with monkeypatch.context() as patch:
            patch.setattr(fresh_keeper, "_look", end_the_thread)
            fresh_keeper.wake()
            wait_until(lambda: not fresh_keeper._is_watching)
        with kept_alive(take("second", heartbeat_interval=BEAT), Bell()):
            wait_until(lambda: bell.rung == [LeaseLost])
            wait_until(lambda: locks().get(name="second").heartbeats)


def end_the_thread() -> float:
    raise SystemExit


def test_a_thread_that_an_interrupt_hid_gives_way_to_the_next(fresh_keeper: Keeper) -> None:
    lease = take(heartbeat_interval=MINUTE / 2)
    with kept_alive(lease, Bell()):
        hidden = fresh_keeper._thread
        fresh_keeper._thread = None
        with kept_alive(lease, Bell()):
            assert hidden
            for _ in range(100):  # either of the two may take a call
                fresh_keeper.wake()
                hidden.join(PATIENCE / 100)
            assert not hidden.is_alive()
            assert fresh_keeper._is_watching


@pytest.mark.slow
def test_a_thread_that_gives_way_hands_on_a_call_that_it_took(
    fresh_keeper: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two threads start at once. The older one takes the call of a lease that the newer one has not seen."""
    watch, look = fresh_keeper._watch_once, fresh_keeper._look
    go_on, looked = [Event(), Event()], [Event(), Event()]

    def watch_late() -> bool:
        monkeypatch.setattr(fresh_keeper, "_watch_once", watch)
        go_on[0].wait(PATIENCE)
        return watch()

    def look_slowly() -> float:
        is_older = go_on[0].is_set()
        looks_at = look()
        looked[0 if is_older else 1].set()
        if not is_older:
            go_on[1].wait(PATIENCE)
        return looks_at

    monkeypatch.setattr(fresh_keeper, "_watch_once", watch_late)
    monkeypatch.setattr(fresh_keeper, "_look", look_slowly)
    lease, bell = take(), Bell()
    with kept_alive(lease, Bell()):
        wait_until(lambda: fresh_keeper._watch_once == watch)
        fresh_keeper._thread = None
        with kept_alive(lease, Bell()):
            looked[1].wait(PATIENCE)
            with kept_alive(lease, bell, timedelta(seconds=0.2)):
                go_on[0].set()
                looked[0].wait(PATIENCE)
                go_on[1].set()
                wait_until(lambda: bell.rung)


# --- reports that do not come back


@contextmanager
def held_up_receiver() -> Iterator[list[str]]:
    """The receiver of the first loss waits until the end of the block."""
    heard: list[str] = []
    go_on = Event()

    def hear(name: str, **_: Any) -> None:
        heard.append(name)
        if len(heard) == 1:
            go_on.wait(PATIENCE)

    lease_lost.connect(hear)
    try:
        yield heard
    finally:
        go_on.set()
        lease_lost.disconnect(hear)
        wait_until(lambda: not threads("reports"))


@pytest.mark.slow
@pytest.mark.usefixtures("fresh_keeper")
def test_a_receiver_that_does_not_return_holds_up_no_other_loss() -> None:
    with held_up_receiver() as heard:
        for name in ("first", "second", "third"):
            begun_at = time.monotonic()
            with pytest.raises(LeaseLost):
                keep(lost(name), lambda: wait_until(never))
            assert time.monotonic() - begun_at < 2
        wait_until(lambda: heard == ["first", "second", "third"])


class HeldUp(logging.Handler):
    """A handler of a log that is full."""

    def __init__(self) -> None:
        super().__init__()
        self.go_on = Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.go_on.wait(PATIENCE)


@pytest.fixture
def full_log() -> Iterator[None]:
    logger, handler = logging.getLogger("django_singlejob"), HeldUp()
    logger.addHandler(handler)
    yield
    handler.go_on.set()
    logger.removeHandler(handler)
    wait_until(lambda: not threads("reports"))


@pytest.mark.slow
@pytest.mark.usefixtures("fresh_keeper", "full_log")
def test_a_log_that_is_full_holds_up_no_interrupt() -> None:
    for name in ("first", "second", "third"):
        begun_at = time.monotonic()
        with pytest.raises(LeaseLost):
            keep(lost(name), lambda: wait_until(never))
        assert time.monotonic() - begun_at < 2


@pytest.mark.usefixtures("fresh_keeper")
def test_a_loss_is_logged_before_its_body_ends(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(LeaseLost):
        keep(lost("nightly"), lambda: wait_until(never))
    assert "The lease on 'nightly' was lost" in caplog.text


def test_a_body_is_interrupted_even_if_no_thread_can_report_it(
    fresh_keeper: Keeper, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    lease, bell, see = lost("nightly"), Bell(), fresh_keeper._reporters.see_to_it
    with kept_alive(lease, bell), monkeypatch.context() as patch:
        patch.setattr(fresh_keeper._reporters, "see_to_it", refuse)
        wait_until(lambda: bell.rung)
        assert "was lost" not in caplog.text
        patch.setattr(fresh_keeper._reporters, "see_to_it", see)
        wait_until(lambda: "was lost" in caplog.text)
    assert bell.rung == [LeaseLost]


# --- signals

INTERRUPTING = """
import faulthandler, os, signal
from datetime import timedelta
from django_singlejob import job_lock
from django_singlejob.clock import local_now
from django_singlejob.locking import keeper

def handle(*_):
    keeper._keeper.wake()
    signal.setitimer(signal.ITIMER_REAL, 0.0003)

with job_lock("nightly", lease=timedelta(minutes=1)):
    faulthandler.dump_traceback_later(30, exit=True)
    signal.signal(signal.SIGALRM, handle)
    end_at = local_now() + 4
    signal.setitimer(signal.ITIMER_REAL, 0.0003)
    while local_now() < end_at:
        keeper._keeper.wake()
    signal.signal(signal.SIGALRM, signal.SIG_IGN)  # the handler may set the timer once more
print("done", flush=True)
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="there are no timers")
def test_a_signal_handler_may_call_the_keeper_at_any_step(spawn: Spawn) -> None:
    """As with a job that a program runs in its own handler. In the middle of a call, it must not wait for that."""
    child = spawn.code(INTERRUPTING)
    assert child.finish() == 0
    assert child.output == "done\n"


# --- forks

FORKING = """
import os, time
from datetime import timedelta
from django.db import connections
from django_singlejob import job_lock
from django_singlejob.locking import keeper
from django_singlejob.querysets.locks import locks

LEASE = timedelta(seconds=3)
parents = keeper._keeper
with job_lock("parent", lease=LEASE):
    (kept,) = (weak() for weak in parents._kept.values())
    connections.close_all()
    child = os.fork()
    if not child:
        assert keeper._keeper is not parents
        assert not keeper._keeper._kept
        with job_lock("child", lease=LEASE):
            time.sleep(1.5)
            assert locks().get(name="child").heartbeats
            print("the child's lease was kept", flush=True)
        parents.leave(kept)
        print("and the parent's was left alone", flush=True)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert not status, status
    assert locks().get(name="parent").heartbeats
print("done")
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing forks here")
def test_a_forked_child_has_a_keeper_of_its_own(spawn: Spawn) -> None:
    child = spawn.code(FORKING)
    assert child.finish() == 0
    assert "the child's lease was kept" in child.output
    assert "and the parent's was left alone" in child.output
    assert child.output.splitlines()[-1] == "done"


# --- many


def many(count: int) -> list[Lease]:
    """Leases of this process, which are due every second."""
    first = take("lease", lease=MINUTE, heartbeat_interval=timedelta(seconds=1))
    row, grant = locks().get(), first.grant
    names = [f"lease-{number:04}" for number in range(count)]
    leases = [Lease(grant._replace(token=uuid4(), request=grant.request._replace(name=name))) for name in names]
    facts = {field.attname: getattr(row, field.attname) for field in row._meta.concrete_fields}
    locks().bulk_create([type(row)(**facts | {"name": lease.name, "token": lease.token}) for lease in leases])
    first.release()
    return leases


@pytest.mark.slow
def test_a_thousand_leases_need_few_threads_and_connections(fresh_keeper: Keeper) -> None:
    """At most three connections, with the one of this thread."""
    leases = many(1000)
    already, most_threads, most_senders = threading.active_count(), 0, 0
    with ExitStack() as stack:
        for lease in leases:
            stack.enter_context(kept_alive(lease, Bell()))
        deadline = time.monotonic() + 60
        while locks().filter(heartbeats__lt=3).exists():
            assert time.monotonic() < deadline
            most_threads = max(most_threads, threading.active_count() - already)
            most_senders = max(most_senders, len(threads("heartbeats")))
            time.sleep(0.02)
    assert most_senders <= 2
    assert most_threads <= 4
    assert not any(lease.lost for lease in leases)
