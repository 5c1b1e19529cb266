"""What happens if a COMMIT that releases the lock gets no answer. See also ``contract/test_record_pairs``."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn

import pytest
from django.db import OperationalError, connection

from django_singlejob import LeaseLost, job_lock
from django_singlejob.database import transactions
from django_singlejob.locking import at_exit
from django_singlejob.locking.clear import clear
from django_singlejob.locking.endings import Ending
from django_singlejob.locking.release import Release
from django_singlejob.models.locks import JobLockQuerySet
from django_singlejob.process.clock import local_now
from tests.contract.acts import MINUTE, gate, is_free, last_run, lock, start_run, take
from tests.database.test_errors import an_error
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

pytest_plugins = "tests.fixtures"
pytestmark = [
    pytest.mark.django_db(transaction=True, available_apps=["django_singlejob"]),
    pytest.mark.usefixtures("fresh_process"),
]

SUCCESS = Ending(status="successful", duration=timedelta(seconds=1))
FAILURE = Ending(status="failed", duration=timedelta(seconds=9), is_failure=True)
INTERRUPTION = Ending(status="interrupted", duration=timedelta(seconds=9))


class SerializationFailure(Exception):
    sqlstate = "40001"


UNANSWERED = OperationalError("The connection was lost.")
UNDONE = OperationalError("Others were in the way.")
UNDONE.__cause__ = SerializationFailure()


@contextmanager
def commits(
    monkeypatch: pytest.MonkeyPatch, *, fail_with: BaseException, carried_out: bool, then: Callable[[], object] = int
) -> Iterator[None]:
    """The first COMMIT inside fails, and then something else happens."""
    usual = transactions.durable
    failures = [fail_with]

    @contextmanager
    def failing(alias: str, **limits: Any) -> Iterator[None]:
        failure = failures.pop() if failures else None
        with usual(alias, **limits):
            yield
            if failure and not carried_out:
                transactions.roll_back(alias)
        if failure:
            then()
            raise failure

    with monkeypatch.context() as patch:
        patch.setattr(transactions, "durable", failing)
        yield


def give_to_another() -> None:
    assert clear(lock(), force=True)
    take()


def test_a_commit_that_was_carried_out_without_an_answer_has_released_the_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    lease = start_run()
    with commits(monkeypatch, fail_with=UNANSWERED, carried_out=True):
        assert lease.finish(SUCCESS)
    assert is_free()
    assert last_run().status == "successful"


def test_one_that_was_not_carried_out_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    lease = start_run()
    with commits(monkeypatch, fail_with=UNANSWERED, carried_out=False):
        assert lease.finish(SUCCESS)
    assert is_free()
    assert last_run().status == "successful"


def test_a_loss_is_explained_in_a_line_without_the_statement(monkeypatch: pytest.MonkeyPatch) -> None:
    lease = start_run()
    lease.is_private = True  # so that it gives up at once
    unanswered = OperationalError("The connection was lost.\nLINE 1: DELETE FROM ...\n        ^")
    with commits(monkeypatch, fail_with=unanswered, carried_out=False), pytest.raises(LeaseLost) as loss:
        lease.release()
    assert str(loss.value) == (
        "It is not known whether the lock 'nightly' was released. If it was not, it is left to expire: The connection "
        "was lost. LINE 1: DELETE FROM ... ^"
    )
    with pytest.raises(LeaseLost, match=re.escape(str(loss.value))):
        lease.check()


@pytest.mark.parametrize("carried_out", [True, False])
def test_an_error_that_django_does_not_wrap_is_treated_like_one_that_it_wraps(
    monkeypatch: pytest.MonkeyPatch, carried_out: bool
) -> None:
    lease = start_run()
    wrapper: Any = connection
    unwrapped = wrapper.Database.OperationalError("The cursor could not be closed.")
    with commits(monkeypatch, fail_with=unwrapped, carried_out=carried_out):
        assert lease.finish(SUCCESS)
    assert is_free()
    assert last_run().status == "successful"


@pytest.mark.parametrize("unexpected", [ZeroDivisionError("division by zero"), KeyboardInterrupt()], ids=repr)
def test_after_anything_else_it_is_not_known_whether_the_lock_was_released(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, unexpected: BaseException
) -> None:
    """For example, an exception of a handler of signals."""
    lease = start_run()
    with commits(monkeypatch, fail_with=unexpected, carried_out=True), pytest.raises(type(unexpected)):
        lease.release()
    assert lease.lost
    not_known = f"It is not known whether the lock 'nightly' was released: {unexpected!r} came in between."
    assert caplog.messages == [not_known]
    for use in lease.check, lease.atomic().__enter__:
        with pytest.raises(LeaseLost, match=re.escape(not_known)):
            use()
    assert lease.finish(SUCCESS)
    assert last_run().status == "successful"


def test_a_loss_that_is_known_stays_known(monkeypatch: pytest.MonkeyPatch) -> None:
    lease = take()
    give_to_another()
    with pytest.raises(LeaseLost, match="taken over"):
        lease.renew()
    with commits(monkeypatch, fail_with=ZeroDivisionError(), carried_out=True), pytest.raises(ZeroDivisionError):
        lease.release()
    with pytest.raises(LeaseLost, match="taken over"):
        lease.check()


def test_one_that_was_undone_for_certain_leaves_no_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is found afterwards was done by somebody else."""
    lease = take()
    with commits(monkeypatch, fail_with=UNDONE, carried_out=False, then=give_to_another):
        assert not lease.finish()
    assert not is_free()


