"""What an acquisition waits for after a failover, and what it does if a COMMIT took too long."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn
from uuid import uuid4

import pytest
from django.db import IntegrityError, OperationalError, connection

from django_singlejob import DatabaseUnreachable, DatabaseUnusable, Lease
from django_singlejob.conf import ZERO
from django_singlejob.database import timeline, transactions
from django_singlejob.locking import acquire, at_exit
from django_singlejob.locking.acquire import IN_DOUBT, IN_THE_WAY, RACED, Acquisition
from django_singlejob.locking.endings import Ending
from django_singlejob.locking.grant import Grant
from django_singlejob.locking.request import LockRequest, Reason, Refusal
from django_singlejob.models.jobs import gates
from django_singlejob.models.locks import locks
from django_singlejob.models.runs import runs
from django_singlejob.process import clock
from django_singlejob.process.clock import DBNow, local_now, since
from django_singlejob.process.holder import this_process
from django_singlejob.process.received_signals import deferred_signals
from tests.contract.acts import MINUTE, age, ask, expire, is_free, lock, start_run, stop_the_clock, take
from tests.database.test_errors import an_error
from tests.database.test_timeline import nothing_is_known, promote, seen
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


__all__ = ["nothing_is_known"]

pytest_plugins = "tests.fixtures"
pytestmark = [
    pytest.mark.django_db(transaction=True, available_apps=["django_singlejob"]),
    pytest.mark.usefixtures("fresh_process"),
]
on_postgresql = pytest.mark.on_database("postgresql")
SECOND = timedelta(seconds=1)


@pytest.fixture
def time_to_take(monkeypatch: pytest.MonkeyPatch) -> Callable[..., timedelta]:
    """How long it takes to be granted a lock, by a clock that only the pauses between two looks move."""
    stop_the_clock(monkeypatch)

    def measured(**terms: Any) -> timedelta:
        begun_at = clock.local_now()
        take(**terms).release()
        return clock.since(begun_at)

    return measured


# --- holders from before the failover


@on_postgresql
def test_a_gate_from_before_a_failover_is_watched_for_two_heartbeat_intervals(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, time_to_take: Callable[..., timedelta]
) -> None:
    caplog.set_level(logging.INFO, "django_singlejob")
    take().release()
    promote(monkeypatch)
    assert 2 * SECOND <= time_to_take(heartbeat_interval=SECOND) < 4 * SECOND
    assert [record.message for record in caplog.records if "failover" in record.message] == [
        "The lock 'nightly' was last granted before a failover. It can be granted again in 2.0 s."
    ]
    assert time_to_take(heartbeat_interval=SECOND) == ZERO


@on_postgresql
def test_a_process_that_has_known_of_the_failover_for_that_long_does_not_wait_again(
    monkeypatch: pytest.MonkeyPatch, time_to_take: Callable[..., timedelta]
) -> None:
    for name in ("nightly", "hourly"):
        take(name).release()
    promote(monkeypatch)
    assert time_to_take(name="nightly", heartbeat_interval=SECOND) >= 2 * SECOND
    assert time_to_take(name="hourly", heartbeat_interval=SECOND) == ZERO


@on_postgresql
def test_a_look_at_any_gate_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    take().release()
    promote(monkeypatch)
    let_it_pass = stop_the_clock(monkeypatch)
    take("new", heartbeat_interval=SECOND).release()
    let_it_pass(2 * SECOND)
    monkeypatch.setattr(acquire, "sleep", pytest.fail)
    take(heartbeat_interval=SECOND)


@on_postgresql
@pytest.mark.parametrize("state", ["never granted", "cleared", "without heartbeats"])
def test_nobody_waits_where_no_holder_can_find_out(
    monkeypatch: pytest.MonkeyPatch, time_to_take: Callable[..., timedelta], state: str
) -> None:
    if state != "never granted":
        take().release()
    if state == "cleared":
        gates().revoke("nightly")
    promote(monkeypatch)
    assert time_to_take(heartbeat_interval=None if state == "without heartbeats" else 5 * SECOND) == ZERO


@on_postgresql
def test_a_schedule_that_moves_on_does_not_make_a_gate_younger(monkeypatch: pytest.MonkeyPatch) -> None:
    take().release()
    promote(monkeypatch)
    assert gates().move_on(seen(), {"misfire_count": 1})
    assert seen().is_from_failover


@on_postgresql
def test_a_process_that_is_to_end_does_not_watch_to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    take().release()
    promote(monkeypatch)
    with deferred_signals() as signals:
        signals.received = 15
        answer = ask(heartbeat_interval=60 * SECOND)
    assert isinstance(answer, Refusal)
    assert answer.reason == Reason.INTERRUPTED


@on_postgresql
def test_nobody_waits_for_a_failover_that_is_long_past(
    monkeypatch: pytest.MonkeyPatch, time_to_take: Callable[..., timedelta]
) -> None:
    """A crontab line is a new process each time, but the gates know when jobs were started on this timeline."""
    for name in ("monthly", "hourly"):
        start_run(name).release()
    promote(monkeypatch)
    start_run("hourly").release()
    # As if both had begun at this moment, since the look at the other gate, and its start, count too.
    monkeypatch.setattr(timeline, "_known_since", {})
    gates().filter(name="hourly").update(last_started_at=DBNow() + MINUTE)
    assert time_to_take(name="monthly", heartbeat_interval=SECOND) >= 2 * SECOND
    monkeypatch.setattr(timeline, "_known_since", {})
    gates().filter(name="monthly").update(fence=1)
    gates().filter(name="hourly").update(last_started_at=DBNow() - 60 * SECOND)
    assert time_to_take(name="monthly", heartbeat_interval=20 * SECOND) == ZERO


@on_postgresql
def test_what_was_seen_on_a_standby_is_no_look_at_the_primary_that_it_becomes(monkeypatch: pytest.MonkeyPatch) -> None:
    promote(monkeypatch, 0)
    before = seen()
    promote(monkeypatch)
    assert not gates().pass_through(before, uuid4())


# --- a COMMIT that took longer than the lease


def request() -> LockRequest:
    terms: dict[str, Any] = {"lease": MINUTE, "heartbeat_interval": None, "holder": this_process()}
    return LockRequest(name="nightly", job_name="nightly", trigger="call", **terms)


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> Acquisition:
    """The lock was granted, but the answer arrived only after the lease had expired."""
    usual = Lease.__init__

    def expired(lease: Lease, grant: Grant) -> None:
        usual(lease, grant)
        age(lease, MINUTE)

    acquisition = Acquisition(request())
    with monkeypatch.context() as patch:
        patch.setattr(Lease, "__init__", expired)
        assert isinstance(acquisition.ask(), float)
    expire()
    return acquisition


def asked_on(acquisition: Acquisition) -> Lease:
    answer = eventually(lambda: answer if not isinstance(answer := acquisition.ask(), float) else None)
    assert isinstance(answer, Lease)
    return answer


SUCCESS = Ending(status="successful", duration=SECOND, acquire_duration=SECOND)


@pytest.mark.slow
def test_a_holder_that_still_has_the_lock_then_renews_its_lease(late: Acquisition) -> None:
    lease = asked_on(late)
    assert not lease.lost
    assert lease.finish(SUCCESS)
    assert [(run.fence, run.status) for run in runs()] == [(lease.fence, "successful")]


@pytest.mark.slow
def test_an_adopted_lease_counts_from_before_it_was_renewed(late: Acquisition) -> None:
    begun_at: list[float] = []

    def note(execute: Any, sql: str, *statement: Any) -> Any:
        if sql.startswith("UPDATE"):
            begun_at.append(local_now())
        return execute(sql, *statement)

    with connection.execute_wrapper(note):
        lease = asked_on(late)
    assert lease.deadline <= begun_at[0] + lease.grant.request.lease.total_seconds()


@pytest.mark.slow
def test_a_caller_that_was_superseded_asks_for_another_grant(late: Acquisition) -> None:
    """Each grant has its own token and its own run in the history."""
    first = lock().token
    start_run("nightly", wait=MINUTE).release()
    lease = asked_on(late)
    assert lease.token != first
    assert lease.finish(SUCCESS)
    assert runs().get(fence=lease.fence).status == "successful"
    assert runs().get(token=first).status == "abandoned"
    assert runs().count() == 3


def test_a_commit_that_was_not_carried_out_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its answer was lost. The next try has a token of its own, and the exit does not look for the first one's row."""
    take().release()
    usual = transactions.durable
    losses = [OperationalError("The connection was lost.")]

    @contextmanager
    def unanswered(alias: str, **limits: Any) -> Iterator[None]:
        with usual(alias, **limits):
            yield
            if losses:
                transactions.roll_back(alias)
        if losses:
            raise losses.pop()

    monkeypatch.setattr(transactions, "durable", unanswered)
    acquisition = Acquisition(request())
    assert isinstance(acquisition.ask(), float)
    lease = asked_on(acquisition)
    assert [*at_exit._granted] == [lease.token]
    assert [run.token for run in runs()] == [lease.token]


