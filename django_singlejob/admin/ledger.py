"""The ledger: what became of each slot of a day or a night, of one job or of many, and what is to come."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import groupby, islice
from operator import itemgetter
from typing import Any, NamedTuple

from django.core.paginator import Paginator
from django.utils import timezone
from django.utils.formats import date_format
from django.utils.html import format_html, format_html_join
from django.utils.http import urlencode
from django.utils.safestring import SafeString
from django.utils.text import format_lazy
from django.utils.translation import gettext as _, ngettext

from django_singlejob.admin.addresses import address
from django_singlejob.admin.cells import badge, breakable, clock_time, duration, first_line, grouped, link
from django_singlejob.admin.states import state
from django_singlejob.jobs import registry
from django_singlejob.jobs.schedule import MINUTE, Schedule, next_slot
from django_singlejob.jobs.slots import COUNTED as COUNTED_SLOTS
from django_singlejob.models import JobNote, JobStatus
from django_singlejob.models.jobs import database_now, gates
from django_singlejob.models.notes import notes
from django_singlejob.models.one_offs import one_offs
from django_singlejob.monitoring.causes import Answer
from django_singlejob.monitoring.evidence import changes
from django_singlejob.monitoring.findings import in_figures
from django_singlejob.monitoring.health import Health, State, schedule_of, survey
from django_singlejob.monitoring.ledger import (
    COUNTED,
    Entry,
    Ledger,
    SlotOutcome,
    Stretch,
    ledger_of,
    ledgers_of,
    worst_first,
)
from django_singlejob.monitoring.many_facts import telling_first_and_newest
from django_singlejob.process.clock import instant_in_words
from django_singlejob.process.escaping import listed, shown
from django_singlejob.to_come import JUST, Coming, clock_changes, coming_slots, crowds, slow_jobs

PER_PAGE = 40
# How many lines a job has on the page of many; with how many slots the page of one job has a line for each; and how
# many slots to come are listed.
MOST_LINES, MOST_SINGLE, MOST_TO_COME = 3, 200, 100
# No page has more lines of one job.
MOST_OF_LINES = 500
# Beside others, a job that has more slots to come is named once, with their number.
MOST_LISTED = 12
TONES = {
    SlotOutcome.TWICE: "bad",
    SlotOutcome.MISSED: "bad",
    SlotOutcome.CUT_OFF: "bad",
    SlotOutcome.FAILED: "bad",
    SlotOutcome.STOPPED: "warn",
    SlotOutcome.SCHEDULE_NOT_KNOWN: "warn",
    SlotOutcome.PAUSED: "warn",
    SlotOutcome.DUE: "busy",
    SlotOutcome.RUNNING: "busy",
    SlotOutcome.RAN: "good",
}
RUNNABLE = {SlotOutcome.MISSED, SlotOutcome.CUT_OFF, SlotOutcome.FAILED, SlotOutcome.STOPPED, SlotOutcome.PAUSED}
# A strip has this many columns. In each, the worst is drawn; what is to come comes last.
COLUMNS = 288
TO_COME = len(SlotOutcome)
HEIGHT, LOW, AXIS = 16, 8, 32
TICKS = 7
# In percent. Ticks outside this range have no label.
LABELLED = (4, 96)


class Span(NamedTuple):
    """The slots of the page: from ``since`` on, and before ``until``. ``hours``: how many were asked for, from a chosen
    instant on or around now. ``zone``: whose clocks the page shows."""

    since: datetime
    until: datetime
    now: datetime
    hours: int
    is_chosen: bool
    zone: tzinfo

    @classmethod
    def chosen(cls, since: datetime | None, hours: int, zone: tzinfo) -> "Span":
        """``hours`` from ``since`` on; ``None``: as much before now, and after it."""
        now, length = database_now(), timedelta(hours=hours)
        if since is None:
            return cls(now - length, now + length, now, hours, is_chosen=False, zone=zone)
        begin = (since if since.tzinfo else since.replace(tzinfo=zone)).astimezone(UTC)
        return cls(begin, begin + length, now, hours, is_chosen=True, zone=zone)

    def place(self, instant: datetime) -> float:
        """Where the instant is, from 0 to 1."""
        return (instant - self.since) / (self.until - self.since)

    def column(self, instant: datetime) -> int:
        """The column of a strip that the instant is in."""
        return min(COLUMNS - 1, max(0, int(COLUMNS * self.place(instant))))

    def begin_of(self, column: int) -> datetime:
        """When the column begins."""
        return self.since + (self.until - self.since) * column / COLUMNS


def of_all(since: datetime | None, hours: int, number: str | None) -> dict[str, Any]:
    """The context of the page of all jobs: those that may need attention come first, ``PER_PAGE`` to a page."""
    span = Span.chosen(since, hours, timezone.get_current_timezone())
    page = Paginator(worst_first(span.since, span.until), PER_PAGE).get_page(number)
    names = list(page.object_list)
    found = survey(names, rows=telling_first_and_newest(gates())).healths if names else ()
    healths = {health.name: health for health in found if health.is_job}
    known = [healths[name] for name in names if name in healths]
    ledgers = ledgers_of(known, span.now, span.since, span.until, MOST_LINES) if known else {}
    names = [*ledgers]
    coming = _coming(span, healths)
    by_name = {job.name: job for job in coming}
    names.sort(key=lambda name: (_worst(ledgers[name]), name))
    waiting = _waiting([name for name, ledger in ledgers.items() if ledger.stretches])
    rows = [_row(ledgers[name], healths.get(name), by_name.get(name), span, waiting) for name in names]
    total = sum((ledger.counts for ledger in ledgers.values()), Counter[SlotOutcome]())
    return {
        **_frame(span, total),
        **_to_come(coming, span, {name: health.status for name, health in healths.items() if health.status}),
        "rows": rows,
        "page": page,
        "summary": in_words(total),
    }


def of_one(name: str, since: datetime | None, hours: int) -> dict[str, Any] | None:
    """The context of the page of one job; ``None`` if there is no such job."""
    found = [health for health in survey([name]).healths if health.is_job]
    if not found:
        return None
    # Not as it was asked for: MySQL takes capital letters for small ones.
    health, name = found[0], found[0].name
    schedule = _schedule(health)
    span = Span.chosen(since, hours, schedule.zone if schedule else UTC)
    ledger = ledger_of(name, span.since, span.until)
    coming, lines = _coming(span, {name: health}), _lines_of_one(ledger, _waiting([name]))
    return {
        **_frame(span, ledger.counts),
        **_to_come(coming, span),
        "name": name,
        "job": link("jobstatus", name, breakable(name)),
        "state": state(health),
        "schedule": health.schedule,
        "summary": in_words(ledger.counts),
        "strip": _strip(ledger, coming[0] if coming else None, span),
        "cut": _cut(ledger, span),
        "lines": [*islice(lines, MOST_OF_LINES)],
        "has_more": any(True for _line in lines),
        "may_run_job": _may_run(health),
        "notes": [_note(note, ledger.zone) for note in _notes(name, span)],
        "is_paused": health.state == State.PAUSED and not coming,
    }


def page_of(name: str) -> str:
    """The URL of the page of one job."""
    return f"{address('overview_ledger')}?{urlencode({'job': name})}"


def in_words(counts: Mapping[SlotOutcome, int]) -> str:
    """``1 missed, 410 ran``."""
    parts = (f"{grouped(counts[outcome])} {outcome.label}" for outcome in SlotOutcome if counts.get(outcome))
    return ", ".join(parts) or _("no slots")


def _worst(ledger: Ledger) -> int:
    return min((_rank(outcome) for outcome in ledger.counts), default=TO_COME)


def _rank(outcome: SlotOutcome) -> int:
    return [*SlotOutcome].index(outcome)


def _frame(span: Span, found: Collection[SlotOutcome]) -> dict[str, Any]:
    """What both pages have. ``found``: the outcomes that the legend names."""
    length = timedelta(hours=span.hours)
    legend = '<span class="singlejob-badge singlejob-{}">{}</span>'
    labels: list[tuple[str, object]] = [("quiet", _("to come"))] if span.until > span.now else []
    labels += [(_tone(outcome), outcome.label) for outcome in reversed(SlotOutcome) if outcome in found]
    return {
        "span": _("{since} to {until}").format(
            since=instant_in_words(span.since, span.zone), until=instant_in_words(span.until, span.zone)
        ),
        "earlier": _asked(span.since - length if span.is_chosen else span.since, span.hours, span.zone),
        "later": _asked(span.until if span.is_chosen else span.now, span.hours, span.zone),
        "chosen": _asked(span.since if span.is_chosen else None, span.hours, span.zone),
        "axis": _axis(span),
        "legend": [format_html(legend, *each) for each in labels],
    }


def _tone(outcome: SlotOutcome) -> str:
    return TONES.get(outcome, "quiet")


def _asked(since: datetime | None, hours: int, zone: tzinfo) -> str:
    """What asks for these slots, as a part of a URL."""
    written = since.astimezone(zone).isoformat(sep=" ", timespec="minutes") if since else ""
    return urlencode({"since": written, "hours": str(hours)})


def _cut(ledger: Ledger, span: Span) -> str:
    if ledger.since is None:
        return _("There is no record of a slot.") if span.since < span.now else ""
    if ledger.since <= span.since:
        return ""
    text = _("Before {time}, there are too many slots.") if ledger.is_cut else _("Before {time}, there is no record.")
    return format_html(text, time=clock_time(ledger.since, ledger.zone))


# --- the slots of the past


def _may_run(health: Health) -> bool:
    return registry.is_known(health.name) and health.state != State.PAUSED


def _waiting(names: Collection[str]) -> set[tuple[str, datetime | None]]:
    if not names:
        return set()
    rows = one_offs().exclude(status__in=("done", "failed", "cancelled")).filter(job_name__in=names)
    found = rows.filter(retried_slot__isnull=False).values_list("job_name", "retried_slot")
    return {(name, slot and slot.astimezone(UTC)) for name, slot in found}


def _row(
    ledger: Ledger,
    health: Health | None,
    coming: Coming | None,
    span: Span,
    waiting: Collection[tuple[str, datetime | None]],
) -> dict[str, Any]:
    is_noted = health is not None and (health.state.level or health.state == State.PAUSED)
    return {
        "name": breakable(ledger.name),
        "url": page_of(ledger.name),
        "note": badge(health.state, health.state.label) if health and is_noted else "",
        "summary": in_words(ledger.counts),
        "strip": _strip(ledger, coming, span),
        "cut": _cut(ledger, span) if ledger.is_cut else "",
        "lines": [_line_of(stretch, ledger, waiting) for stretch in ledger.stretches],
        "may_run": health is not None and _may_run(health),
        "left_out": ledger.left_out,
    }


def _line_of(stretch: Stretch, ledger: Ledger, waiting: Collection[tuple[str, datetime | None]]) -> dict[str, Any]:
    """A line for a slot, or for several of which the same can be said. ``waiting``: the jobs and slots that a worker is
    to run."""
    first, last, number = stretch.slots[0], stretch.slots[-1], len(stretch.slots)
    until = instant_in_words(last, ledger.zone)
    more = ngettext("And %(count)s more slot, at %(until)s.", "And %(count)s more slots, until %(until)s.", number - 1)
    is_single, is_waiting = number == 1, (ledger.name, first) in waiting
    return {
        "when": clock_time(first, ledger.zone),
        "badge": _outcome(stretch.outcome),
        "sentence": shown(_said(stretch)),
        "more": "" if is_single else more % {"count": grouped(number - 1), "until": until},
        "why": _why(ledger, first) if stretch.outcome not in COUNTED else "",
        "name": ledger.name,
        "at": instant_in_words(first, ledger.zone),
        "slot": first.isoformat() if is_single and stretch.outcome in RUNNABLE and not is_waiting else "",
        "is_waiting": is_waiting,
        "run": "",
    }


def _said(stretch: Stretch) -> str:
    answer = stretch.answer
    if answer is None:
        return ""
    return " ".join(answer.evidence) if stretch.outcome == SlotOutcome.TWICE else answer.sentence


def _outcome(outcome: SlotOutcome) -> SafeString:
    return format_html('<span class="singlejob-badge singlejob-{}">{}</span>', _tone(outcome), outcome.label)


def _why(ledger: Ledger, slot: datetime) -> str:
    asked = {"job": ledger.name, "at": slot.astimezone(ledger.zone).isoformat()}
    return f"{address('overview_why')}?{urlencode(asked)}"


def _notes(name: str, span: Span) -> list[JobNote]:
    return [*notes().filter(job_name=name, at__gte=span.since, at__lt=span.until).order_by("at", "pk")[:MOST_TO_COME]]


def _note(note: JobNote, zone: tzinfo) -> tuple[SafeString, str, str]:
    """When, what and by whom, and more of it."""
    by = _("by %s") % shown(note.by) if note.by else ""
    what = f"{note.get_kind_display()} {by}".strip()
    texts = [change.texts for change in changes([note])]
    more = [note.reason] if note.reason else []
    more += [_("from {before} to {after}").format(before=before, after=after) for before, after in texts]
    if note.until:
        more.append(_("until %s") % instant_in_words(note.until, zone))
    if note.first_slot and note.number:
        more.append(instant_in_words(note.first_slot, zone))
    return clock_time(note.at, zone), what, ", ".join(map(shown, more))


def _lines_of_one(ledger: Ledger, waiting: Collection[tuple[str, datetime | None]]) -> Iterator[dict[str, Any]]:
    """Each slot or, if there are too many, those that follow one another and of which the same can be said."""
    answers = {slot: stretch.answer for stretch in ledger.stretches for slot in stretch.slots}
    are_few = len(ledger.entries) <= MOST_SINGLE

    def sort(entry: Entry) -> object:
        return entry.slot if are_few else (entry.outcome, id(answers.get(entry.slot)))

    for _key, some in groupby(ledger.entries, key=sort):
        found = list(some)
        stretch = Stretch([entry.slot for entry in found], found[0].outcome, answers.get(found[0].slot))
        yield {**_line_of(stretch, ledger, waiting), **_details(found, stretch.answer, ledger.zone)}


def _details(entries: Sequence[Entry], answer: Answer | None, zone: tzinfo) -> dict[str, Any]:
    """Its last run, if it had one, or else why it had none; the answer may be about an earlier slot."""
    last = entries[0].attempts[-1] if len(entries) == 1 and entries[0].attempts else None
    found: dict[str, Any] = {}
    if last:
        again = _("run {number}, attempt {attempt}, at {time} on {server}, {duration}")
        text = again if last.attempt > 1 else _("run {number}, at {time} on {server}, {duration}")
        found["run"] = format_html(
            text,
            number=link("jobrun", last.pk, f"#{last.pk}"),
            attempt=last.attempt,
            time=clock_time(last.started_at, zone),
            server=breakable(last.hostname),
            duration=duration(last.duration),
        )
        found["sentence"] = breakable(first_line(last.error))
    elif answer and answer.slot and answer.slot != entries[0].slot:
        found["sentence"] = answer.cause.label
    return found


# --- the slots to come


def _coming(span: Span, healths: Mapping[str, Health]) -> list[Coming]:
    """The slots to come of these jobs, unless they are paused."""
    begin, schedules = max(span.since, span.now), list[tuple[str, Schedule, datetime]]()
    if begin >= span.until:
        return []
    for name, health in healths.items():
        schedule, resumed_at = _schedule(health), _resumed_at(health, begin)
        if schedule and resumed_at and resumed_at < span.until:
            schedules.append((name, schedule, resumed_at))
    return [
        job
        for name, schedule, resumed_at in schedules
        for job in coming_slots([(name, schedule)], resumed_at.astimezone(UTC), span.until.astimezone(UTC))
    ]


def _schedule(health: Health) -> Schedule | None:
    """The schedule in the database or, until a server has requested the job, that in the code."""
    if health.status and health.status.schedule:
        return schedule_of(health.status)
    policy = registry.get(health.name).policy if registry.is_known(health.name) else None
    return policy.schedule if policy else None


def _resumed_at(health: Health, begin: datetime) -> datetime | None:
    """From when on slots are run; ``None``: the job is paused until somebody resumes it."""
    if not (health.status and health.status.is_paused):
        return begin
    until = health.status.paused_until
    return until and max(begin, until)


def _to_come(coming: Sequence[Coming], span: Span, gates: Mapping[str, JobStatus] | None = None) -> dict[str, Any]:
    """What is to come, in its order, and what stands out."""
    if span.until <= span.now:
        return {"is_over": True}
    begin = max(span.since, span.now).astimezone(UTC)
    seldom = [job for job in coming if len(coming) == 1 or len(job.slots) <= MOST_LISTED]
    slots = sorted(((slot, job) for job in seldom for slot in job.slots), key=itemgetter(0))
    left_out = sum(job.left_out for job in seldom) + len(slots[MOST_TO_COME:])
    return {
        "coming": [
            (clock_time(slot, span.zone), breakable(job.name), page_of(job.name)) for slot, job in slots[:MOST_TO_COME]
        ],
        "coming_left_out": grouped(left_out) if left_out else "",
        "often": [(breakable(job.name), page_of(job.name), _number(job)) for job in coming if job not in seldom],
        "remarks": [
            *_of_clocks(coming, timezone.get_current_timezone(), begin, span.until.astimezone(UTC)),
            *_of_crowds(coming),
            *_of_slow(coming, gates),
        ],
    }


def _number(job: Coming) -> str:
    return str(in_figures(len(job.slots) + job.left_out, is_cut=job.left_out >= COUNTED_SLOTS))


def _of_clocks(coming: Sequence[Coming], here: tzinfo, begin: datetime, until: datetime) -> Iterator[str]:
    for change in clock_changes(coming, here, begin, until):
        lost = _("{at}: clocks change in {zone}, and {begin} to {end} is left out.")
        doubled = _("{at}: clocks change in {zone}, and {begin} to {end} comes twice.")
        text = lost if change.is_lost else doubled
        at = instant_in_words(change.at, change.zone)
        yield text.format(at=at, zone=change.zone, begin=change.begin, end=change.end)
        for effect in change.effects:
            words = format_lazy(effect.words, end=change.end, times=listed(effect.times))
            yield f"{effect.name}: {words}."


def _of_crowds(coming: Sequence[Coming]) -> Iterator[str]:
    text = _("{count} jobs begin at {time}. To spread them out, write H for the minute.")
    for minute, count in crowds(coming)[:MOST_LINES]:
        yield text.format(count=count, time=instant_in_words(minute, timezone.get_current_timezone()))


def _of_slow(coming: Sequence[Coming], gates: Mapping[str, JobStatus] | None) -> Iterator[str]:
    text = _("{name} takes {mean} on average, longer than the {interval} between two of its slots.")
    for name, mean, interval in slow_jobs(coming, gates):
        yield text.format(name=name, mean=duration(mean), interval=duration(interval))


# --- the strip of a job


def _strip(ledger: Ledger, coming: Coming | None, span: Span) -> SafeString:
    columns = {span.column(entry.slot): TO_COME for entry in ledger.entries}
    for entry in ledger.entries:
        column = span.column(entry.slot)
        columns[column] = min(columns[column], _rank(entry.outcome))
    for column in _columns_to_come(coming, span):
        columns.setdefault(column, TO_COME)
    return format_html(
        '<svg role="img" aria-label="{}" width="100%" height="{}">{}{}</svg>',
        shown(f"{ledger.name}: {in_words(ledger.counts)}"),
        HEIGHT,
        _line(span),
        _drawn(columns, span),
    )


def _columns_to_come(coming: Coming | None, span: Span) -> Iterator[int]:
    slot = coming.slots[0] if coming and coming.slots else None
    while coming and slot and slot < span.until:
        column = span.column(slot)
        yield column
        slot = next_slot(coming.schedule, max(slot, span.begin_of(column + 1) - JUST))


def _drawn(columns: Mapping[int, int], span: Span) -> SafeString:
    """A shape for adjacent columns of the same outcome, so that no job needs hundreds of them."""
    shape = '<rect x="{}%" y="{}" width="{}%" height="{}" class="singlejob-{}"><title>{}</title></rect>'
    return format_html_join("", shape, _shapes(columns, span))


def _shapes(columns: Mapping[int, int], span: Span) -> Iterable[tuple[object, ...]]:
    found = sorted(columns.items())
    for (_number, rank), some in groupby(enumerate(found), key=lambda pair: (pair[1][0] - pair[0], pair[1][1])):
        stretch = [column for _index, (column, _rank) in some]
        first, width = stretch[0], len(stretch)
        outcome = [*SlotOutcome][rank] if rank < TO_COME else None
        is_high = rank <= _rank(SlotOutcome.STOPPED) or outcome == SlotOutcome.PAUSED
        height = HEIGHT if is_high else LOW
        begin, end = (span.begin_of(column).astimezone(span.zone) for column in (first, first + width))
        title = f"{begin:%H:%M}-{end:%H:%M}: {outcome.label if outcome else _('to come')}"
        tone = _tone(outcome) if outcome else "quiet"
        yield round(100 * first / COLUMNS, 2), HEIGHT - height, round(100 * width / COLUMNS, 2), height, tone, title


def _line(span: Span) -> SafeString:
    if not span.since <= span.now <= span.until:
        return SafeString("")
    x = round(100 * span.place(span.now), 2)
    return format_html('<line class="singlejob-now" x1="{0}%" x2="{0}%" y1="0" y2="100%"></line>', x)


def _axis(span: Span) -> SafeString:
    first, last = LABELLED
    labels = [(x, text) for x, text in _ticks(span) if first <= x <= last]
    now = round(100 * span.place(span.now), 2)
    has_now = 0 < now < 100
    return format_html(
        '<svg class="singlejob-axis" aria-hidden="true" width="100%" height="{}">{}{}</svg>',
        AXIS if has_now else HEIGHT,
        format_html_join("", '<text x="{}%" y="12" text-anchor="middle">{}</text>', labels),
        format_html('<text x="{}%" y="28" text-anchor="middle">{}</text>', now, _("now")) if has_now else "",
    )


def _ticks(span: Span) -> Iterator[tuple[float, str]]:
    """Round times on the wall clock, as many as have room."""
    least = (span.until - span.since) // MINUTE // TICKS
    step = next(step for step in (5, 15, 30, 60, 120, 180, 360, 720, 1440) if step >= least or step == 1440)
    at = span.since.astimezone(span.zone).replace(minute=0, second=0, microsecond=0).astimezone(UTC)
    while (at := at + min(step, 60) * MINUTE) < span.until:
        begin = at.astimezone(span.zone)
        if (60 * begin.hour + begin.minute) % step == 0:
            yield round(100 * span.place(at), 2), date_format(begin, "H:i" if begin.hour or begin.minute else "D j")
