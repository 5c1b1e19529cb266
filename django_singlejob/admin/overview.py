"""The overview: it shows in ten seconds what is wrong and what to do, what runs, and how each job is doing."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, cast

from django.core.exceptions import PermissionDenied
from django.db.models import Model
from django.http import Http404, HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import URLPattern, path
from django.utils import timezone
from django.utils.decorators import method_decorator
from django.utils.formats import date_format
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.text import capfirst
from django.utils.translation import gettext as _, gettext_lazy, ngettext
from django.views.decorators.http import require_safe

from django_singlejob.admin import history, ledger, recent
from django_singlejob.admin.cells import (
    at_least,
    badge,
    breakable,
    clock_time,
    duration,
    grouped,
    link,
    list_of,
)
from django_singlejob.admin.forms import SlotForm, SpanForm
from django_singlejob.admin.history import Period
from django_singlejob.admin.job_lines import Wanted, states, table_of_jobs
from django_singlejob.admin.read_only import LIVE, ReadOnlyAdmin, is_refreshing, register_jobs
from django_singlejob.admin.states import LISTED, how_long, progress
from django_singlejob.admin.stopping import stop_page
from django_singlejob.admin.troubles import SERVERS, table_of_troubles
from django_singlejob.jobs.names import NAME_LENGTH, is_storable
from django_singlejob.locking.request import Reason
from django_singlejob.models import JobLock
from django_singlejob.models.jobs import database_now
from django_singlejob.monitoring.causes import Answer
from django_singlejob.monitoring.findings import in_figures
from django_singlejob.monitoring.health import Health, Level, State
from django_singlejob.monitoring.queues import Queue
from django_singlejob.monitoring.verdict import UnknownName, Verdict, judge
from django_singlejob.monitoring.why import why
from django_singlejob.monitoring.workers import SeenWorker, Server
from django_singlejob.process.escaping import shown

HOURS = (1, 6, 24, 72)
USUAL = 6
HOURS_OF_LEDGER = 24
# The rest of the screen is for the jobs. The other rows are in the lists.
MOST_ROWS = 5
# More rows, for nothing else lists them.
MOST_SERVERS = 50
NEEDED = ("view_jobstatus", "view_joblock", "view_jobrun")
TONES = {Level.OK: "good", Level.WARNING: "warn", Level.CRITICAL: "bad"}
LEVELS = {Level.OK: "", Level.WARNING: gettext_lazy("Warning"), Level.CRITICAL: gettext_lazy("Critical")}


class OverviewAdmin(ReadOnlyAdmin):
    """A page without rows. Its only URL is that of the list, which shows the overview."""

    class Media:
        extend = False
        css = {"all": ["django_singlejob/admin.css", "django_singlejob/overview.css"]}
        js = [LIVE]

    def get_urls(self) -> list[URLPattern]:
        pages = {
            "": ("changelist", self.changelist_view),
            "ledger/": ("ledger", self.ledger_view),
            "winners/": ("winners", self.winners_view),
            "why/": ("why", self.why_view),
        }
        return [
            path(route, self.admin_site.admin_view(cast("Any", view)), name=f"django_singlejob_overview_{name}")
            for route, (name, view) in pages.items()
        ]

    def has_view_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return all(self.may(request, permission) for permission in NEEDED)

    @method_decorator(require_safe)
    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        is_refresh, broken = self._begin(request)
        wanted, may_acknowledge = Wanted.by(request.GET), self.may(request, "change_jobstatus")
        with_one_offs = self.may(request, "view_oneoffjob")
        may = {"may_acknowledge": may_acknowledge, "may_stop": self.may(request, "stop_joblock")}
        found = overview(wanted, with_one_offs=with_one_offs, **may, broken=broken)
        context = {"title": capfirst(self.opts.verbose_name), "wanted": wanted, **found, **(extra_context or {})}
        return self._page(request, "overview_live.html" if is_refresh else "overview.html", context)

    @method_decorator(require_safe)
    def winners_view(self, request: HttpRequest) -> HttpResponse:
        """Which servers won the runs, and how long it took them to acquire the locks."""
        self._begin(request)
        context = {"title": _("Winners and lock cost"), **winners(_hours(request))}
        return self._page(request, "winners.html", context)

    @method_decorator(require_safe)
    def ledger_view(self, request: HttpRequest) -> HttpResponse:
        """What became of each slot of a day or a night, and what is to come: of all jobs, or of the one that ``job``
        names."""
        self._begin(request)
        name, form = request.GET.get("job"), SpanForm({"hours": HOURS_OF_LEDGER, **request.GET.dict()})
        chosen = form.cleaned_data if form.is_valid() else {}
        asked = chosen.get("since"), chosen.get("hours") or HOURS_OF_LEDGER
        context = {"title": _("The slots"), "form": form, "may_run": self.may(request, "run_jobstatus")}
        if not name:
            return self._page(request, "ledger.html", {**context, **ledger.of_all(*asked, request.GET.get("page"))})
        found = ledger.of_one(name, *asked) if is_storable(name) else None
        if found is None:
            raise Http404(f"There is no job {name!r:.{NAME_LENGTH}}.")
        return self._page(request, "ledger.html", {**context, "title": _("The slots of %s") % found["name"], **found})

    @method_decorator(require_safe)
    def why_view(self, request: HttpRequest) -> HttpResponse:
        """Why the job that ``job`` names runs or does not: now, or at the slot in the minute ``at``."""
        self._begin(request)
        form, answers = SlotForm(request.GET or None), list[Answer]()
        if form.is_valid():
            try:
                given, has_one_offs = form.cleaned_data, self.may(request, "view_oneoffjob")
                answers = why(given["job"], given["at"], has_one_offs=has_one_offs)
            except UnknownName:
                form.add_error("job", _("There is no job of this name."))
        links = [link("jobstatus", answer.name, breakable(answer.name)) for answer in answers[:1]]
        context = {"title": _("Why a job runs, or not"), "answers": answers, "links": links, "form": form}
        return self._page(request, "why.html", context)

    def _begin(self, request: HttpRequest) -> tuple[bool, list[Exception]]:
        """Refuse those without permission. Returns whether a page that is open refreshes itself, and why some jobs
        could not be registered."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        is_refresh = is_refreshing(request)
        return is_refresh, register_jobs(request, is_refresh=is_refresh)

    def _page(self, request: HttpRequest, template: str, context: dict[str, Any]) -> HttpResponse:
        shared = {**self.admin_site.each_context(request), "opts": self.opts, "media": self.media}
        return TemplateResponse(request, f"admin/django_singlejob/{template}", {**shared, **context})


