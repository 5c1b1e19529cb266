"""A job's slots on a day are compared with those that a test expects."""

from __future__ import annotations

from datetime import date, datetime, timedelta
from typing import Any

import pytest

from django_singlejob import SingleJobError, UnknownJob, singleton_job
from django_singlejob.testing import assert_scheduled

pytest_plugins = ["tests.fixtures"]
pytestmark = [pytest.mark.on_database("sqlite"), pytest.mark.usefixtures("fresh_process")]


@pytest.fixture(autouse=True)
def kind() -> None:
    """No database may be used."""


def job(schedule: Any, **settings: Any) -> Any:
    return singleton_job("report", schedule=schedule, **settings)(int)


@pytest.mark.parametrize(
    ("schedule", "zone", "day", "times"),
    [
        ("30 1,13 * * *", "Europe/Rome", "2027-03-27", ["01:30", "13:30"]),
        ("30 2 * * *", "Europe/Rome", "2027-03-28", ["03:00"]),
        ("30 */2 * * *", "Europe/Rome", "2027-03-28", [f"{hour:02}:30" for hour in range(0, 24, 2) if hour != 2]),
        ("*/30 1-3 * * *", "Europe/Rome", "2027-03-28", ["01:00", "01:30", "03:00", "03:30"]),
        ("*/30 2 * * *", "Europe/Rome", "2027-10-31", ["02:00", "02:30", "02:00", "02:30"]),
        ("30 2 * * *", "Europe/Rome", "2027-10-31", ["02:30"]),
        ("0 0 * * *", "Pacific/Kiritimati", "2027-03-28", ["00:00"]),
        ("59 23 * * *", "Pacific/Pago_Pago", "2027-03-28", ["23:59"]),
        ("30 1 * * 1", "Europe/Rome", "2027-03-28", []),
    ],
)
def test_a_day_in_the_zone_of_the_job(schedule: str, zone: str, day: str, times: list[str]) -> None:
    assert_scheduled(job(schedule, time_zone=zone), day, times)


def test_an_interval_is_shown_with_its_seconds() -> None:
    assert_scheduled(job(timedelta(hours=7, seconds=20)), date(1970, 1, 1), ["00:00", "07:00:20", "14:00:40", "21:01"])


def test_another_list_fails_and_shows_both() -> None:
    job("30 1 * * *", time_zone="Europe/Rome")
    with pytest.raises(AssertionError) as failure:
        assert_scheduled("report", "2027-03-28", ["02:30"])
    assert str(failure.value) == (
        "The job 'report' is due on 2027-03-28 (Europe/Rome) at ['01:30'], and not at ['02:30']."
    )


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (("nightly", "2027-03-28"), "There is no job 'nightly'"),
        ((3, "2027-03-28"), "3 is neither a job nor the name of one"),
        (("report", "28.3.2027"), "'28.3.2027' is not a day: use a date"),
        (("report", datetime(2027, 3, 28)), "is not a day: use a date"),  # noqa: DTZ001
        (("on_request", "2027-03-28"), "The job 'on_request' has no schedule"),
    ],
)
def test_what_cannot_be_compared_is_refused(given: tuple[Any, Any], problem: str) -> None:
    job("30 1 * * *")
    singleton_job("on_request")(int)
    with pytest.raises(SingleJobError, match=problem):
        assert_scheduled(*given, [])


def test_an_unknown_job_is_a_lookup_error() -> None:
    job("30 1 * * *")
    with pytest.raises(UnknownJob, match="Did you mean 'report'"):
        assert_scheduled("reports", "2027-03-28", [])
