"""The runs: what has happened, and why it went wrong. These pages are read-only, but lead to what you can do."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlencode

from django.contrib import admin
from django.contrib.admin.utils import label_for_field
from django.db import DataError
from django.db.models import Count, Max, Min, Q, QuerySet
from django.forms import Media
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils import timezone
from django.utils.formats import date_format
from django.utils.safestring import SafeString
from django.utils.text import capfirst
from django.utils.translation import gettext, gettext_lazy as _

from django_singlejob.admin.addresses import address
from django_singlejob.admin.cells import (
    NOTHING,
    badge,
    breakable,
    clock_time,
    distance,
    duration,
    first_line,
    link,
    list_of,
    moment,
    narrow,
    noted,
    preformatted,
    when,
)
from django_singlejob.admin.failures import failure_of
from django_singlejob.admin.history import STALE, PastRun, dead_among, label, neighbours
from django_singlejob.admin.read_only import LIVE, NOW, RowsFilter, is_refreshing, register_jobs
from django_singlejob.admin.states import add_means, held_for, progress
from django_singlejob.admin.stopping import StoppingAdmin, stop_page
from django_singlejob.control.stopping import lock_of
from django_singlejob.jobs import registry
from django_singlejob.models import JobRun, JobStatus
from django_singlejob.models.jobs import gates
from django_singlejob.models.one_offs import UNSUCCESSFUL, one_offs
from django_singlejob.models.runs import FAILURES, JobRunQuerySet, runs
from django_singlejob.process.clock import DBNow, saturated
from django_singlejob.process.escaping import shown
from django_singlejob.process.progress import Progress

if TYPE_CHECKING:
    from django_singlejob.models import OneOffJob

# No list needs these.
LONG = ("traceback", "origin", "output")
# A text that was written by hand may have any length.
MOST_OUTPUT = 1_000_000
WEEK, MOST_OFTEN = timedelta(days=7), 5
# The filter knows the servers of this many of the newest runs.
LOOKED_AT = 1000
# If a search finds more jobs, it is the history that is searched: then its newest runs soon fill a page.
MOST_FOUND = 500
# Two statements record an end, one in the run and one in the one-off, so the times differ a little.
BRIEFLY = timedelta(minutes=1)
# The date hierarchy has no more years, months or days.
MOST_DATES = 100
# The triggers of runs that a one-off requested.
OF_ONE_OFFS = ("one_off", "manual")
# The parameter of the form for one-offs that names a one-off whose arguments it gets.
LIKE = "like"


class DatedRuns(JobRunQuerySet):
    """The runs, for a date hierarchy that reads only the first and the last of them."""

    def aggregate(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """The ``first`` and the ``last`` run, for the date hierarchy, even if one of them cannot be read."""
        try:
            return super().aggregate(*args, **kwargs)
        except (DataError, ValueError, TypeError):
            ends = {"first": "started_at", "last": "-started_at"}
            instants = self.values_list("started_at", flat=True)
            return {name: instants.order_by(by).first() for name, by in ends.items()}

    def datetimes(self, field_name: str, kind: str, order: str = "ASC", tzinfo: Any = None) -> Any:
        """Each day, month or year from the first to the last, whether or not something ran then: to find out which of
        them have runs, the database would have to scan the whole history."""
        ends = self.aggregate(first=Min(field_name), last=Max(field_name))
        if ends["first"] is None or ends["last"] is None:
            return []
        first, last = (timezone.localtime(ends[end]) for end in ("first", "last"))
        found = [_begin(first, kind)]
        # A run that began in the year 1 or 9999 was written by hand. No more of them would fit on the page.
        while (begin := _begin(found[-1] + _LONGER_THAN[kind], kind)) <= last and len(found) < MOST_DATES:
            found.append(begin)
        return found


def _begin(day: datetime, kind: str) -> datetime:
    begin = day.replace(hour=0, minute=0, second=0, microsecond=0)
    if kind == "day":
        return begin
    return begin.replace(day=1) if kind == "month" else begin.replace(month=1, day=1)


_LONGER_THAN = {"day": timedelta(days=1), "month": timedelta(days=31), "year": timedelta(days=366)}


class JobFilter(RowsFilter):
    title = _("job")
    parameter_name = "job_name"

    def some(self, most: int) -> Iterable[str]:
        latest = gates().of_jobs().filter(hidden=False).exclude(last_started_at=None).order_by("-last_started_at")
        return latest.values_list("name", flat=True)[:most]

    def queryset(self, request: HttpRequest, queryset: QuerySet[JobRun]) -> QuerySet[JobRun]:
        return queryset.filter(job_name=self.value()) if self.value() else queryset


class ServerFilter(RowsFilter):
    title = _("server")
    parameter_name = "server"

    def some(self, most: int) -> Iterable[str]:
        return runs().order_by("-started_at").values_list("hostname", flat=True)[:LOOKED_AT]

    def queryset(self, request: HttpRequest, queryset: QuerySet[JobRun]) -> QuerySet[JobRun]:
        return queryset.filter(hostname=self.value()) if self.value() else queryset


class RunAgain(NamedTuple):
    """A button that requests the run again: an action of the list at ``url``, on the row of ``original``."""

    url: str
    action: str
    original: "JobStatus | OneOffJob"
    label: str


class Form(NamedTuple):
    """A link to the form that enqueues the run again. ``note``: what it is not filled in with; may be empty."""

    url: str
    note: str


class Output(NamedTuple):
    """The end of what a run has printed, and when that was recorded."""

    text: SafeString | str
    at: SafeString | str


class JobRunAdmin(StoppingAdmin):
    change_list_template = "admin/django_singlejob/jobrun/change_list.html"
    change_form_template = "admin/django_singlejob/jobrun/change_form.html"
    list_display = ["of_job", "result", "began", "took", "problem", "on_server", "cause", "lock_cost", "attempt"]
    list_filter = ["status", "trigger", ServerFilter, JobFilter]
    search_fields = ["job_name"]
    search_help_text = _("Part of the job's name, or the whole name of a server.")
    date_hierarchy = "started_at"
    linked_lookups = ["token"]
    # With these, the database does not have to sort a million rows.
    ordering = ["-started_at"]
    sortable_by = ["began"]
    # The facts of a page, except for what went wrong.
    facts = (
        "job",
        "outcome",
        "began",
        "finished",
        "took",
        "server",
        "cause",
        "reason",
        "slot_at",
        "attempt",
        "lock_cost",
        "lock",
        "one_off",
        "fence",
        "token",
    )
    fields = readonly_fields = facts

    def get_queryset(self, request: HttpRequest) -> QuerySet[JobRun]:
        found: DatedRuns = DatedRuns(JobRun, using=runs().db).annotate(**NOW).defer(*LONG)
        return found

    def furnish(self, rows: Sequence[Any]) -> None:
        dead = dead_among([run.pk for run in rows if run.status == "running"])
        for run in rows:
            run.is_dead = run.pk in dead

    def search(self, request: HttpRequest, queryset: QuerySet[JobRun], term: str) -> tuple[QuerySet[JobRun], bool]:
        if not term:
            return queryset, False
        # Each job that has run has a gate, and searching the gates takes less time than searching the history.
        found = gates().of_jobs().filter(name__icontains=term).values_list("name", flat=True)
        names = list(found[: MOST_FOUND + 1])
        wanted = Q(job_name__in=names) if len(names) <= MOST_FOUND else Q(job_name__icontains=term)
        if runs().filter(hostname=term).exists():
            wanted |= Q(hostname=term)
        return queryset.filter(wanted), False

    # --- the list

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        status = request.GET.get("status__exact", "")
        worst = most_often(status) if status in FAILURES else []
        return super().changelist_view(request, {"worst": worst, **(extra_context or {})})

    @admin.display(description=_("job"))
    def of_job(self, run: JobRun) -> SafeString:
        return breakable(run.job_name)

    @admin.display(description=_("result"))
    def result(self, run: Any) -> SafeString:
        return narrow(self.outcome(run), self.took(run), self.problem(run))

    @admin.display(description=_("began"), ordering="started_at")
    def began(self, run: Any) -> str:
        return moment(run.started_at, run.now)

    @admin.display(description=_("finished"))
    def finished(self, run: Any) -> str:
        return moment(run.finished_at, run.now)

    @admin.display(description=_("took"))
    def took(self, run: Any) -> str:
        # Nobody knows when a dead holder died.
        is_running = run.status == "running" and not run.is_dead
        return duration(run.now - run.started_at if is_running else run.duration)

    @admin.display(description=_("trigger"))
    def cause(self, run: JobRun) -> SafeString:
        return noted(run.get_trigger_display(), run.requested_by)

    @admin.display(description=_("slot"))
    def slot_at(self, run: Any) -> str:
        return moment(run.slot, run.now)

    @admin.display(description=_("lock cost"))
    def lock_cost(self, run: JobRun) -> str:
        return duration(run.acquire_duration)

    @admin.display(description=_("error or reason"))
    def problem(self, run: JobRun) -> SafeString | str:
        return breakable(first_line(run.error)) if run.error else NOTHING

    @admin.display(description=_("host name"))
    def on_server(self, run: JobRun) -> SafeString:
        return breakable(run.hostname)

    # --- the page of a run

    @admin.display(description=_("result"))
    def outcome(self, run: Any) -> SafeString:
        return badge(STALE, label(STALE)) if run.is_dead else badge(run.status, run.get_status_display())

    @admin.display(description=_("reason"))
    def reason(self, run: JobRun) -> SafeString | str:
        return breakable(run.error) if run.error and run.status == "skipped" else NOTHING

    @admin.display(description=_("job"))
    def job(self, run: JobRun) -> SafeString:
        return link("jobstatus", run.job_name, run.job_name)

    @admin.display(description=_("server"))
    def server(self, run: JobRun) -> str:
        return shown(f"{run.hostname}, pid {run.pid}")

    @admin.display(description=_("lock"))
    def lock(self, run: Any) -> str:
        return link("joblock", run.held.name, run.held.name) if run.held else NOTHING

    @admin.display(description=_("one-off"))
    def one_off(self, run: Any) -> str:
        return link("oneoffjob", run.order.pk, f"#{run.order.pk}") if run.order else NOTHING

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        run = super().get_object(request, object_id, from_field)
        long = runs().only(*LONG).filter(pk=run.pk).first() if run else None
        if run is None or long is None:  # it cannot be read, or has just been pruned
            return None
        vars(run).update({name: getattr(long, name) for name in LONG})
        self.furnish([run])
        return run

    def render_change_form(self, request: HttpRequest, context: Any, *args: Any, **kwargs: Any) -> HttpResponse:
        run, is_refresh = context["original"], is_refreshing(request)
        register_jobs(request, is_refresh=is_refresh)
        around, run.order, run.held = neighbours(run), requested_by(run), held(run)
        may_stop = self.has_stop_permission(request)
        context |= {
            "is_running": run.status == "running",
            "is_dead": run.is_dead,
            "held": run.held,
            "stop_page": stop_page(run.held, "jobrun", run.pk) if may_stop else "",
            "at": date_format(timezone.localtime(run.now), "H:i:s"),
            "state": self.outcome(run),
            "now": list(_now(run.held)) if run.held else [],
            "failure": None if run.status == "skipped" else failure_of(run.error, run.traceback, run.origin),
            "output": _output(run),
            "facts": list(self._facts(run)),
            "every": duration(run.held.heartbeat_interval) if run.held and run.held.heartbeat_interval else "",
            "again_form": self._form(request, run),
            "again": self._again(request, run),
            "retry_at": _retry_at(run.order),
            "neighbours": [
                (gettext("The run before"), _shown([around.before], run.now)),
                (gettext("The run after"), _shown([around.after], run.now)),
                (gettext("Other attempts at its slot"), _shown(around.of_slot, run.now)),
            ],
        }
        if is_refresh:
            return TemplateResponse(request, "admin/django_singlejob/jobrun/live.html", context)
        if run.status == "running":
            context["media"] += Media(js=[LIVE])
        return super().render_change_form(request, context, *args, **kwargs)

    def _facts(self, run: JobRun) -> Iterator[tuple[str, Any]]:
        for name in self.facts:
            value = getattr(self, name)(run) if hasattr(self, name) else getattr(run, name)
            if value != NOTHING:
                yield capfirst(str(label_for_field(name, JobRun, self))), value

    def _form(self, request: HttpRequest, run: Any) -> Form | None:
        """``None`` if the user may not enqueue one-offs, or if there is nothing to run again."""
        if run.status == "running" or not (self.may(request, "add_oneoffjob") and registry.is_known(run.job_name)):
            return None
        may_see = self.may(request, "view_oneoffjob") or self.may(request, "change_oneoffjob")
        given = {LIKE: run.order.pk} if run.order and may_see else {"job_name": run.job_name}
        is_complete = LIKE in given or (run.trigger == "schedule" or _needs_no_arguments(run.job_name))
        note = "" if is_complete else gettext("The arguments of this run are not recorded.")
        return Form(f"{address('oneoffjob_add')}?{urlencode(given)}", note)

    def _again(self, request: HttpRequest, run: Any) -> RunAgain | None:
        """``None`` if the user may not request it again, or if that is not possible."""
        if run.status == "running":
            return None
        if run.trigger in OF_ONE_OFFS:
            is_retryable = run.order and run.order.status in UNSUCCESSFUL and self.may(request, "change_oneoffjob")
            return RunAgain(list_of("oneoffjob"), "retry", run.order, gettext("Retry")) if is_retryable else None
        sees_jobs = self.may(request, "view_jobstatus") or self.may(request, "change_jobstatus")
        has_form = self.may(request, "add_oneoffjob")
        may_run = sees_jobs and not has_form and self.may(request, "run_jobstatus")
        if not (may_run and _needs_no_arguments(run.job_name)):
            return None
        # The arguments of a call are not recorded.
        words = gettext("Run again") if run.trigger == "schedule" else gettext("Run now")
        return RunAgain(list_of("jobstatus"), "run_now", JobStatus(name=run.job_name), words)


def most_often(status: str) -> list[tuple[str, str, int]]:
    """The jobs whose runs ended so most often in the last seven days: the name, the list of these runs, and how many
    there are."""
    week = runs().filter(status=status, started_at__gte=DBNow() - WEEK).order_by().values_list("job_name")
    counted = week.annotate(number=Count("pk")).order_by("-number", "job_name")[:MOST_OFTEN]
    return [(name, list_of("jobrun", job_name=name, status__exact=status), number) for name, number in counted]


def held(run: JobRun) -> Any:
    """The lock under which it runs, with the ``mean`` duration of its job; ``None`` if it does not run."""
    lock: Any = lock_of(run.token) if run.status == "running" else None
    if lock:
        add_means([lock])
    return lock


def _now(lock: Any) -> Iterator[tuple[str, Any]]:
    """How the run that holds the lock is doing: what a page that is open keeps up to date."""
    yield gettext("Elapsed"), held_for(lock)
    if told := progress(lock, most=0):
        yield gettext("Progress"), told
    yield gettext("Holder"), noted(breakable(lock.holder), breakable(lock.command))
    yield gettext("Last heartbeat"), distance(lock.heartbeat_at, lock.now)
    if lock.heartbeat_interval and not lock.is_suspected:
        yield gettext("Next heartbeat"), distance(lock.heartbeat_at + saturated(lock.heartbeat_interval), lock.now)


def _output(run: Any) -> Output | None:
    """While it runs, what its last heartbeat has recorded. ``None`` if nothing is known."""
    if run.held:
        text, at = Progress.read(run.held.progress).output, run.held.heartbeat_at
    else:
        text, at = run.output[-MOST_OUTPUT:], run.finished_at
    return Output(preformatted(text), clock_time(at) if at else "") if text else None


def requested_by(run: JobRun) -> Any:
    """The one-off that requested this run, with ``now``; ``None`` if none did, or if it has begun again since."""
    if run.trigger not in OF_ONE_OFFS:
        return None
    ended = Q(status__in=["done", "failed"])
    if run.finished_at:
        ended &= Q(finished_at__range=(run.finished_at - BRIEFLY, run.finished_at + BRIEFLY))
    found = one_offs().filter(ended | Q(status__in=["waiting", "in_progress"]), token=run.token)
    return found.only("status", "version", "run_after").annotate(**NOW).first()


def _retry_at(row: Any) -> SafeString | str:
    """When the one-off that requested a run is retried, with a link to it; empty if it is not."""
    if row is None or row.status != "waiting":
        return ""
    return noted(link("oneoffjob", row.pk, f"#{row.pk}"), moment(row.run_after, row.now))


def _needs_no_arguments(name: str) -> bool:
    return registry.is_known(name) and registry.get(name).misfit([], {}) is None


def _shown(found: Sequence[PastRun | None], now: datetime) -> list[tuple[Any, ...]]:
    return [
        (
            link("jobrun", run.pk, f"#{run.pk}"),
            badge(run.status, label(run.status)),
            when(run, now),
            breakable(run.hostname),
            breakable(first_line(run.error)),
        )
        for run in found
        if run
    ]
