"""Where bars, lanes and ticks lie, and how they are drawn. No database: a window is made by hand."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from itertools import count, pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, strategies as st

from django_singlejob.admin import timeline
from django_singlejob.admin.cells import duration
from django_singlejob.admin.timeline import MOST_LANES, MOST_SERVERS, Bar, bars, drawn, lanes, rows, ticks
from django_singlejob.history import Run, Window

NOW = datetime(2026, 11, 21, 12, 5, 10, tzinfo=UTC)
HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)
SECOND = timedelta(seconds=1)
HOSTILE = "<script>alert('it is ours')</script>"

numbers = count(1)


def run(ago: timedelta, length: timedelta | None = MINUTE, **columns: Any) -> Run:
    """One that began so long ago, and took so long; ``None``: it is running."""
    facts: dict[str, Any] = {"pk": next(numbers), "job_name": "nightly", "hostname": "web-1", "acquire_duration": None}
    started_at = NOW - ago
    ended: dict[str, Any] = {"status": "running", "finished_at": None}
    if length is not None:
        ended = {"status": "successful", "finished_at": started_at + length}
    return Run(started_at=started_at, **facts | ended | columns)


def window(*newest_first: Run, hours: int = 6, earlier: tuple[Run, ...] = (), now: datetime = NOW) -> Window:
    return Window(now=now, begin=now - hours * HOUR, runs=newest_first, earlier=earlier, is_cut=False)


def extent(bar: Bar) -> tuple[float, float]:
    return round(bar.x, 2), round(bar.width, 2)


# --- bars


def test_a_run_is_a_bar_from_its_begin_to_its_end() -> None:
    assert [extent(bar) for bar in bars([run(3 * HOUR, HOUR)], window())] == [(50.0, 16.67)]


def test_one_that_is_running_goes_on_until_now() -> None:
    (bar,) = bars([run(3 * HOUR, None)], window())
    assert extent(bar) == (50.0, 50.0)
    assert bar.tone == "busy"


def test_one_that_began_before_the_window_begins_with_it() -> None:
    (row,) = rows(window(earlier=(run(9 * HOUR, None),)))
    assert [extent(bar) for lane in row.lanes for bar in lane] == [(0, 100)]


def test_a_clock_that_was_set_back_draws_nothing_outside() -> None:
    for odd in run(HOUR, -HOUR), run(-HOUR, None), run(-HOUR, MINUTE):
        (bar,) = bars([odd], window())
        assert 0 <= bar.x <= bar.end <= 100


def test_short_runs_of_one_moment_are_one_mark_in_the_colour_of_the_worst() -> None:
    short = [run(HOUR, SECOND), run(HOUR - SECOND, SECOND, status="failed"), run(HOUR - 2 * SECOND, SECOND)]
    (bar,) = bars(short, window())
    assert bar.runs == short
    assert bar.tone == "bad"
    assert "3 runs, 1 bad, from 11:05:10 to 11:05:12: nightly" in timeline.told(bar, NOW)


def test_thousands_of_runs_are_hundreds_of_bars() -> None:
    many = [run(n * 4 * SECOND, SECOND) for n in range(5000, 0, -1)]
    assert len(bars(many, window())) <= 250


# --- lanes


def test_runs_that_overlap_have_lanes_of_their_own() -> None:
    (row,) = rows(window(run(HOUR, HOUR), run(2 * HOUR, HOUR), run(2.5 * HOUR, HOUR)))
    assert [[extent(bar)[0] for bar in lane] for lane in row.lanes] == [[58.33, 83.33], [66.67]]


def test_beyond_the_last_lane_they_overlap() -> None:
    many = [run(2 * HOUR, HOUR) for _ in range(MOST_LANES + 3)]
    laid = lanes(bars(many, window()))
    assert [len(lane) for lane in laid] == [1] * (MOST_LANES - 1) + [4]


runs_of_a_day = st.lists(st.tuples(st.integers(0, 86400), st.integers(0, 7200)), max_size=60)


@given(runs_of_a_day)
def test_in_a_lane_nothing_overlaps_and_nothing_is_lost(some: list[tuple[int, int]]) -> None:
    found = [run(ago * SECOND, min(length, ago) * SECOND) for ago, length in some]
    laid = lanes(bars(found, window(hours=24)))
    for lane in laid[: MOST_LANES - 1]:
        assert all(before.end <= after.x for before, after in pairwise(lane))
    assert sorted(run.pk for lane in laid for bar in lane for run in bar.runs) == sorted(run.pk for run in found)


# --- rows


def test_each_server_has_a_row() -> None:
    found = rows(window(run(HOUR, hostname="web-2"), run(2 * HOUR, hostname="web-1"), run(3 * HOUR, hostname="web-2")))
    assert [(row.hostname, len(row.runs)) for row in found] == [("web-1", 1), ("web-2", 2)]


def test_of_many_servers_those_with_the_most_runs_are_shown() -> None:
    crowd = [run(HOUR, hostname=f"pod-{n:03}") for n in range(MOST_SERVERS + 10)]
    found = rows(window(*crowd, run(2 * HOUR, hostname="pod-029")))
    assert len(found) == MOST_SERVERS
    assert found[-1].hostname == "pod-029"


# --- the axis


@pytest.mark.parametrize(
    ("hours", "labels"),
    [
        (1, ["11:10", "11:20", "11:30", "11:40", "11:50", "12:00"]),
        (6, ["07:00", "08:00", "09:00", "10:00", "11:00", "12:00"]),
        (24, ["16:00", "20:00", "Sat 21", "04:00", "08:00", "12:00"]),
        (72, ["Thu 19", "12:00", "Fri 20", "12:00", "Sat 21", "12:00"]),
    ],
)
def test_ticks_are_at_full_hours(hours: int, labels: list[str]) -> None:
    assert [tick.label for tick in ticks(window(hours=hours), UTC)] == labels


def test_ticks_are_those_of_the_time_zone() -> None:
    found = ticks(window(), ZoneInfo("Asia/Kathmandu"))
    assert [tick.label for tick in found] == ["12:00", "13:00", "14:00", "15:00", "16:00", "17:00"]
    assert round(found[0].x, 1) == 2.7


def test_ticks_hold_where_clocks_are_changed() -> None:
    rome = ZoneInfo("Europe/Rome")
    spring = window(now=datetime(2026, 3, 29, 4, 30, tzinfo=UTC))
    assert [tick.label for tick in ticks(spring, rome)] == ["Sun 29", "01:00", "03:00", "04:00", "05:00", "06:00"]
    autumn = window(now=datetime(2026, 10, 25, 4, 30, tzinfo=UTC))
    assert [tick.label for tick in ticks(autumn, rome)] == ["01:00", "02:00", "02:00", "03:00", "04:00", "05:00"]


def test_labels_keep_off_the_ends() -> None:
    drawn_axis = timeline.axis(ticks(window(), UTC))
    assert re.findall(r">([^<]+)</text>", drawn_axis) == ["07:00", "08:00", "09:00", "10:00", "11:00", "now"]


# --- what is drawn


def test_a_row_says_in_words_what_it_shows() -> None:
    runs = (run(MINUTE, None), run(HOUR, status="failed"), run(2 * HOUR, status="interrupted"), run(3 * HOUR))
    (row,) = rows(window(*runs))
    image = drawn(row, [], NOW)
    assert 'role="img" aria-label="web-1: 4 runs, 1 running, 1 interrupted, 1 bad; the last began at 12:04:10"' in image
    assert f"<title>nightly: failed, began at 11:05:10, {duration(MINUTE)}</title>" in image


def test_what_did_not_end_well_is_seen_without_colours() -> None:
    (row,) = rows(window(run(HOUR, 10 * MINUTE, status="failed"), run(2 * HOUR, 10 * MINUTE)))
    heights = dict(re.findall(r'height="(\d+)" class="singlejob-(\w+)"', drawn(row, [], NOW)))
    assert heights == {"16": "bad", "8": "good"}


def test_names_are_only_text() -> None:
    for length in SECOND, HOUR:
        (row,) = rows(window(run(2 * HOUR, length, hostname=HOSTILE, job_name=HOSTILE)))
        image = drawn(row, ticks(window(), UTC), NOW)
        assert "<script" not in image
        assert "&lt;script" in image
        assert "style=" not in image


def test_widths_are_written_as_svg_wants_them() -> None:
    (row,) = rows(window(run(2.5 * HOUR, HOUR)))
    assert 'x="58.33%"' in drawn(row, [], NOW)
