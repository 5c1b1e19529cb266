"""The slots of the last and of the next 24 hours, of one job or of many: the layout, and how it is drawn."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import groupby
from typing import Any, NamedTuple

from django.core.paginator import Paginator
from django.utils import timezone
from django.utils.formats import date_format
from django.utils.html import format_html, format_html_join
from django.utils.http import urlencode
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from django_singlejob.admin.addresses import address
from django_singlejob.admin.cells import badge, clock_time, grouped, link
from django_singlejob.admin.slots import QUARTER, Day, SlotState, Span, begin_of, days, quarter_of
from django_singlejob.admin.states import state
from django_singlejob.models.jobs import database_now
from django_singlejob.monitoring.health import Health, State, survey

PER_PAGE = 40
# The newest runs of a job that are counted: more than a job has that runs each minute, or on its own page each second.
MOST_OF_MANY, MOST_OF_ONE = 1_500, 90_000
TONES = {
    SlotState.BAD: "bad",
    SlotState.NOT_RUN: "warn",
    SlotState.RUNNING: "busy",
    SlotState.SUCCESSFUL: "good",
    SlotState.SKIPPED: "quiet",
    SlotState.TO_COME: "quiet",
}
HEIGHT, LOW, AXIS = 16, 8, 32
HOURS_BETWEEN_TICKS = 6
# In percent. Ticks outside this range have no label.
LABELLED = (4, 96)


def of_all(number: str | None) -> dict[str, Any]:
    """The context of the page of all jobs: those that need attention come first, ``PER_PAGE`` to a page."""
    surveyed = survey()
    found = [health for health in surveyed.healths if health.is_job]
    found.sort(key=lambda health: (-health.state.level, health.name))
    page = Paginator(found, PER_PAGE).get_page(number)
    span = Span(now=database_now())
    drawn = [_row(day, span) for day in days(list(page.object_list), span, MOST_OF_MANY)]
    return {**_legend(), "rows": drawn, "axis": _axis(span), "page": page, "is_cut": surveyed.is_cut}


def of_one(name: str) -> dict[str, Any] | None:
    """The context of the page of one job; ``None`` if there is no such job."""
    found = [health for health in survey([name]).healths if health.is_job]
    if not found:
        return None
    # Not as it was asked for: MySQL takes capital letters for small ones.
    name, span = found[0].name, Span(now=database_now())
    (day,) = days(found, span, MOST_OF_ONE)
    hours = _hours(day, span)
    past, coming = ([hour for hour in hours if hour.is_past is is_past] for is_past in (True, False))
    return {
        **_legend(),
        "name": name,
        "job": link("jobstatus", name, name),
        "state": state(found[0]),
        "schedule": found[0].schedule,
        "summary": in_words(day.counts),
        "cut": _cut(day),
        "is_paused": found[0].state == State.PAUSED and not day.counts[SlotState.TO_COME],
        "halves": [(_("The last 24 hours"), past), (_("The next 24 hours"), coming)],
    }


def page_of(name: str) -> str:
    """The URL of the page of one job."""
    return f"{address('overview_day')}?{urlencode({'job': name})}"


def in_words(counts: Mapping[SlotState, int]) -> str:
    """``3 successful, 1 not run``."""
    parts = (f"{grouped(counts[state])} {state.label}" for state in SlotState if counts.get(state))
    return ", ".join(parts) or _("nothing")


def _legend() -> dict[str, Any]:
    text = '<span class="singlejob-badge singlejob-{}">{}</span>'
    legend = [format_html(text, TONES[state], state.label) for state in reversed(SlotState)]
    return {"legend": legend, "zone": timezone.get_current_timezone_name()}


def _cut(day: Day) -> str:
    if not day.since:
        return ""
    return format_html(_("There are very many runs. Only those since {time} are counted."), time=clock_time(day.since))


def worst(counts: Mapping[SlotState, int]) -> SlotState:
    """The worst state of those that occur."""
    return next(state for state in SlotState if counts.get(state))


# --- one job, hour by hour


class Hour(NamedTuple):
    """An hour of the local time. If clocks are set back, there are two of the same name.

    ``is_past`` tells whether it began before now.
    """

    label: str
    begin: datetime
    counts: Counter[SlotState]
    drawn: SafeString
    is_past: bool

    @property
    def words(self) -> str:
        """What is in it."""
        return in_words(self.counts) if self.counts else ""


def _hours(day: Day, span: Span) -> list[Hour]:
    found, seen = [], None
    for begin, quarters in _by_hour(span):
        counts = sum((day.quarters.get(quarter, Counter()) for quarter in quarters), Counter[SlotState]())
        is_past = begin <= span.now
        # The first of each day, and of each table, has the date as well.
        label = f"{begin:%H:%M %Z}"
        if (is_past, begin.date()) != seen:
            label = f"{date_format(begin, 'D j')}, {label}"
        seen = is_past, begin.date()
        drawn = _squares(day, quarters)
        found.append(Hour(label=label, begin=begin, counts=counts, drawn=drawn, is_past=is_past))
    return found


def _by_hour(span: Span) -> Iterable[tuple[datetime, list[int]]]:
    """The quarters of each hour on the wall clock, and when the first of them begins."""
    quarters = [(timezone.localtime(begin_of(quarter)), quarter) for quarter in range(span.first, span.last + 1)]
    for _hour, some in groupby(quarters, key=lambda pair: (pair[0].date(), pair[0].hour, pair[0].utcoffset())):
        found = list(some)
        yield found[0][0], [quarter for _begin, quarter in found]


def _squares(day: Day, quarters: Sequence[int]) -> SafeString:
    """A shape for each quarter of the hour in which there is something."""
    shapes = (
        _shape(25 * place, 22, day.quarters[quarter], quarter, quarter)
        for place, quarter in enumerate(quarters)
        if quarter in day.quarters
    )
    return format_html('<svg aria-hidden="true" width="100%" height="{}">{}</svg>', HEIGHT, _drawn(shapes))


# --- many jobs


def _row(day: Day, span: Span) -> tuple[Any, ...]:
    """The link, the notes and the strip of a job."""
    health = day.health
    label = f"{health.name}: {in_words(day.counts)}"
    strip = format_html(
        '<svg role="img" aria-label="{}" width="100%" height="{}">{}{}</svg>',
        label,
        HEIGHT,
        _line(span),
        _drawn(_stretches(day, span)),
    )
    return health.name, page_of(health.name), _note(health), strip, _cut(day)


def _note(health: Health) -> SafeString | str:
    return badge(health.state, health.state.label) if health.state.level or health.state == State.PAUSED else ""


def _stretches(day: Day, span: Span) -> Iterable[tuple[object, ...]]:
    """A shape for each stretch of adjacent quarters of the same state, so that no job needs a hundred of them."""
    quarters = [(quarter, worst(counts)) for quarter, counts in day.quarters.items()]
    for _key, some in groupby(enumerate(quarters), key=lambda pair: (pair[1][0] - pair[0], pair[1][1])):
        stretch = [quarter for _index, (quarter, _state) in some]
        first, last = stretch[0], stretch[-1]
        counts = sum((day.quarters[quarter] for quarter in stretch), Counter[SlotState]())
        x = _place(first, span)
        yield _shape(x, _place(last + 1, span) - x, counts, first, last)


def _place(quarter: float, span: Span) -> float:
    """Where a quarter begins, in percent of the width."""
    return 100 * (quarter - span.first) / (span.last + 1 - span.first)


def _shape(x: float, width: float, counts: Mapping[SlotState, int], first: int, last: int) -> tuple[object, ...]:
    found = worst(counts)
    height = HEIGHT if found in (SlotState.BAD, SlotState.NOT_RUN) else LOW
    title = f"{_clock(first)}-{_clock(last + 1)}: {in_words(counts)}"
    return round(x, 2), HEIGHT - height, round(width, 2), height, TONES[found], title


def _clock(quarter: int) -> str:
    return f"{timezone.localtime(begin_of(quarter)):%H:%M}"


def _drawn(shapes: Iterable[tuple[object, ...]]) -> SafeString:
    shape = '<rect x="{}%" y="{}" width="{}%" height="{}" class="singlejob-{}"><title>{}</title></rect>'
    return format_html_join("", shape, shapes)


def _line(span: Span) -> SafeString:
    x = round(_now(span), 2)
    return format_html('<line class="singlejob-now" x1="{0}%" x2="{0}%" y1="0" y2="100%"></line>', x)


def _now(span: Span) -> float:
    quarter = quarter_of(span.now)
    return _place(quarter + (span.now - begin_of(quarter)) / QUARTER, span)


def _axis(span: Span) -> SafeString:
    first, last = LABELLED
    labels = [
        (round(x, 2), date_format(begin, "H:i" if begin.hour else "D j"))
        for begin, (quarter, *_rest) in _by_hour(span)
        if begin.hour % HOURS_BETWEEN_TICKS == 0 and begin.minute == 0 and first <= (x := _place(quarter, span)) <= last
    ]
    return format_html(
        '<svg class="singlejob-axis" aria-hidden="true" width="100%" height="{}">{}'
        '<text x="{}%" y="28" text-anchor="middle">{}</text></svg>',
        AXIS,
        format_html_join("", '<text x="{}%" y="12" text-anchor="middle">{}</text>', labels),
        round(_now(span), 2),
        _("now"),
    )
