"""The overview: it shows in ten seconds what is wrong and what to do, what runs, and what has run lately."""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import timedelta
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
from django.utils.http import urlencode
from django.utils.safestring import SafeString
from django.utils.text import capfirst
from django.utils.translation import gettext as _, gettext_lazy, ngettext
from django.views.decorators.http import require_safe

from django_singlejob.admin import history, ledger, recent
from django_singlejob.admin.addresses import address
from django_singlejob.admin.cells import (
    badge,
    breakable,
    clock_time,
    duration,
    first_line,
    grouped,
    link,
    list_of,
)
from django_singlejob.admin.forms import SlotForm, SpanForm
from django_singlejob.admin.history import LastError, Period
from django_singlejob.admin.read_only import LIVE, ReadOnlyAdmin, is_refreshing, register_jobs
from django_singlejob.admin.states import how_long
from django_singlejob.jobs.names import NAME_LENGTH, is_storable
from django_singlejob.locking.request import Reason
from django_singlejob.models import JobLock
from django_singlejob.monitoring.causes import Answer
from django_singlejob.monitoring.findings import Finding, Trouble, in_figures
from django_singlejob.monitoring.health import Health, Level, State
from django_singlejob.monitoring.queues import Queue
from django_singlejob.monitoring.verdict import UnknownName, Verdict, judge
from django_singlejob.monitoring.why import why
from django_singlejob.monitoring.workers import SeenWorker, Server
from django_singlejob.process.clock import instant_in_words
from django_singlejob.process.escaping import shown

HOURS = (1, 6, 24, 72)
USUAL = 6
HOURS_OF_LEDGER = 24
# Two screens show no more. The other rows are in the lists.
MOST_ROWS = 5
MOST_FAILURES = 3
# More rows, for nothing else lists them.
MOST_SERVERS = 50
SERVERS = "singlejob-servers"
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
        found = overview(_hours(request), with_one_offs=self.may(request, "view_oneoffjob"), broken=broken)
        context = {"title": capfirst(self.opts.verbose_name), **found, **(extra_context or {})}
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


def overview(hours: int, *, with_one_offs: bool, broken: Sequence[Exception] = ()) -> dict[str, Any]:
    """The context of the page. ``broken``: why some jobs could not be registered."""
    verdict = judge(with_one_offs=with_one_offs, with_last_runs=True, broken=broken)
    period = history.judged(history.period(timedelta(hours=hours)))
    return {
        **_span(hours, period),
        "headline": headline(verdict),
        "states": states(verdict),
        **_table_of_troubles(verdict),
        **_table_of_holders(verdict),
        **_table_of_queues(verdict),
        **_table_of_workers(verdict),
        **_table_of_servers(verdict),
        **recent.lanes(period),
        **_results(period),
        "lists": {"joblock": list_of("joblock"), "failed": list_of("jobrun", status__exact="failed")},
    }


def winners(hours: int) -> dict[str, Any]:
    """The context of the page about the winners and the lock cost."""
    period, verdict = history.period(timedelta(hours=hours)), judge(with_one_offs=False)
    return {
        **_span(hours, period),
        "winners": recent.winners(period, [*verdict.healths, *verdict.locks_of_workers]),
        "costs": recent.costs(period),
    }


def _span(hours: int, period: Period) -> dict[str, Any]:
    return {
        "at": date_format(timezone.localtime(period.now), "H:i:s"),
        "hours": hours,
        "choices": [(choice, choice == hours) for choice in HOURS],
        "cut": _cut(period),
    }


def _results(period: Period) -> dict[str, Any]:
    """How the runs ended. Those of dead holders have not ended, but they are not running either."""
    found = recent.results(period)
    stale = sum(run.status == history.STALE for run in [*period.runs, *period.earlier])
    badges = [(badge(State.STALE, State.STALE.label), stale, list_of("joblock", state="stale"))] if stale else []
    return {**found, "results": badges + found["results"], "failures": found["failures"][:MOST_FAILURES]}


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


def states(verdict: Verdict) -> list[tuple[SafeString, str]]:
    """The number of jobs in each state, the worst state first, each with the URL of their list."""
    counts = Counter(health.state for health in verdict.healths if health.is_job)
    found = [
        (badge(state, f"{_in_state(state, counts[state], verdict)} {state.label}"), _jobs_in(state))
        for state in sorted(counts, key=lambda state: (-state.level, list(State).index(state)))
    ]
    if others := sum(not health.is_job for health in verdict.healths):
        text = ngettext("%s lock of no job", "%s locks of no job", others)
        found.append((badge("held", text % in_figures(others, is_cut=verdict.is_cut)), list_of("joblock")))
    return found


def _in_state(state: State, count: int, verdict: Verdict) -> str:
    return str(in_figures(count, is_cut=verdict.is_ill_cut if state.level else verdict.is_cut))


def _jobs_in(state: State) -> str:
    return list_of("jobstatus", state=state.value)


# --- what needs attention


