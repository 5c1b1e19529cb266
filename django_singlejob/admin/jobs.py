"""The jobs and how each is doing. You can run them now, pause them, resume them, and hide those that are gone."""

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.utils import unquote
from django.contrib.admin.views.main import SEARCH_VAR
from django.core.exceptions import BadRequest, PermissionDenied
from django.db.models import Q, QuerySet
from django.forms import Media
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path
from django.utils.safestring import SafeString
from django.utils.timezone import get_current_timezone
from django.utils.translation import gettext, gettext_lazy as _

from django_singlejob.admin.addresses import address
from django_singlejob.admin.cells import (
    NOTHING,
    breakable,
    duration,
    first_line,
    moment,
    narrow,
    noted,
    when,
)
from django_singlejob.admin.charts import sparkline
from django_singlejob.admin.forms import AcknowledgeForm, PauseForm
from django_singlejob.admin.history import label, recent_runs
from django_singlejob.admin.job_page import details, last_run, now_of
from django_singlejob.admin.read_only import (
    CONFIRMED,
    LIVE,
    WorstPaginator,
    back,
    busy,
    is_refreshing,
    register_jobs,
    user_name,
)
from django_singlejob.admin.schedules import change_schedule, pages
from django_singlejob.admin.states import state
from django_singlejob.admin.stopping import StoppingAdmin, stop_page
from django_singlejob.control import pausing
from django_singlejob.control.pausing import at_the_gate
from django_singlejob.database.transactions import outside_requests
from django_singlejob.jobs import registry
from django_singlejob.jobs.names import is_storable
from django_singlejob.locking.grant import is_left_to_schedule
from django_singlejob.models import JobStatus, OneOffJob, Overview
from django_singlejob.models.jobs import MILLISECOND, gates
from django_singlejob.models.one_offs import PRIORITIES, one_offs
from django_singlejob.models.runs import runs
from django_singlejob.monitoring.acknowledging import acknowledge
from django_singlejob.monitoring.health import Health, State, survey
from django_singlejob.monitoring.ledger import ledger_of
from django_singlejob.monitoring.verdict import Scope, judge
from django_singlejob.monitoring.workers import serves, workers
from django_singlejob.process.clock import DBNow, instant_in_words, storable
from django_singlejob.process.escaping import listed
from django_singlejob.running.enqueue import Order, place

ATTENTION = "attention"


class StateFilter(admin.SimpleListFilter):
    """The state of a job. It is not a column, so ``JobStatusAdmin.get_paginator`` does the filtering."""

    title = _("state")
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [(ATTENTION, _("needs attention")), *((state.value, state.label) for state in State)]

    def queryset(self, request: HttpRequest, queryset: QuerySet[JobStatus]) -> QuerySet[JobStatus]:
        return queryset


def jobs(request: HttpRequest, names: Collection[str]) -> list[Health]:
    """How each of these jobs is doing. Includes jobs that are registered and jobs that have run."""
    register_jobs(request)
    return [health for health in survey(names).healths if health.is_job]


def _is_wanted(health: Health, wanted: str | None) -> bool:
    if wanted == ATTENTION:
        return bool(health.state.level)
    return not wanted or health.state == wanted


def _row(health: Health) -> Any:
    row: Any = health.status or JobStatus(name=health.name)
    row.health, row.now = health, getattr(row, "now", None)
    return row


