from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import uuid4
from zoneinfo import ZoneInfo

import pytest

from django_singlejob import singleton_job
from django_singlejob.admin.slots import QUARTER, Day, SlotState, Span, begin_of, days, quarter_of
from django_singlejob.jobs.schedule import EPOCH, Every
from django_singlejob.models import JobRun
from django_singlejob.models.jobs import gates
from django_singlejob.models.locks import locks
from django_singlejob.models.runs import runs
from django_singlejob.monitoring.health import survey
from tests.contract.acts import HOUR, MINUTE, take

if TYPE_CHECKING:
    pass

pytest_plugins = ["tests.fixtures"]
pytestmark = [pytest.mark.usefixtures("fresh_process"), pytest.mark.django_db]

DAY, SECOND, RESOLUTION = timedelta(days=1), timedelta(seconds=1), timedelta.resolution
BAD, NOT_RUN, RUNNING, SUCCESSFUL, SKIPPED, TO_COME = SlotState
# Some of the pages ask the database for the time, so this is near it.
NOW = datetime.now(UTC).replace(minute=7, second=0, microsecond=0)


def known(name: str = "nightly", schedule: str = "0 * * * *", zone: str = "UTC", **columns: Any) -> None:
    gates().create(name=name, **{"schedule": schedule, "time_zone": zone, "last_started_at": NOW} | columns)


def ran(slot: datetime | None, name: str = "nightly", status: str = "successful", **columns: Any) -> None:
    facts = {"fence": 1, "token": uuid4(), "trigger": "schedule", "hostname": "web-1", "pid": 1, "attempt": 1}
    times = {"started_at": (slot or NOW) + SECOND, "finished_at": None if status == "running" else NOW}
    runs().create(job_name=name, slot=slot, status=status, **facts | times | columns)


def day(name: str = "nightly", now: datetime = NOW, most: int = 1000) -> Day:
    (found,) = days(survey([name]).healths, Span(now=now), most)
    return found


def of_hour(found: Day, hour: datetime) -> Counter[SlotState]:
    quarters = [found.quarters.get(quarter_of(hour) + number, Counter()) for number in range(4)]
    return sum(quarters, Counter[SlotState]())


def test_slots_are_in_the_state_of_their_runs() -> None:
    top = NOW.replace(minute=0)
    known(next_slot=top + HOUR)
    ended = ["successful", "failed", "abandoned", "interrupted", "skipped"]
    for ago, status in zip((6, 5, 4, 3, 2), ended, strict=True):
        ran(top - ago * HOUR, status=status)
    ran(top, status="running")
    take("lock")
    locks().update(token=runs().get(status="running").token)
    found = day()
    expected = [SUCCESSFUL, BAD, BAD, BAD, SKIPPED, NOT_RUN, RUNNING, TO_COME]
    assert [of_hour(found, top + ahead * HOUR) for ahead in range(-6, 2)] == [Counter([state]) for state in expected]
    assert found.counts[TO_COME] == 24
    assert found.since is None


def test_a_run_of_a_dead_holder_is_not_running() -> None:
    known(next_slot=NOW + HOUR)
    ran(NOW.replace(minute=0), status="running")
    assert day().counts[BAD] == 1
    assert day().counts[RUNNING] == 0


def test_runs_without_a_slot_count_and_are_in_the_place_of_none() -> None:
    top = NOW.replace(minute=0)
    known(next_slot=top + HOUR)
    ran(top - 2 * HOUR)
    ran(None, trigger="call", started_at=top - HOUR + MINUTE)
    assert of_hour(day(), top - HOUR) == Counter([SUCCESSFUL, NOT_RUN])


def test_a_slot_that_was_run_again_is_one_slot() -> None:
    top = NOW.replace(minute=0)
    known(schedule="0,5 * * * *", next_slot=top + HOUR)
    ran(top - HOUR, status="abandoned")
    ran(top - HOUR, attempt=2)
    assert of_hour(day(), top - HOUR) == Counter([BAD, SUCCESSFUL, NOT_RUN])


def test_what_was_before_the_first_run_is_not_known() -> None:
    top = NOW.replace(minute=0)
    known(next_slot=top + HOUR)
    ran(top - 3 * HOUR)
    assert day().counts == Counter({SUCCESSFUL: 1, NOT_RUN: 3, TO_COME: 24})


def test_a_late_run_stands_at_its_slot() -> None:
    top = NOW.replace(minute=0)
    known(next_slot=top + HOUR)
    ran(top - 3 * HOUR, started_at=top - HOUR)
    assert of_hour(day(), top - 3 * HOUR) == Counter([SUCCESSFUL])


def test_a_slot_that_a_cron_daemon_ran_early_was_run() -> None:
    known(schedule="*/15 * * * *", next_slot=NOW.replace(minute=30))
    ran(NOW.replace(minute=15), started_at=NOW.replace(minute=14, second=50))
    found = day(now=NOW.replace(minute=14, second=55))
    assert found.quarters[quarter_of(NOW.replace(minute=15))] == Counter([SUCCESSFUL])


