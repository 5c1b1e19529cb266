"""What the code says about its jobs, in the words of their rows."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from django_singlejob import InvalidSchedule, current_run, singleton_job
from django_singlejob.worker import timetable
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
    assert timetable.positions() == {
        "daily\n0 0 * * *\nEurope/Rome",
        "abroad\n5 * * * *\nAsia/Tokyo",
        "often\nP0DT00H10M00S\nUTC",
    }
    assert timetable.unscheduled() == {"called"}


def test_it_follows_each_change_of_a_job_or_of_the_time_zone(settings: Settings) -> None:
    scheduled("daily", schedule="@daily")
    timetable.positions()
    scheduled("daily", schedule="5 0 * * *")
    settings.TIME_ZONE = "Europe/Rome"
    assert timetable.positions() == {"daily\n5 0 * * *\nEurope/Rome"}


def test_a_schedule_that_cannot_work_in_the_projects_time_zone_is_invalid(settings: Settings) -> None:
    scheduled("daily", schedule="@daily")
    settings.TIME_ZONE = "Factory"
    with pytest.raises(InvalidSchedule, match="Factory"):
        timetable.positions()


def test_successive_turns_name_every_scheduled_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timetable, "AT_ONCE", 3)
    names = [scheduled(f"job-{number}").name for number in range(10)]
    parts = [timetable.part(turn) for turn in range(7, 11)]
    assert sorted(name for part in parts for name in part) == names
    assert max(map(len, parts)) == 3


def test_no_job_at_all_has_an_empty_part() -> None:
    assert list(timetable.part(5)) == []
