"""The one-offs: what is waiting to run, and what happened to the rest. You can enqueue, cancel and
retry them, and delete those that have ended."""

import re
from collections.abc import Callable, Iterable, Sequence
from operator import methodcaller
from typing import Any, cast

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.models import CHANGE, DELETION, LogEntry
from django.db.models import Q, QuerySet, TextField
from django.db.models.functions import Cast, Left
from django.http import HttpRequest, HttpResponse
from django.utils.safestring import SafeString
from django.utils.translation import gettext, gettext_lazy as _, ngettext

from django_singlejob.admin import history
from django_singlejob.admin.addresses import address
from django_singlejob.admin.cells import (
    NOTHING,
    badge,
    breakable,
    cut,
    duration,
    first_line,
    link,
    moment,
    narrow,
    noted,
    preformatted,
)
from django_singlejob.admin.failures import failures_of
from django_singlejob.admin.forms import OneOffForm
from django_singlejob.admin.read_only import (
    CONFIRMED,
    NOW,
    BaseAdmin,
    RowsFilter,
    back,
    register_jobs,
    user_name,
)
from django_singlejob.admin.runs import BRIEFLY, LIKE, LOOKED_AT
from django_singlejob.admin.stopping import (
    StoppingAdmin,
    ask_to_stop,
    note_of_stop,
    stop_page_of_one_off,
    target_of_one_off,
)
from django_singlejob.admin.values import SHOWN_LENGTH, arguments_in, as_call, as_shown
from django_singlejob.models import OneOffJob
from django_singlejob.models.one_offs import (
    ENDED,
    PRIORITIES,
    UNSUCCESSFUL,
    OneOffJobQuerySet,
    one_offs,
)
from django_singlejob.models.runs import runs
from django_singlejob.monitoring.health import OVERDUE
from django_singlejob.process import escaping
from django_singlejob.running.enqueue import place

# The columns of which only the beginning is read: a row that was written by hand may have any length there, and JSON
# that Python cannot read.
LONG = ("args", "kwargs", "result", "error", "traceback", "origin", "worker_ids")
WHAT_IS_LOST = _(
    "These one-offs have ended. If you delete them, their arguments and results are lost. The history keeps their "
    "runs, with their errors. One that is retried meanwhile is left alone."
)
BEGINNINGS = {f"shown_{name}": Left(Cast(name, TextField()), SHOWN_LENGTH + 1) for name in LONG}


class NameFilter(RowsFilter):
    title = _("job or task")
    parameter_name = "name"

    def some(self, most: int) -> Iterable[str]:
        return (job or task for job, task in _newest("job_name", "task_path"))

    def queryset(self, request: HttpRequest, queryset: QuerySet[OneOffJob]) -> QuerySet[OneOffJob]:
        name = self.value()
        return queryset.filter(Q(job_name=name) | Q(job_name="", task_path=name)) if name else queryset


class QueueFilter(RowsFilter):
    title = _("queue")
    parameter_name = "queue_name__exact"

    def some(self, most: int) -> Iterable[str]:
        return (name for (name,) in _newest("queue_name"))

    def queryset(self, request: HttpRequest, queryset: QuerySet[OneOffJob]) -> QuerySet[OneOffJob]:
        return queryset.filter(queue_name=self.value()) if self.value() else queryset


class PriorityFilter(RowsFilter):
    title = _("priority")
    parameter_name = "priority"

    def some(self, most: int) -> Iterable[str]:
        found = (priority for (priority,) in _newest("priority"))
        return (str(priority) for priority in found if priority in PRIORITIES)

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        offered = super().lookups(request, model_admin)
        return sorted(offered, key=lambda choice: -_priority(choice[0]))

    def queryset(self, request: HttpRequest, queryset: QuerySet[OneOffJob]) -> QuerySet[OneOffJob]:
        if not self.value():
            return queryset
        wanted = _priority(self.value())
        return queryset.filter(priority=wanted) if wanted in PRIORITIES else queryset.none()


def _newest(*names: str) -> Any:
    """These columns of the newest one-offs, which the filters know."""
    return one_offs().order_by("-pk").values_list(*names)[:LOOKED_AT]


