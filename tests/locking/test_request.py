from __future__ import annotations

from datetime import timedelta
from typing import Any

from django_singlejob.locking.request import LONGEST_INTERVAL, SHORTEST_INTERVAL, LockRequest
from django_singlejob.process.holder import this_process


def request(lease: timedelta | None = None, *, heartbeat: bool = True) -> LockRequest:
    return LockRequest.of("nightly", lease=lease, heartbeat=heartbeat, wait=None, holder=this_process())


def test_a_heartbeat_comes_often_enough_for_a_watch() -> None:
    assert request(timedelta(days=7)).heartbeat_interval == LONGEST_INTERVAL
    assert request(timedelta(seconds=0.5)).heartbeat_interval == timedelta(seconds=0.5) / 6
    assert request(heartbeat=False).heartbeat_interval is None


def test_heartbeats_do_not_come_faster_than_a_database_answers(settings: Any) -> None:
    settings.SINGLEJOB = {"HEARTBEATS_PER_LEASE": 1000}
    assert request(timedelta(seconds=0.5)).heartbeat_interval == SHORTEST_INTERVAL
