"""The matcher, by hand and against the package's own schedules."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import islice
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, strategies as st

from django_singlejob.adopt.matcher import Rule, instants
from django_singlejob.jobs.schedule import next_slot, parse

ROME = ZoneInfo("Europe/Rome")


def walls(text: str, after: str, count: int) -> list[str]:
    found = islice(instants(text, ROME, datetime.fromisoformat(after).replace(tzinfo=ROME)), count)
    return [f"{each.astimezone(ROME):%m-%d %H:%M %Z}" for each in found]


@pytest.mark.parametrize(
    ("text", "after", "expected"),
    [
        ("*/20 * * * *", "2026-03-01 23:30", ["03-01 23:40 CET", "03-02 00:00 CET"]),
        ("0 0 13 * 5", "2026-03-01 00:00", ["03-06 00:00 CET", "03-13 00:00 CET"]),
        ("0 0 */2 * 5", "2026-03-01 00:00", ["03-13 00:00 CET", "03-27 00:00 CET"]),
        ("0 0 * * sun", "2026-03-01 01:00", ["03-08 00:00 CET", "03-15 00:00 CET"]),
        ("0 0 * * 7", "2026-03-01 01:00", ["03-08 00:00 CET", "03-15 00:00 CET"]),
        ("5-10/5 8 1 jan,Feb *", "2026-01-02 00:00", ["02-01 08:05 CET", "02-01 08:10 CET"]),
        ("@monthly", "2026-03-02 00:00", ["04-01 00:00 CEST", "05-01 00:00 CEST"]),
        # clocks are set forward at 02:00 on 29 March, and back at 03:00 on 25 October
        ("30 2 * * *", "2026-03-28 12:00", ["03-29 03:00 CEST", "03-30 02:30 CEST"]),
        ("*/30 2 * * *", "2026-03-28 12:00", ["03-30 02:00 CEST", "03-30 02:30 CEST"]),
        ("30 2 * * *", "2026-10-24 12:00", ["10-25 02:30 CEST", "10-26 02:30 CET"]),
        ("30 * * * *", "2026-10-25 02:00", ["10-25 02:30 CEST", "10-25 02:30 CET"]),
    ],
)
def test_it_counts_as_cron_does(text: str, after: str, expected: list[str]) -> None:
    assert walls(text, after, 2) == expected


@pytest.mark.parametrize("text", ["61 * * * *", "* * * *", "a * * * *", "* * * foo *", "5-1 * * * *", "*/0 * * * *"])
def test_it_refuses_what_is_no_schedule(text: str) -> None:
    with pytest.raises(ValueError, match=r"not understood|does not have five fields"):
        Rule.of(text)


FIELDS = st.tuples(
    st.sampled_from(["*", "0", "*/7", "5,35", "10-20/3", "59"]),
    st.sampled_from(["*", "0", "2", "*/5", "1-3", "2,14"]),
    st.sampled_from(["*", "1", "29", "*/10", "13-20"]),
    st.sampled_from(["*", "3", "10", "*/3", "mar-oct"]),
    st.sampled_from(["*", "0", "7", "1-5", "sun,wed", "*/2"]),
).map(" ".join)
INSTANTS = st.integers(0, 700 * 1440).map(lambda minutes: datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=minutes))


@given(FIELDS, st.sampled_from(["Europe/Rome", "America/New_York", "Australia/Lord_Howe", "UTC"]), INSTANTS)
def test_it_agrees_with_the_schedules_of_jobs(text: str, zone: str, after: datetime) -> None:
    schedule, at = parse(text, zone), after
    for expected in islice(instants(text, ZoneInfo(zone), after), 30):
        at = next_slot(schedule, at)
        assert at == expected
