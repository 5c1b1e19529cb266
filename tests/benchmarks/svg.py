"""A plain chart as SVG: axes with ticks, lines, bars and a legend. It is dark where the reader prefers that, and has a
background of its own, so that it can be read on any page."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path

WIDTH, HEIGHT = 760, 400
LEFT, RIGHT, TOP, BOTTOM = 70, 36, 84, 64
#: Of the background, the texts and the grid. The lines and bars have colors that can be seen on both backgrounds.
LIGHT, DARK = ("#ffffff", "#24292f", "#d8dee4"), ("#0d1117", "#e6edf3", "#30363d")
EDGE = 1.12
FONT = "font-family='system-ui, sans-serif' font-size='13'"
Scale = Callable[[float], float]


class Chart:
    """`x` and `y` are the lowest and the highest value on each axis. `is_log` and `is_y_log`: whether a step on it is a
    factor."""

    def __init__(
        self,
        title: str,
        x: tuple[float, float],
        y: tuple[float, float],
        *,
        is_log: bool = False,
        is_y_log: bool = False,
    ) -> None:
        self.x: Scale = scale(x, (LEFT, WIDTH - RIGHT), is_log=is_log)
        self.y: Scale = scale(y, (HEIGHT - BOTTOM, TOP), is_log=is_y_log)
        self.entries = 0
        self.parts = [
            f"<style>{style(*LIGHT)}@media (prefers-color-scheme: dark) {{{style(*DARK)}}}</style>",
            f"<rect class='paper' width='{WIDTH}' height='{HEIGHT}' rx='8'/>",
            f"<text x='{LEFT}' y='30' font-size='16' font-weight='600'>{escape(title)}</text>",
        ]

    def x_axis(self, label: str, ticks: Mapping[float, str]) -> None:
        """A comma starts another row."""
        for value, text in ticks.items():
            self._line(self.x(value), TOP, self.x(value), HEIGHT - BOTTOM)
            for row, words in enumerate(text.split(", ")):
                self._text(self.x(value), HEIGHT - BOTTOM + 18 * (row + 1), words, anchor="middle")
        self._text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 14, label, anchor="middle")

    def y_axis(self, ticks: Mapping[float, str]) -> None:
        for value, text in ticks.items():
            self._line(LEFT, self.y(value), WIDTH - RIGHT, self.y(value))
            self._text(LEFT - 8, self.y(value) + 4, text, anchor="end")

    def line(self, points: Sequence[tuple[float, float]], color: str, dashes: str = "") -> None:
        path = " ".join(f"{self.x(x):.1f},{self.y(y):.1f}" for x, y in points)
        self.parts.append(f"<polyline points='{path}' fill='none' {stroke(color, dashes)}/>")

    def dots(self, points: Sequence[tuple[float, float]], color: str) -> None:
        for x, y in points:
            self.parts.append(f"<circle cx='{self.x(x):.1f}' cy='{self.y(y):.1f}' r='3.5' fill='{color}'/>")

    def bar(self, middle: float, width: float, value: float, color: str, text: str) -> None:
        """Upright, from 0, with its value above it."""
        left, top, bottom = self.x(middle - width / 2), self.y(value), self.y(0)
        size = f"width='{self.x(middle + width / 2) - left:.1f}' height='{bottom - top:.1f}'"
        self.parts.append(f"<rect x='{left:.1f}' y='{top:.1f}' {size} fill='{color}'/>")
        self._text(self.x(middle), top - 5, text, anchor="middle")

    def legend(self, text: str, color: str, dashes: str = "") -> None:
        """One more entry, from left to right in two rows."""
        x, y = LEFT + (self.entries % 3) * 225, 50 + (self.entries // 3) * 18
        self.parts.append(f"<line x1='{x}' y1='{y}' x2='{x + 26}' y2='{y}' {stroke(color, dashes)}/>")
        self._text(x + 34, y + 4, text)
        self.entries += 1

    def save(self, path: Path) -> None:
        head = f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {HEIGHT}' {FONT}>"
        path.write_text("\n".join([head, *self.parts, "</svg>", ""]))

    def _line(self, *ends: float) -> None:
        x1, y1, x2, y2 = (f"{end:.1f}" for end in ends)
        self.parts.append(f"<line class='grid' x1='{x1}' y1='{y1}' x2='{x2}' y2='{y2}'/>")

    def _text(self, x: float, y: float, text: str, anchor: str = "start") -> None:
        at = f"x='{x:.1f}' y='{y:.1f}'"
        self.parts.append(f"<text {at} text-anchor='{anchor}'>{escape(text)}</text>")


def scale(values: tuple[float, float], pixels: tuple[float, float], *, is_log: bool = False) -> Scale:
    form = math.log10 if is_log else float
    low, high = map(form, values)
    start, end = pixels
    return lambda value: start + (form(value) - low) / (high - low) * (end - start)


def style(paper: str, ink: str, pale: str) -> str:
    return f".paper {{fill: {paper}}} text {{fill: {ink}}} .grid {{stroke: {pale}}}"


def stroke(color: str, dashes: str) -> str:
    return f"stroke='{color}' stroke-width='2'" + (f" stroke-dasharray='{dashes}'" if dashes else "")


def ticks_up_to(highest: float, count: int = 5) -> dict[float, str]:
    """About this number of round values from 0, and their texts. The last one is not below the highest."""
    power = 10 ** math.floor(math.log10(highest / count))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor * count >= highest)
    return {number * step: f"{number * step:g}" for number in range(math.ceil(highest / step) + 1)}


def ticks_between(lowest: float, highest: float, most: int = 7) -> dict[float, str]:
    """Round values for a logarithmic axis, and their texts: powers of ten, and if there is room, 2 and 5 times these.
    Values a little beyond the first or the last one are at the edge."""
    values = round_values(lowest, highest, (1, 2, 5))
    if len(values) > most:
        values = round_values(lowest, highest, (1,))
    return {value: spaced(value) for value in values}


def round_values(lowest: float, highest: float, factors: Sequence[int]) -> list[float]:
    powers = range(math.floor(math.log10(lowest)) - 1, math.ceil(math.log10(highest)) + 2)
    values = [round(factor * 10.0**power, 9) for power in powers for factor in factors]
    first = max(number for number, value in enumerate(values) if value <= lowest * EDGE)
    last = min(number for number, value in enumerate(values) if value >= highest / EDGE)
    return values[first : max(last, first + 1) + 1]


def spaced(number: float) -> str:
    """The number, with a space after its thousands."""
    return f"{number:_.0f}".replace("_", " ") if number >= 1000 else f"{number:g}"