@pytest.mark.parametrize(
    ("late", "state"), [(timedelta(), TO_COME), (4 * MINUTE, TO_COME), (6 * MINUTE, NOT_RUN), (3 * HOUR, NOT_RUN)]
)
def test_a_slot_that_is_due_is_to_come_until_it_is_overdue(late: timedelta, state: SlotState) -> None:
    known(schedule="*/1 * * * *", next_slot=NOW - late)
    assert of_hour(day(), (NOW - late).replace(minute=0))[state] > 0


def test_of_a_paused_job_nothing_is_to_come() -> None:
    known(next_slot=NOW - 2 * HOUR, paused=True)
    assert day().counts == Counter({NOT_RUN: 2})


def test_until_its_pause_ends_by_itself() -> None:
    known("nightly", "0 * * * *", next_slot=NOW - 2 * HOUR, paused=True, paused_until=NOW + 3 * HOUR)
    assert day().counts[TO_COME] == 21


def test_nor_is_a_slot_of_it_that_came_due_a_moment_ago() -> None:
    for name, is_paused in ("paused", True), ("nightly", False):
        known(name, "* * * * *", next_slot=NOW - 2 * MINUTE, paused=is_paused)
    assert day("paused").counts == Counter({NOT_RUN: 2})
    assert day("nightly").counts[NOT_RUN] == 0


def test_a_job_that_no_server_has_requested_has_slots_to_come() -> None:
    singleton_job("weekly", schedule="0 */6 * * *")(print)
    assert day("weekly").counts == Counter({TO_COME: 4})


def test_a_job_without_a_schedule_has_runs_only() -> None:
    known(schedule="", next_slot=None)
    ran(None, trigger="call")
    assert day().counts == Counter({SUCCESSFUL: 1})


def test_what_only_a_newer_release_understands_has_no_slots() -> None:
    known(schedule="at noon", next_slot=NOW)
    assert day().counts == Counter()


def test_a_job_of_each_second_is_counted_by_quarters() -> None:
    known(schedule="PT1S", next_slot=NOW)
    found = day()
    assert set(found.quarters) == set(range(quarter_of(NOW), quarter_of(NOW + DAY) + 1))
    assert found.counts == Counter({TO_COME: (begin_of(quarter_of(NOW + DAY) + 1) - NOW) // SECOND})


def test_of_very_many_runs_the_newest_are_counted() -> None:
    known(schedule="* * * * *", next_slot=NOW + MINUTE)
    JobRun.objects.bulk_create(
        JobRun(
            job_name="nightly",
            fence=1,
            token=uuid4(),
            status="successful",
            trigger="schedule",
            slot=NOW - ago * MINUTE,
            started_at=NOW - ago * MINUTE,
            hostname="web-1",
            pid=1,
        )
        for ago in range(100)
    )
    found = day(most=30)
    assert found.counts[SUCCESSFUL] == 30
    assert found.since == NOW - 30 * MINUTE
    assert found.counts[NOT_RUN] <= 1  # the slot of the run that is not counted any more
    assert day().counts[SUCCESSFUL] == 100


@pytest.mark.parametrize(
    ("now", "schedule", "expected"),
    [
        # 02:30 is skipped, so it is due at 03:00, or repeated, and then due the first time only.
        (datetime(2026, 3, 28, 12, tzinfo=UTC), "30 2 * * *", [datetime(2026, 3, 29, 1, tzinfo=UTC)]),
        (datetime(2026, 10, 24, 12, tzinfo=UTC), "30 2 * * *", [datetime(2026, 10, 25, 0, 30, tzinfo=UTC)]),
        (
            datetime(2026, 10, 24, 12, tzinfo=UTC),
            "*/30 2 * * *",
            [datetime(2026, 10, 25, 0, tzinfo=UTC) + number * MINUTE * 30 for number in range(4)],
        ),
    ],
)
def test_when_clocks_change_slots_are_where_the_schedule_has_them(
    now: datetime, schedule: str, expected: list[datetime]
) -> None:
    known(schedule=schedule, zone="Europe/Rome", next_slot=expected[0])
    assert day(now=now).quarters == {quarter_of(slot): Counter([TO_COME]) for slot in expected}


@pytest.mark.parametrize("interval", [7 * MINUTE, SECOND / 3])
def test_quarters_together_have_all_slots_of_an_interval(interval: timedelta) -> None:
    known(schedule=Every(interval).text, zone="UTC", next_slot=NOW)
    before, last = ((instant - RESOLUTION - EPOCH) // interval for instant in (NOW, end_of_span()))
    assert day().counts[TO_COME] == last - before
    most = -(-QUARTER // interval)
    assert max(counts[TO_COME] for counts in day().quarters.values()) <= most


def test_quarters_together_have_all_slots_of_a_crontab() -> None:
    known(schedule="*/7 3-5 * * *", zone="Europe/Rome", next_slot=NOW)
    minutes = (NOW + number * MINUTE for number in range((end_of_span() - NOW) // MINUTE))
    local = [instant.astimezone(ZoneInfo("Europe/Rome")) for instant in minutes]
    # The span is longer than a day, so between three and six in Rome it has some of these minutes twice.
    assert day().counts[TO_COME] == sum(one.hour in {3, 4, 5} and one.minute % 7 == 0 for one in local)


def end_of_span() -> datetime:
    return begin_of(quarter_of(NOW + DAY) + 1)
