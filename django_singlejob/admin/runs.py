"""The runs: what has happened. These pages are read-only."""

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any, ClassVar

from django.contrib import admin
from django.db import DataError
from django.db.models import Max, Min, Q, QuerySet
from django.http import HttpRequest
from django.utils import timezone
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from django_singlejob.admin.cells import NOTHING, badge, duration, first_line, link, moment, noted, preformatted
from django_singlejob.admin.reading import NOW, ReadOnlyAdmin, RowsFilter
from django_singlejob.models import JobRun
from django_singlejob.querysets.jobs import gates
from django_singlejob.querysets.locks import locks
from django_singlejob.querysets.one_offs import one_offs
from django_singlejob.querysets.runs import JobRunQuerySet, runs

# The filter knows the servers of this many of the newest runs.
LOOKED_AT = 1000
# If a search finds more jobs, it is the history that is searched: then its newest runs soon fill a page.
MOST_FOUND = 500
# Two statements record an end, one in the run and one in the one-off, so the times differ a little.
BRIEFLY = timedelta(minutes=1)
# The date hierarchy has no more years, months or days.
MOST_DATES = 100


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
        latest = gates().exclude(last_started_at=None).order_by("-last_started_at")
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


@admin.register(JobRun)
class JobRunAdmin(ReadOnlyAdmin):
    list_display = ["job_name", "result", "began", "took", "problem", "hostname", "cause", "lock_cost", "attempt"]
    list_filter = ["status", "trigger", ServerFilter, JobFilter]
    search_fields = ["job_name"]
    search_help_text = _("Part of the job's name, or the whole name of a server.")
    date_hierarchy = "started_at"
    linked_lookups = ["token"]
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

    def search(self, request: HttpRequest, queryset: QuerySet[JobRun], term: str) -> tuple[QuerySet[JobRun], bool]:
        if not term:
            return queryset, False
        # Each job that has run has a gate, and searching the gates takes less time than searching the history.
        names = list(gates().filter(name__icontains=term).values_list("name", flat=True)[: MOST_FOUND + 1])
        wanted = Q(job_name__in=names) if len(names) <= MOST_FOUND else Q(job_name__icontains=term)
        if runs().filter(hostname=term).exists():
            wanted |= Q(hostname=term)
        return queryset.filter(wanted), False

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
        found = one_offs().filter(ended | Q(status__in=["waiting", "in_progress"]), token=run.token).only("pk").first()
        return link("oneoffjob", found.pk, f"#{found.pk}") if found else NOTHING
