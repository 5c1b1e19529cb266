"""The page that gives a job another schedule, or the code's again. First it shows the slots to come, now and then."""

from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from django.contrib import messages
from django.contrib.admin.utils import quote
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.safestring import SafeString
from django.utils.translation import gettext, gettext_lazy as _

from django_singlejob.admin.addresses import address
from django_singlejob.admin.cells import NOTHING, clock_time, moment, noted
from django_singlejob.admin.forms import ReasonForm, ScheduleForm
from django_singlejob.admin.read_only import ReadOnlyAdmin, busy, user_name
from django_singlejob.control.schedules import Own, give_schedule, refusal
from django_singlejob.exceptions import InvalidSchedule
from django_singlejob.jobs import registry
from django_singlejob.jobs.registry import Job
from django_singlejob.jobs.schedule import Schedule, parse
from django_singlejob.jobs.words import schedule_in_words
from django_singlejob.locking.position import has_due
from django_singlejob.models import JobStatus
from django_singlejob.models.jobs import database_now
from django_singlejob.models.notes import NoteKind, notes
from django_singlejob.monitoring.health import schedule_of
from django_singlejob.to_come import preview

if TYPE_CHECKING:
    from django.utils.functional import _StrOrPromise

# In the query: the page gives the job the code's schedule again.
RESET = "reset"


class Change(NamedTuple):
    """What a page is about to change.

    Attributes:
        job: the job.
        row: its gate, which may not be in the database yet.
        code: the schedule in the code.
        is_reset: whether the job is to have that one again.
    """

    job: Job
    row: JobStatus
    code: Schedule
    is_reset: bool

    @property
    def own(self) -> Own:
        return Own.of(self.row)

    @property
    def now(self) -> Schedule:
        """The schedule that the job follows now."""
        return schedule_of(self.row) or self.code


# --- on the page of a job


def pages(row: JobStatus) -> "list[tuple[str, _StrOrPromise]]":
    """The URLs of the pages that can change the job's schedule, and what their buttons say."""
    labels = [(False, _("Change the schedule…")), (True, _("Reset the schedule…"))]
    return [
        (_page(row.name, is_reset=is_reset), label)
        for is_reset, label in labels
        if not _obstacle(row, is_reset=is_reset)
    ]


def facts(row: JobStatus) -> list[tuple[str, object]]:
    """The operator's schedule, by whom, since when and why, and the code's; empty if the job has the code's."""
    own, job = Own.of(row), _job(row)
    if not own.schedule or (job and job.policy is None):
        return []
    shown: list[tuple[str, object]] = [(gettext("Given by an operator"), _in_words(own))]
    edit = notes().filter(job_name=row.name, kind=NoteKind.SCHEDULE_EDITED).order_by("-at", "-pk").first()
    if edit:
        given = noted(edit.by or NOTHING, moment(edit.at, _now(row)))
        shown += [(gettext("By"), given), (gettext("Reason"), noted(edit.reason or NOTHING, ""))]
    if job and job.policy:
        shown.append((gettext("In the code"), schedule_in_words(job.policy.schedule)))
    return shown


def _in_words(own: Own) -> SafeString:
    try:
        return noted(schedule_in_words(parse(*own)), "")
    except InvalidSchedule:  # this server cannot parse it
        return noted(f"{own.schedule} ({own.time_zone})", "")


def _now(row: Any) -> datetime:
    """When the row was read. One that is not in the database yet does not know."""
    return row.now or database_now()


def _job(row: JobStatus) -> Job | None:
    return registry.get(row.name) if registry.is_known(row.name) else None


def _obstacle(row: JobStatus, *, is_reset: bool) -> str:
    """Why the job's schedule cannot be changed, or reset; empty if it can."""
    job = _job(row)
    if job is None:
        return gettext("This release of the code does not define this job.")
    # Without a schedule in the code, the page has nothing to show.
    if why := refusal(job, None if job.policy and is_reset else parse("@daily")):
        return why
    if is_reset and not row.own_schedule:
        return gettext("The job %s already has the schedule of the code.") % row.name
    return ""


def _page(name: str, *, is_reset: bool) -> str:
    return f"{address('jobstatus_schedule', quote(name))}{f'?{RESET}=yes' if is_reset else ''}"


# --- the page itself