def test_a_grant_whose_gate_was_passed_since_is_not_adopted(late: Acquisition) -> None:
    gates().revoke("nightly")
    assert isinstance(late.ask(), float)
    assert lock().heartbeats == 0


def test_nor_one_whose_row_is_gone_when_it_is_renewed(late: Acquisition, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(type(locks()), "renew", lambda *_: False)
        assert isinstance(late.ask(), float)
    assert asked_on(late).token == lock().token


def test_what_cuts_in_behind_the_commit_leaves_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Lease, "__init__", interrupt)
    with pytest.raises(KeyboardInterrupt):
        Acquisition(request()).ask()
    assert locks().look_up("nightly") is None


ERRORS = {
    "the database refuses": (DatabaseUnusable("It is read-only."), True),
    "something else fails": (ValueError("What is this?"), True),
    "the database is away, so the process tries again when it exits": (DatabaseUnreachable("It is away."), False),
}


def failing_with(error: BaseException) -> Callable[..., NoReturn]:
    def fail(*_: Any) -> NoReturn:
        raise error

    return fail


@pytest.mark.parametrize(("error", "is_released"), ERRORS.values(), ids=ERRORS)
def test_an_error_leaves_no_row_of_a_grant_in_doubt(
    late: Acquisition, monkeypatch: pytest.MonkeyPatch, error: Exception, is_released: bool
) -> None:
    monkeypatch.setattr(Acquisition, "_ask_despite_trouble", failing_with(error))
    token = lock().token
    with pytest.raises(type(error)):
        late.ask()
    assert is_free() == is_released
    assert [*at_exit._granted] == ([] if is_released else [token])


