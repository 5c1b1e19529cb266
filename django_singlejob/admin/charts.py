"""Charts, drawn on the server as SVG. They have no inline styles, which a strict Content-Security-Policy refuses.

Widths are percentages, so that a chart fills the available width while its text keeps its size.
"""

from collections.abc import Sequence
from datetime import timedelta

from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext, ngettext

from django_singlejob.admin.cells import duration, tone
from django_singlejob.admin.history import PastRun, label
from django_singlejob.conf import ZERO

SPARKLINE_HEIGHT = 24
SPARKLINE_STEP = 4
LEAST_HEIGHT = 3
PLOT_HEIGHT = 160
# There is always room for this many, so that the bar of a single run is not as wide as the page.
LEAST_BARS = 10
TEXT_HEIGHT = 16
# A limit more than this many times the highest bar would flatten all bars, so its line is not drawn.
HIGHEST_LIMIT = 4


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


def plot(runs: Sequence[PastRun], mean: timedelta | None, limit: timedelta | None) -> SafeString:
    """The same, large, with lines for the mean and for the limit beyond which a run is overrunning (``None`` if there
    is none yet)."""
    lengths = [run.duration or ZERO for run in runs]
    top = max([*lengths, mean or ZERO, timedelta(microseconds=1)])
    if limit and limit <= HIGHEST_LIMIT * top:
        top = max(top, limit)
    step = 100 / max(len(runs), LEAST_BARS)
    bars = format_html_join(
        "",
        '<rect x="{}%" y="{}" width="{}%" height="{}" class="singlejob-{}"><title>{}</title></rect>',
        (
            (
                round(index * step, 2),
                PLOT_HEIGHT - height,
                round(step * 0.8, 2),
                height,
                *_labelled(run),
            )
            for index, (run, length) in enumerate(zip(runs, lengths, strict=True))
            # One that has no duration, such as that of a dead holder, is to be seen as well.
            for height in [max(_height(length, top), LEAST_HEIGHT)]
        ),
    )
    lines = ((mean, gettext("mean %s"), "mean"), (limit, gettext("overrunning beyond %s"), "limit"))
    return format_html(
        '<svg class="singlejob-plot" role="img" aria-label="{}" width="100%" height="{}">{}{}</svg>',
        described(runs),
        PLOT_HEIGHT,
        bars,
        format_html_join(
            "",
            '<line x1="0" x2="100%" y1="{0}" y2="{0}" class="singlejob-line-{1}"></line><text x="4" y="{2}">{3}</text>',
            (
                (y := _height(top - length, top), kind, _beside(y), label % duration(length))
                for length, label, kind in lines
                if length and length <= top
            ),
        ),
    )


def _height(length: timedelta, top: timedelta) -> float:
    return round(PLOT_HEIGHT * (length / top), 1)


def _beside(y: float) -> float:
    return y - 4 if y > TEXT_HEIGHT else y + TEXT_HEIGHT


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
