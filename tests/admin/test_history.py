from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from django_singlejob.admin import history
from django_singlejob.admin.history import (
    STALE,
    RecordedRun,
    Winner,
    costs,
    errors_of,
    last_errors,
    neighbours,
    period,
    recent_runs,
    success_rate,
    winners,
)
from django_singlejob.models.jobs import gates
from django_singlejob.models.runs import runs
from django_singlejob.process.clock import DBNow

if TYPE_CHECKING:
    from pytest_django import DjangoAssertNumQueries

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


def running(ago: timedelta, **columns: Any) -> int:
    return ran(ago, **{"status": "running", "finished_at": None, "duration": None} | columns)


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


def keys(some: Any) -> list[int]:
    return [run.pk for run in some]


# --- the runs of a job


def test_the_newest_runs_of_each_job_come_oldest_first(
    monkeypatch: pytest.MonkeyPatch, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    monkeypatch.setattr(history, "RECENT", 2)
    gates().remember("nightly", "hourly", "never")
    nightly = [ran(ago * HOUR) for ago in (3, 2, 1)]
    hourly = ran(5 * HOUR, "hourly")
    with django_assert_num_queries(2):
        found = recent_runs(["nightly", "hourly", "never", "unknown"])
    assert {name: keys(some) for name, some in found.items()} == {
        "nightly": nightly[1:],
        "hourly": [hourly],
        "never": [],
        "unknown": [],
    }


def test_a_run_of_a_dead_holder_is_stale(django_assert_num_queries: DjangoAssertNumQueries) -> None:
    gates().remember("nightly")
    ran(2 * HOUR)
    running(HOUR)
    with django_assert_num_queries(3):
        assert [run.status for run in recent_runs(["nightly"])["nightly"]] == ["successful", STALE]


# --- the runs around one


def test_the_neighbours_take_three_queries(django_assert_num_queries: DjangoAssertNumQueries) -> None:
    first, second = ran(3 * HOUR), ran(2 * HOUR)
    third = running(HOUR)
    run = runs().get(pk=second)
    with django_assert_num_queries(3):
        found = neighbours(run)
    assert found.before
    assert found.after
    assert (found.before.pk, found.after.pk, found.after.status) == (first, third, STALE)
    assert found.of_slot == []


# --- the runs of a period


def test_a_window_has_what_began_in_it(django_assert_num_queries: DjangoAssertNumQueries) -> None:
    ran(7 * HOUR)
    older, newer = ran(5 * HOUR), running(HOUR)
    with django_assert_num_queries(3):
        found = period(6 * HOUR)
    assert keys(found.runs) == [newer, older]
    assert not found.earlier
    assert not found.is_cut
    assert found.now - found.begin == 6 * HOUR


def test_runs_that_began_before_it_and_go_on_are_listed_separately() -> None:
    ran(9 * HOUR)
    long = running(9 * HOUR)
    found = period(6 * HOUR)
    assert (keys(found.runs), keys(found.earlier)) == ([], [long])


def test_a_window_holds_no_more_than_the_newest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "MOST", 3)
    some = [ran(ago * MINUTE) for ago in (4, 3, 2)]
    assert not period(HOUR).is_cut
    some.append(ran(MINUTE))
    found = period(HOUR)
    assert keys(found.runs) == some[:0:-1]
    assert found.is_cut


def test_its_now_is_the_databases_also_where_nothing_has_run() -> None:
    before = period(HOUR).now
    ran(timedelta())
    after = period(HOUR).now
    assert before.tzinfo is UTC
    assert before <= period(HOUR).runs[0].started_at <= after


def test_it_reads_what_is_needed_of_a_run() -> None:
    pk = ran(HOUR, hostname="web-2", status="failed", acquire_duration=timedelta(milliseconds=7), error="Oh no")
    (found,) = period(6 * HOUR).runs
    assert found.finished_at is not None
    assert round((found.finished_at - found.started_at) / SECOND) == 1
    assert (found.pk, found.job_name, found.hostname, found.status) == (pk, "nightly", "web-2", "failed")
    assert found.acquire_duration == timedelta(milliseconds=7)
    assert found.is_bad


# --- what the runs show


def test_the_server_with_most_wins_comes_first() -> None:
    later = run(hostname="web-2", started_at=NOW - MINUTE, finished_at=None, status="running")
    some = [later, run(hostname="web-2", status="failed"), run(hostname="web-2"), run()]
    assert winners(some) == [
        Winner(hostname="web-2", won=3, share=0.75, bad=1, last_seen=NOW - MINUTE),
        Winner(hostname="web-1", won=1, share=0.25, bad=0, last_seen=NOW - HOUR + MINUTE),
    ]
    assert winners([]) == []


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


def test_without_a_measured_cost_there_are_none() -> None:
    assert costs([run()]) is None
    assert costs([]) is None


def test_the_success_rate_is_of_those_that_ended() -> None:
    assert success_rate({"successful": 3, "failed": 1, "running": 5}) == 0.75
    assert success_rate({"interrupted": 1}) == 0
    assert success_rate({"successful": 3, "failed": 1, "skipped": 4}) == 0.75
    assert success_rate({"skipped": 1}) is None
    assert success_rate({"running": 1}) is None
    assert success_rate({}) is None


# --- what went wrong


def test_the_errors_of_runs() -> None:
    bad = ran(HOUR, status="failed", error="ValueError: no")
    assert errors_of([run(pk=bad), run(pk=bad + 1)]) == {bad: "ValueError: no"}


def test_the_last_error_of_each_failing_job(django_assert_num_queries: DjangoAssertNumQueries) -> None:
    gates().remember("nightly", "hourly", "well", "pruned")
    gates().filter(name__in=["nightly", "hourly", "pruned"]).update(consecutive_failures=2)
    ran(3 * HOUR, status="failed", error="the first")
    last = ran(2 * HOUR, status="abandoned", error="the last")
    running(HOUR)
    too_long = ran(HOUR, "hourly", status="interrupted", error="too long")
    ran(HOUR, "well", status="failed", error="long ago")
    with django_assert_num_queries(1):
        found = last_errors(["nightly", "hourly", "pruned", "well"])
    assert found == {"nightly": (last, "the last"), "hourly": (too_long, "too long")}


def test_the_last_error_is_of_one_run_if_two_began_at_the_same_instant() -> None:
    gates().remember("nightly")
    gates().update(consecutive_failures=2)
    at = datetime.now(UTC)
    for key in 905, 907, 901, 909, 903, 908, 904:  # a database may return the one that was written first, or last
        ran(HOUR, status="failed", started_at=at, pk=key, error=f"number {key}")
    assert last_errors(["nightly"]) == {"nightly": (909, "number 909")}