def test_the_doubt_outlives_a_release_that_gave_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The body released its lock, but the answer and the database were lost. The end of the run checks again."""
    lease = start_run()
    lease.is_private = True  # so that it gives up at once
    with commits(monkeypatch, fail_with=UNANSWERED, carried_out=True), pytest.raises(LeaseLost, match="is left to"):
        lease.release()
    assert lease.lost
    lease.is_private = False
    assert lease.finish(SUCCESS)
    assert last_run().status == "successful"


def test_a_heartbeat_between_a_release_and_its_answer_finds_no_loss(
    monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    """The body releases its lock and continues without it."""
    settings.SINGLEJOB = {**settings.SINGLEJOB, "HEARTBEATS_PER_LEASE": 600}
    usual, renew = Release.carry_out, JobLockQuerySet.renew
    beats: list[bool] = []

    def noting(*given: Any, **terms: Any) -> bool:
        beats.append(renew(*given, **terms))
        return beats[-1]

    def answered_late(release: Release, *given: Any, **terms: Any) -> bool:
        is_released = usual(release, *given, **terms)
        eventually(lambda: False in beats)
        return is_released

    monkeypatch.setattr(JobLockQuerySet, "renew", noting)
    monkeypatch.setattr(Release, "carry_out", answered_late)
    with job_lock("nightly", lease=MINUTE) as lease:
        assert lease.release()
        assert is_free()


def test_the_exit_waits_no_more_for_what_came_too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    lease = take()
    lease._state.proven_at -= 60
    monkeypatch.setattr("django_singlejob.locking.release.LEAST_PATIENCE", 0.0)
    with commits(monkeypatch, fail_with=UNANSWERED, carried_out=False), pytest.raises(LeaseLost, match="is left to"):
        lease.finish()
    assert lease.token not in at_exit._granted


def test_an_end_in_the_history_shows_that_it_was_released(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was written in time, but the lease was over when the answer was lost."""

    def give_to_another_later() -> None:
        now = local_now() + 1.5
        monkeypatch.setattr("django_singlejob.locking.release.local_now", lambda: now)
        take()

    lease = start_run()
    lease._state.proven_at -= 59
    with commits(monkeypatch, fail_with=UNANSWERED, carried_out=True, then=give_to_another_later):
        assert lease.finish(SUCCESS)


# --- what is written


def test_the_end_is_recorded_in_the_transaction_that_releases_the_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_singlejob.locking.recording.Entry.end_late", lambda *_: None)
    assert start_run().finish(SUCCESS)
    assert last_run().status == "successful"


def test_the_gate_counts_failures_in_a_row_and_takes_the_mean_of_successes() -> None:
    def after(ending: Ending) -> tuple[str, int, timedelta | None]:
        start_run().finish(ending)
        return gate().last_status, gate().consecutive_failures, gate().mean_duration

    assert after(FAILURE) == ("failed", 1, None)
    assert after(FAILURE) == ("failed", 2, None)
    assert after(INTERRUPTION) == ("interrupted", 2, None)
    assert after(SUCCESS) == ("successful", 0, SUCCESS.duration)
    assert after(FAILURE) == ("failed", 1, SUCCESS.duration)


# --- tries that fail


class Tries:
    """The tries to release a lock. Each fails with ``error``; the time between them passes at once."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.made_at: list[float] = []
        self.passed = self.each_takes = 0.0
        self.loss = ""

    def fail(self) -> NoReturn:
        self.made_at.append(self.passed)
        self.passed += self.each_takes
        raise self.error

    def sleep(self, seconds: float) -> None:
        self.passed += seconds


Trying = Callable[..., Tries]
LOST, MISTAKE, READ_ONLY = an_error("08006"), an_error("42601"), an_error("25006")


@pytest.fixture
def trying(monkeypatch: pytest.MonkeyPatch) -> Trying:
    def release(error: Exception, each_takes: float = 0.0, **terms: Any) -> Tries:
        tries = Tries(error)
        tries.each_takes = each_takes
        monkeypatch.setattr(Release, "_carry_out_once", lambda *_, **__: tries.fail())
        monkeypatch.setattr("django_singlejob.locking.release.local_now", lambda: local_now() + tries.passed)
        with pytest.raises(LeaseLost, match="is left to expire") as caught:
            take().finish(pause=tries.sleep, **terms)
        tries.loss = str(caught.value)
        return tries

    return release


def test_a_database_that_is_away_is_asked_until_the_lease_expires(trying: Trying) -> None:
    tries = trying(LOST)
    assert 50 < tries.passed <= 60
    assert len(tries.made_at) > 30
    assert at_exit._granted == {}, "The exit would wait for it again."


def test_a_caller_may_have_less_patience(trying: Trying) -> None:
    tries = trying(LOST, patience=timedelta(seconds=20))
    assert 15 < tries.passed <= 20


def test_a_mistake_is_tried_on_a_new_connection_and_then_given_up(trying: Trying) -> None:
    assert trying(MISTAKE).made_at == [0, 0]
    assert len(at_exit._granted) == 1, "The exit tries once more."


@pytest.mark.parametrize("error", [LOST, UNDONE], ids=["away", "others in the way"])
def test_after_a_second_signal_a_release_is_tried_for_two_seconds(
    trying: Trying, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr("django_singlejob.locking.release.is_second_signal_received", lambda: True)
    tries = trying(error)
    assert len(tries.made_at) > 3
    assert 0.5 < tries.passed <= 2
    assert at_exit._granted == {}


def test_even_then_it_is_tried_on_a_new_connection(trying: Trying, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_singlejob.locking.release.is_second_signal_received", lambda: True)
    assert len(trying(LOST, each_takes=5.0).made_at) == 2


def test_a_database_that_is_read_only_may_be_replaced_but_not_while_the_process_exits(trying: Trying) -> None:
    tries = trying(READ_ONLY)
    assert tries.passed > 50
    assert "is read-only" in tries.loss, "It says what to do."
    assert at_exit._granted == {}
