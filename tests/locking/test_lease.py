from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from django.contrib.admin.models import LogEntry
from django.db import IntegrityError, OperationalError, connection, connections

from django_singlejob import JobInterrupted, Lease, LeaseLost
from django_singlejob.database.transactions import sent_now
from django_singlejob.locking.endings import Ending
from django_singlejob.models.locks import locks
from django_singlejob.process.clock import local_now
from tests.contract.acts import MINUTE, age, in_thread, last_run, lock, nth_fence, start_run, take
from tests.database.test_errors import an_error

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fixtures import Away

pytest_plugins = "tests.fixtures"
pytestmark = pytest.mark.usefixtures("fresh_process")
committed = pytest.mark.django_db(transaction=True, available_apps=["django_singlejob"])

SECOND = timedelta(seconds=1)
SUCCESS = Ending(status="successful", duration=SECOND)


def public(lease: Lease) -> Lease:
    """As outside a TestCase, whose transaction keeps everybody else from taking over the lock."""
    lease.is_private = False
    return lease


@pytest.mark.django_db
class TestLease:
    def test_it_shows_its_name_and_its_fence(self) -> None:
        assert repr(take()) == f"<Lease 'nightly' fence={nth_fence(1)}>"

    def test_it_distrusts_itself_when_it_could_not_be_renewed_for_its_length(self) -> None:
        lease = public(take())
        age(lease, MINUTE / 2)
        lease.check()
        age(lease, MINUTE / 2)
        assert lease.lost
        reason = (
            "The lease on 'nightly' was not renewed for 1 minute: this process was suspended, or the database did not"
        )
        with pytest.raises(LeaseLost, match=reason):
            lease.check()
        lease.renew()
        lease.check()

    def test_inside_a_test_case_time_takes_nothing(self) -> None:
        lease = take()
        age(lease, 10 * MINUTE)
        assert lease.deadline == float("inf")
        lease.check()

    @pytest.mark.on_database("sqlite")
    def test_nor_does_it_while_nobody_else_can_write(self) -> None:
        lease = public(take())
        with lease.atomic():
            age(lease, 10 * MINUTE)
            lease.check()
        lease.check()
        assert lock().heartbeats >= 1

    def test_a_heartbeat_says_when_it_was_sent(self) -> None:
        """The time is by the holder's clock, and an observer compares it with its own clock."""
        lease = take()
        locks().update(sent_at=sent_now() - MINUTE)
        before = sent_now()
        lease.renew()
        assert before <= lock().sent_at <= sent_now()

    def test_a_child_process_holds_nothing(self) -> None:
        lease = start_run()
        lease._pid -= 1  # as if another process had acquired it
        assert lease.lost
        for use in lease.check, lease.renew, lease.atomic().__enter__:
            with pytest.raises(LeaseLost, match=f"belongs to the parent process {lease._pid}: a forked child"):
                use()
        assert not lease.finish(SUCCESS)
        assert lock().token == lease.token
        assert last_run().status == "running"


# --- from when it counts


