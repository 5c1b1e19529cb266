from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from django_singlejob.locking.request import LONGEST_INTERVAL, LockRequest, Reason, Refusal
from django_singlejob.models.holder import this_process

MINUTE = timedelta(minutes=1)


def request(lease: timedelta | None = None, *, heartbeat: bool = True) -> LockRequest:
    return LockRequest.of("nightly", lease=lease, heartbeat=heartbeat, wait=None, holder=this_process())


def test_the_settings_say_what_is_not_asked_for(settings: Any) -> None:
    settings.SINGLEJOB = {"LEASE": 6 * MINUTE, "HEARTBEATS_PER_LEASE": 6}
    assert (request().lease, request().heartbeat_interval) == (6 * MINUTE, MINUTE)
    assert request(3 * MINUTE).heartbeat_interval == MINUTE / 2


def test_a_heartbeat_comes_often_enough_for_a_watch() -> None:
    assert request(timedelta(days=7)).heartbeat_interval == LONGEST_INTERVAL
    assert request(heartbeat=False).heartbeat_interval is None


@pytest.mark.parametrize("reason", Reason)
def test_only_a_lock_that_somebody_may_have_is_worth_waiting_for(reason: Reason) -> None:
    assert Refusal(reason).may_be_held == (reason in {Reason.HELD, Reason.UNDECIDED})
