"""The admin: who holds what, what has run, and what waits to be run. It only shows."""

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from django_singlejob.models import JobLock, JobRun, JobStatus, OneOffJob
from django_singlejob.querysets import JobLockQuerySet, gates, locks, runs
from django_singlejob.queue import one_offs

if TYPE_CHECKING:
    BaseAdmin = admin.ModelAdmin[Any]
else:
    BaseAdmin = admin.ModelAdmin


class ReadOnlyAdmin(BaseAdmin):
    """Nobody adds, changes or deletes these rows: a save() would bring a released lock back."""

    actions = None
    # COUNT(*) over the history takes longer than everything else on the page.
    show_full_result_count = False

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: object = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: object = None) -> bool:
        return False


class StaleFilter(admin.SimpleListFilter):
    title = _("state")
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [("held", _("held")), ("stale", _("stale"))]

    def queryset(self, request: HttpRequest, queryset: QuerySet[JobLock]) -> QuerySet[JobLock]:
        assert isinstance(queryset, JobLockQuerySet)  # noqa: S101
        match self.value():
            case "held":
                return queryset.live()
            case "stale":
                return queryset.stale()
        return queryset


@admin.register(JobLock)
class JobLockAdmin(ReadOnlyAdmin):
    list_display = [
        "name",
        "is_alive",
        "hostname",
        "pid",
        "command",
        "acquired_at",
        "heartbeat_at",
        "expires_at",
    ]
    list_filter = [StaleFilter, "hostname"]
    search_fields = ["name", "hostname", "command"]
    ordering = ["name"]

    def get_queryset(self, request: HttpRequest) -> QuerySet[JobLock]:
        return locks().judged()

    @admin.display(boolean=True, description=_("alive"))
    def is_alive(self, lock: JobLock) -> bool:
        return not lock.is_stale


@admin.register(JobStatus)
class JobStatusAdmin(ReadOnlyAdmin):
    list_display = [
        "name",
        "last_status",
        "next_slot",
        "last_started_at",
        "last_finished_at",
        "mean_duration",
        "run_count",
        "consecutive_failures",
    ]
    list_filter = ["last_status", "paused"]
    search_fields = ["name"]
    ordering = ["name"]

    def get_queryset(self, request: HttpRequest) -> QuerySet[JobStatus]:
        return gates()


@admin.register(JobRun)
class JobRunAdmin(ReadOnlyAdmin):
    list_display = ["job_name", "status", "trigger", "attempt", "hostname", "started_at", "duration", "error"]
    list_filter = ["status", "trigger"]
    search_fields = ["job_name", "hostname"]
    ordering = ["-pk"]

    def get_queryset(self, request: HttpRequest) -> QuerySet[JobRun]:
        return runs()


@admin.register(OneOffJob)
class OneOffJobAdmin(ReadOnlyAdmin):
    list_display = [
        "job_name",
        "status",
        "attempt",
        "run_after",
        "error",
        "queue_name",
        "priority",
        "started_at",
        "finished_at",
    ]
    list_filter = ["status"]
    search_fields = ["job_name", "queue_name", "hostname"]
    ordering = ["-pk"]

    def get_queryset(self, request: HttpRequest) -> QuerySet[OneOffJob]:
        return one_offs()
