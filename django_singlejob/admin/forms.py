"""The forms: they enqueue a one-off, with arguments as JSON, pause or acknowledge, change a schedule, and ask about
slots."""

import json
from datetime import datetime, time, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from django import forms
from django.contrib.admin import widgets
from django.core.exceptions import ValidationError
from django.forms.fields import InvalidJSONInput
from django.utils.formats import date_format
from django.utils.timezone import localdate, localtime
from django.utils.translation import gettext, gettext_lazy as _

from django_singlejob.control.schedules import Own, parsed
from django_singlejob.exceptions import InvalidOrder, InvalidSchedule
from django_singlejob.jobs import registry
from django_singlejob.jobs.names import NAME_LENGTH, REASON_LENGTH
from django_singlejob.jobs.registry import Job
from django_singlejob.jobs.schedule import LENGTH, Schedule, parse
from django_singlejob.models import OneOffJob
from django_singlejob.models.jobs import database_now
from django_singlejob.monitoring.acknowledging import LONGEST
from django_singlejob.process.clock import storable
from django_singlejob.running.enqueue import Order

if TYPE_CHECKING:
    OneOffModelForm = forms.ModelForm[OneOffJob]
else:
    OneOffModelForm = forms.ModelForm

T = TypeVar("T")

DAY = timedelta(days=1)


class InstantWidget(widgets.AdminSplitDateTime):
    """Labels its fields for screen readers."""

    def __init__(self, *labels: object) -> None:
        """The labels of the date and of the time."""
        super().__init__()
        for part, label in zip(self.widgets, labels, strict=True):
            part.attrs["aria-label"] = label

    def decompress(self, value: Any) -> Any:
        # A URL may suggest a text, which is not an instant.
        return super().decompress(value if isinstance(value, datetime) else None)


class JSONField(forms.JSONField):
    """JSON as people type it. If it is nested too deeply or has too many digits, Python raises other errors than for
    invalid JSON."""

    def to_python(self, value: Any) -> Any:
        try:
            return super().to_python(value)
        except (ValueError, RecursionError) as error:
            raise ValidationError(self.error_messages["invalid"], code="invalid", params={"value": value}) from error

    def bound_data(self, data: Any, initial: Any) -> Any:
        try:
            return super().bound_data(data, initial)
        except (ValueError, RecursionError):
            return InvalidJSONInput(data)

    def prepare_value(self, value: Any) -> Any:
        # Half a surrogate pair can be written as JSON, but not as UTF-8.
        return value if isinstance(value, InvalidJSONInput) else json.dumps(value)


class OneOffForm(OneOffModelForm):
    """The form that enqueues a one-off."""

    job_name = forms.ChoiceField(label=_("Job"), choices=lambda: [(job.name, job.name) for job in registry.all_jobs()])
    args = JSONField(
        label=_("Arguments"),
        initial=list,
        required=False,
        widget=forms.Textarea(attrs={"rows": 3}),
        help_text=_('A JSON list, such as <code>[4711, "it"]</code>.'),
    )
    kwargs = JSONField(
        label=_("Keyword arguments"),
        initial=dict,
        required=False,
        widget=forms.Textarea(attrs={"rows": 3}),
        help_text=_('A JSON object, such as <code>{"language": "it"}</code>.'),
    )
    run_after = forms.SplitDateTimeField(
        label=_("Run after"),
        required=False,
        widget=InstantWidget(_("Run after: date"), _("Run after: time")),
        help_text=_("Leave empty to run as soon as a worker is free."),
    )

    class Meta:
        model = OneOffJob
        fields = ["job_name", "args", "kwargs", "run_after", "priority", "queue_name"]

    def clean_args(self) -> list[Any]:
        return _of_kind(list, self.cleaned_data["args"], _("Enter a list, in brackets."))

    def clean_kwargs(self) -> dict[str, Any]:
        return _of_kind(dict, self.cleaned_data["kwargs"], _("Enter names and values, in braces."))

    def clean(self) -> dict[str, Any]:
        given = self.cleaned_data
        if not self.errors:
            try:
                self.order().stored(given["args"], given["kwargs"])
            except InvalidOrder as error:
                raise ValidationError(str(error)) from error
            if complaint := registry.get(given["job_name"]).misfit(given["args"], given["kwargs"]):
                raise ValidationError(gettext("The job does not accept these arguments: %s.") % complaint)
        return given

    def order(self) -> Order:
        """The options of the one-off. Raises ``InvalidOrder`` if they are not valid."""
        given = {name: self.cleaned_data[name] for name in ("job_name", "queue_name", "priority", "run_after")}
        return Order(max_attempts=registry.get(given["job_name"]).most_attempts, **given)


def _of_kind(kind: type[T], given: object, hint: object) -> T:
    value = kind() if given is None else given
    if not isinstance(value, kind):
        raise ValidationError(str(hint))
    return value


class InstantField(forms.SplitDateTimeField):
    """A date and a time; without a time, the beginning of the day."""

    def __init__(self, **given: Any) -> None:
        super().__init__(require_all_fields=False, **given)
        self.fields[1].required = False

    def compress(self, data_list: Any) -> Any:
        if data_list and data_list[0] and not data_list[1]:
            data_list = [data_list[0], time.min]
        return super().compress(data_list)


