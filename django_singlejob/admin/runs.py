"""The runs: what has happened. These pages are read-only."""

from datetime import datetime, timedelta
from typing import Any, ClassVar

from django.contrib import admin
from django.db.models import Max, Min, Q, QuerySet
from django.http import HttpRequest
from django.utils import timezone
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from django_singlejob.admin.cells import NOTHING, badge, duration, first_line, link, moment, noted, preformatted
from django_singlejob.admin.reading import NOW, ReadOnlyAdmin
from django_singlejob.models import JobRun
from django_singlejob.querysets.jobs import gates
from django_singlejob.querysets.locks import locks
from django_singlejob.querysets.one_offs import one_offs
from django_singlejob.querysets.runs import JobRunQuerySet, runs

# The filter has links to this many jobs; search for the others.
MOST_JOBS = 20
# The filter knows the servers of this many of the newest runs.
LOOKED_AT = 1000
# Two statements record an end, one in the run and one in the one-off, so the times differ a little.
BRIEFLY = timedelta(minutes=1)


class DatedRuns(JobRunQuerySet):
    """The runs, for a date hierarchy that reads only the first and the last of them."""

    def datetimes(self, field_name: str, kind: str, order: str = "ASC", tzinfo: Any = None) -> Any:
        """Each day, month or year from the first to the last, whether or not something ran then: to find out which of
        them have runs, the database would have to scan the whole history."""
        ends = self.aggregate(first=Min(field_name), last=Max(field_name))
        if ends["first"] is None:
            return []
        first, last = (timezone.localtime(ends[end]) for end in ("first", "last"))
        days = [first + timedelta(days=count) for count in range((last.date() - first.date()).days + 1)]
        return sorted({_begin(day, kind) for day in days})


def _begin(day: datetime, kind: str) -> datetime:
    begin = day.replace(hour=0, minute=0, second=0, microsecond=0)
    if kind == "day":
        return begin
    return begin.replace(day=1) if kind == "month" else begin.replace(month=1, day=1)


class JobFilter(admin.SimpleListFilter):
    title = _("job")
    parameter_name = "job_name"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        latest = gates().exclude(last_started_at=None).order_by("-last_started_at")[:MOST_JOBS]
        return _choices(request, self.parameter_name, latest.values_list("name", flat=True))

    def queryset(self, request: HttpRequest, queryset: QuerySet[JobRun]) -> QuerySet[JobRun]:
        return queryset.filter(job_name=self.value()) if self.value() in dict(self.lookup_choices) else queryset


class ServerFilter(admin.SimpleListFilter):
    title = _("server")
    parameter_name = "server"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        latest = runs().order_by("-started_at").values_list("hostname", flat=True)[:LOOKED_AT]
        return _choices(request, self.parameter_name, latest)

    def queryset(self, request: HttpRequest, queryset: QuerySet[JobRun]) -> QuerySet[JobRun]:
        return queryset.filter(hostname=self.value()) if self.value() in dict(self.lookup_choices) else queryset


def _choices(request: HttpRequest, parameter: str, known: Any) -> list[tuple[str, str]]:
    """The known values, and the one that is chosen."""
    values = sorted({*known, *request.GET.getlist(parameter)})
    return [(value, value) for value in values if value and "\0" not in value]


@admin.register(JobRun)
class JobRunAdmin(ReadOnlyAdmin):
    list_display = ["job_name", "result", "began", "took", "problem", "hostname", "cause", "lock_cost", "attempt"]
    list_filter = ["status", "trigger", ServerFilter, JobFilter]
    search_fields = ["job_name"]
    search_help_text = _("Part of the job's name.")
    date_hierarchy = "started_at"
    # With these, the database does not have to sort a million rows.
    ordering = ["-started_at"]
    sortable_by = ["began"]
    fields = [
        "job",
        "result",
        "began",
        "finished",
        "took",
        "lock_cost",
        "server",
        "cause",
        "slot_at",
        "attempt",
        "problem",
        "whole_traceback",
        "lock",
        "one_off",
        "fence",
        "token",
    ]
    readonly_fields: ClassVar[Any] = fields

    def get_queryset(self, request: HttpRequest) -> QuerySet[JobRun]:
        found: DatedRuns = DatedRuns(JobRun, using=runs().db).annotate(**NOW).defer("traceback")
        return found

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[JobRun], search_term: str
    ) -> tuple[QuerySet[JobRun], bool]:
        if not search_term:
            return queryset, False
        # Each job that has run has a gate, and searching the gates takes less time than searching the history.
        names = list(gates().filter(name__icontains=search_term).values_list("name", flat=True))
        return queryset.filter(job_name__in=names), False

    @admin.display(description=_("result"))
    def result(self, run: JobRun) -> SafeString:
        return badge(run.status, run.get_status_display())

    @admin.display(description=_("began"), ordering="started_at")
    def began(self, run: Any) -> str:
        return moment(run.started_at, run.now)

    @admin.display(description=_("finished"))
    def finished(self, run: Any) -> str:
        return moment(run.finished_at, run.now)

    @admin.display(description=_("took"))
    def took(self, run: Any) -> str:
        return duration(run.now - run.started_at if run.status == "running" else run.duration)

    @admin.display(description=_("trigger"))
    def cause(self, run: JobRun) -> SafeString:
        return noted(run.get_trigger_display(), run.requested_by)

    @admin.display(description=_("slot"))
    def slot_at(self, run: Any) -> str:
        return moment(run.slot, run.now)

    @admin.display(description=_("lock cost"))
    def lock_cost(self, run: JobRun) -> str:
        return duration(run.acquire_duration)

    @admin.display(description=_("error"))
    def problem(self, run: JobRun) -> str:
        return first_line(run.error)

    @admin.display(description=_("job"))
    def job(self, run: JobRun) -> SafeString:
        return link("jobstatus", run.job_name, run.job_name)

    @admin.display(description=_("server"))
    def server(self, run: JobRun) -> str:
        return f"{run.hostname}, pid {run.pid}"

    @admin.display(description=_("traceback"))
    def whole_traceback(self, run: JobRun) -> str:
        return preformatted(run.traceback or run.error)

    @admin.display(description=_("lock"))
    def lock(self, run: JobRun) -> str:
        lock = locks().filter(token=run.token).first() if run.status == "running" else None
        return link("joblock", lock.name, lock.name) if lock else NOTHING

    @admin.display(description=_("one-off"))
    def one_off(self, run: JobRun) -> str:
        if run.trigger not in ("one_off", "manual"):
            return NOTHING
        ended = Q(status__in=["done", "failed"])
        if run.finished_at:
            ended &= Q(finished_at__range=(run.finished_at - BRIEFLY, run.finished_at + BRIEFLY))
        found = one_offs().filter(ended | Q(status__in=["waiting", "in_progress"]), token=run.token).first()
        return link("oneoffjob", found.pk, f"#{found.pk}") if found else NOTHING
