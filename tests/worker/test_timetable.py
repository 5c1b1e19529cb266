"""What the code says about its jobs, in the words of their rows."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from django_singlejob import InvalidSchedule, current_run, singleton_job
from django_singlejob.worker import timetable as room
from django_singlejob.worker.timetable import timetable
from tests.contract.acts import scheduled

if TYPE_CHECKING:
    from pytest_django import Settings

pytest_plugins = "tests.fixtures"
pytestmark = pytest.mark.usefixtures("fresh_process")


def test_it_has_the_name_schedule_and_time_zone_of_each_scheduled_job(settings: Settings) -> None:
    settings.TIME_ZONE = "Europe/Rome"
    scheduled("daily", schedule="@daily")
    scheduled("abroad", schedule="5  * * * *", time_zone="Asia/Tokyo")
    scheduled("often", schedule=timedelta(minutes=10))
    singleton_job("called")(current_run)
    assert timetable().positions == {
        "daily\n0 0 * * *\nEurope/Rome",
        "abroad\n5 * * * *\nAsia/Tokyo",
        "often\nP0DT00H10M00S\nUTC",
    }
    assert timetable().unscheduled == {"called"}


def test_it_is_worked_out_once_until_a_job_or_the_time_zone_changes(settings: Settings) -> None:
    scheduled("daily", schedule="@daily")
    first = timetable()
    assert timetable() is first
    scheduled("daily", schedule="5 0 * * *")
    assert timetable() is not first
    second = timetable()
    settings.TIME_ZONE = "Europe/Rome"
    assert timetable() is not second
    assert timetable().positions == {"daily\n5 0 * * *\nEurope/Rome"}


def test_a_schedule_that_cannot_work_in_the_projects_time_zone_is_invalid(settings: Settings) -> None:
    scheduled("daily", schedule="@daily")
    settings.TIME_ZONE = "Factory"
    with pytest.raises(InvalidSchedule, match="Factory"):
        _ = timetable().positions


def test_successive_turns_name_every_scheduled_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "AT_ONCE", 3)
    names = [scheduled(f"job-{number}").name for number in range(10)]
    parts = [timetable().part(turn) for turn in range(7, 11)]
    assert sorted(name for part in parts for name in part) == names
    assert max(map(len, parts)) == 3


def test_no_job_at_all_has_an_empty_part() -> None:
    assert list(timetable().part(5)) == []


def test_it_knows_the_jobs_that_share_a_lock() -> None:
    for name in ("first", "second"):
        singleton_job(name, lock="shared")(current_run)
    singleton_job("third")(current_run)
    assert timetable().sharing("shared") == {"first", "second"}
    assert timetable().sharing("third") == {"third"}
    assert timetable().sharing("nobody's") == set()
