"""Heartbeats: those that are due are sent together, and what is lost is reported once."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from django.db import OperationalError

from django_singlejob import LeaseLost
from django_singlejob.locking import heartbeat
from django_singlejob.locking.heartbeat import Heartbeats
from django_singlejob.models.locks import JobLockQuerySet, locks
from django_singlejob.process.clock import local_now
from django_singlejob.signals import lease_lost
from tests.contract.acts import take
from tests.databases import APPS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django_singlejob import Lease

pytest_plugins = "tests.fixtures"
pytestmark = [
    pytest.mark.django_db(transaction=True, available_apps=APPS),
    pytest.mark.usefixtures("fresh_process"),
]


@pytest.fixture
def losses() -> Iterator[list[Lease]]:
    found: list[Lease] = []

    def note(lease: Lease, **_: Any) -> None:
        found.append(lease)

    lease_lost.connect(note)
    yield found
    lease_lost.disconnect(note)


@pytest.fixture
def statements(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many leases each statement for several of them renews."""
    counts: list[int] = []
    renew_together = JobLockQuerySet.renew_together

    def counted(rows: JobLockQuerySet, leases: list[Lease], *args: Any) -> Any:
        counts.append(len(leases))
        return renew_together(rows, leases, *args)

    monkeypatch.setattr(JobLockQuerySet, "renew_together", counted)
    return counts


def kept(*names: str, lease: timedelta = timedelta(seconds=60)) -> tuple[Heartbeats, list[Lease]]:
    heartbeats, leases = Heartbeats(), [take(name, lease=lease, heartbeat_interval=lease / 6) for name in names]
    for each in leases:
        heartbeats.add(each)
    return heartbeats, leases


def come_due(heartbeats: Heartbeats) -> None:
    for each in heartbeats._heartbeats.values():
        each.due_at = float("-inf")


def beats() -> dict[str, int]:
    return dict(locks().values_list("name", "heartbeats"))


def test_those_that_are_due_are_renewed_together(statements: list[int]) -> None:
    heartbeats, _ = kept("a", "b", "c")
    heartbeats.beat()
    assert statements == []
    come_due(heartbeats)
    heartbeats.beat()
    assert statements == [3]
    assert beats() == {"a": 1, "b": 1, "c": 1}


def test_one_that_is_due_soon_goes_along(statements: list[int]) -> None:
    heartbeats, leases = kept("a", "b", "c")
    a, b, _ = (heartbeats._heartbeats[lease] for lease in leases)
    a.due_at = float("-inf")
    b.due_at -= 8  # of ten seconds
    heartbeats.beat()
    assert statements == [2]


def test_leases_of_one_length_each(statements: list[int]) -> None:
    heartbeats, _ = kept("a", "b")
    others, more = kept("c", "d", lease=timedelta(seconds=30))
    for each in more:
        heartbeats.add(each)
    assert others.are_needed
    come_due(heartbeats)
    heartbeats.beat()
    assert statements == [2, 2]


def test_more_than_one_statement_can_renew_are_renewed_with_several(
    statements: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat, "AT_ONCE", 2)
    heartbeats, _ = kept("a", "b", "c", "d", "e")
    come_due(heartbeats)
    heartbeats.beat()
    assert statements == [2, 2, 1]
    assert set(beats().values()) == {1}


def test_a_stolen_lease_is_lost_alone_and_reported_once(losses: list[Lease], caplog: pytest.LogCaptureFixture) -> None:
    heartbeats, (kept_one, stolen) = kept("a", "b")
    locks().filter(name="b").delete()
    for _ in range(3):
        come_due(heartbeats)
        heartbeats.beat()
    assert losses == [stolen]
    assert not kept_one.lost
    with pytest.raises(LeaseLost):
        stolen.check()
    assert [record.levelname for record in caplog.records] == ["ERROR"]


def test_a_lease_that_was_released_is_no_loss(losses: list[Lease]) -> None:
    heartbeats, (lease,) = kept("a")
    assert lease.release()
    come_due(heartbeats)
    heartbeats.beat()
    assert losses == []
    assert heartbeats.next_at == float("inf")


def test_after_a_failure_the_next_one_follows_soon(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    heartbeats, (lease,) = kept("a")
    come_due(heartbeats)
    with monkeypatch.context() as patch:

        def fail(*args: Any, **terms: Any) -> None:
            raise OperationalError("it is away")

        patch.setattr(JobLockQuerySet, "renew", fail)
        heartbeats.beat()
    assert heartbeats.next_at <= local_now() + 1
    assert not lease.lost
    assert "will be retried soon: it is away" in caplog.text


def test_a_row_that_is_locked_lets_no_other_lease_expire(monkeypatch: pytest.MonkeyPatch) -> None:
    """The statement for all of them fails, as after a deadlock: they are renewed one by one."""

    def refuse(*_: Any) -> None:
        raise ValueError("one of the rows may be the reason")

    heartbeats, _ = kept("a", "b")
    come_due(heartbeats)
    monkeypatch.setattr(JobLockQuerySet, "renew_together", refuse)
    heartbeats.beat()
    assert beats() == {"a": 1, "b": 1}


def test_without_an_interval_there_are_none() -> None:
    heartbeats, lease = Heartbeats(), take("a")
    heartbeats.add(lease)
    assert heartbeats.next_at == lease.deadline