class PauseForm(forms.Form):
    """The form that pauses jobs: until when, and why."""

    until = InstantField(
        label=_("Until"),
        required=False,
        widget=InstantWidget(_("Until: date"), _("Until: time")),
        help_text=_("Without a time: 00:00. Leave both empty to pause until somebody resumes it."),
    )
    reason = forms.CharField(
        label=_("Reason"),
        required=False,
        max_length=REASON_LENGTH,
        widget=widgets.AdminTextInputWidget,
        help_text=_("For others to read."),
    )

    class Media:
        css = {"all": ["admin/css/widgets.css", "admin/css/forms.css"]}

    @property
    def days(self) -> list[tuple[str, str]]:
        """The buttons that enter a date for ``until``: a label and the date in ISO 8601, of tomorrow and of Monday."""
        today, zone = localdate(), localtime().tzname()
        tomorrow, monday = today + DAY, today + (7 - today.weekday()) * DAY
        return [
            (gettext("Until {day}, 00:00 {zone}").format(day=date_format(day, "l"), zone=zone), day.isoformat())
            for day in dict.fromkeys((tomorrow, monday))
        ]

    def clean_until(self) -> datetime | None:
        given = self.cleaned_data["until"]
        until = storable(given) if given else None
        if given and (until is None or until <= database_now()):
            raise ValidationError(gettext("Enter an instant in the future."))
        return until


class AcknowledgeForm(PauseForm):
    """The form that acknowledges what is wrong."""

    until = InstantField(
        label=_("Until"),
        required=False,
        widget=InstantWidget(_("Until: date"), _("Until: time")),
        help_text=_("Within a week. Leave empty for a day."),
    )

    def clean_until(self) -> datetime | None:
        until = super().clean_until()
        if until and until > database_now() + LONGEST:
            raise ValidationError(gettext("Enter an instant within a week."))
        return until


class ReasonForm(forms.Form):
    """The form that asks why."""

    reason = forms.CharField(
        label=_("Reason"),
        max_length=REASON_LENGTH,
        widget=widgets.AdminTextInputWidget,
        help_text=_("For others to read."),
    )

    class Media:
        css = PauseForm.Media.css


class ScheduleForm(ReasonForm):
    """The form that gives a job another schedule than its ``own``.

    Attributes:
        given: the schedule; ``None`` if it is not valid.
    """

    schedule = forms.CharField(
        label=_("Schedule"),
        max_length=LENGTH,
        widget=widgets.AdminTextInputWidget,
        help_text=_("A cron expression, such as 0 4 * * *, a name such as @daily, or an interval, such as PT15M."),
    )
    time_zone = forms.CharField(
        label=_("Time zone"),
        required=False,
        max_length=64,
        widget=widgets.AdminTextInputWidget,
        help_text=_("The IANA time zone of the cron expression. Leave empty for the job's own."),
    )
    field_order = ("schedule", "time_zone", "reason")

    def __init__(self, *args: Any, job: Job, own: Own, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._job, self._own = job, own
        self.given: Schedule | None = None

    def clean_time_zone(self) -> str:
        name: str = self.cleaned_data["time_zone"]
        try:
            return parse("@daily", name).time_zone if name else ""
        except InvalidSchedule as error:
            raise ValidationError(str(error)) from error

    def clean(self) -> dict[str, Any]:
        given = self.cleaned_data
        if "schedule" not in given or "time_zone" not in given:
            return given
        try:
            self.given = parsed(self._job, given["schedule"], given["time_zone"])
        except InvalidSchedule as error:
            self.add_error("schedule", str(error))
            return given
        if (self.given.text, self.given.time_zone) == self._own:
            self.add_error("schedule", gettext("The job already has this schedule."))
        return given


class ISOField(forms.CharField):
    """An instant in ISO 8601, which may be naive; ``None`` if the field is empty."""

    def clean(self, value: Any) -> Any:
        given, wrong = super().clean(value), gettext("Enter an instant, such as 2026-11-22 03:00.")
        try:
            at = datetime.fromisoformat(given) if given else None
        except ValueError as error:
            raise ValidationError(wrong) from error
        if at and not 1970 <= at.year <= 2100:
            raise ValidationError(wrong)
        return at


class SlotForm(forms.Form):
    """The form that asks about a slot of a job. A naive instant is on the wall clock of the job's zone."""

    job = forms.CharField(label=_("Job"), max_length=NAME_LENGTH)
    at = ISOField(
        label=_("At the slot"),
        required=False,
        help_text=_("Such as 2026-11-22 03:00, in the job's time zone. Leave empty to ask about now."),
    )


class SpanForm(forms.Form):
    """The form that chooses which slots to show: the ``hours`` from ``since`` on. A naive instant is on the wall clock
    of the job's zone or, of many jobs, of the project's."""

    job = forms.CharField(required=False, widget=forms.HiddenInput)
    since = ISOField(label=_("From"), required=False, widget=forms.TextInput(attrs={"placeholder": "2026-11-22 18:00"}))
    hours = forms.IntegerField(label=_("Hours"), required=False, min_value=1, max_value=7 * 24)
