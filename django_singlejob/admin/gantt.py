"""The timeline: which server ran what, and when. The layout comes first, then the drawing."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from typing import NamedTuple

from django.utils import timezone
from django.utils.formats import date_format
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _, ngettext

from django_singlejob.admin.cells import duration, tone
from django_singlejob.admin.history import STALE, Period, RecordedRun, label

# In percent of the width. A run that is shorter than a cell is drawn as a mark, one for all runs that begin within a
# cell. So a page with thousands of runs is neither a heap of bars nor megabytes long.
CELL, MARK = 0.4, 0.3
MOST_SERVERS = 20
# With few servers each may have more lanes, but never more in total, so that the timeline fits a screen.
MOST_LANES = 8
LANES = 24
#: The minutes between two ticks, by the length of the period in hours. Each is a divisor of a day.
STEPS = {1: 10, 6: 60, 24: 240, 72: 720}
# The offsets of all time zones that are in use are multiples of this.
FINEST = timedelta(minutes=5)
LANE, GAP, LOW = 10, 2, 5
AXIS = 18
# Ticks outside this range have no label: the right end is labelled "now".
LABELLED = (5, 85)
SHAPE = '<rect x="{}%" y="{}" width="{}%" height="{}" class="singlejob-{}"><title>{}</title></rect>'
#: The worst first: a mark for several runs has the colour of the worst one.
BADNESS = ["bad", "warn", "busy", "quiet", "good"]


class Bar(NamedTuple):
    """A run that is long enough to be seen, or all the shorter ones of one cell; in percent of the width."""

    x: float
    width: float
    runs: Sequence[RecordedRun]

    @property
    def end(self) -> float:
        return self.x + self.width

    @property
    def tone(self) -> str:
        """The tone of the worst run."""
        return min((tone(run.status) for run in self.runs), key=BADNESS.index)


class Lane(NamedTuple):
    """What a server ran. The bars in a lane do not overlap."""

    hostname: str
    runs: Sequence[RecordedRun]
    lanes: Sequence[Sequence[Bar]]


class Mark(NamedTuple):
    """A point on the axis, in percent of the width, and its label: a time, or at midnight a day."""

    x: float
    label: str


def rows(period: Period) -> list[Lane]:
    """A row for each of the ``MOST_SERVERS`` servers with the most runs, sorted by name."""
    of_server: dict[str, list[RecordedRun]] = defaultdict(list)
    for run in [*period.earlier[::-1], *period.runs[::-1]]:
        of_server[run.hostname].append(run)
    shown = sorted(of_server, key=lambda hostname: (-len(of_server[hostname]), hostname))[:MOST_SERVERS]
    most = min(MOST_LANES, max(LANES // max(len(shown), 1), 1))
    return [
        Lane(hostname=hostname, runs=of_server[hostname], lanes=lanes(bars(of_server[hostname], period), most))
        for hostname in sorted(shown)
    ]


def bars(runs: Iterable[RecordedRun], period: Period) -> list[Bar]:
    """The bars for these runs, from left to right."""
    long, cells = [], defaultdict(list)
    for run in runs:
        x = placed(max(run.started_at, period.begin), period)
        width = placed(run.finished_at or period.now, period) - x
        if width >= CELL:
            long.append(Bar(x=x, width=width, runs=[run]))
        else:
            cells[min(int(x / CELL), round(100 / CELL) - 1)].append(run)
    marks = [Bar(x=cell * CELL, width=MARK, runs=some) for cell, some in cells.items()]
    return sorted([*long, *marks], key=lambda bar: bar.x)


def placed(instant: datetime, period: Period) -> float:
    """The position of an instant between the period's ends, in percent."""
    return min(max(100 * ((instant - period.begin) / (period.now - period.begin)), 0.0), 100.0)


def lanes(found: Iterable[Bar], most: int = MOST_LANES) -> list[list[Bar]]:
    """Put each bar, from left to right, into the first free lane. If all ``most`` lanes are taken, bars overlap in the
    last one. There, the worst come last, because what is drawn last is on top."""
    laid: list[list[Bar]] = []
    for bar in found:
        free = next((lane for lane in laid if lane[-1].end <= bar.x), None)
        if free is None and len(laid) < most:
            laid.append(free := [])
        (laid[-1] if free is None else free).append(bar)
    if laid:
        laid[-1].sort(key=lambda bar: -BADNESS.index(bar.tone))
    return laid


