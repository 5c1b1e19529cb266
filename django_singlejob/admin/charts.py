"""Charts, drawn on the server as SVG. They have no inline styles, which a strict Content-Security-Policy refuses.

Widths are percentages, so that a chart fills the available width while its text keeps its size.
"""

import math
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext, ngettext

from django_singlejob.admin.cells import duration, tone
from django_singlejob.admin.history import RECENT, PastRun, label
from django_singlejob.conf import ZERO

SPARKLINE_HEIGHT = 24
SPARKLINE_STEP = 4
LEAST_HEIGHT = 3
PLOT_HEIGHT = 160
# There is always room for this many, so that the bar of a single run is as wide as others.
LEAST_BARS = RECENT
# Above the highest line, there is room for half of its label.
TOP, SCALE_WIDTH = 8, 72
MOST_TICKS = 4
# A limit more than this many times the highest bar would flatten all bars, so its line is not drawn.
HIGHEST_LIMIT = 4
_SECOND, _MINUTE, _HOUR, _DAY = (timedelta(seconds=count) for count in (1, 60, 3_600, 86_400))
# Each is at most two and a half times the one before: so at least two lines fit.
_STEPS = [
    *(timedelta(milliseconds=count) for count in (1, 2, 5, 10, 20, 50, 100, 200, 500)),
    *(unit * count for unit in (_SECOND, _MINUTE) for count in (1, 2, 5, 10, 15, 30)),
    *(_HOUR * count for count in (1, 2, 3, 6, 12)),
    *(_DAY * count for count in (1, 2, 5, 10, 20, 50, 100)),
]
# What is longer was written by hand.
LEAST_TOP, MOST_TOP = timedelta(milliseconds=2), timedelta(days=100_000)


def sparkline(runs: Sequence[PastRun]) -> SafeString:
    """The durations of a job's last runs, oldest first, each in the colour of its status."""
    lengths = [run.duration or ZERO for run in runs]
    longest = max([*lengths, timedelta(microseconds=1)])
    heights = [LEAST_HEIGHT + round((SPARKLINE_HEIGHT - LEAST_HEIGHT) * length / longest) for length in lengths]
    # One path for each colour: a list has thousands of bars, and an element for each would take longer than the rest.
    bars: dict[str, str] = {}
    for index, (run, height) in enumerate(zip(runs, heights, strict=True)):
        bar = f"M{index * SPARKLINE_STEP} {SPARKLINE_HEIGHT}v-{height}h3v{height}z"
        bars[tone(run.status)] = bars.get(tone(run.status), "") + bar
    paths = format_html_join("", '<path d="{1}" class="singlejob-{0}"></path>', bars.items())
    return format_html(
        '<svg class="singlejob-sparkline" role="img" aria-label="{}" width="{}" height="{}">{}</svg>',
        described(runs),
        max(len(runs), 1) * SPARKLINE_STEP,
        SPARKLINE_HEIGHT,
        paths,
    )


def described(runs: Sequence[PastRun]) -> str:
    """The bars in words, for screen readers."""
    bad = sum(tone(run.status) == "bad" for run in runs)
    longest = max((run.duration for run in runs if run.duration), default=None)
    facts = {"count": len(runs), "bad": bad, "longest": duration(longest)}
    text = ngettext(
        "%(count)d run, %(bad)d of them bad; it took %(longest)s",
        "%(count)d runs, %(bad)d of them bad; the longest took %(longest)s",
        len(runs),
    )
    return text % facts


def plot(
    runs: Sequence[PastRun],
    mean: timedelta | None,
    limit: timedelta | None,
    *,
    max_runtime: timedelta | None = None,
    now: datetime | None = None,
) -> SafeString:
    """The same, large, with a scale and the first and the last time; and with lines for the mean, for the limit beyond
    which a run is overrunning, and for the job's ``max_runtime`` (each ``None`` if there is none). A running one is
    as high as it has taken until ``now``, the time of the database; ``None`` if that is not known."""
    runs = [_so_far(run, now) for run in runs]
    highest = min(max([*(run.duration or ZERO for run in runs), mean or ZERO, LEAST_TOP]), MOST_TOP)
    limits = [length for length in (limit, max_runtime) if length and length <= HIGHEST_LIMIT * highest]
    step = _step(max([highest, *limits]))
    ticks = [step * count for count in range(1, math.ceil(max([highest, *limits]) / step) + 1)]
    lines = (
        (mean, gettext("mean %s"), "mean"),
        (limit, gettext("overrunning beyond %s"), "limit"),
        (max_runtime, gettext("max_runtime %s"), "most"),
    )
    return format_html(
        '<div class="singlejob-chart">'
        '<svg class="singlejob-scale" aria-hidden="true" width="{width}" height="{height}">{scale}</svg>'
        '<svg class="singlejob-plot" role="img" aria-label="{label}" width="100%" height="{height}">'
        "{grid}{bars}{lines}</svg></div>"
        '<p class="singlejob-note">{times}</p><ul class="singlejob-legend">{legend}</ul>',
        width=SCALE_WIDTH,
        height=TOP + PLOT_HEIGHT + 4,
        label=described(runs),
        scale=_scale(ticks),
        grid=_lines(((tick, "grid") for tick in [ZERO, *ticks]), ticks[-1]),
        bars=_bars(runs, ticks[-1]),
        lines=_lines(((length, kind) for length, _, kind in lines if length and length <= ticks[-1]), ticks[-1]),
        times=_times(runs),
        legend=_legend((kind, words % duration(length)) for length, words, kind in lines if length),
    )


