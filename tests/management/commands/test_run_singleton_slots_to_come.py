"""`run_singleton --list --from`: the slots of a coming night, and what stands out among them."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from django.core.management import CommandError, call_command

from django_singlejob import singleton_job
from django_singlejob.models import JobStatus
from tests.terminal import Terminal

if TYPE_CHECKING:
    from pytest_django import Settings

pytest_plugins = "tests.fixtures"
pytestmark = [pytest.mark.usefixtures("fresh_process", "berlin"), pytest.mark.django_db]

SPRING, AUTUMN = "2027-03-28", "2027-10-31"


@pytest.fixture
def berlin(settings: Settings) -> None:
    settings.TIME_ZONE = "Europe/Berlin"


def have_job(name: str, schedule: str | timedelta, **options: Any) -> None:
    singleton_job(name, schedule=schedule, **options)(lambda: None)


def listed(*options: str) -> list[str]:
    output = Terminal()
    call_command("run_singleton", "--list", *options, stdout=output, stderr=output, no_color=True)
    return output.getvalue().splitlines()


def facts(*options: str) -> Any:
    return json.loads("\n".join(listed(*options, "--format=json")))


def words(lines: list[str], *names: str) -> list[str]:
    """The lines that name one of these."""
    return [line for line in lines if any(name in line for name in names)]


# --- in order


def test_the_slots_of_a_day_are_in_order_in_the_zone_of_the_project_and_then_in_that_of_their_jobs() -> None:
    have_job("clean_up", "30 3 * * *")
    have_job("count", timedelta(hours=12))
    have_job("report", "0 20 * * *", time_zone="America/Sao_Paulo")
    have_job("weekly", "0 3 * * mon")
    singleton_job("by_hand")(lambda: None)
    assert listed("--from", "2027-01-05") == [
        "From 2027-01-05 00:00:00 CET to 2027-01-06 00:00:00 CET:",
        "2027-01-05 00:00:00 CET (2027-01-04 20:00:00 -03): report",
        "2027-01-05 01:00:00 CET (2027-01-05 00:00:00 UTC): count",
        "2027-01-05 03:30:00 CET: clean_up",
        "2027-01-05 13:00:00 CET (2027-01-05 12:00:00 UTC): count",
    ]


def test_a_zone_whose_clocks_show_the_same_is_not_marked() -> None:
    have_job("clean_up", "30 3 * * *", time_zone="Europe/Rome")
    assert listed("--from=2027-01-05")[1:] == ["2027-01-05 03:30:00 CET: clean_up"]


@pytest.mark.parametrize(
    ("begin", "slots"),
    [
        ("2027-01-05", ["05T03:00"]),
        ("2027-01-05T03:00", ["05T03:00"]),
        ("2027-01-05T03:00:00.000001", ["06T03:00"]),
        ("2027-01-05T02:00Z", ["05T03:00"]),
        ("2027-01-05T03:00Z", ["06T03:00"]),
    ],
)
def test_the_list_begins_at_an_instant_which_without_an_offset_is_in_the_zone_of_the_project(
    begin: str, slots: list[str]
) -> None:
    have_job("nightly", "0 3 * * *")
    assert [slot["slot"] for slot in facts("--from", begin)["slots"]] == [f"2027-01-{slot}:00+01:00" for slot in slots]


def test_the_days_are_those_of_the_wall_clock() -> None:
    have_job("midnight", "@daily")
    found = facts("--from", SPRING, "--days", "2")
    assert [slot["slot"] for slot in found["slots"]] == ["2027-03-28T00:00:00+01:00", "2027-03-29T00:00:00+02:00"]
    assert (found["from"], found["until"]) == ("2027-03-28T00:00:00+01:00", "2027-03-30T00:00:00+02:00")


def test_days_alone_begin_now() -> None:
    have_job("hourly", timedelta(hours=1))
    found = facts("--days=1")
    assert len(found["slots"]) in (23, 24, 25)


def test_a_night_without_slots_says_so() -> None:
    have_job("yearly", "@yearly")
    assert listed("--from=2027-01-05")[1:] == ["No job has a slot then. Use more --days."]


# --- clocks change


def have_jobs_at_two() -> None:
    have_job("fixed", "30 2 * * *")
    have_job("often", "0,20,40 2 * * *")
    have_job("star", "*/30 * * * *")
    have_job("elsewhere", "30 2 * * *", time_zone="America/Sao_Paulo")
    have_job("later", "0 3 * * *")


def test_an_hour_that_is_lost_is_said_where_it_is_and_what_becomes_of_the_jobs_that_are_due_in_it() -> None:
    have_jobs_at_two()
    lines = listed("--from", SPRING)
    at = lines.index("2027-03-28 03:00:00 CEST: clocks change in Europe/Berlin, and 02:00 to 03:00 is left out.")
    assert lines[at - 1] == "2027-03-28 01:30:00 CET: star"
    assert lines[at + 1 : at + 9] == [
        "    fixed runs once, at 03:00, in place of 02:30.",
        "    often runs once, at 03:00, in place of 02:00, 02:20, 02:40.",
        "    star does not run at 02:00, 02:30.",
        "2027-03-28 03:00:00 CEST: fixed",
        "2027-03-28 03:00:00 CEST: later",
        "2027-03-28 03:00:00 CEST: often",
        "2027-03-28 03:00:00 CEST: star",
        "2027-03-28 03:30:00 CEST: star",
    ]
    assert len(words(lines, ": fixed", ": often")) == 2


def test_of_an_hour_that_comes_twice_it_is_said_what_runs_twice() -> None:
    have_jobs_at_two()
    lines = listed("--from", AUTUMN)
    at = lines.index("2027-10-31 02:00:00 CET: clocks change in Europe/Berlin, and 02:00 to 03:00 comes twice.")
    assert lines[at + 1 : at + 6] == [
        "    fixed runs only the first time at 02:30.",
        "    often runs only the first time at 02:00, 02:20, 02:40.",
        "    star runs twice at 02:00, 02:30.",
        "2027-10-31 02:00:00 CET: star",
        "2027-10-31 02:30:00 CET: star",
    ]
    assert words(lines[:at], ": fixed", ": often", "02:30:00 CEST: star") == [
        "2027-10-31 02:00:00 CEST: often",
        "2027-10-31 02:20:00 CEST: often",
        "2027-10-31 02:30:00 CEST: fixed",
        "2027-10-31 02:30:00 CEST: star",
        "2027-10-31 02:40:00 CEST: often",
    ]
    assert not words(lines[at + 4 :], ": fixed", ": often")


def test_clocks_may_change_at_midnight_and_in_the_zone_of_a_job_only(settings: Settings) -> None:
    settings.TIME_ZONE = "UTC"
    have_job("daily", "@daily", time_zone="America/Sao_Paulo")
    (change,) = facts("--from=2018-11-04")["clock_changes"]
    assert change == {
        "at": "2018-11-04T01:00:00-02:00",
        "time_zone": "America/Sao_Paulo",
        "kind": "lost",
        "begin": "00:00",
        "end": "01:00",
        "jobs": [{"name": "daily", "times": ["00:00"], "runs": 1}],
    }
    assert [slot["slot"] for slot in facts("--from=2018-11-04")["slots"]] == [change["at"]]
    instant, of = "2018-11-04 03:00:00 UTC (2018-11-04 01:00:00 -02)", "America/Sao_Paulo, and 00:00 to 01:00"
    assert listed("--from=2018-11-04")[1:] == [
        f"{instant}: clocks change in {of} is left out.",
        "    daily runs once, at 01:00, in place of 00:00.",
        f"{instant}: daily",
    ]
    (change,) = facts("--from=2018-02-17", "--days=2")["clock_changes"]
    assert [change[key] for key in ("kind", "begin", "end", "jobs")] == ["doubled", "23:00", "00:00", []]


@pytest.mark.parametrize(
    ("begin", "is_in_it"),
    [
        ("2027-03-28T03:00+02:00", True),
        ("2027-03-28T03:01+02:00", False),
        ("2027-03-27T01:59", False),
        ("2027-03-27T03:01", True),
    ],
)
def test_a_change_belongs_to_the_time_that_begins_with_it(begin: str, is_in_it: bool) -> None:
    have_job("nightly", "0 12 * * *")
    assert bool(facts("--from", begin)["clock_changes"]) is is_in_it


# --- what stands out


def test_a_minute_in_which_many_jobs_begin_is_named_with_the_remedy() -> None:
    for number in range(5):
        have_job(f"nightly_{number}", "0 3 * * *")
    for number in range(4):
        have_job(f"early_{number}", "0 2 * * *")
    have_job("each_second", timedelta(seconds=1))
    found = (
        "Jobs that begin in the same minute: 5 at 2027-01-05 03:00:00 CET. To spread them out, write H for the minute."
    )
    assert words(listed("--from=2027-01-05"), "same minute") == [found]
    assert facts("--from=2027-01-05")["crowds"] == [{"at": "2027-01-05T02:00:00+00:00", "jobs": 5}]


@pytest.mark.parametrize(
    ("schedule", "minutes", "runs", "is_slow"),
    [
        (timedelta(minutes=10), 11, 5, True),
        (timedelta(minutes=10), 10, 5, False),
        (timedelta(minutes=10), 11, 4, False),
        ("0,15 3 * * *", 20, 5, True),
        ("0 3 * * *", 20, 5, False),
        ("0 3 * * *", 24 * 60 + 1, 5, True),
    ],
)
def test_a_job_that_takes_longer_than_its_interval_is_named(
    schedule: str | timedelta, minutes: int, runs: int, is_slow: bool
) -> None:
    have_job("import_orders", schedule)
    JobStatus.objects.create(name="import_orders", run_count=runs, mean_duration=timedelta(minutes=minutes))
    start = f"import_orders takes {minutes * 60}.0 s on average, longer than the "
    assert [line.startswith(start) for line in words(listed("--from=2027-01-05"), "on average")] == [True] * is_slow
    assert [job["name"] for job in facts("--from=2027-01-05")["slow"]] == ["import_orders"] * is_slow


# --- very many


def test_of_very_many_slots_only_the_first_are_listed() -> None:
    have_job("each_second", timedelta(seconds=1))
    have_job("each_minute", "* * * * *")
    have_job("hourly", "0 * * * *")
    lines = listed("--from=2027-01-05")
    assert len(words(lines, ": each_second")) == len(words(lines, ": each_minute")) == 50
    assert "2027-01-05 00:49:00 CET: each_minute (its later slots are left out)" in lines
    assert len(words(lines, ": hourly")) == 24
    assert lines[-1] == (
        "87,740 later slots are left out: 86,350 of each_second, 1,390 of each_minute. Use a later --from, or fewer "
        "--days."
    )


def test_and_no_more_than_some_thousand_are_counted_one_by_one() -> None:
    have_job("each_minute", "* * * * *")
    have_job("each_microsecond", timedelta(microseconds=1))
    left_out = facts("--from=2027-01-01", "--days=31")["left_out"]
    assert left_out == {"each_microsecond": 31 * 86_400 * 10**6 - 50, "each_minute": 10_000}
    assert listed("--from=2027-01-01", "--days=31")[-1].startswith("At least 2,678,400,009,950 later slots")


def test_of_very_many_jobs_the_first_thousand_slots_are_listed() -> None:
    for number in range(30):
        have_job(f"job_{number}", "H * * * *")
    lines = listed("--from=2027-01-05", "--days=2")
    assert len(words(lines, ": job_")) == 1_000
    assert words(lines, "later slots are left out:")[0].startswith("440 later slots are left out: 15 of job_")


# --- options


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--from", "tomorrow"], "'tomorrow' is not an instant, such as 2026-11-22T03:00."),
        (["--from", "1969-12-31"], "Use an instant of the years 1970 to 2100."),
        (["--from", "2102-01-01"], "'2102-01-01' cannot be listed. Use an instant of the years 1970 to 2100."),
        (["--days", "0"], "'0' is not a number of days that can be listed. Use 1 to 31."),
        (["--days", "32"], "Use 1 to 31."),
        (["--days", "two"], "'two' is not a whole number"),
    ],
)
def test_what_cannot_be_listed_is_refused(options: list[str], message: str) -> None:
    with pytest.raises(CommandError, match=message):
        listed(*options)


@pytest.mark.parametrize("option", ["--from=2027-01-05", "--days=1"])
def test_both_are_only_for_the_list(option: str) -> None:
    with pytest.raises(CommandError, match="--from, --days and --format are only for --list"):
        call_command("run_singleton", "nightly", option)


def test_quiet_is_quiet() -> None:
    have_job("nightly", "0 3 * * *")
    assert listed("--from=2027-01-05", "-v0") == []
