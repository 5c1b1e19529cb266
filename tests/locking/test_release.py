"""What happens if a COMMIT that releases the lock gets no answer. See also ``contract/test_record_pairs``."""

from __future__ import annotations

import time
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from django.db import OperationalError

from django_singlejob import LeaseLost, database, job_lock
from django_singlejob.locking import at_exit
from django_singlejob.locking.clear import clear
from django_singlejob.locking.release import Release
from django_singlejob.querysets.locks import locks
from django_singlejob.results import Ending
from tests.contract.acts import gate, is_free, last_run, lock, start_run, take

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytest_plugins = "tests.fixtures"
pytestmark = [
    pytest.mark.django_db(transaction=True, available_apps=["django_singlejob"]),
    pytest.mark.usefixtures("fresh_process"),
]

SUCCESS = Ending(status="successful", duration=timedelta(seconds=1))


class SerializationFailure(Exception):
    sqlstate = "40001"


UNANSWERED = OperationalError("The connection was lost.")
UNDONE = OperationalError("Others were in the way.")
UNDONE.__cause__ = SerializationFailure()


@contextmanager
def commits(
    monkeypatch: pytest.MonkeyPatch, *, fail_with: Exception, carried_out: bool, then: Callable[[], object] = int
) -> Iterator[None]:
    """The first COMMIT inside fails, and then something else happens."""
    usual = database.durable
    failures = [fail_with]

    @contextmanager
    def failing(alias: str, **limits: Any) -> Iterator[None]:
        failure = failures.pop() if failures else None
        with usual(alias, **limits):
            yield
            if failure and not carried_out:
                database.roll_back(alias)
        if failure:
            then()
            raise failure

    with monkeypatch.context() as patch:
        patch.setattr(database, "durable", failing)
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
        "The lock 'nightly' could not be released, and is left to expire: The connection was lost. LINE 1: DELETE FROM "
        "... ^"
    )


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


def test_a_heartbeat_between_a_release_and_its_answer_finds_no_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    """The body releases its lock and continues without it."""
    usual = Release.carry_out

    def answered_late(release: Release) -> bool:
        is_released = usual(release)
        time.sleep(0.6)
        return is_released

    monkeypatch.setattr(Release, "carry_out", answered_late)
    with job_lock("nightly", lease=timedelta(seconds=1)) as lease:
        assert lease.release()
        assert is_free()


def test_the_exit_waits_no_more_for_what_came_too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    lease = take()
    monkeypatch.setattr("django_singlejob.locking.release._is_pointless", lambda *_: True)
    with commits(monkeypatch, fail_with=UNANSWERED, carried_out=False), pytest.raises(LeaseLost, match="is left to"):
        lease.finish()
    assert lease.token not in at_exit._granted


def test_the_gate_hears_nothing_of_a_run_that_has_no_lock_any_more() -> None:
    lease = start_run()
    locks()._raw_delete("default")
    assert not lease.finish(SUCCESS)
    assert (gate().run_count, gate().last_status, gate().last_finished_at) == (0, "", None)
