"""The locks and their holders. You can clear a stale lock and, by force, one whose holder may be alive."""

import logging
import uuid
from collections.abc import Container, Sequence
from datetime import timedelta
from typing import Any, ClassVar, NamedTuple, cast

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.models import CHANGE, DELETION, LogEntry
from django.core.exceptions import PermissionDenied
from django.core.signing import BadSignature, Signer
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext, gettext_lazy as _

from django_singlejob.admin.cells import NOTHING, badge, distance, duration, link, list_of, moment, noted
from django_singlejob.admin.charts import share
from django_singlejob.admin.reading import ReadOnlyAdmin, outside_transactions
from django_singlejob.clock import local_now, sleep, utc_now
from django_singlejob.conf import ZERO, options
from django_singlejob.locking.clear import clear
from django_singlejob.locking.liveness import WATCHED_INTERVALS, Watch
from django_singlejob.logs import about_lock
from django_singlejob.models import JobLock, JobStatus
from django_singlejob.querysets.jobs import gates
from django_singlejob.querysets.locks import JobLockQuerySet, locks

logger = logging.getLogger("django_singlejob")

# A web server gives up on a request after 30 seconds or so.
LONGEST_WATCH = timedelta(seconds=20)
LONGEST_WAIT = timedelta(seconds=22)
LONGEST_CLEAR = 5.0


class StaleFilter(admin.SimpleListFilter):
    title = _("state")
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [("held", _("held")), ("stale", _("stale")), ("impossible", _("impossible"))]

    def queryset(self, request: HttpRequest, queryset: QuerySet[JobLock]) -> QuerySet[JobLock]:
        assert isinstance(queryset, JobLockQuerySet)  # noqa: S101
        match self.value():
            case "held":
                return queryset.live()
            case "stale":
                return queryset.stale()
            case "impossible":
                return queryset.impossible()
        return queryset


class Shown(NamedTuple):
    """A lock as it was shown on the page where a user chose to clear it. ``at`` is when it was shown, by the clock of
    our own servers (seconds since the epoch)."""

    name: str
    token: uuid.UUID
    heartbeats: int
    at: float

    @classmethod
    def parse(cls, text: str) -> "Shown | None":
        """Returns ``None`` if none of our pages wrote this text."""
        try:
            name, token, heartbeats, at = _SIGNER.unsign(text).split()
            return cls(name, uuid.UUID(token), int(heartbeats), float(at))
        except (BadSignature, ValueError):
            return None

    def signed(self) -> str:
        """The text to put into the page."""
        return _SIGNER.sign(f"{self.name} {self.token} {self.heartbeats} {self.at}")

    def is_still(self, lock: JobLock) -> bool:
        """Whether it still has the same holder, which has given no sign of life since."""
        return (lock.token, lock.heartbeats) == (self.token, self.heartbeats)

    def to_wait(self, lock: JobLock) -> timedelta:
        """How much longer to stay on the page if two heartbeat intervals are too long for a request to watch."""
        wanted = _watched_for(lock)
        return ZERO if wanted <= LONGEST_WATCH else max(wanted - self.age, ZERO)

    @property
    def age(self) -> timedelta:
        """How long ago the lock was shown."""
        return timedelta(seconds=utc_now().timestamp() - self.at)


_SIGNER = Signer(salt="django_singlejob.shown")