def test_nor_does_a_refusal(late: Acquisition, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Acquisition, "_ask", lambda _: Refusal(Reason.PAUSED))
    assert late.ask() == Refusal(Reason.PAUSED)
    assert is_free()
    assert at_exit._granted == {}


def test_nor_does_an_interrupt_between_two_looks(late: Acquisition) -> None:
    with pytest.raises(KeyboardInterrupt), late.waiting():
        raise KeyboardInterrupt
    assert is_free()
    assert at_exit._granted == {}


@pytest.mark.parametrize("is_there", [True, False])
def test_a_process_that_is_to_end_says_if_a_grant_may_still_come(
    late: Acquisition, monkeypatch: pytest.MonkeyPatch, is_there: bool
) -> None:
    if not is_there:
        locks()._raw_delete("default")
    monkeypatch.setattr(Acquisition, "_ask", lambda _: RACED)
    with deferred_signals() as signals:
        signals.received = 15
        assert late.ask() == Refusal(Reason.INTERRUPTED, detail="" if is_there else IN_DOUBT)
    assert is_free()
    assert at_exit._granted == {}


@pytest.mark.parametrize("error", [error for error, _ in ERRORS.values()], ids=repr)
def test_the_exit_has_nothing_to_do_with_what_was_never_granted(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr(Acquisition, "_ask_despite_trouble", failing_with(error))
    with pytest.raises(type(error)):
        ask()
    assert at_exit._granted == {}


def test_a_process_remembers_none_of_its_requests_that_were_refused() -> None:
    """They would become more and more, and the exit would look for the row of each."""
    lease = take()
    assert isinstance(ask(), Refusal)
    assert [*at_exit._granted] == [lease.token]


def test_trouble_that_comes_and_goes_does_not_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller gives up after five seconds of it, but not before its patience is over."""
    now, held = 1000.0, Refusal(Reason.HELD)
    answer: Refusal | None = RACED
    monkeypatch.setattr("django_singlejob.locking.acquire.local_now", lambda: now)
    monkeypatch.setattr(Acquisition, "_ask", lambda _: answer)
    acquisition = Acquisition(request()._replace(wait=10 * SECOND))
    for passed, answer in (0, RACED), (4, held), (8, RACED), (13, RACED):  # noqa: B007
        now = 1000.0 + passed
        assert isinstance(acquisition.ask(), float)
    now = 1013.1
    given_up = acquisition.ask()
    assert isinstance(given_up, Refusal)
    assert given_up.reason == Reason.UNDECIDED


LOST, UNDONE, CANCELLED = an_error("08006"), an_error("40001"), an_error("57014")
DUPLICATE, MISTAKE = an_error("23505", IntegrityError), an_error("42601")


@pytest.mark.parametrize(
    "error", [LOST, UNDONE, CANCELLED, DUPLICATE], ids=["lost", "undone", "cancelled", "duplicate"]
)
def test_after_an_error_that_may_pass_it_asks_again(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    monkeypatch.setattr(Acquisition, "_ask", failing_with(error))
    connection.ensure_connection()
    used = connection.connection
    assert isinstance(Acquisition(request()).ask(), float)
    assert (connection.connection is used) == (error is not LOST), "Only a connection that was lost is replaced."


def test_after_an_error_that_will_come_again_it_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Acquisition, "_ask", failing_with(MISTAKE))
    with pytest.raises(DatabaseUnusable, match="'nightly' was not run"):
        Acquisition(request()).ask()
    with pytest.raises(DatabaseUnusable, match="the lock 'nightly' was not acquired"):
        ask()


def test_a_testcase_loses_its_data_with_its_connection_so_it_does_not_ask_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Acquisition, "_ask", failing_with(LOST))
    monkeypatch.setattr(transactions, "is_private", lambda _: True)
    with pytest.raises(OperationalError) as caught:
        Acquisition(request()).ask()
    assert caught.value is LOST


def asked_in_vain(monkeypatch: pytest.MonkeyPatch, ask: Callable[..., None], wait: timedelta) -> object:
    """The answer when it has asked for longer than it perseveres."""
    now = 1000.0
    monkeypatch.setattr("django_singlejob.locking.acquire.local_now", lambda: now)
    monkeypatch.setattr(Acquisition, "_ask", ask)
    acquisition = Acquisition(request()._replace(wait=wait))
    assert isinstance(acquisition.ask(), float)
    now += 5.1
    return acquisition.ask()


def raced(*_: Any) -> None:
    return RACED


@pytest.mark.parametrize(
    ("ask", "obstacle"),
    [(raced, IN_THE_WAY), (failing_with(UNDONE), "others were in the way each time (40001)")],
    ids=["no error", "undone"],
)
def test_a_caller_that_others_kept_out_is_told_so(
    monkeypatch: pytest.MonkeyPatch, ask: Callable[..., None], obstacle: str
) -> None:
    detail = f"retried for 5 seconds, but {obstacle}"
    assert asked_in_vain(monkeypatch, ask, timedelta()) == Refusal(Reason.UNDECIDED, detail=detail)


@pytest.mark.parametrize("error", [LOST, CANCELLED], ids=["lost", "cancelled"])
def test_a_database_that_does_not_answer_is_unreachable(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    with pytest.raises(DatabaseUnreachable, match="'nightly' was not run"):
        asked_in_vain(monkeypatch, failing_with(error), timedelta())
    assert isinstance(asked_in_vain(monkeypatch, failing_with(error), 60 * SECOND), float)


@pytest.mark.parametrize("wait", [timedelta(), 60 * SECOND])
def test_a_duplicate_that_comes_each_time_is_a_mistake(monkeypatch: pytest.MonkeyPatch, wait: timedelta) -> None:
    with pytest.raises(DatabaseUnusable):
        asked_in_vain(monkeypatch, failing_with(DUPLICATE), wait)


def test_a_caller_that_waits_does_not_ask_all_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    take()
    asked, usual = [], Acquisition.ask

    def counting(acquisition: Acquisition) -> Lease | Refusal | float:
        asked.append(acquisition)
        return usual(acquisition)

    monkeypatch.setattr(Acquisition, "ask", counting)
    stop_the_clock(monkeypatch)
    assert isinstance(ask(wait=SECOND / 2), Refusal)
    assert 2 <= len(asked) < 15


@pytest.mark.slow
def test_a_watch_that_restarts_for_ever_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    longest = timedelta(seconds=0.5)
    monkeypatch.setattr("django_singlejob.locking.acquire.LONGEST_WATCH", longest)
    take(heartbeat_interval=SECOND)
    expire()
    began_at = local_now()
    answer = ask()
    assert isinstance(answer, Refusal)
    assert answer.reason == Reason.UNDECIDED
    assert "looks at the lock take too long for its heartbeat interval" in answer.detail
    assert since(began_at) >= longest


class TestADatabaseThatIsReadOnlyForAMoment:
    """As one is during a failover, until the client reaches the new primary."""

    @pytest.fixture(autouse=True)
    def impatience(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("django_singlejob.locking.acquire.PERSEVERANCE", 0.3)
        stop_the_clock(monkeypatch)

    def read_only_for(self, seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
        over_at, usual = clock.local_now() + seconds, Acquisition._grant_once

        def grant_once(*given: Any) -> Lease | Refusal | None:
            if clock.local_now() < over_at:
                raise an_error("25006")
            return usual(*given)

        monkeypatch.setattr(Acquisition, "_grant_once", grant_once)

    def test_is_waited_for_as_long_as_the_caller_would_wait_for_the_lock(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.read_only_for(1.0, monkeypatch)
        take(wait=30 * SECOND).release()

    def test_is_refused_after_that(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.read_only_for(60, monkeypatch)
        begun_at = clock.local_now()
        with pytest.raises(DatabaseUnusable, match="is read-only"):
            ask(wait=SECOND)
        assert begun_at + 1 <= clock.local_now() < begun_at + 5


@pytest.mark.on_database("sqlite")
def test_what_a_handler_of_signals_raises_right_after_begin_leaves_no_transaction() -> None:
    def begin_and_raise(execute: Callable[..., Any], sql: str, *arguments: Any) -> Any:
        done = execute(sql, *arguments)
        if sql.startswith("BEGIN"):
            raise KeyboardInterrupt
        return done

    connection.ensure_connection()
    session = connection.connection
    with connection.execute_wrapper(begin_and_raise), pytest.raises(KeyboardInterrupt):
        take("nightly")
    assert connection.connection is session
    assert not session.in_transaction
    take("nightly").release()