class JobStatusAdmin(StoppingAdmin):
    change_list_template = "admin/django_singlejob/jobstatus/change_list.html"
    change_form_template = "admin/django_singlejob/jobstatus/change_form.html"
    list_display = ["title", "state", "last_run", "last_durations", "next_slot_at"]
    list_filter = [StateFilter]
    search_fields = ["name"]
    search_help_text = _("Part of the job's name.")
    sortable_by = ()
    # Each row shows its last runs.
    list_per_page = 50
    actions = ["run_now", "acknowledge", "pause", "resume", "hide", "show"]

    def get_queryset(self, request: HttpRequest) -> QuerySet[JobStatus]:
        return gates().all()

    def get_paginator(
        self, request: HttpRequest, queryset: QuerySet[JobStatus], per_page: int, *args: Any, **kwargs: Any
    ) -> Any:
        """The jobs, with those that need attention first. This includes jobs without a row, which no server has called
        yet."""
        if not _is_of_list(request):  # but of the admin's log of a job, or of names to choose from
            return super().get_paginator(request, queryset, per_page, *args, **kwargs)
        if queryset.query.is_empty():
            return WorstPaginator([], per_page)
        wanted = request.GET.get(StateFilter.parameter_name)
        part = request.GET.get(SEARCH_VAR, "").lower()
        register_jobs(request)
        surveyed = survey(part=part, hidden=wanted == State.HIDDEN)
        found = [job for job in surveyed.healths if job.is_job and _is_wanted(job, wanted) and part in job.name]
        found.sort(key=lambda job: (-job.state.level, job.name))
        return WorstPaginator([_row(health) for health in found], per_page, is_cut=surveyed.is_cut)

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        return super().changelist_view(request, self._way_out(request) | (extra_context or {}))

    def _way_out(self, request: HttpRequest) -> dict[str, bool]:
        """Whether to link to the overview and its pages."""
        site = self.admin_site
        may_see = site.is_registered(Overview) and site.get_model_admin(Overview).has_view_permission(request)
        return {"may_see_overview": may_see}

    def furnish(self, rows: Sequence[Any]) -> None:
        recent = recent_runs([row.name for row in rows])
        for row in rows:
            row.recent = recent[row.name]

    def has_run_permission(self, request: HttpRequest) -> bool:
        return self.may(request, "run_jobstatus")

    def has_pause_permission(self, request: HttpRequest) -> bool:
        return self.may(request, "change_jobstatus")

    def has_schedule_permission(self, request: HttpRequest) -> bool:
        """The permission to change schedules, and to see the page that asks first."""
        return self.has_view_permission(request) and self.may(request, "change_schedule_jobstatus")

    # --- the list

    @admin.display(description=_("name"))
    def title(self, row: Any) -> SafeString:
        return breakable(row.name)

    @admin.display(description=_("state"))
    def state(self, row: Any) -> SafeString:
        shown = state(row.health)
        if not row.recent:
            return shown
        last = row.recent[-1]
        return narrow(shown, f"{label(last.status)}: {when(last, row.now)}", breakable(first_line(last.error)))

    @admin.display(description=_("last run"))
    def last_run(self, row: Any) -> str:
        return last_run(row.recent[-1], row.now) if row.recent else NOTHING

    @admin.display(description=_("last durations"))
    def last_durations(self, row: Any) -> str:
        mean = gettext("mean %s") % duration(row.mean_duration) if row.mean_duration else ""
        return noted(sparkline(row.recent) if row.recent else NOTHING, mean)

    @admin.display(description=_("next slot"))
    def next_slot_at(self, row: Any) -> str:
        return noted(moment(row.next_slot, row.now), row.health.schedule)

    # --- the page of a job

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> JobStatus | None:
        """The job, even if it has no row yet."""
        if not is_storable(object_id):
            return None
        health = next(iter(jobs(request, [object_id])), None)
        return _row(health) if health else self.get_queryset(request).filter(name=object_id).first()

    def render_change_form(self, request: HttpRequest, context: Any, *args: Any, **kwargs: Any) -> HttpResponse:
        row: Any = context["original"]
        if not hasattr(row, "health"):
            return super().render_change_form(request, context, *args, **kwargs)
        context.update(now_of(row, may_see_runs=self.may(request, "view_jobrun")))
        if is_refreshing(request):
            return TemplateResponse(request, "admin/django_singlejob/jobstatus/live.html", context)
        context.update(details(row), title=row.name, subtitle=None)
        context.update(self._choices(request, row), **self._way_out(request))
        if row.health.lock:
            context["media"] += Media(js=[LIVE])
        return super().render_change_form(request, context, *args, **kwargs)

    def _choices(self, request: HttpRequest, row: Any) -> dict[str, Any]:
        """What the user may do on the page of a job."""
        health = row.health
        return {
            "may_run": self.has_run_permission(request),
            "may_pause": self.has_pause_permission(request),
            "may_acknowledge": health.state.level and self.has_pause_permission(request),
            "stop_page": stop_page(health.lock, "jobstatus", row.name) if self.has_stop_permission(request) else "",
            "schedule_pages": pages(row) if self.has_schedule_permission(request) else [],
            "may_clear": self.may(request, "view_joblock") and self.may(request, "clear_joblock"),
        }

    # --- the page that changes its schedule

    def get_urls(self) -> list[URLPattern]:
        view: Any = outside_requests(self.admin_site.admin_view(self.schedule_view))
        return [
            path("<path:object_id>/schedule/", view, name="django_singlejob_jobstatus_schedule"),
            *super().get_urls(),
        ]

    def schedule_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        if not self.has_schedule_permission(request):
            raise PermissionDenied
        name = unquote(object_id)
        row = self.get_object(request, name)
        if row is None:
            self.report_missing(request, [name])
            return HttpResponseRedirect(address("jobstatus_changelist"))
        return change_schedule(self, request, row)

    # --- actions, from the list or from the page of a job

    @admin.action(description=_("Run now"), permissions=["run"])
    def run_now(self, request: HttpRequest, queryset: object) -> HttpResponse | None:
        slot = _slot_of(request)
        for name in _chosen(request):
            answer = at_the_gate(name, partial(_order, name, user_name(request), slot))
            if isinstance(answer, str | None):
                self.message_user(request, answer or busy(name), messages.WARNING)
                continue
            self._log(request, name, _requested(answer, slot))
            if any(worker.is_live and serves(worker, answer.queue_name) for worker in workers()):
                of_now = gettext("The next free worker will run the job %(name)s.")
                of_slot = gettext("The next free worker will run the slot %(slot)s of the job %(name)s.")
                facts = {"name": name, "slot": instant_in_words(slot) if slot else ""}
                message = (of_slot if slot else of_now) % facts
                self.message_user(request, message, messages.SUCCESS)
            else:
                message = gettext("The job %s waits for a worker, and none has been seen. Start singleton_worker.")
                self.message_user(request, message % name, messages.WARNING)
        return back(request, "jobstatus")

    @admin.action(description=_("Pause"), permissions=["pause"])
    def pause(self, request: HttpRequest, queryset: object) -> HttpResponse | None:
        form = PauseForm(request.POST if CONFIRMED in request.POST else None)
        if not form.is_valid():
            return self._ask_to_pause(request, form)
        until, reason = form.cleaned_data["until"], form.cleaned_data["reason"]
        logged = gettext("Paused until %s.") % instant_in_words(until) if until else gettext("Paused.")
        because = gettext("Reason: %s") % reason if reason else ""
        done = gettext("The job %s is paused. No new runs will start; a run in progress continues to its end.")
        end = gettext("It resumes by itself at %s.") % instant_in_words(until, get_current_timezone()) if until else ""
        left = gettext("The job %s was already paused.")
        act = partial(pausing.pause, until=until, reason=reason, by=user_name(request))
        self._change(request, _chosen(request), act, f"{logged} {because}".strip(), f"{done} {end}".strip(), left)
        return back(request, "jobstatus")

    def _ask_to_pause(self, request: HttpRequest, form: PauseForm) -> HttpResponse:
        words = gettext(
            "No new runs of these jobs will start, and their one-offs will wait. A run in progress continues to its "
            "end. A job that is paused already gets the new end and reason."
        )
        return self._ask(request, form, "pause", gettext("Pause jobs"), gettext("Pause"), words)

    def _ask(
        self, request: HttpRequest, form: PauseForm, action: str, title: str, verb: str, words: str
    ) -> HttpResponse:
        context = {
            "title": title,
            "original": verb,  # for the breadcrumbs
            "media": self.media + form.media,
            "names": _chosen(request),
            "form": form,
            "action": action,
            "words": words,
            "back": request.POST.get("back"),
            "confirmed": CONFIRMED,
        }
        return self.ask(request, context, "jobstatus/until.html")

    @admin.action(description=_("Acknowledge"), permissions=["pause"])
    def acknowledge(self, request: HttpRequest, queryset: object) -> HttpResponse | None:
        form = AcknowledgeForm(request.POST if CONFIRMED in request.POST else None)
        names = _chosen(request)
        found = [each for each in judge(Scope(jobs=names)).findings if each.subject in names] if names else []
        if not found:
            self.message_user(request, gettext("Nothing is wrong with these jobs."), messages.WARNING)
            return back(request, "jobstatus")
        if not form.is_valid():
            words = gettext(
                "What is wrong with these jobs now is shown, but alarms nobody until then, or until their next "
                "success. Anything else that goes wrong does."
            )
            return self._ask(request, form, "acknowledge", gettext("Acknowledge"), gettext("Acknowledge"), words)
        until, reason = form.cleaned_data["until"], form.cleaned_data["reason"]
        for name in dict.fromkeys(each.subject for each in found):
            kinds = [each.kind for each in found if each.subject == name]
            terms = {"by": user_name(request), "reason": reason}
            end = acknowledge(name, [kind.value for kind in kinds], until, **terms)
            facts = {"kinds": listed(kind.label for kind in kinds), "until": instant_in_words(end)}
            self._log(request, name, gettext("Acknowledged until %(until)s: %(kinds)s.") % facts)
            done = gettext("What is wrong with the job %(name)s (%(kinds)s) is acknowledged until %(until)s.")
            self.message_user(request, done % {"name": name, **facts}, messages.SUCCESS)
        return back(request, "jobstatus")

    @admin.action(description=_("Resume"), permissions=["pause"])
    def resume(self, request: HttpRequest, queryset: object) -> HttpResponse | None:
        done = gettext("The job %s is no longer paused. It will run when it is due.")
        left = gettext("The job %s was not paused.")
        act = partial(pausing.resume, by=user_name(request))
        self._change(request, _chosen(request), act, gettext("Resumed."), done, left)
        return back(request, "jobstatus")

    @admin.action(description=_("Hide"), permissions=["pause"])
    def hide(self, request: HttpRequest, queryset: object) -> HttpResponse | None:
        done = gettext("The job %s is hidden. It is shown again when a server requests it, and while its lock is held.")
        refused = gettext("The job %s was not hidden, because this release of the code has it. Pause it instead.")
        names = _chosen(request)
        for name in filter(registry.is_known, names):
            self.message_user(request, refused % name, messages.WARNING)
        unknown = [name for name in names if not registry.is_known(name)]
        left = gettext("The job %s was already hidden.")
        self._change(request, unknown, pausing.hide, gettext("Hidden."), done, left)
        return back(request, "jobstatus")

    @admin.action(description=_("Show"), permissions=["pause"])
    def show(self, request: HttpRequest, queryset: object) -> HttpResponse | None:
        done, left = gettext("The job %s is shown again."), gettext("The job %s was not hidden.")
        self._change(request, _chosen(request), pausing.show, gettext("Shown again."), done, left)
        return back(request, "jobstatus")

    def _change(
        self,
        request: HttpRequest,
        names: Sequence[str],
        act: Callable[[str], bool | None],
        logged: str,
        done: str,
        left: str,
    ) -> None:
        for name in names:
            is_changed = act(name)
            if is_changed:
                self._log(request, name, logged)
                self.message_user(request, done % name, messages.SUCCESS)
            elif is_changed is None:
                self.message_user(request, busy(name), messages.WARNING)
            else:
                self.message_user(request, left % name, messages.WARNING)

    def _log(self, request: HttpRequest, name: str, message: str) -> None:
        self.log_change(request, JobStatus(name=name), message)