class Statements:
    """When each write to the lock's row began, as ``local_now()``."""

    def __init__(self) -> None:
        self.begun_at: list[float] = []

    def __call__(self, execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if sql.startswith(("INSERT", "UPDATE")) and "joblock" in sql:
            self.begun_at.append(local_now())
        return execute(sql, params, many, context)


@committed
def test_a_lease_counts_from_before_it_was_asked_for() -> None:
    with connection.execute_wrapper(written := Statements()):
        lease = take()
    assert lease.deadline <= written.begun_at[0] + MINUTE.total_seconds()


@committed
def test_a_renewal_counts_from_before_it_was_sent() -> None:
    lease = take()
    with connection.execute_wrapper(written := Statements()):
        lease.renew()
    assert lease.deadline <= written.begun_at[0] + MINUTE.total_seconds()


@committed
@pytest.mark.on_database("postgresql", "mysql")
def test_heartbeats_may_be_answered_in_any_order() -> None:
    """The first one is overtaken by the second, whose proof stays."""
    lease = take()
    deadlines: list[float] = []

    def overtake(execute: Any, *statement: Any) -> Any:
        if not deadlines:
            deadlines.append(0)
            in_thread(lease.renew)
            deadlines.append(lease.deadline)
        return execute(*statement)

    with connection.execute_wrapper(overtake):
        lease.renew()
    assert deadlines == [0, lease.deadline]


# --- when the database is away


@committed
@pytest.mark.parametrize("method", ["finish", "release"])
def test_a_release_that_fails_is_a_loss_and_says_so(method: str, database_away: Away) -> None:
    lease = take()
    lease.is_private = True  # so that it does not ask again
    with database_away(), pytest.raises(LeaseLost, match="'nightly' could not be released, and is left to expire: "):
        getattr(lease, method)()
    assert lease.lost
    assert lease.why_lost().startswith("The lock 'nightly' could not be released, and is left to expire: ")
    assert lock().token == lease.token


@committed
def test_a_run_that_cannot_be_closed_is_only_logged(database_away: Away, caplog: pytest.LogCaptureFixture) -> None:
    lease = start_run()
    lease.release()
    with database_away():
        assert lease.finish(SUCCESS)
    assert "A run of 'nightly', or its end, is missing from the history (" in caplog.text


# --- a fenced transaction


@committed
@pytest.mark.on_database("sqlite")
class TestWhereNobodyElseCanWrite:
    """The last statement of the transaction is a heartbeat."""

    def test_it_counts_from_the_commit_on_and_no_other_is_needed(self) -> None:
        lease = take()
        age(lease, MINUTE / 2)
        with lease.atomic():
            pass
        assert lease.expires_at - lease.acquired_at > MINUTE - SECOND
        assert lock().heartbeats == 1

    def test_it_proves_nothing_if_it_was_not_committed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """And neither does the next one, which fails as well."""
        lease = take()
        age(lease, MINUTE / 2)
        expected = lease.expires_at
        monkeypatch.setattr(lease, "_beat", failing(an_error("08006")))
        with pytest.raises(IntegrityError), lease.atomic():
            LogEntry.objects.create(user_id=4711, object_repr="", action_flag=1)
        assert lease.expires_at == expected


def failing(*errors: BaseException, then: Callable[..., object] = int) -> Callable[..., object]:
    """The first calls raise these errors."""
    left = [*errors]

    def act(*arguments: Any) -> object:
        if left:
            raise left.pop(0)
        return then(*arguments)

    return act


LOST, UNDONE, MISTAKE = an_error("08006"), an_error("40001"), an_error("42601")


@committed
class TestThatCannotBegin:
    """Nothing was written before it holds the gate, so it can begin again."""

    @pytest.mark.parametrize("error", [LOST, UNDONE], ids=["connection lost", "others in the way"])
    def test_it_begins_again(self, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
        lease = take()
        used = connection.connection
        monkeypatch.setattr(Lease, "_hold_the_gate", failing(error, error, then=Lease._hold_the_gate))
        with lease.atomic():
            assert (connection.connection is used) == (error is UNDONE), "Only a lost connection is replaced."
            assert connections["default"].in_atomic_block

    def test_but_not_after_a_mistake(self, monkeypatch: pytest.MonkeyPatch) -> None:
        lease = take()
        monkeypatch.setattr(Lease, "_hold_the_gate", failing(MISTAKE))
        with pytest.raises(OperationalError) as caught, lease.atomic():
            pass
        assert caught.value is MISTAKE

    @pytest.mark.parametrize("is_private", [True, False], ids=["in a TestCase", "too late"])
    def test_nor_where_it_would_be_in_vain(self, monkeypatch: pytest.MonkeyPatch, *, is_private: bool) -> None:
        lease = take()
        lease.is_private = is_private
        if not is_private:
            lease._state.proven_at = 0.0
        monkeypatch.setattr(Lease, "_hold_the_gate", failing(LOST))
        with pytest.raises(OperationalError) as caught, lease.atomic():
            pass
        assert caught.value is LOST


@committed
def test_an_interrupt_inside_it_is_not_hidden_by_the_error_of_the_driver_whose_statement_it_cut_off() -> None:
    """The block's caller may handle errors of the database, but not an interrupt."""
    lease = take()

    with pytest.raises(JobInterrupted), lease.atomic():
        statement_cut_off_by(JobInterrupted(15))


def statement_cut_off_by(interrupt: JobInterrupted) -> None:
    try:
        failing(interrupt)()
    except JobInterrupted:
        raise OperationalError("The statement was cancelled.") from None


@committed
@pytest.mark.on_database("postgresql")
def test_the_server_ends_it_if_it_is_silent_for_ten_leases_and_not_because_it_waits_for_a_lock() -> None:
    lease = take()
    with lease.atomic(), connection.cursor() as cursor:
        assert [shown(cursor, "idle_in_transaction_session_timeout"), shown(cursor, "lock_timeout")] == ["10min", "0"]


def shown(cursor: Any, setting: str) -> str:
    cursor.execute(f"SHOW {setting}")
    return str(cursor.fetchone()[0])
