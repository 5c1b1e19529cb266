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


def lines(svg: str) -> dict[str, tuple[float, float, str]]:
    """The position of each line from the top, the position of its text, and the text."""
    found = re.findall(
        r'y1="([^"]*)" y2="\1" class="singlejob-line-(\w+)"></line><text x="4" y="([^"]*)">([^<]*)<', svg
    )
    return {kind: (float(y), float(text_y), text.replace("\xa0", " ")) for y, kind, text_y, text in found}


def test_the_bars_of_a_plot_are_side_by_side() -> None:
    svg = plot([ran(10), ran(5, "failed")], None, None)
    assert rects(svg, "x", "width", "y", "height", "class") == [
        ("0.0%", "8.0%", "0.0", "160.0", "singlejob-good"),
        ("10.0%", "8.0%", "80.0", "80.0", "singlejob-bad"),
    ]
    assert lines(svg) == {}


def test_a_bar_without_a_duration_is_to_be_seen() -> None:
    svg = plot([ran(10), ran(None, "stale")], None, None)
    assert rects(svg, "y", "height", "class") == [("0.0", "160.0", "singlejob-good"), ("157", "3", "singlejob-bad")]


def test_the_mean_and_the_limit_are_lines() -> None:
    svg = plot([ran(10)], 5 * MINUTE, 20 * MINUTE)
    assert lines(svg) == {
        "mean": (120.0, 116.0, "mean 5 min 0 s"),
        "limit": (0.0, 16.0, "overrunning beyond 20 min 0 s"),
    }
    assert rects(svg, "y", "height") == [("80.0", "80.0")]


def test_a_mean_above_all_bars_is_drawn() -> None:
    assert lines(plot([ran(1)], 2 * MINUTE, None))["mean"][0] == 0
    assert rects(plot([ran(1)], 2 * MINUTE, None), "height") == [("80.0",)]


def test_a_limit_that_would_press_all_bars_flat_is_not_drawn() -> None:
    assert "limit" in lines(plot([ran(1)], MINUTE, 4 * MINUTE))
    assert "limit" not in lines(plot([ran(1)], MINUTE, 4.01 * MINUTE))
    assert rects(plot([ran(1)], MINUTE, 4.01 * MINUTE), "height") == [("160.0",)]


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