def _is_of_list(request: HttpRequest) -> bool:
    match = request.resolver_match
    return bool(match and match.url_name == "django_singlejob_jobstatus_changelist")


def _chosen(request: HttpRequest) -> list[str]:
    names = request.POST.getlist(ACTION_CHECKBOX_NAME)
    known = {job.name for job in jobs(request, names)}
    return [name for name in names if name in known]


def _slot_of(request: HttpRequest) -> datetime | None:
    """The past slot that is to be run; ``None``: none is named."""
    given = request.POST.get("slot")
    if not given:
        return None
    with suppress(ValueError):
        found = datetime.fromisoformat(given)
        if found.tzinfo and (slot := storable(found)):
            return slot
    raise BadRequest(f"{given!r:.40} is not a slot.")  # a page of ours does not send it


def _requested(one_off: OneOffJob, slot: datetime | None) -> str:
    if slot is None:
        return gettext("Requested a run now: one-off %d.") % one_off.pk
    facts = {"slot": instant_in_words(slot), "pk": one_off.pk}
    return gettext("Requested a run of the slot %(slot)s: one-off %(pk)d.") % facts


def _order(name: str, requested_by: str, slot: datetime | None) -> OneOffJob | str:
    """Enqueue a one-off for this user, and return it, or the reason why not."""
    if complaint := why_not_run(name, slot):
        return complaint
    if slot:
        # Somebody may be about to run it by --slot: who has seen the row before looks again.
        own = gates().filter(name=name).survey()[name]
        if complaint := _why_not_now(own, slot) or (None if gates().move_on(own, {}) else busy(name)):
            return complaint
    order = Order(job_name=name, max_attempts=registry.get(name).most_attempts, priority=PRIORITIES[-1])
    return place(order, [], {}, requested_by=requested_by, retried_slot=slot)