def _priority(text: str | None) -> int:
    """The priority in a URL. What is none is lower than all."""
    found = re.fullmatch(r"-?[0-9]{1,3}", text or "")
    return int(found[0]) if found else PRIORITIES[0] - 1


class OneOffJobAdmin(StoppingAdmin):
    form = OneOffForm
    list_display = ["title", "state", "due", "arguments", "attempts", "problem", "ended", "queue", "priority"]
    list_filter = ["status", QueueFilter, PriorityFilter, NameFilter]
    search_fields = ["job_name", "task_path", "queue_name", "hostname"]
    ordering = ["-pk"]
    sortable_by = ()
    actions = ["cancel", "stop", "retry", "discard"]
    change_form_template = "admin/django_singlejob/oneoffjob/change_form.html"
    shown = [
        "job",
        "state",
        "arguments",
        "due",
        "attempts",
        "began",
        "ended",
        "took",
        "outcome",
        "workers",
        "last_run",
        "queue",
        "priority",
        "backend",
        "created",
        "requester",
        "unique",
    ]

    def get_queryset(self, request: HttpRequest) -> QuerySet[OneOffJob]:
        return one_offs().defer(*LONG, "errors").annotate(**NOW, **BEGINNINGS)

    def furnish(self, rows: Sequence[Any]) -> None:
        dead = history.dead_one_offs([row.pk for row in rows if row.status == "in_progress"])
        for row in rows:
            row.is_dead = row.pk in dead

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        row = super().get_object(request, object_id, from_field)
        if row:
            self.furnish([row])
        return row

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return list(self.shown if obj else OneOffForm.Meta.fields)

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> list[str]:
        return self.shown if obj else []

    def has_add_permission(self, request: HttpRequest) -> bool:
        return BaseAdmin.has_add_permission(self, request)

    def has_order_permission(self, request: HttpRequest) -> bool:
        """The permission to cancel and retry one-offs."""
        return self.may(request, "change_oneoffjob")

    def has_discard_permission(self, request: HttpRequest) -> bool:
        """The permission to delete one-offs that have ended. Django's own pages would delete others too."""
        return self.may(request, "delete_oneoffjob")

    # --- what is shown

    @admin.display(description=_("job or task"))
    def title(self, row: OneOffJob) -> SafeString:
        return noted(breakable(row.name), _kind(row))

    @admin.display(description=_("job or task"))
    def job(self, row: OneOffJob) -> SafeString:
        return noted(link("jobstatus", row.job_name, row.job_name) if row.job_name else row.task_path, _kind(row))

    @admin.display(description=_("status"))
    def state(self, row: Any) -> SafeString:
        is_late = row.status == "waiting" and row.run_after < row.now - OVERDUE
        if row.is_dead:
            shown = noted(badge(history.STALE, history.label(history.STALE)), gettext("its worker is dead"))
        else:
            doubt = gettext("is a worker running?") if is_late else note_of_stop(row)
            doubt = gettext("waits to run alone") if row.suspect else doubt
            shown = noted(badge(row.status, row.get_status_display()), doubt)
        return narrow(shown, self.took(row), self.problem(row))

    @admin.display(description=_("arguments"))
    def arguments(self, row: Any) -> str:
        return cut(as_call(row.shown_args, row.shown_kwargs)) or NOTHING

    @admin.display(description=_("due"))
    def due(self, row: Any) -> str:
        return moment(row.run_after, row.now)

    @admin.display(description=_("attempts"))
    def attempts(self, row: OneOffJob) -> str:
        return gettext("%(attempt)d of %(most)d") % {"attempt": row.attempt, "most": row.max_attempts}

    @admin.display(description=_("began"))
    def began(self, row: Any) -> str:
        return moment(row.started_at, row.now)

    @admin.display(description=_("ended"))
    def ended(self, row: Any) -> str:
        return moment(row.finished_at, row.now)

    @admin.display(description=_("took"))
    def took(self, row: Any) -> str:
        if row.status == "in_progress" and row.started_at and not row.is_dead:
            return duration(row.now - row.started_at)
        has_ended = row.status in ("done", "failed") and row.started_at and row.finished_at
        return duration(row.finished_at - row.started_at) if has_ended else NOTHING

    @admin.display(description=_("queue"))
    def queue(self, row: OneOffJob) -> SafeString:
        return breakable(row.queue_name)

    @admin.display(description=_("once in the queue"))
    def unique(self, row: OneOffJob) -> str:
        if not row.asked:
            return NOTHING
        count = ngettext("enqueued %d time", "enqueued %d times", row.asked) % row.asked
        return f"{escaping.shown(row.unique_key.partition(' ')[2])} {count}".strip()

    @admin.display(description=_("created"))
    def created(self, row: Any) -> str:
        return moment(row.created_at, row.now)

    @admin.display(description=_("requested by"))
    def requester(self, row: OneOffJob) -> str:
        return escaping.shown(row.requested_by) or NOTHING

    @admin.display(description=_("result"))
    def outcome(self, row: Any) -> str:
        return cut(as_shown(row.shown_result), SHOWN_LENGTH) if row.shown_result else NOTHING

    @admin.display(description=_("error"))
    def problem(self, row: Any) -> SafeString | str:
        return breakable(first_line(row.shown_error)) if row.shown_error else NOTHING

    @admin.display(description=_("workers"))
    def workers(self, row: Any) -> str:
        return preformatted(cut(row.shown_worker_ids, SHOWN_LENGTH))

    @admin.display(description=_("last run"))
    def last_run(self, row: OneOffJob) -> str:
        if row.token is None or row.started_at is None:
            return NOTHING
        since = row.started_at - BRIEFLY
        run = runs().filter(job_name=row.job_name, started_at__gte=since, token=row.token).first()
        return link("jobrun", run.pk, f"#{run.pk}") if run else NOTHING

    # --- actions

    def get_form(self, request: HttpRequest, obj: Any = None, change: bool = False, **kwargs: Any) -> Any:
        register_jobs(request)
        return super().get_form(request, obj, change, **kwargs)

    def render_change_form(self, request: HttpRequest, context: Any, *args: Any, **kwargs: Any) -> HttpResponse:
        row = context.get("original")
        context["may_cancel"] = row and row.status == "waiting" and self.has_order_permission(request)
        context["may_retry"] = row and row.status in UNSUCCESSFUL and self.has_order_permission(request)
        context["may_discard"] = row and row.status in ENDED and self.has_discard_permission(request)
        if row:
            context["stop_page"] = stop_page_of_one_off(row) if self.has_stop_permission(request) else ""
            context["failure"], context["earlier"] = failures_of(row)
        return super().render_change_form(request, context, *args, **kwargs)

    def get_changeform_initial_data(self, request: HttpRequest) -> dict[str, Any]:
        """What the URL says; and what the one-off has that it names, if the user may see that."""
        given: dict[str, Any] = super().get_changeform_initial_data(request)
        key = given.pop(LIKE, "")
        row: Any = self.get_object(request, key) if key and self.has_view_permission(request) else None
        if row is None:
            return given
        found = arguments_in(row.shown_args, row.shown_kwargs)
        if found is None:
            self.message_user(request, gettext("Its arguments are too long for this form."), messages.WARNING)
        given |= {"job_name": row.job_name, "queue_name": row.queue_name, "priority": row.priority}
        return given | dict(zip(("args", "kwargs"), found or ([], {}), strict=True))

    def save_model(self, request: HttpRequest, obj: OneOffJob, form: Any, change: bool) -> None:
        order = form.order()
        call = order.stored(obj.args, obj.kwargs)
        obj.pk = place(order, call.args, call.kwargs, requested_by=user_name(request)).pk

    @admin.action(description=_("Cancel waiting one-offs"), permissions=["order"])
    def cancel(self, request: HttpRequest, queryset: QuerySet[OneOffJob]) -> HttpResponse | None:
        count, left = self._each(request, queryset, OneOffJobQuerySet.cancel, gettext("Cancelled."))
        done = ngettext("%d one-off was cancelled.", "%d one-offs were cancelled.", count)
        not_done = ngettext(
            "%d was left alone, because it has begun or ended.",
            "%d were left alone, because they have begun or ended.",
            left,
        )
        return self._report(request, (count, done), (left, not_done))

    @admin.action(description=_("Retry failed or cancelled one-offs"), permissions=["order"])
    def retry(self, request: HttpRequest, queryset: QuerySet[OneOffJob]) -> HttpResponse | None:
        again = methodcaller("retry", requested_by=user_name(request))
        count, left = self._each(request, queryset, again, gettext("Requested a retry."))
        done = ngettext(
            "%d one-off will be retried as soon as a worker is free.",
            "%d one-offs will be retried as soon as a worker is free.",
            count,
        )
        not_done = ngettext(
            "%d was left alone, because it is waiting, in progress or done.",
            "%d were left alone, because they are waiting, in progress or done.",
            left,
        )
        return self._report(request, (count, done), (left, not_done))

    @admin.action(description=_("Delete one-offs that have ended"), permissions=["discard"])
    def discard(self, request: HttpRequest, queryset: QuerySet[OneOffJob]) -> HttpResponse | None:
        if CONFIRMED not in request.POST:
            return self._ask_to_discard(request, list(queryset))
        count, left = self._each(request, queryset, OneOffJobQuerySet.discard, gettext("Deleted."), DELETION)
        done = ngettext("%d one-off was deleted.", "%d one-offs were deleted.", count)
        not_done = ngettext(
            "%d was left alone, because it has not ended, or has changed meanwhile.",
            "%d were left alone, because they have not ended, or have changed meanwhile.",
            left,
        )
        return self._report(request, (count, done), (left, not_done))

    def _ask_to_discard(self, request: HttpRequest, rows: list[OneOffJob]) -> HttpResponse:
        seen, ended = _seen_versions(request), [row for row in rows if row.status in ENDED]
        refused = gettext("%(row)s has not ended, so you cannot delete it. Cancel it first if it is waiting.")
        keys = [(ACTION_CHECKBOX_NAME, str(row.pk)) for row in ended]
        versions = [("version", seen.get(str(row.pk), str(row.version))) for row in ended]
        context = {
            "title": gettext("Delete one-offs"),
            "original": gettext("Delete"),  # for the breadcrumbs
            "target": address("oneoffjob_changelist"),
            "fields": [("action", "discard"), (CONFIRMED, "yes"), *keys, *versions],
            "explanation": WHAT_IS_LOST,
            "rows": ended,
            "refused": [refused % {"row": row} for row in rows if row.status not in ENDED],
            "button": gettext("Delete"),
        }
        return self.ask(request, context)

    @admin.action(description=_("Stop one-offs in progress"), permissions=["stop"])
    def stop(self, request: HttpRequest, queryset: QuerySet[OneOffJob]) -> HttpResponse:
        return ask_to_stop(self, request, [target_of_one_off(row) for row in queryset], "oneoffjob")

    def _each(
        self,
        request: HttpRequest,
        chosen: QuerySet[OneOffJob],
        act: Callable[[Any], int],
        message: str,
        flag: int = CHANGE,
    ) -> tuple[int, int]:
        """Apply ``act`` to each row. Returns how many rows were changed, and how many were not: a change that
        another process makes meanwhile wins."""
        rows, seen = list(chosen), _seen_versions(request)
        changed = 0
        for row in rows:
            is_as_seen = seen.get(str(row.pk), str(row.version)) == str(row.version)
            if is_as_seen and act(one_offs().filter(pk=row.pk, version=row.version)):
                user = cast("int", request.user.pk)
                LogEntry.objects.log_actions(user, [row], flag, message, single_object=True)
                changed += 1
        return changed, len(rows) - changed

    def _report(self, request: HttpRequest, done: tuple[int, str], left: tuple[int, str]) -> HttpResponse | None:
        for (count, message), level in (done, messages.SUCCESS), (left, messages.WARNING):
            if count:
                self.message_user(request, message % count, level)
        return back(request, "oneoffjob")


def _kind(row: OneOffJob) -> str:
    return gettext("job") if row.job_name else gettext("task")


def _seen_versions(request: HttpRequest) -> dict[str, str]:
    """The version that the user saw of each chosen one-off. Its page and a confirmation send it; the list does not."""
    return dict(zip(request.POST.getlist(ACTION_CHECKBOX_NAME), request.POST.getlist("version"), strict=False))
