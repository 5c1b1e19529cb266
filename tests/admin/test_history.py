from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from django_singlejob.admin.history import (
    RecordedRun,
    costs,
    last_errors,
    winners,
)
from django_singlejob.models.jobs import gates
from django_singlejob.models.runs import runs
from django_singlejob.process.clock import DBNow

if TYPE_CHECKING:
    pass

pytestmark = pytest.mark.django_db

HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)
SECOND = timedelta(seconds=1)
NOW = datetime(2026, 11, 21, 12, 5, tzinfo=UTC)


def ran(ago: timedelta, name: str = "nightly", **columns: Any) -> int:
    """Record a run that started `ago` and took a second. Returns its primary key."""
    facts = {"fence": 1, "token": uuid4(), "status": "successful", "trigger": "call", "hostname": "web-1", "pid": 1}
    times = {"started_at": DBNow() - ago, "finished_at": DBNow() - ago + SECOND, "duration": SECOND}
    return runs().create(job_name=name, **facts | times | columns).pk


def run(**columns: Any) -> RecordedRun:
    """A run that is not in the database."""
    facts: dict[str, Any] = {
        "pk": 1,
        "job_name": "nightly",
        "status": "successful",
        "hostname": "web-1",
        "acquire_duration": None,
    }
    return RecordedRun(**facts | {"started_at": NOW - HOUR, "finished_at": NOW - HOUR + MINUTE} | columns)


# --- the runs of a job


# --- the runs around one


# --- the runs of a period


# --- what the runs show


def test_an_abandoned_run_is_not_a_sign_of_life_but_a_heartbeat_is() -> None:
    dead = run(status="abandoned", finished_at=NOW)
    assert winners([dead])[0].last_seen == NOW - HOUR
    heartbeats = [("web-1", NOW - MINUTE), ("elsewhere", NOW)]
    assert [winner.last_seen for winner in winners([dead], heartbeats)] == [NOW - MINUTE]


def test_costs_are_counted_by_bounds() -> None:
    found = costs(run(acquire_duration=timedelta(milliseconds=cost)) for cost in (1, 5, 6, 80, 1500))
    assert found is not None
    counts = {bound and round(bound / SECOND * 1000): number for bound, number in found.counts}
    assert counts == {5: 2, 10: 1, 20: 0, 50: 0, 100: 1, 200: 0, 500: 0, 1000: 0, None: 1}
    summary = [found.least, found.median, found.mean, found.p95, found.most]
    assert [round(cost / SECOND * 1000) for cost in summary] == [1, 6, 318, 1500, 1500]


def test_the_median_of_two_lies_between_them() -> None:
    found = costs([run(acquire_duration=SECOND), run(acquire_duration=3 * SECOND)])
    assert found
    assert found.median == 2 * SECOND


# --- what went wrong


def test_the_last_error_is_of_one_run_if_two_began_at_the_same_instant() -> None:
    gates().remember("nightly")
    gates().update(consecutive_failures=2)
    at = datetime.now(UTC)
    for key in 905, 907, 901, 909, 903, 908, 904:  # a database may return the one that was written first, or last
        ran(HOUR, status="failed", started_at=at, pk=key, error=f"number {key}")
    assert last_errors(["nightly"]) == {"nightly": (909, "number 909")}
