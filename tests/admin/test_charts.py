from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from django_singlejob.admin.charts import described, plot, share, sparkline
from django_singlejob.admin.history import PastRun
from tests.contract.acts import MINUTE

if TYPE_CHECKING:
    from pytest_django import Settings

NOON = datetime(2026, 7, 1, 12, 0, 5, tzinfo=UTC)


def ran(minutes: float | None, status: str = "successful") -> PastRun:
    facts: dict[str, Any] = {"pk": 1, "job_name": "nightly", "hostname": "web-1", "started_at": NOON, "error": ""}
    facts |= {"slot": None, "attempt": 1}
    return PastRun(status=status, duration=None if minutes is None else minutes * MINUTE, **facts)


def rects(svg: str, *names: str) -> list[tuple[str, ...]]:
    """These attributes of each bar."""
    bars = [dict(re.findall(r'([a-z]+)="([^"]*)"', bar)) for bar in re.findall("<rect ([^>]*)>", svg)]
    return [tuple(bar[name] for name in names) for bar in bars]


# --- the small one


def bars(svg: str) -> list[tuple[int, int, str]]:
    """The position, the height and the class of each bar of a sparkline, from left to right."""
    found = []
    for path, name in re.findall(r'<path d="([^"]*)" class="([^"]*)"></path>', svg):
        shapes = re.findall(r"M(\d+) 24v-(\d+)h3v\2z", path)
        assert "".join(f"M{x} 24v-{height}h3v{height}z" for x, height in shapes) == path
        found += [(int(x), int(height), name) for x, height in shapes]
    return sorted(found)


def test_the_bars_of_a_sparkline_are_as_high_as_the_runs_were_long() -> None:
    svg = sparkline([ran(10), ran(5, "failed"), ran(0, "interrupted"), ran(None, "running"), ran(10, "abandoned")])
    assert bars(svg) == [
        (0, 24, "singlejob-good"),
        (4, 13, "singlejob-bad"),
        (8, 3, "singlejob-warn"),
        (12, 3, "singlejob-busy"),
        (16, 24, "singlejob-bad"),
    ]
    assert 'width="20" height="24"' in svg


@pytest.mark.parametrize("runs", [[], [ran(None)], [ran(0)], [ran(0), ran(None)]])
def test_charts_of_no_time_at_all_can_be_drawn(runs: list[PastRun]) -> None:
    assert len(bars(sparkline(runs))) == len(rects(plot(runs, None, None), "x")) == len(runs)
    assert "NaN" not in plot(runs, timedelta(), timedelta())


def test_the_bars_are_described_in_words() -> None:
    assert described([]) == "0 runs, 0 of them bad; the longest took -"
    runs = [ran(2), ran(1, "failed"), ran(None, "abandoned"), ran(None, "running")]
    assert described(runs) == "4 runs, 2 of them bad; the longest took 2\xa0min\xa00\xa0s"
    for svg in sparkline(runs), plot(runs, MINUTE, None):
        assert f'role="img" aria-label="{described(runs)}"' in svg


# --- the large one


def lines(svg: str) -> dict[str, float]:
    """The position of each line of the plot from the top, except for those of the scale."""
    chart = svg.partition("<ul")[0]
    found = re.findall(r'y1="([^"]*)" y2="\1" class="singlejob-line-(\w+)"></line>', chart)
    return {kind: float(y) for y, kind in found if kind != "grid"}


def legend(svg: str) -> list[str]:
    return [words.replace("\xa0", " ") for words in re.findall(r"</svg> ([^<]*)</li>", svg)]


def scale(svg: str) -> list[tuple[float, str]]:
    """The position and the words of each line of the scale."""
    part = svg.partition("</svg>")[0]
    found = re.findall(r'<text x="66" y="([^"]*)" text-anchor="end">([^<]*)</text>', part)
    return [(float(y) - 4, words.replace("\xa0", " ")) for y, words in found]


def test_the_bars_of_a_plot_are_side_by_side() -> None:
    svg = plot([ran(10), ran(5, "failed")], None, None)
    assert rects(svg, "x", "width", "y", "height", "class") == [
        ("0.0%", "2.67%", "8.0", "160.0", "singlejob-good"),
        ("3.33%", "2.67%", "88.0", "80.0", "singlejob-bad"),
    ]
    assert lines(svg) == {}
    assert legend(svg) == []