def _hours(request: HttpRequest) -> int:
    return next((hours for hours in HOURS if str(hours) == request.GET.get("hours")), USUAL)


def overview(
    wanted: Wanted,
    *,
    with_one_offs: bool,
    may_acknowledge: bool,
    may_stop: bool = False,
    broken: Sequence[Exception] = (),
) -> dict[str, Any]:
    """The context of the page. ``broken``: why some jobs could not be registered."""
    verdict = judge(with_one_offs=with_one_offs, with_last_runs=True, broken=broken)
    now = _now(verdict)
    return {
        "at": _at(now),
        "headline": headline(verdict),
        "states": states(verdict, wanted),
        **table_of_troubles(verdict, now, may_acknowledge=may_acknowledge),
        **_table_of_holders(verdict, may_stop=may_stop),
        **table_of_jobs(verdict, wanted),
        **_table_of_queues(verdict),
        **_table_of_workers(verdict),
        **_table_of_servers(verdict),
        "locks": list_of("joblock"),
    }


def _now(verdict: Verdict) -> datetime:
    """The time by the database's clock. Most rows have been read with it."""
    rows = (row for health in verdict.healths for row in (health.status, health.lock) if row)
    return next((row.now for row in rows), None) or database_now()


def winners(hours: int) -> dict[str, Any]:
    """The context of the page about the winners and the lock cost."""
    period, verdict = history.judged(history.period(timedelta(hours=hours))), judge(with_one_offs=False)
    return {
        **_span(hours, period),
        **recent.lanes(period),
        "winners": recent.winners(period, [*verdict.healths, *verdict.locks_of_workers]),
        "costs": recent.costs(period),
    }


def _at(now: datetime) -> str:
    return date_format(timezone.localtime(now), "H:i:s")


def _span(hours: int, period: Period) -> dict[str, Any]:
    return {
        "hours": hours,
        "choices": [(choice, choice == hours) for choice in HOURS],
        "cut": _cut(period),
    }


def _cut(period: Period) -> str:
    """A note that a period has more runs than are shown; empty if it has not."""
    if not period.is_cut:
        return ""
    facts = {"most": grouped(history.MOST), "time": clock_time(period.runs[-1].started_at)}
    return format_html(_("Only the newest {most} runs are counted and shown: those since {time}."), **facts)


def headline(verdict: Verdict) -> tuple[str, str]:
    """A colour, and one sentence on how everything is doing."""
    count = sum(not finding.acknowledged for finding in verdict.findings)
    if not (count or verdict.is_enabled):
        return TONES[Level.WARNING], _("Nothing runs: %s") % Reason.DISABLED.label
    if not count:
        return TONES[Level.OK], _("All is well")
    text = ngettext(
        "%(level)s: %(count)s problem needs attention", "%(level)s: %(count)s problems need attention", count
    )
    figures = in_figures(count, is_cut=verdict.is_ill_cut)
    return TONES[verdict.level], text % {"level": LEVELS[verdict.level], "count": figures}


