"""What one pass over due jobs does after a time without passes: how many runs it starts, and at what cost."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_singlejob import current_run, singleton_job
from django_singlejob.jobs.schedule import latest_slot, next_slot, parse
from django_singlejob.jobs.slots import Policy, claim
from django_singlejob.models.jobs import gates
from tests.contract.acts import HOUR, gate, tick
from tests.databases import APPS
from tests.waiting import eventually

pytestmark = pytest.mark.django_db(transaction=True, available_apps=APPS)

MINUTE = timedelta(minutes=1)
MOST = 5
RUNS = {
    ("none", 0): 0,
    ("none", 1): 1,
    ("none", 150): 1,
    ("none", 100_000): 1,
    ("latest", 0): 0,
    ("latest", 1): 1,
    ("latest", 150): 1,
    ("latest", 100_000): 1,
    ("all", 0): 0,
    ("all", 1): 1,
    ("all", 150): MOST,
    ("all", 100_000): MOST,
}


def scheduled(name: str = "nightly", **settings: Any) -> list[datetime | None]:
    """A job that is known to the database, and the list of its runs."""
    slots: list[datetime | None] = []

    @singleton_job(name, **settings)
    def job() -> None:
        run = current_run()
        slots.append(run.slot if run else None)

    # Close to a full minute, the first slot may come due during the tick.
    eventually(lambda: datetime.now(UTC).second < 52)
    assert list(tick()) == []
    return slots


def miss(count: int, step: timedelta = MINUTE, name: str = "nightly") -> None:
    """This many slots have come due since the last look."""
    slot = gate(name).next_slot
    assert slot
    gates().filter(name=name).update(next_slot=slot - count * step)


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["* * * * *", MINUTE], ids=str)
@pytest.mark.parametrize(("catch_up", "missed"), RUNS)
def test_down_for_so_many_slots(
    catch_up: str, missed: int, schedule: str | timedelta, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("django_singlejob.jobs.slots.MAX_CATCH_UP", MOST)
    slots = scheduled(schedule=schedule, catch_up=catch_up)
    miss(missed)
    list(tick())
    runs = RUNS[catch_up, missed]
    status, kind = gate(), parse(schedule)
    # A minute may have passed since, with one more slot.
    assert runs <= len(slots) <= runs + 1
    assert status.next_slot == next_slot(kind, status.last_slot) if status.last_slot else not runs
    if slots and slots[-1]:
        assert slots[-1] == latest_slot(kind, slots[-1])
        assert [slot for slot in slots if slot] == sorted({slot for slot in slots if slot})
    assert list(tick()) == [] or len(slots) > runs


@pytest.mark.parametrize(("now", "due"), [((0, 45), (1, 0)), ((1, 10), (1, 0)), ((1, 10), (0, 0))])
def test_a_connections_own_time_zone_changes_nothing_when_its_clocks_change(
    now: tuple[int, int], due: tuple[int, int]
) -> None:
    policy = Policy(schedule=parse("0 * * * *"))
    at, first = (datetime(2026, 10, 25, *time, tzinfo=UTC) for time in (now, due))
    rome = ZoneInfo("Europe/Rome")
    assert claim(policy, first.astimezone(rome), at.astimezone(rome)) == claim(policy, first, at)


def test_a_run_that_was_repeated_meanwhile_is_not_repeated_once_more() -> None:
    """The repeat does not move the next slot, so only the fence shows it."""
    scheduled(schedule="0 0 1 1 *")
    seen = gates().look_up({"nightly"}, timedelta())["nightly"]
    assert gates().unchanged(seen).start(timedelta(), {"fence": seen.fence + 1})
    assert not gates().unchanged(seen).start(timedelta(), {})
    assert not gates().move_on(seen, {})


def test_too_late_is_not_run_at_all() -> None:
    slots = scheduled(schedule=timedelta(hours=1000), catch_up="none", misfire_grace=timedelta())
    miss(1, timedelta(hours=1000))
    (report,) = tick()
    assert report.outcome
    assert report.outcome.reason == "not_due"
    assert slots == []
    assert gate().misfire_count == 1


def test_a_job_that_fails_or_exits_stops_no_other() -> None:
    def fails() -> None:
        raise ValueError("poison")

    def leaves() -> None:
        raise SystemExit(3)

    ran = []
    for name, body in {"fails": fails, "leaves": leaves, "works": lambda: ran.append(1)}.items():
        singleton_job(name, schedule=MINUTE)(body)
    assert list(tick()) == []
    for name in ("fails", "leaves", "works"):
        miss(1, name=name)
    errors = {report.name: type(report.error) for report in tick()}
    assert errors == {"fails": ValueError, "leaves": SystemExit, "works": type(None)}
    assert ran


@pytest.mark.slow
def test_a_tick_costs_the_same_whatever_the_number_of_jobs_that_are_not_due() -> None:
    few, many = (queries_of_a_tick(count) for count in (10, 990))
    assert few == many


def queries_of_a_tick(more_jobs: int) -> int:
    known = gates().count()
    for number in range(known, known + more_jobs):
        singleton_job(f"job-{number}", schedule="0 0 1 1 *")(lambda: None)
    list(tick())
    due = [f"job-{number}" for number in range(10)]
    year = parse("0 0 1 1 *")
    slot = latest_slot(year, next_slot(year, _now()) - timedelta(days=1))
    gates().filter(name__in=due).update(next_slot=slot)
    with CaptureQueriesContext(connection) as queries:
        assert len(list(tick(interval=HOUR))) == 10
    return len(queries)


def _now() -> datetime:
    return gates().look_up({"job-0"}, timedelta())["job-0"].now