def _so_far(run: PastRun, now: datetime | None) -> PastRun:
    is_running = run.status == "running" and run.duration is None and now is not None
    return run._replace(duration=max(now - run.started_at, ZERO)) if is_running and now else run


def _step(highest: timedelta) -> timedelta:
    """Between two lines of the scale: it is round, and two to four of them reach up to ``highest``."""
    step = next((step for step in _STEPS if highest / step <= MOST_TICKS), _STEPS[-1])
    while highest / step > MOST_TICKS:
        step *= 2
    return step


def _y(length: timedelta, top: timedelta) -> float:
    return round(TOP + PLOT_HEIGHT * (1 - length / top), 1)


def _scale(ticks: Sequence[timedelta]) -> SafeString:
    text = '<text x="{}" y="{}" text-anchor="end">{}</text>'
    rows = ((SCALE_WIDTH - 6, _y(tick, ticks[-1]) + 4, _round(tick)) for tick in ticks)
    return format_html_join("", text, rows)


def _round(length: timedelta) -> str:
    """A round duration in one unit: ``5 min``."""
    units = (
        (_DAY, gettext("%d d")),
        (_HOUR, gettext("%d h")),
        (_MINUTE, gettext("%d min")),
        (_SECOND, gettext("%d s")),
    )
    for unit, words in units:
        if length >= unit:
            return duration(length) if length % unit else words % (length // unit)
    return duration(length)


def _lines(some: Iterable[tuple[timedelta, str]], top: timedelta) -> SafeString:
    line = '<line x1="0" x2="100%" y1="{0}" y2="{0}" class="singlejob-line-{1}"></line>'
    return format_html_join("", line, ((_y(length, top), kind) for length, kind in some))


def _bars(runs: Sequence[PastRun], top: timedelta) -> SafeString:
    step = 100 / max(len(runs), LEAST_BARS)
    bar = '<rect x="{}%" y="{}" width="{}%" height="{}" class="singlejob-{}"><title>{}</title></rect>'
    rows = (
        (round(index * step, 2), TOP + PLOT_HEIGHT - height, round(step * 0.8, 2), height, *_labelled(run))
        for index, run in enumerate(runs)
        # One that has no duration, such as that of a dead holder, is to be seen as well.
        for height in [max(round(PLOT_HEIGHT * min((run.duration or ZERO) / top, 1), 1), LEAST_HEIGHT)]
    )
    return format_html_join("", bar, rows)


def _times(runs: Sequence[PastRun]) -> str:
    """When the first and the last run began."""
    if not runs:
        return ""
    first, last = (f"{timezone.localtime(run.started_at):%Y-%m-%d %H:%M %Z}" for run in (runs[0], runs[-1]))
    return first if len(runs) == 1 else gettext("%(first)s to %(last)s") % {"first": first, "last": last}


def _legend(lines: Iterable[tuple[str, str]]) -> SafeString:
    item = (
        '<li><svg aria-hidden="true" width="24" height="8"><line x1="0" x2="24" y1="4" y2="4" '
        'class="singlejob-line-{}"></line></svg> {}</li>'
    )
    return format_html_join("", item, lines)


def _labelled(run: PastRun) -> tuple[str, str]:
    began = timezone.localtime(run.started_at)
    return tone(run.status), f"{began:%Y-%m-%d %H:%M:%S %Z}: {label(run.status)}, {duration(run.duration)}"


def share(part: float, label: str, kind: str = "quiet") -> SafeString:
    """A bar for a part of the whole, from 0 to 1, and its label."""
    return format_html(
        '<svg class="singlejob-share" aria-hidden="true" width="100%" height="10">'
        '<rect width="100%" height="10" class="singlejob-track"></rect>'
        '<rect width="{}%" height="10" class="singlejob-{}"></rect></svg><span class="singlejob-note">{}</span>',
        round(100 * min(max(part, 0), 1), 1),
        kind,
        label,
    )
