from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from django_singlejob import LeaseLost
from django_singlejob.database import sent_now
from django_singlejob.querysets.locks import locks
from django_singlejob.results import Ending
from tests.contract.acts import MINUTE, last_run, lock, lose, nth_fence, start_run, take

if TYPE_CHECKING:
    from django_singlejob import Lease
    from tests.fixtures import Away

pytest_plugins = "tests.fixtures"
pytestmark = pytest.mark.usefixtures("fresh_process")
committed = pytest.mark.django_db(transaction=True, available_apps=["django_singlejob"])

SECOND = timedelta(seconds=1)
SUCCESS = Ending(status="successful", duration=SECOND)


def age(lease: Lease, by: timedelta) -> None:
    """As if the database had not answered for this long."""
    lease._proven_at -= by.total_seconds()


def public(lease: Lease) -> Lease:
    """As outside a TestCase, whose transaction keeps everybody else from taking over the lock."""
    lease.is_private = False
    return lease


@pytest.mark.django_db
class TestLease:
    def test_it_shows_its_name_and_its_fence(self) -> None:
        assert repr(take()) == f"<Lease 'nightly' fence={nth_fence(1)}>"

    def test_its_end_moves_with_each_renewal(self) -> None:
        lease = take()
        assert lease.expires_at == lease.acquired_at + MINUTE
        lease.renew()
        assert timedelta() < lease.expires_at - lease.acquired_at - MINUTE < SECOND
        assert abs(lease.expires_at - lock().expires_at) < SECOND

    def test_it_distrusts_itself_when_it_could_not_be_renewed_for_its_length(self) -> None:
        lease = public(take())
        age(lease, MINUTE - SECOND)
        lease.check()
        age(lease, SECOND)
        assert lease.lost
        with pytest.raises(LeaseLost, match="'nightly' could not be renewed for 0:01:00: the database does not answer"):
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

    @pytest.mark.on_database("postgresql", "mysql")
    def test_behind_the_fence_time_counts_as_everywhere(self) -> None:
        lease = public(take())
        with lease.atomic():
            age(lease, MINUTE)
            with pytest.raises(LeaseLost, match="could not be renewed"):
                lease.check()
        assert lock().heartbeats == 0

    def test_a_heartbeat_says_when_it_was_sent(self) -> None:
        """The time is by the holder's clock, and an observer compares it with its own clock."""
        lease = take()
        locks().update(sent_at=sent_now() - MINUTE)
        before = sent_now()
        lease.renew()
        assert before <= lock().sent_at <= sent_now()

    def test_a_renewal_that_finds_another_holder_is_a_loss_for_good(self) -> None:
        zombie, successor = lose()
        for use in zombie.renew, zombie.check, zombie.renew, zombie.atomic().__enter__:
            with pytest.raises(LeaseLost, match="'nightly' was lost: it was taken over, cleared, or its row"):
                use()
        successor.check()

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

    def test_a_loss_that_is_found_at_the_end_is_called_a_loss(self) -> None:
        lease = start_run()
        locks()._raw_delete("default")
        assert not lease.finish(SUCCESS)
        assert "it was taken over, cleared, or its row was deleted" in lease.why_lost()
        assert last_run().status == "failed"
        assert last_run().error == f"LeaseLost: {lease.why_lost()}"


# --- when the database is away


@committed
@pytest.mark.parametrize("method", ["finish", "release"])
def test_a_release_that_fails_is_a_loss_and_says_so(method: str, database_away: Away) -> None:
    lease = take()
    lease.is_private = True  # so that it does not ask again
    with database_away(), pytest.raises(LeaseLost, match="'nightly' could not be released, and is left to expire: "):
        getattr(lease, method)()
    assert lease.lost
    assert lock().token == lease.token


@committed
def test_a_run_that_cannot_be_closed_is_only_logged(database_away: Away, caplog: pytest.LogCaptureFixture) -> None:
    lease = start_run()
    lease.release()
    with database_away():
        assert lease.finish(SUCCESS)
    assert "The end of a run of 'nightly' is not in the history yet (" in caplog.text