def _why_not_now(own: JobStatus, slot: datetime) -> str | None:
    facts = {"name": own.name, "slot": instant_in_words(slot)}
    if runs().has_succeeded(own.name, slot):
        return gettext("The slot %(slot)s of the job %(name)s was run successfully. Run the job now instead.") % facts
    is_again = own.abandoned and own.last_attempt < registry.get(own.name).max_attempts
    attempts = runs().filter(Q(slot=slot) | Q(retried_slot=slot), job_name=own.name)
    if attempts.running().exists() or is_left_to_schedule(own, slot, is_again=is_again):
        return gettext("The slot %(slot)s of the job %(name)s is running, or due, or will be run again.") % facts
    return None


def why_not_run(name: str, slot: datetime | None = None) -> str | None:
    """The reason why the job, or this past slot of it, cannot be run now, or ``None`` if it can."""
    if not registry.is_known(name):
        return gettext("The job %s cannot be run, because this release of the code does not define it.") % name
    if registry.get(name).misfit([], {}):
        return gettext("The job %s cannot be run without arguments. Add a one-off with arguments instead.") % name
    if gates().paused().filter(name=name).exists():
        return gettext("The job %s is paused. Resume it first.") % name
    if slot:
        return (
            None
            if _is_slot(name, slot)
            else gettext("%(slot)s is not a slot of the job %(name)s.") % {"name": name, "slot": instant_in_words(slot)}
        )
    # A one-off that will be retried later counts as well.
    soon = Q(run_after__lte=DBNow()) | Q(attempt__gt=0)
    if one_offs().waiting().filter(soon, job_name=name, args=[], kwargs={}).exists():
        return gettext("The job %s is already waiting for a free worker. Is a worker running?") % name
    return None


def _is_slot(name: str, slot: datetime) -> bool:
    """Whether it is one of the schedule that the job had then."""
    return any(entry.slot == slot for entry in ledger_of(name, slot, slot + MILLISECOND).entries)
