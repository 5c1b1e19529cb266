"""The jobs on the overview, one line each: how it is doing, how its last run ended, and when it is due."""

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

from django.http import QueryDict
from django.utils.html import format_html
from django.utils.http import urlencode
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _, ngettext

from django_singlejob.admin.cells import NOTHING, at_least, badge, breakable, distance, duration, link, list_of
from django_singlejob.admin.history import label
from django_singlejob.admin.read_only import is_searchable
from django_singlejob.admin.states import how_long, story
from django_singlejob.models import JobStatus
from django_singlejob.monitoring.findings import in_figures
from django_singlejob.monitoring.health import Health, State, due_since, next_slots, zone_of_schedule
from django_singlejob.monitoring.verdict import Verdict
from django_singlejob.process.clock import instant_in_words
from django_singlejob.process.escaping import shown

# A screen has room for no more. The others are in the list of jobs.
MOST_LINES = 30
# Of these, the holder is shown elsewhere, so their line says only for how long.
_HELD = (State.STALE, State.IMPOSSIBLE, State.OVERRUNNING, State.DELAYED, State.RUNNING)


class Wanted(NamedTuple):
    """Which jobs are asked for: those in this state (``None``: in any), and with this ``part`` in their names."""

    state: State | None = None
    part: str = ""

    @classmethod
    def by(cls, query: QueryDict) -> "Wanted":
        """What the address asks for. A state that does not exist is passed over."""
        state = query.get("state", "")
        return cls(State(state) if state in State.values else None, query.get("q", "").strip())

    def has(self, health: Health) -> bool:
        """Whether the job is among them."""
        is_part = not self.part or (is_searchable(self.part) and self.part.lower() in health.name.lower())
        return is_part and self.state in (None, health.state)

    @property
    def query(self) -> dict[str, str]:
        """The same, as an address has it."""
        asked = {"state": self.state.value if self.state else "", "q": self.part}
        return {name: value for name, value in asked.items() if value}

    @property
    def url(self) -> str:
        """The URL of the overview that shows these, from itself. On a low screen, the table is below what is urgent."""
        return f"?{urlencode(self.query)}#singlejob-jobs"


def states(verdict: Verdict, wanted: Wanted) -> list[tuple[SafeString, str, bool]]:
    """The number of jobs in each state, the worst state first, each with the URL of the overview that shows only
    these, and whether that is this one."""
    counts = Counter(health.state for health in verdict.healths if health.is_job)
    if wanted.state:
        counts[wanted.state] += 0  # so that it can be given up
    found = [
        (
            badge(state, f"{_in_state(state, counts[state], verdict)} {state.label}"),
            (wanted._replace(state=None) if state == wanted.state else wanted._replace(state=state)).url,
            state == wanted.state,
        )
        for state in sorted(counts, key=lambda state: (-state.level, list(State).index(state)))
    ]
    if others := sum(not health.is_job for health in verdict.healths):
        text = ngettext("%s lock of no job", "%s locks of no job", others)
        locks = badge("held", text % in_figures(others, is_cut=verdict.is_cut))
        found.append((locks, list_of("joblock"), False))
    return found


def _in_state(state: State, count: int, verdict: Verdict) -> str:
    return str(in_figures(count, is_cut=verdict.is_ill_cut if state.level else verdict.is_cut))


def table_of_jobs(verdict: Verdict, wanted: Wanted) -> dict[str, Any]:
    """A line for each job that is wanted, the troubled ones first, and how many more there are."""
    found = [health for health in verdict.healths if health.is_job and wanted.has(health)]
    found.sort(key=lambda health: _rank(health, verdict))
    return {
        "jobs": [_line(health) for health in found[:MOST_LINES]],
        "more_jobs": _more(found[MOST_LINES:], is_cut=verdict.is_cut),
        "all_of_these": list_of("jobstatus", **wanted.query),
        "is_filtered": bool(wanted.query),
    }


def _rank(health: Health, verdict: Verdict) -> tuple[int, int, bool, str]:
    level = max(health.state.level, verdict.levels.get(health.name, 0))
    return -level, list(State).index(health.state) if level else 0, health.state != State.RUNNING, health.name


def _more(others: Sequence[Health], *, is_cut: bool) -> str:
    """How many jobs have no line; empty if all have one."""
    if not others:
        return _("And more jobs") if is_cut else ""
    text = ngettext("And %s more job", "And %s more jobs", len(others))
    return text % at_least(len(others), is_cut=is_cut)


def _line(health: Health) -> tuple[object, ...]:
    status = health.status
    return (
        shown(health.name),
        link("jobstatus", health.name, breakable(health.name)),
        badge(health.state, health.state.label),
        shown(_story(health)),
        *(_last_run(status) if status else (NOTHING, "")),
        _took(status) if status else NOTHING,
        _next_slot(status) if status else NOTHING,
    )


def _story(health: Health) -> str:
    """Since when it is in this state, or how often."""
    if health.lock and health.state in _HELD:
        return how_long(health.lock)
    failures = health.status.consecutive_failures if health.status else 0
    return _("%d in a row") % failures if health.state == State.FAILING and failures > 1 else story(health)


def _last_run(status: JobStatus) -> tuple[SafeString | str, SafeString | str]:
    """How it ended, and when."""
    if not (status.last_status and status.last_finished_at):
        return NOTHING, ""
    ago = _timed(distance(status.last_finished_at, status.now), status.last_finished_at, status)
    return badge(status.last_status, label(status.last_status)), ago


def _took(status: JobStatus) -> str:
    """How long the last run took; ``-`` if it goes on, or nobody knows when it ended."""
    began, ended = status.last_started_at, status.last_finished_at
    is_over = began and ended and ended >= began and status.last_status != "abandoned"
    return duration(ended - began) if is_over and began and ended else NOTHING


def _next_slot(status: JobStatus) -> SafeString | str:
    coming = next_slots(status, 1) if status.is_paused else [due_since(status)]
    slot = next(iter(coming), None)
    if slot is None:
        return NOTHING
    is_due = slot <= status.now
    text = _("due for %s") % duration(status.now - slot) if is_due else distance(slot, status.now)
    return _timed(text, slot, status)


def _timed(text: str, instant: datetime, status: JobStatus) -> SafeString:
    """A distance, which says its time if one points at it."""
    at = instant_in_words(instant, zone_of_schedule(status))
    return format_html('<time datetime="{}" title="{}">{}</time>', instant.isoformat(), at, text)