# --- what there is


def _rest(found: Sequence[object], *, is_cut: bool = False, most: int | None = None) -> str:
    """A note on those that do not fit into a table; empty if all do."""
    count = len(found) - (most or MOST_ROWS)
    if count > 0:
        return _("And %s more") % at_least(count, is_cut=is_cut)
    return _("And more") if is_cut else ""


def _table_of_holders(verdict: Verdict, *, may_stop: bool) -> dict[str, Any]:
    """The locks that are held: those of dead holders first, then those that have been held for longest."""
    found = [(health, health.lock) for health in verdict.healths if health.lock]
    found.sort(key=lambda pair: (not pair[1].is_suspected, pair[0].state != State.OVERRUNNING, pair[1].acquired_at))
    rows = [
        (
            _page_of(health),
            *_how_held(health, lock),
            stop_page(lock, "jobstatus", health.name) if may_stop and health.is_job else "",
        )
        for health, lock in found[:MOST_ROWS]
    ]
    return {"holders": rows, "more_holders": _rest(found, is_cut=verdict.is_cut)}


def _how_held(health: Health, lock: JobLock) -> tuple[SafeString, str, str, SafeString]:
    """The state, the holder, for how long it has held the lock, or has been silent, and how far it is. A dead holder
    does not run."""
    state = State.OVERRUNNING if health.state == State.OVERRUNNING else State.RUNNING
    if lock.is_suspected:
        state = State.IMPOSSIBLE if lock.is_impossible else State.STALE
    return badge(state, state.label), shown(lock.holder), how_long(lock), progress(lock, most=LISTED)


def _table_of_queues(verdict: Verdict) -> dict[str, Any]:
    """The queues, those with the oldest one-offs first."""
    found = sorted(verdict.queues, key=lambda queue: (-queue.oldest, -queue.failed, queue.name))
    rows = [_row_of_queue(queue, verdict.served_by(queue)) for queue in found[:MOST_ROWS]]
    return {"queues": rows, "more_queues": _rest(found)}


def _row_of_queue(queue: Queue, workers: int) -> tuple[Any, ...]:
    return (
        shown(queue.name),
        list_of("oneoffjob", queue_name__exact=queue.name),
        in_figures(queue.due, is_cut=queue.is_cut),
        duration(queue.oldest) if queue.due else "",
        in_figures(queue.failed, is_cut=queue.is_failed_cut),
        workers,
    )


def _table_of_workers(verdict: Verdict) -> dict[str, Any]:
    """The workers, those that are dead first."""
    found = sorted((each for each in verdict.workers if not each.is_once), key=lambda worker: worker.is_live)
    rows = [
        (shown(worker.holder), _state_of_worker(worker), shown(", ".join(worker.queues)) or _("all"))
        for worker in found
    ]
    alive = sum(worker.is_live for worker in found)
    dead = len(found) - alive
    summary = [badge("held", _("%d alive") % alive)] if alive else []
    summary += [badge("stale", _("%d dead") % dead)] if dead else []
    return {"workers": rows[:MOST_ROWS], "sum_of_workers": summary, "more_workers": _rest(found)}


def _state_of_worker(worker: SeenWorker) -> SafeString:
    return badge("held", _("alive")) if worker.is_live else badge("stale", _("dead"))


def _table_of_servers(verdict: Verdict) -> dict[str, Any]:
    """The servers that ask for what is due, those that need attention first."""
    found = sorted(verdict.servers, key=lambda server: (not server.is_silent, not server.trouble, not server.is_asking))
    rows = [
        (
            shown(server.hostname),
            shown(", ".join(server.queues)),
            _state_of_server(server),
            _("%s ago") % duration(server.age),
            shown(server.release),
        )
        for server in found[:MOST_SERVERS]
    ]
    return {"servers": rows, "more_servers": _rest(found, most=MOST_SERVERS), "servers_at": SERVERS}


def _state_of_server(server: Server) -> SafeString:
    if not server.is_asking:
        return badge("stale" if server.is_silent else "held", _("asks no more"))
    if server.trouble:
        return badge("failing", _("impeded"))
    return badge("pass", _("passes")) if server.is_once else badge("held", _("worker"))


def _page_of(health: Health) -> SafeString:
    """A link to the page of the job, or, if the lock belongs to no job, to the page of the lock."""
    return link("jobstatus" if health.is_job else "joblock", health.name, breakable(health.name))
