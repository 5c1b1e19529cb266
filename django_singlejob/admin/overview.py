"""The overview: in ten seconds, what runs, what is stuck, what failed, what is late."""

from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db.models import Model
from django.forms import Script
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import URLPattern, path
from django.utils import timezone
from django.utils.decorators import method_decorator
from django.utils.formats import date_format
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.text import capfirst
from django.utils.translation import gettext as _, ngettext
from django.views.decorators.http import require_safe

from django_singlejob.admin import recent
from django_singlejob.admin.cells import badge, clock_time, first_line, link, list_of
from django_singlejob.admin.reading import ReadOnlyAdmin, register_jobs
from django_singlejob.admin.states import state, story
from django_singlejob.models import Overview
from django_singlejob.monitoring import history
from django_singlejob.monitoring.health import Health, Level, State, survey, worst
from django_singlejob.monitoring.history import Period
from django_singlejob.scheduling.schedule import MINUTE

HOURS = (1, 6, 24, 72)
USUAL = 6
# Who wants to see more than these goes to the lists.
MOST_ROWS = 30
NEEDED = ("view_jobstatus", "view_joblock", "view_jobrun")
TONES = {Level.OK: "good", Level.WARNING: "warn", Level.CRITICAL: "bad"}


@admin.register(Overview)
class OverviewAdmin(ReadOnlyAdmin):
    """A page and no rows: nothing but its list, which is no list, has a URL."""

    class Media:
        extend = False
        css = {"all": ["django_singlejob/admin.css", "django_singlejob/overview.css"]}
        js = [Script("django_singlejob/overview.js", defer=True)]

    def get_urls(self) -> list[URLPattern]:
        view: Any = self.admin_site.admin_view(self.changelist_view)
        return [path("", view, name="django_singlejob_overview_changelist")]

    def has_view_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return all(self.may(request, permission) for permission in NEEDED)

    @method_decorator(require_safe)
    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        if not self.has_view_permission(request):
            raise PermissionDenied
        # To render messages would take them away from the page that they are for.
        is_refresh = "Singlejob-Refresh" in request.headers
        register_jobs(request, is_refresh=is_refresh)
        context = {
            **self.admin_site.each_context(request),
            "title": capfirst(self.opts.verbose_name),
            "opts": self.opts,
            "media": self.media,
            **overview(_hours(request), with_one_offs=self.may(request, "view_oneoffjob")),
            **(extra_context or {}),
        }
        template = "overview_live.html" if is_refresh else "overview.html"
        return TemplateResponse(request, f"admin/django_singlejob/{template}", context)


def _hours(request: HttpRequest) -> int:
    return next((hours for hours in HOURS if str(hours) == request.GET.get("hours")), USUAL)


def overview(hours: int, *, with_one_offs: bool) -> dict[str, Any]:
    """All that the page says."""
    healths = survey()
    period = history.period(timedelta(hours=hours))
    late = history.late_one_offs(period.now) if with_one_offs else 0
    failed = history.failed_one_offs(period.begin) if with_one_offs else 0
    return {
        "at": date_format(timezone.localtime(period.now), "H:i:s"),
        "hours": hours,
        "choices": [(choice, choice == hours) for choice in HOURS],
        "cut": _cut(period),
        "headline": headline(healths, late),
        "states": states(healths),
        "one_offs": _one_offs(late, failed, hours),
        **_table_of_troubles(healths),
        **_table_of_holders(healths),
        **recent.lanes(period),
        "winners": recent.winners(period, healths),
        "costs": recent.costs(period),
        **recent.results(period),
        "lists": {model: list_of(model) for model in ("joblock", "jobstatus")},
    }


def _cut(period: Period) -> str:
    """What is to be known of a period with more runs than are looked at. Empty: it has no more."""
    if not period.is_cut:
        return ""
    facts = {"most": f"{history.MOST:,}", "time": clock_time(period.runs[-1].started_at)}
    return format_html(_("Only the newest {most} runs are counted and shown: those since {time}."), **facts)


def headline(healths: Sequence[Health], late: int) -> tuple[str, str]:
    """A colour, and how it is, all in all, in one sentence; ``late``: how many one-offs are."""
    level = worst(healths)
    troubled = sum(bool(health.state.level) for health in healths)
    if troubled:
        return TONES[level], ngettext("%d job needs attention", "%d jobs need attention", troubled) % troubled
    if late:
        return TONES[Level.WARNING], _("The jobs are well, but one-offs are late")
    return TONES[level], _("All is well")


def states(healths: Sequence[Health]) -> list[tuple[SafeString, str]]:
    """How many jobs are in each state, the worst first, and where they are listed."""
    counts = Counter(health.state for health in healths if health.is_job)
    found = [
        (badge(state, f"{counts[state]} {state.label}"), list_of("jobstatus", state=state.value))
        for state in sorted(counts, key=lambda state: (-state.level, list(State).index(state)))
    ]
    if others := sum(not health.is_job for health in healths):
        told = ngettext("%d lock of no job", "%d locks of no job", others) % others
        found.append((badge("held", told), list_of("joblock")))
    return found


def _one_offs(late: int, failed: int, hours: int) -> list[tuple[str, str]]:
    """What is wrong with them, and where they are listed; empty: nothing, or the person may not know."""
    told_late = ngettext(
        "%(count)s one-off has been due for more than %(minutes)d minutes: does a worker run?",
        "%(count)s one-offs have been due for more than %(minutes)d minutes: does a worker run?",
        late,
    )
    told_failed = ngettext(
        "%(count)s one-off has failed in the last %(hours)d h.",
        "%(count)s one-offs have failed in the last %(hours)d h.",
        failed,
    )
    facts = {"minutes": history.LATE // MINUTE, "hours": hours}
    found = [(late, told_late, "waiting"), (failed, told_failed, "failed")]
    return [
        (told % {"count": _bounded(count), **facts}, list_of("oneoffjob", status__exact=status))
        for count, told, status in found
        if count
    ]


def _bounded(count: int) -> str:
    return _("%d or more") % count if count >= history.MOST else str(count)


def _table_of_troubles(healths: Sequence[Health]) -> dict[str, Any]:
    found = [health for health in healths if health.state.level]
    found.sort(key=lambda health: (-health.state.level, health.name))
    failing = {health.name for health in found if health.state == State.FAILING}
    errors = history.last_errors() if failing else {}
    rows = [
        (_page_of(health), state(health), first_line(errors.get(health.name, "") if health.name in failing else ""))
        for health in found[:MOST_ROWS]
    ]
    return {"troubles": rows, "more_troubles": max(len(found) - MOST_ROWS, 0)}


def _table_of_holders(healths: Sequence[Health]) -> dict[str, Any]:
    """What runs, and is well."""
    found = [health for health in healths if health.lock and not health.state.level]
    rows = [(_page_of(health), story(health)) for health in found[:MOST_ROWS]]
    return {"holders": rows, "more_holders": max(len(found) - MOST_ROWS, 0)}


def _page_of(health: Health) -> SafeString:
    """The job's, or, if it is none's, the lock's."""
    return link("jobstatus" if health.is_job else "joblock", health.name, health.name)