@admin.register(JobLock)
class JobLockAdmin(ReadOnlyAdmin):
    change_form_template = "admin/django_singlejob/joblock/change_form.html"
    list_display = ["name", "state", "holder", "command", "held_for", "heartbeat", "expires"]
    list_filter = [StaleFilter, "hostname"]
    search_fields = ["name", "hostname", "command"]
    actions = ["clear"]
    fields = [
        "name",
        "state",
        "holder",
        "command",
        "held_for",
        "heartbeat",
        "expires",
        "job",
        "slot_at",
        "attempt",
        "history",
        "heartbeats",
        "beats_each",
        "token",
    ]
    readonly_fields: ClassVar[Any] = fields

    def get_queryset(self, request: HttpRequest) -> QuerySet[JobLock]:
        return locks().judged()

    def get_ordering(self, request: HttpRequest) -> Any:
        return ["-is_impossible", "-is_stale", "name"]

    def furnish(self, rows: Sequence[Any]) -> None:
        means = gates().filter(name__in={lock.job_name for lock in rows}).means()
        for lock in rows:
            lock.mean = means.get(lock.job_name)

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        # PostgreSQL refuses a NUL in any text, even in a comparison.
        lock = None if "\0" in object_id else super().get_object(request, object_id, from_field)
        if lock:
            self.furnish([lock])
        return lock

    def render_change_form(self, request: HttpRequest, context: Any, *args: Any, **kwargs: Any) -> HttpResponse:
        context["may_clear"] = self.has_clear_permission(request)
        return super().render_change_form(request, context, *args, **kwargs)

    def has_clear_permission(self, request: HttpRequest) -> bool:
        return self.may(request, "clear_joblock") or self.has_force_permission(request)

    def has_force_permission(self, request: HttpRequest) -> bool:
        return self.may(request, "force_joblock")

    # --- what is shown

    @admin.display(description=_("state"), ordering="is_stale")
    def state(self, lock: JobLock) -> SafeString:
        if lock.is_impossible:
            return noted(badge("impossible", _("impossible")), gettext("the database's clock was set back"))
        return badge("stale", _("stale")) if lock.is_stale else badge("held", _("held"))

    @admin.display(description=_("holder"), ordering="hostname")
    def holder(self, lock: JobLock) -> SafeString:
        return noted(lock.hostname, gettext("pid %d") % lock.pid)

    @admin.display(description=_("held for"), ordering="-acquired_at")
    def held_for(self, lock: Any) -> str:
        held_for = lock.now - lock.acquired_at
        if lock.mean is None:
            return duration(held_for)
        part = held_for / lock.mean / options().overrun_factor
        kind = "warn" if part >= 1 else "busy"
        return noted(duration(held_for), share(part, gettext("mean %s") % duration(lock.mean), kind))

    @admin.display(description=_("last heartbeat"), ordering="heartbeat_at")
    def heartbeat(self, lock: JobLock) -> str:
        return distance(lock.heartbeat_at, lock.now)

    @admin.display(description=_("expires"), ordering="expires_at")
    def expires(self, lock: JobLock) -> str:
        return distance(lock.expires_at, lock.now)

    @admin.display(description=_("heartbeat interval"))
    def beats_each(self, lock: JobLock) -> str:
        return duration(lock.heartbeat_interval)

    @admin.display(description=_("slot"))
    def slot_at(self, lock: JobLock) -> str:
        return moment(lock.slot, lock.now)

    @admin.display(description=_("job"))
    def job(self, lock: JobLock) -> str:
        return link("jobstatus", lock.job_name, lock.job_name) if lock.job_name else NOTHING

    @admin.display(description=_("run"))
    def history(self, lock: JobLock) -> str:
        # Do not read it here: this page is needed most when something is wrong, perhaps with the history too.
        if not lock.job_name:
            return NOTHING
        return format_html('<a href="{}">{}</a>', list_of("jobrun", token=lock.token.hex), _("in the history"))

    # --- clearing

    def get_urls(self) -> list[URLPattern]:
        view = outside_transactions(self.admin_site.admin_view(self.clear_view))
        return [path("clear/", view, name="django_singlejob_joblock_clear"), *super().get_urls()]

    @admin.action(description=_("Clear stale locks"), permissions=["clear"])
    def clear(self, request: HttpRequest, queryset: object) -> HttpResponse:
        return self._ask(request, request.POST.getlist(ACTION_CHECKBOX_NAME))

    def clear_view(self, request: HttpRequest) -> HttpResponse:
        """On GET, ask whether to clear the named locks. On POST, clear the locks that were shown."""
        if not (self.has_view_permission(request) and self.has_clear_permission(request)):
            raise PermissionDenied
        if request.method != "POST":
            return self._ask(request, request.GET.getlist("name"))
        forced = set(request.POST.getlist("force"))
        if forced and not self.has_force_permission(request):
            raise PermissionDenied
        self._clear_all(request, forced)
        return HttpResponseRedirect(reverse("admin:django_singlejob_joblock_changelist"))

    def _clear_all(self, request: HttpRequest, forced: Container[str]) -> None:
        chosen = []
        for text in request.POST.getlist("lock"):
            shown = Shown.parse(text)
            if shown is None:
                self.message_user(request, gettext("%r is not a lock.") % text[:100], messages.ERROR)
            elif shown.name in forced:
                self._clear(request, shown, force=True)
            else:
                chosen.append(shown)
        left = _watched(chosen)
        until = local_now() + LONGEST_CLEAR
        for shown in chosen:
            if local_now() < until:
                self._clear(request, shown, left=left.get(shown.name))
            else:
                message = gettext("The lock %s was not cleared, because the others took too long. Try again.")
                self.message_user(request, message % shown.name, messages.WARNING)

    def _ask(self, request: HttpRequest, names: Sequence[str]) -> HttpResponse:
        found = list(locks().judged().filter(name__in=[name for name in names if "\0" not in name]).order_by("name"))
        self.furnish(found)
        context = {
            **self.admin_site.each_context(request),
            "title": gettext("Clear locks"),
            "original": gettext("Clear"),  # for the breadcrumbs
            "has_view_permission": True,
            "opts": self.opts,
            "media": self.media,
            "locks": [
                {
                    "row": lock,
                    "shown": Shown(lock.name, lock.token, lock.heartbeats, utc_now().timestamp()).signed(),
                    "state": self.state(lock),
                    "held_for": self.held_for(lock),
                    "heartbeat": self.heartbeat(lock),
                    "watched_for": duration(min(_watched_for(lock), LONGEST_WATCH)),
                    "wait_for": duration(_watched_for(lock)) if _watched_for(lock) > LONGEST_WATCH else "",
                }
                for lock in found
            ],
            "free": sorted(set(names) - {lock.name for lock in found}),
            "is_any_clearable": any(lock.is_suspected for lock in found)
            or (found and self.has_force_permission(request)),
            "may_force": self.has_force_permission(request),
        }
        return TemplateResponse(request, "admin/django_singlejob/joblock/clear.html", context)

    def _clear(self, request: HttpRequest, shown: Shown, *, force: bool = False, left: timedelta | None = None) -> None:
        """Clear the lock if it is still the one that was shown and, unless ``force``, its holder is presumed dead.
        ``left`` is what is left of its watch, or ``None`` if its holder is alive."""
        lock = locks().look_up(shown.name)
        if lock is None:
            self.message_user(request, gettext("The lock %s is already free.") % shown.name, messages.INFO)
            return
        facts = {"name": lock.name, "holder": lock.holder, "time": duration(left)}
        if lock.token != shown.token:
            message = gettext("The lock %(name)s was not cleared, because it has a new holder (%(holder)s).")
        elif not force and (left is None or not lock.is_suspected or not shown.is_still(lock)):
            message = gettext("The lock %(name)s was not cleared, because its holder (%(holder)s) is alive.")
        elif not force and left:
            message = gettext("The lock %(name)s was not cleared: watch it for %(time)s more before you click.")
        elif clear(lock, force=force, error=_by(request, force=force)):
            self._report_cleared(request, lock, force=force)
            return
        else:
            message = gettext("The lock %(name)s was not cleared, because its holder gave a sign of life. Look again.")
        self.message_user(request, message % facts, messages.WARNING)

    def _report_cleared(self, request: HttpRequest, lock: JobLock, *, force: bool) -> None:
        deed = gettext("Cleared by force; its holder was %s.") if force else gettext("Cleared; its holder was %s.")
        message, user = deed % lock.holder, cast("int", request.user.pk)
        for row, flag in (lock, DELETION), (JobStatus(name=lock.job_name or lock.name), CHANGE):
            LogEntry.objects.log_actions(user, [row], flag, message, single_object=True)
        logger.warning(
            "The lock %r (%s) was cleared in the admin by %s.",
            lock.name,
            lock.holder,
            request.user,
            extra=about_lock(lock),
        )
        facts = {"name": lock.name, "holder": lock.holder}
        forced = gettext("The lock %(name)s was cleared by force; its holder was %(holder)s.")
        cleared = gettext("The lock %(name)s was cleared; its holder was %(holder)s.")
        self.message_user(request, (forced if force else cleared) % facts, messages.SUCCESS)


