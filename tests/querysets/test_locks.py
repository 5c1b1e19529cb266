"""Which locks are live, stale or overrunning."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from django_singlejob.clock import DBNow
from django_singlejob.querysets.jobs import gates
from django_singlejob.querysets.locks import locks
from tests.contract.acts import expire, start_run, take

if TYPE_CHECKING:
    from pytest_django import Settings

pytest_plugins = "tests.fixtures"
pytestmark = [pytest.mark.usefixtures("fresh_process"), pytest.mark.django_db]

MINUTE = timedelta(minutes=1)


# --- late locks


def means(mean: timedelta | None, *, count: int = 5) -> dict[str, timedelta]:
    gates().update(mean_duration=mean, run_count=count)
    return gates().means()


@pytest.mark.parametrize(("factor", "held_for", "is_overrunning"), [(3, 2.9, False), (3, 3.1, True), (1.5, 1.6, True)])
def test_a_live_holder_is_overrunning_past_a_multiple_of_the_mean(
    settings: Settings, factor: float, held_for: float, is_overrunning: bool
) -> None:
    settings.SINGLEJOB = {"OVERRUN_FACTOR": factor}
    start_run()
    locks().update(acquired_at=DBNow() - MINUTE * held_for)
    assert locks().overrunning(means(MINUTE)).exists() is is_overrunning


def test_no_other_is_overrunning() -> None:
    start_run("nightly")
    start_run("hourly")
    take("block")
    locks().update(acquired_at=DBNow() - 10 * MINUTE)
    gates().filter(name="nightly").update(mean_duration=MINUTE, run_count=5)
    gates().filter(name="hourly").update(mean_duration=4 * MINUTE, run_count=5)
    assert [late.name for late in locks().overrunning(gates().means())] == ["nightly"]
    expire("nightly")
    assert not locks().overrunning(gates().means()).exists()
    assert not locks().overrunning({}).exists()


def test_a_lock_is_either_live_or_stale() -> None:
    take("nightly")
    take("hourly")
    expire("hourly")
    assert [lock.name for lock in locks().live()] == ["nightly"]
    assert [lock.name for lock in locks().stale()] == ["hourly"]
    assert {lock.name: lock.is_stale for lock in locks().judged()} == {"nightly": False, "hourly": True}