def ticks(period: Period, zone: tzinfo) -> list[Mark]:
    """Full hours (or similar) of the time zone, even if its clocks change in between."""
    step = STEPS[round((period.now - period.begin) / timedelta(hours=1))]
    found = []
    instant = datetime.fromtimestamp(period.begin.timestamp() // FINEST.total_seconds() * FINEST.total_seconds(), UTC)
    while (instant := instant + FINEST) <= period.now:
        local = instant.astimezone(zone)
        if (60 * local.hour + local.minute) % step == 0:
            found.append(Mark(x=placed(instant, period), label=_label(local)))
    return found


def _label(local: datetime) -> str:
    return date_format(local, "H:i" if local.hour or local.minute else "D j")


# --- how it is drawn


def axis(found: Sequence[Mark]) -> SafeString:
    """The times, above the rows."""
    first, last = LABELLED
    labels = ((round(tick.x, 2), tick.label) for tick in found if first <= tick.x <= last)
    return format_html(
        '<svg class="singlejob-axis" aria-hidden="true" width="100%" height="{}">{}'
        '<text x="100%" y="12" text-anchor="end">{}</text></svg>',
        AXIS,
        format_html_join("", '<text x="{}%" y="12" text-anchor="middle">{}</text>', labels),
        _("now"),
    )


def drawn(row: Lane, found: Sequence[Mark], now: datetime) -> SafeString:
    """The bars of a server. Those of runs that did not end well are higher, so that colour is not the only sign."""
    lines = ((round(tick.x, 2),) for tick in found)
    shapes = (_shape(bar, lane * (LANE + GAP), now) for lane, some in enumerate(row.lanes) for bar in some)
    return format_html(
        '<svg class="singlejob-lanes" role="img" aria-label="{}" width="100%" height="{}">{}{}</svg>',
        described(row),
        len(row.lanes) * (LANE + GAP),
        format_html_join("", '<line x1="{0}%" x2="{0}%" y1="0" y2="100%"></line>', lines),
        format_html_join("", SHAPE, shapes),
    )


def _shape(bar: Bar, top: int, now: datetime) -> tuple[object, ...]:
    colour = bar.tone
    height = LANE if colour in ("bad", "warn") else LOW
    return round(bar.x, 2), top + LANE - height, round(bar.width, 2), height, colour, tooltip(bar, now)


def tooltip(bar: Bar, now: datetime) -> str:
    """What a bar represents."""
    run = bar.runs[0]
    if len(bar.runs) == 1:
        facts = {
            "status": label(run.status),
            "length": duration((run.finished_at or now) - run.started_at),
        }
        return _("%(job)s: %(status)s, began at %(time)s, %(length)s") % {
            "job": run.job_name,
            "time": _clock(run),
            **facts,
        }
    jobs = ", ".join(sorted({run.job_name for run in bar.runs})[:3])
    times = {"first": _clock(run), "last": _clock(bar.runs[-1]), "runs": counted(bar.runs), "jobs": jobs}
    return _("%(runs)s, from %(first)s to %(last)s: %(jobs)s") % times


def _clock(run: RecordedRun) -> str:
    return f"{timezone.localtime(run.started_at):%H:%M:%S}"


def described(row: Lane) -> str:
    """A row in words, for screen readers."""
    facts = {"hostname": row.hostname, "runs": counted(row.runs), "time": _clock(row.runs[-1])}
    return _("%(hostname)s: %(runs)s; the last began at %(time)s") % facts


def counted(runs: Sequence[RecordedRun]) -> str:
    """``12 runs, 1 stale, 1 running, 2 bad``."""
    counts = Counter("bad" if run.is_bad else run.status for run in runs)
    parts = [ngettext("%d run", "%d runs", len(runs)) % len(runs)]
    parts += [_("%d stale") % counts[STALE]] if counts[STALE] else []
    parts += [_("%d running") % counts["running"]] if counts["running"] else []
    parts += [_("%d interrupted") % counts["interrupted"]] if counts["interrupted"] else []
    parts += [_("%d skipped") % counts["skipped"]] if counts["skipped"] else []
    parts += [_("%d bad") % counts["bad"]] if counts["bad"] else []
    return ", ".join(parts)