def _watched_for(lock: JobLock) -> timedelta:
    return WATCHED_INTERVALS * (lock.heartbeat_interval or ZERO)


def _watched(chosen: Sequence[Shown]) -> dict[str, timedelta]:
    """Watch these locks, as a caller does before a takeover, for as long as a request may take. Returns what is then
    left of each watch, by name, without locks that are free or whose holders are seen to be alive."""
    watches = {shown.name: Watch() for shown in chosen}
    until = local_now() + LONGEST_WAIT.total_seconds()
    while True:
        rows = {lock.name: lock for lock in locks().filter(name__in=watches).survey()}
        still = {shown: rows[shown.name] for shown in chosen if shown.name in rows and shown.is_still(rows[shown.name])}
        left = {
            shown.name: max(rest, shown.to_wait(lock))
            for shown, lock in still.items()
            if (rest := watches[shown.name].look(lock, most=LONGEST_WATCH, unchanged_for=shown.age)) is not None
        }
        in_time = timedelta(seconds=until - local_now())
        soon = {name: rest.total_seconds() for name, rest in left.items() if ZERO < rest <= in_time}
        pauses = [min(watches[name].pause(rows[name]), rest) for name, rest in soon.items()]
        if not pauses:
            return left
        sleep(min(pauses))


def _by(request: HttpRequest, *, force: bool) -> str:
    """The error to record for the run that held the lock."""
    how = "by force " if force else ""
    return f"The lock was cleared {how}in the admin by {request.user.get_username()}."
