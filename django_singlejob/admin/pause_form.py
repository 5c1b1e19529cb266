"""The form that pauses jobs: until when, and why."""

from datetime import datetime

from django import forms
from django.contrib.admin import widgets
from django.core.exceptions import ValidationError
from django.utils.translation import gettext, gettext_lazy as _

from django_singlejob.admin.one_off_form import InstantWidget
from django_singlejob.jobs.names import REASON_LENGTH
from django_singlejob.models.jobs import database_now
from django_singlejob.process.clock import storable


class PauseForm(forms.Form):
    """The form that pauses jobs."""

    until = forms.SplitDateTimeField(
        label=_("Until"),
        required=False,
        widget=InstantWidget(_("Until: date"), _("Until: time")),
        help_text=_("Leave empty to pause until somebody resumes it."),
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

    def clean_until(self) -> datetime | None:
        given = self.cleaned_data["until"]
        until = storable(given) if given else None
        if given and (until is None or until <= database_now()):
            raise ValidationError(gettext("Enter an instant in the future."))
        return until
