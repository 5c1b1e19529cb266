"""The plots of docs/contributors/performance.md: for PostgreSQL, and only if a folder is chosen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from django.db import connection

from tests.benchmarks.candidates import LOCK, ONE_STATEMENT, PAPER, PORTABLE
from tests.benchmarks.curves_point import Point
from tests.benchmarks.svg import Chart, spaced, ticks_between, ticks_up_to

COLORS = {PAPER: "#6e7781", PORTABLE: "#0969da", ONE_STATEMENT: "#bc4c00"}
DASHES = {LOCK: "6 4"}
#: One for each latency.
SHADES = ("#54aeff", "#0969da")
TIMES = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500)
BAR = 0.8
#: One for each line of a curve.
STYLES = (("#0969da", ""), ("#bc4c00", "6 4"), ("#2da44e", ""), ("#bf3989", "2 3"), ("#8250df", "10 3"))
# Where a curve with a logarithmic axis shows what there is without any of it, in times of the next point.
NEXT_TO_NOTHING = 0.1


class Plotter:
    """Draws into the folder. `None`: draws nothing."""

    def __init__(self, folder: str | None) -> None:
        self.folder = Path(folder) if folder and connection.vendor == "postgresql" else None

    def latency(self, longer: Mapping[float, Mapping[str, Sequence[float]]]) -> None:
        """How much longer a cycle takes, in times of each latency."""
        medians = {latency: {name: median(values) for name, values in each.items()} for latency, each in longer.items()}
        names = list(next(iter(medians.values())))
        ticks = ticks_up_to(1.1 * max(max(group.values()) for group in medians.values()))
        chart = Chart("What latency adds to a cycle, in round trips", (-0.5, len(names) - 0.5), (0, max(ticks)))
        chart.y_axis(ticks)
        chart.x_axis("", dict(enumerate(names)))
        for group, (latency, values) in enumerate(medians.items()):
            width = BAR / len(medians)
            self._bars(chart, (group - (len(medians) - 1) / 2) * width, width, list(values.values()), SHADES[group])
            chart.legend(f"{latency * 1000:g} ms more a round trip", SHADES[group])
        self._save(chart, "latency")

    def race(self, servers: int, relative: Mapping[str, Sequence[float]]) -> None:
        """The distribution of the lock costs, in times of the median of the paper's recipe."""
        lowest, highest = min(map(min, relative.values())), max(map(max, relative.values()))
        chart = Chart(
            f"{servers} servers race: share of the rounds, by what the lock cost",
            (lowest, highest),
            (0, 1),
            is_log=True,
        )
        chart.y_axis({share / 4: f"{share * 25} %" for share in range(5)})
        chart.x_axis(
            f"lock cost of the winner, at most, in times of the median of {PAPER}",
            {tick: f"{tick:g}" for tick in TIMES if lowest <= tick <= highest},
        )
        for name, values in relative.items():
            points = [(value, (rank + 1) / len(values)) for rank, value in enumerate(sorted(values))]
            self._line(chart, name, points)
        self._save(chart, f"race-{servers}")

    def endurance(self, cycles: int, lines: Mapping[str, Sequence[float]]) -> None:
        """How long the cycles of each part take, in times of the first tenth's."""
        ticks = ticks_up_to(max(1.5, *map(max, lines.values())))
        chart = Chart("A run cycle, in times of the first tenth's median", (0, cycles), (0, max(ticks)))
        chart.y_axis(ticks)
        chart.x_axis("cycles", {tick: spaced(tick) for tick in ticks_up_to(cycles)})
        for way, values in lines.items():
            points = [(cycles * (number + 0.5) / len(values), value) for number, value in enumerate(values)]
            self._line(chart, f"run cycle, {way}", points)
        self._save(chart, "endurance")

    def curve(self, name: str, of: str, unit: str, points: Sequence[Point], *, is_log: bool) -> None:
        """How much of each line there is at each size. `is_log`: both axes."""
        at = {point.size: point.size or points[1].size * NEXT_TO_NOTHING for point in points}
        values = [value for point in points for value in point.lines.values() if value > 0]
        ticks = ticks_between(min(values), max(values)) if is_log else ticks_up_to(max(values))
        chart = Chart(
            f"{of[:1].upper()}{of[1:]}: {unit}",
            (min(at.values()), max(at.values())),
            (min(ticks), max(ticks)),
            is_log=is_log,
            is_y_log=is_log,
        )
        chart.y_axis(ticks)
        chart.x_axis(of, {position: spaced(size) for size, position in at.items()})
        for line, (color, dashes) in zip(points[-1].lines, STYLES, strict=False):
            there = [(at[point.size], point.lines[line]) for point in points if point.lines.get(line, 0) > 0]
            chart.line(there, color, dashes)
            chart.dots(there, color)
            chart.legend(line, color, dashes)
        self._save(chart, f"curve-{name}")

    def _line(self, chart: Chart, name: str, points: Sequence[tuple[float, float]]) -> None:
        work, way = name.split(", ")
        style = (COLORS[way], DASHES.get(work, ""))
        chart.line(points, *style)
        chart.legend(name, *style)

    def _bars(self, chart: Chart, shift: float, width: float, values: Sequence[float], color: str) -> None:
        for number, value in enumerate(values):
            chart.bar(number + shift, width, value, color, f"{value:.1f}")

    def _save(self, chart: Chart, name: str) -> None:
        if self.folder:
            self.folder.mkdir(parents=True, exist_ok=True)
            chart.save(self.folder / f"performance-{name}.svg")