def _table_of_troubles(verdict: Verdict) -> dict[str, Any]:
    found = verdict.findings[:MOST_ROWS]
    failing = [finding.subject for finding in found if finding.kind == State.FAILING]
    errors = history.last_errors(failing) if failing else {}
    rows = [
        (
            _where(finding),
            _level(finding),
            shown(finding.what_happened),
            shown(finding.what_to_do),
            _last_error(finding.subject, errors) if finding.kind == State.FAILING else _why(finding),
        )
        for finding in found
    ]
    return {"troubles": rows, "more_troubles": _more(verdict.findings[MOST_ROWS:], is_cut=verdict.is_ill_cut)}


def _level(finding: Finding) -> SafeString:
    found = badge(finding.level.name.lower(), finding.kind.label)
    if finding.acknowledged is None:
        return found
    by, until, reason = finding.acknowledged
    text = _("acknowledged by {by} until {until}").format(by=by, until=instant_in_words(until))
    return format_html("{} {} {}", found, badge("acknowledged", text), shown(reason))


def _why(finding: Finding) -> SafeString | str:
    """A link to the page that says why a job does not run; empty if it is not about that."""
    if finding.kind not in (State.OVERDUE, State.DELAYED, State.UNSEEN):
        return ""
    url = f"{address('overview_why')}?{urlencode({'job': finding.subject})}"
    return format_html('<a href="{}">{}</a>', url, _("Why?"))


def _last_error(name: str, errors: Mapping[str, LastError]) -> SafeString:
    """The last error of a job, with a link to its run, whose page begins with what went wrong. If that has been pruned,
    or did not record an error, a link to all of the job's runs."""
    last = errors.get(name)
    if last and (text := first_line(last.error)):
        return link("jobrun", last.pk, text)
    return format_html('<a href="{}">{}</a>', list_of("jobrun", job_name=name), _("Its runs"))


def _where(finding: Finding) -> SafeString:
    """A link to the page on which to act."""
    subject = shown(finding.subject)
    match finding.about:
        case "job":
            return link("jobstatus", finding.subject, breakable(finding.subject))
        case "queue":
            return format_html('<a href="{}">{}</a>', _one_offs_of(finding), _("queue %s") % subject)
        case "worker":
            return link("joblock", finding.subject, _("worker %s") % subject)
        case "server":
            return format_html('<a href="#{}">{}</a>', SERVERS, _("server %s") % subject)
        case "row":
            return format_html("{}", subject)
    return link("joblock", finding.subject, breakable(finding.subject))


def _one_offs_of(finding: Finding) -> str:
    status = "failed" if finding.kind == Trouble.FAILED else "waiting"
    return list_of("oneoffjob", status__exact=status, queue_name__exact=finding.subject)


def _more(others: Sequence[Finding], *, is_cut: bool) -> list[tuple[str, str]]:
    """How many other findings there are on each kind of thing, with the URL of a list."""
    abouts = ("job", "lock", "queue", "worker", "server", "row")
    jobs, locks, queues, workers, servers, rows = (
        sum(finding.about == about for finding in others) for about in abouts
    )
    found = [
        (jobs, ngettext("And %s more job", "And %s more jobs", jobs), list_of("jobstatus", state="attention")),
        (locks, ngettext("And %s more lock", "And %s more locks", locks), list_of("joblock", state="stale")),
        (queues, ngettext("And %s more queue", "And %s more queues", queues), list_of("oneoffjob")),
        (workers, ngettext("And %s more worker", "And %s more workers", workers), list_of("joblock", state="stale")),
        (servers, ngettext("And %s more server", "And %s more servers", servers), f"#{SERVERS}"),
        (rows, ngettext("And %s more row", "And %s more rows", rows), list_of("oneoffjob")),
    ]
    return [(text % _at_least(count, is_cut=is_cut), url) for count, text, url in found if count]


def _at_least(count: int, *, is_cut: bool) -> str:
    return _("at least %s") % grouped(count) if is_cut else str(count)


def _rest(found: Sequence[object], *, is_cut: bool = False, most: int | None = None) -> str:
    """A note on those that do not fit into a table; empty if all do."""
    count = len(found) - (most or MOST_ROWS)
    if count > 0:
        return _("And %s more") % _at_least(count, is_cut=is_cut)
    return _("And more") if is_cut else ""


# --- what there is


def _table_of_holders(verdict: Verdict) -> dict[str, Any]:
    """The locks that are held: those of dead holders first, then those that have been held for longest."""
    found = [(health, health.lock) for health in verdict.healths if health.lock]
    found.sort(key=lambda pair: (not pair[1].is_suspected, pair[0].state != State.OVERRUNNING, pair[1].acquired_at))
    rows = [(_page_of(health), *_how_held(health, lock)) for health, lock in found[:MOST_ROWS]]
    return {"holders": rows, "more_holders": _rest(found, is_cut=verdict.is_cut)}


def _how_held(health: Health, lock: JobLock) -> tuple[SafeString, str, str]:
    """The state, the holder, and for how long it has held the lock, or has been silent. A dead holder does not run."""
    state = State.OVERRUNNING if health.state == State.OVERRUNNING else State.RUNNING
    if lock.is_suspected:
        state = State.IMPOSSIBLE if lock.is_impossible else State.STALE
    return badge(state, state.label), shown(lock.holder), how_long(lock)


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