@pytest.mark.parametrize(
    ("minutes", "expected"),
    [
        (0, ["1 ms", "2 ms"]),
        (0.7 / 60, ["200 ms", "400 ms", "600 ms", "800 ms"]),
        (9 / 60, ["5 s", "10 s"]),
        (1.5, ["30 s", "1 min", "1 min 30 s"]),
        (10, ["5 min", "10 min"]),
        (41, ["15 min", "30 min", "45 min"]),
        (200, ["1 h", "2 h", "3 h", "4 h"]),
        (60 * 30, ["12 h", "1 d", "1 d 12 h"]),
        (60 * 24 * 365, ["100 d", "200 d", "300 d", "400 d"]),
    ],
)
def test_the_scale_is_of_two_to_four_round_durations(minutes: float, expected: list[str]) -> None:
    svg = plot([ran(minutes)], None, None)
    assert [words for _, words in scale(svg)] == expected
    assert scale(svg)[-1][0] == 8
    grid = re.findall(r'y1="([^"]*)" y2="\1" class="singlejob-line-grid"', svg)
    assert [float(y) for y in grid] == [168, *(y for y, _ in scale(svg))]


@pytest.mark.parametrize("length", [timedelta.max, timedelta(days=400), timedelta(microseconds=3)])
def test_there_are_as_many_lines_whatever_the_duration(length: timedelta) -> None:
    assert 2 <= len(scale(plot([ran(None)._replace(duration=length)], length, length))) <= 4


def test_below_it_are_the_first_and_the_last_time(settings: Settings) -> None:
    settings.TIME_ZONE = "Asia/Tokyo"
    later = ran(1)._replace(started_at=NOON + 90 * MINUTE)
    both = "2026-07-01 21:00 JST to 2026-07-01 22:30 JST</p>"
    assert f">{both}" in plot([ran(1)] * 29 + [later], None, None)
    assert f">{both}" in plot([ran(1), later], None, None)
    assert ">2026-07-01 22:30 JST</p>" in plot([later], None, None)
    assert "></p>" in plot([], None, None)


def test_a_bar_without_a_duration_is_to_be_seen() -> None:
    svg = plot([ran(10), ran(None, "stale")], None, None)
    assert rects(svg, "y", "height", "class") == [("8.0", "160.0", "singlejob-good"), ("165", "3", "singlejob-bad")]


def test_a_running_one_is_as_high_as_it_has_taken_so_far() -> None:
    svg = plot([ran(10), ran(None, "running"), ran(None, "stale")], None, None, now=NOON + 5 * MINUTE)
    assert rects(svg, "height", "class") == [
        ("160.0", "singlejob-good"),
        ("80.0", "singlejob-busy"),
        ("3", "singlejob-bad"),
    ]
    assert "running, 5\xa0min\xa00\xa0s" in svg
    assert rects(plot([ran(None, "running")], None, None, now=NOON - MINUTE), "height") == [("3",)]


def test_the_mean_and_the_limits_are_lines() -> None:
    svg = plot([ran(10)], 5 * MINUTE, 20 * MINUTE, max_runtime=15 * MINUTE)
    assert lines(svg) == {"mean": 128, "limit": 8, "most": 48}
    assert legend(svg) == ["mean 5 min 0 s", "overrunning beyond 20 min 0 s", "max_runtime 15 min 0 s"]
    assert rects(svg, "y", "height") == [("88.0", "80.0")]


def test_a_mean_above_all_bars_is_drawn() -> None:
    assert lines(plot([ran(1)], 2 * MINUTE, None))["mean"] == 8
    assert rects(plot([ran(1)], 2 * MINUTE, None), "height") == [("80.0",)]


def test_a_limit_that_would_press_all_bars_flat_is_not_drawn_but_named() -> None:
    assert {"limit", "most"} <= lines(plot([ran(1)], MINUTE, 4 * MINUTE, max_runtime=4 * MINUTE)).keys()
    far = plot([ran(1)], MINUTE, 4.01 * MINUTE, max_runtime=4.01 * MINUTE)
    assert lines(far).keys() == {"mean"}
    assert legend(far)[1:] == ["overrunning beyond 4 min 0 s", "max_runtime 4 min 0 s"]
    assert rects(far, "height") == [("160.0",)]


def test_each_bar_has_a_title(settings: Settings) -> None:
    settings.TIME_ZONE = "Asia/Tokyo"
    titles = re.findall("<title>([^<]*)</title>", plot([ran(1), ran(None, "running")], None, None))
    assert titles == ["2026-07-01 21:00:05 JST: successful, 1\xa0min\xa00\xa0s", "2026-07-01 21:00:05 JST: running, -"]


# --- shares


@pytest.mark.parametrize(
    ("part", "width"), [(0, "0"), (0.5, "50.0%"), (1 / 3, "33.3%"), (1, "100%"), (7, "100%"), (-1, "0%")]
)
def test_a_share_is_as_long_as_the_part(part: float, width: str) -> None:
    found = rects(share(part, ""), "width", "class")[1]
    assert float(found[0].rstrip("%")) == float(width.rstrip("%"))
    assert found[1] == "singlejob-quiet"


def test_what_it_says_is_escaped() -> None:
    bar = share(0.5, "<b>", "warn")
    assert '<span class="singlejob-note">&lt;b&gt;</span>' in bar
    assert 'class="singlejob-warn"' in bar
