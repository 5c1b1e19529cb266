"""``H`` in a schedule: a value that a hash of the job's name chooses."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

import pytest
from cronsim import CronSim

from django_singlejob import InvalidSchedule, singleton_job
from tests.children import ROOT

pytest_plugins = "tests.fixtures"
pytestmark = pytest.mark.usefixtures("fresh_process")

NAMES = [f"shop.job_{number}" for number in range(1000)]
FIELDS = ("minute", "hour", "day of month", "month", "day of week")


def shown(schedule: Any, name: str = "nightly") -> Any:
    return singleton_job(name, schedule=schedule)(print).schedule


def field_of(field: str, value: str, name: str = "nightly") -> str:
    """What the value of this field is replaced by."""
    place = FIELDS.index(field)
    found: str = shown(" ".join(value if each == field else "*" for each in FIELDS), name)
    return found.split()[place]


def test_it_is_the_minute_that_it_stands_for() -> None:
    assert shown("H 3 * * *") == "4 3 * * *", "It must not change with a release: each job would move."
    job = singleton_job("hourly", schedule="H H(0-5) * * mon-fri", time_zone="UTC")(print)
    assert job.policy
    assert job.policy.schedule.text == job.schedule == "26 2 * * mon-fri"


@pytest.mark.parametrize(
    ("field", "value", "low", "high"),
    [
        ("minute", "H", 0, 59),
        ("hour", "H", 0, 23),
        ("day of month", "H", 1, 28),
        ("month", "H", 1, 12),
        ("day of week", "H", 0, 6),
        ("minute", "H(0-29)", 0, 29),
        ("minute", "h(30-59)", 30, 59),
        ("hour", "H(22-23)", 22, 23),
        ("day of month", "H(29-31)", 29, 31),
        ("day of week", "H(1-7)", 1, 7),
        ("month", "H(5-5)", 5, 5),
    ],
)
def test_each_value_in_the_range_is_some_jobs_and_no_other(field: str, value: str, low: int, high: int) -> None:
    counts = Counter(int(field_of(field, value, name)) for name in NAMES)
    assert {*counts} == {*range(low, high + 1)}
    assert max(counts.values()) < 2.5 * len(NAMES) / len(counts)


@pytest.mark.parametrize(
    ("value", "step", "low", "high"), [("H/15", 15, 0, 59), ("H(10-49)/20", 20, 10, 49), ("H/60", 60, 0, 59)]
)
def test_with_a_step_it_begins_below_the_step(value: str, step: int, low: int, high: int) -> None:
    firsts = set()
    for name in NAMES:
        minutes = sorted({slot.minute for slot in islice(CronSim(shown(f"{value} * * * *", name), _DAY), 60)})
        assert minutes == [*range(minutes[0], high + 1, step)]
        firsts.add(minutes[0])
    assert firsts == {*range(low, low + step)}


_DAY = datetime(2026, 11, 21, tzinfo=UTC)


def test_the_fields_do_not_depend_on_each_other() -> None:
    assert len({shown("H H * * *", name) for name in NAMES}) > 700
    first = {shown("H(0-9) H(0-9) * * *", name) for name in NAMES}
    assert len(first) == 100


def test_it_may_be_in_a_list() -> None:
    minute = int(field_of("minute", "H(0-29)"))
    assert field_of("minute", "H(0-29),H(30-59)") == f"{minute},{minute + 30}"
    assert field_of("minute", "5,H/30").startswith("5,")


@pytest.mark.parametrize(
    "schedule", ["@hourly", "*/5 * * * *", "PT1H", "0  0 1 mar,oct THU", timedelta(hours=1)], ids=str
)
def test_without_it_a_schedule_stays_as_it_is(schedule: Any) -> None:
    assert shown(schedule) == schedule


def test_a_letter_of_a_name_is_none() -> None:
    with pytest.raises(InvalidSchedule, match=r"the month cannot be 'MARCH'\. Write 'mar'\."):
        shown("0 0 * MARCH *")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("minute", "1-H"),
        ("minute", "H-5"),
        ("minute", "*/H"),
        ("minute", "H(5)"),
        ("minute", "H(30-10)"),
        ("minute", "H(0-60)"),
        ("minute", "H/0"),
        ("minute", "H/61"),
        ("minute", "H(0-9)/11"),
        ("minute", "5,H-5"),
        ("hour", "H(0-24)"),
        ("day of month", "H(0-5)"),
        ("month", "H(jan-mar)"),
        ("day of week", "H#2"),
        ("day of week", "H(1-8)"),
    ],
)
def test_where_it_cannot_be_the_message_says_what_to_write(field: str, value: str) -> None:
    with pytest.raises(InvalidSchedule, match=rf"^Job 'nightly': .* the {field} cannot be '[^']+'\. Write H, H/2, H\("):
        field_of(field, value)


def test_one_that_is_never_due_is_refused() -> None:
    with pytest.raises(InvalidSchedule, match=r"cannot be '3[01]' in that month"):
        shown("0 0 H(30-31) 2 *")


def test_a_copy_keeps_its_time_even_under_another_name() -> None:
    job: Any = singleton_job("nightly", schedule="H 3 * * *")(print)
    assert replace(job, name="other", wait=timedelta(1)).schedule == job.schedule
    assert shown("H 3 * * *", "other") != job.schedule


@pytest.mark.slow
@pytest.mark.parametrize("seed", ["0", "4711"])
def test_it_is_the_same_in_every_process(seed: str) -> None:
    code = """if True:
        import django; django.setup()
        from django_singlejob import singleton_job
        print(singleton_job("nightly", schedule="H H H/3 * H")(print).schedule)
    """
    env = os.environ | {"PYTHONHASHSEED": seed, "DJANGO_SETTINGS_MODULE": "tests.settings"}
    done = subprocess.run([sys.executable, "-c", code], env=env, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == shown("H H H/3 * H")