def change_schedule(page: ReadOnlyAdmin, request: HttpRequest, row: JobStatus) -> HttpResponse:
    """On GET, ask for a schedule, or show what a reset changes. On POST, show the slots to come, or save what was
    shown."""
    is_reset = RESET in request.GET
    if why := _obstacle(row, is_reset=is_reset):
        page.message_user(request, why, messages.WARNING)
        return _back_to(row)
    job = registry.get(row.name)
    assert job.policy  # noqa: S101  (otherwise there is an obstacle)
    change = Change(job, row, job.policy.schedule, is_reset)
    if request.method == "POST" and _shown(request) != change.own:
        return _begin_again(page, request, change)
    form = _form(request, change)
    then = change.code if is_reset else _given(form)
    if then and form.is_valid() and "save" in request.POST:
        if request.POST.get("previewed") == _text(then):
            return _save(page, request, change, then, form) or _ask(page, request, change, then, form)
        words = gettext("These are not the slots that you saw last. Look at them before you save.")
        page.message_user(request, words, messages.WARNING)
    return _ask(page, request, change, then, form)


def _shown(request: HttpRequest) -> Own:
    """The operator's schedule that the job had when the page was made."""
    return Own(request.POST.get("own_schedule", ""), request.POST.get("own_time_zone", ""))


def _form(request: HttpRequest, change: Change) -> ReasonForm:
    sent = request.POST if request.method == "POST" else None
    if change.is_reset:
        return ReasonForm(sent)
    own, now = change.own, change.now
    initial = own if own.schedule else Own(now.text, now.time_zone)
    return ScheduleForm(sent, initial=initial._asdict(), job=change.job, own=own)


def _given(form: ReasonForm) -> Schedule | None:
    """The schedule that the user gave; ``None`` if it is not valid. The reason may still be missing."""
    form.is_valid()
    return form.given if isinstance(form, ScheduleForm) else None


def _text(schedule: Schedule) -> str:
    return f"{schedule.text} {schedule.time_zone}"


def _save(
    page: ReadOnlyAdmin, request: HttpRequest, change: Change, then: Schedule, form: ReasonForm
) -> HttpResponse | None:
    """Save it. Returns ``None`` if the job's gate is busy: show the page again."""
    name, reason = change.job.name, form.cleaned_data["reason"]
    wanted = None if change.is_reset else then
    by = user_name(request)
    is_given = give_schedule(change.job, wanted, instead_of=change.own, by=by, reason=reason)
    if is_given is None:
        page.message_user(request, busy(name), messages.WARNING)
        return None
    if not is_given:
        return _begin_again(page, request, change)
    given, reset = gettext("Changed the schedule to %s.") % _text(then), gettext("Reset the schedule to the code's.")
    logged = f"{reset if change.is_reset else given} {gettext('Reason: %s') % reason}"
    page.log_change(request, JobStatus(name=name), logged)
    done = gettext("The job %(name)s has another schedule now: %(schedule)s.")
    due = f" {_is_due()}" if has_due(change.row) else ""
    page.message_user(request, done % {"name": name, "schedule": schedule_in_words(then)} + due, messages.SUCCESS)
    return _back_to(change.row)


def _is_due() -> str:
    return gettext("A slot is due. It is run first.")


def _begin_again(page: ReadOnlyAdmin, request: HttpRequest, change: Change) -> HttpResponse:
    words = gettext("The schedule of the job %s was not changed, because somebody else has just changed it.")
    page.message_user(request, words % change.job.name, messages.WARNING)
    return HttpResponseRedirect(_page(change.job.name, is_reset=change.is_reset))


def _back_to(row: JobStatus) -> HttpResponse:
    return HttpResponseRedirect(address("jobstatus_change", quote(row.name)))


def _ask(
    page: ReadOnlyAdmin, request: HttpRequest, change: Change, then: Schedule | None, form: ReasonForm
) -> HttpResponse:
    name, at = change.job.name, _now(change.row)
    titles = gettext("Change the schedule of %s"), gettext("Reset the schedule of %s")
    columns = [(gettext("Now"), change.now), *([(gettext("Then"), then)] if then else [])]
    context = {
        "title": titles[change.is_reset] % name,
        "original": gettext("Reset the schedule") if change.is_reset else gettext("Change the schedule"),
        "media": page.media + form.media,
        "target": _page(name, is_reset=change.is_reset),
        "fields": [(f"own_{part}", value) for part, value in change.own._asdict().items()],
        "form": form,
        "columns": [(label, schedule_in_words(each), [*_slots(each, at)]) for label, each in columns],
        "due": _is_due() if has_due(change.row) else "",
        "previewed": _text(then) if then else "",
        "is_reset": change.is_reset,
        "way_back": address("jobstatus_change", quote(name)),
    }
    return page.ask(request, context, "jobstatus/schedule.html")


def _slots(schedule: Schedule, at: datetime) -> Iterator[tuple[SafeString, bool, bool]]:
    """The slots to come, each in its own zone, with what comes before it: slots that are left out, a change of
    clocks."""
    coming = preview(schedule, at)
    for slot, is_after_gap, is_after_change in coming.marked():
        yield clock_time(slot, coming.schedule.zone), is_after_gap, is_after_change
