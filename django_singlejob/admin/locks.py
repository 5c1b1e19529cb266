"""The locks and their holders. You can clear a stale lock and, by force, one whose holder may be alive."""

import logging
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, cast

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.models import CHANGE, DELETION, LogEntry
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.forms import Media, Script
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext, gettext_lazy as _

from django_singlejob.admin.addresses import address
from django_singlejob.admin.cells import (
    NOTHING,
    badge,
    breakable,
    distance,
    duration,
    link,
    list_of,
    moment,
    narrow,
    noted,
)
from django_singlejob.admin.clearing import (
    ClickAnswer,
    Sighting,
    Stay,
    late,
    left_alone,
    left_alone_because,
    over_at,
    read,
    sign,
)
from django_singlejob.admin.read_only import RowsFilter
from django_singlejob.admin.states import add_means, held_for, how_long, with_progress
from django_singlejob.admin.stopping import (
    StoppingAdmin,
    ask_to_stop,
    stop_all,
    stop_page,
    target_of_run,
    targets_in,
    way_back,
)
from django_singlejob.conf import ZERO
from django_singlejob.database.transactions import outside_requests
from django_singlejob.jobs.names import is_storable
from django_singlejob.locking.clear import clear_at_once
from django_singlejob.locking.liveness import SECOND, margin
from django_singlejob.models import JobLock, JobStatus
from django_singlejob.models.jobs import gates
from django_singlejob.models.locks import JobLockQuerySet, locks
from django_singlejob.process.clock import local_now

logger = logging.getLogger("django_singlejob")

# A web server gives up on a request after 30 seconds or so. Then the locks that are left are shown again.
LONGEST_CLEAR = 5.0
# Django's stubs know only the names of scripts.
COUNTDOWN: Any = Script("django_singlejob/clear.js", defer=True)


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


class HostFilter(RowsFilter):
    title = _("host name")
    parameter_name = "hostname"

    def some(self, most: int) -> Iterable[str]:
        return locks().order_by("hostname").values_list("hostname", flat=True).distinct()[:most]

    def queryset(self, request: HttpRequest, queryset: QuerySet[JobLock]) -> QuerySet[JobLock]:
        return queryset.filter(hostname=self.value()) if self.value() else queryset


class JobLockAdmin(StoppingAdmin):
    change_form_template = "admin/django_singlejob/joblock/change_form.html"
    list_display = ["title", "state", "holder", "command_line", "held_for", "heartbeat", "expires"]
    list_filter = [StaleFilter, HostFilter]
    search_fields = ["name", "hostname", "command"]
    actions = ["stop", "clear"]
    fields = [
        "name",
        "state",
        "holder",
        "command_line",
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
        add_means(rows)

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        lock = super().get_object(request, object_id, from_field)
        if lock:
            self.furnish([lock])
        return lock

    def render_change_form(self, request: HttpRequest, context: Any, *args: Any, **kwargs: Any) -> HttpResponse:
        context["may_clear"] = self.has_clear_permission(request)
        may_stop = self.has_stop_permission(request)
        context["stop_page"] = stop_page(context["original"]) if may_stop else ""
        return super().render_change_form(request, context, *args, **kwargs)

    def has_clear_permission(self, request: HttpRequest) -> bool:
        return self.may(request, "clear_joblock") or self.has_force_permission(request)

    def has_force_permission(self, request: HttpRequest) -> bool:
        return self.may(request, "force_joblock")

    # --- what is shown

    @admin.display(description=_("name"), ordering="name")
    def title(self, lock: JobLock) -> SafeString:
        return breakable(lock.name)

    @admin.display(description=_("state"), ordering="is_stale")
    def state(self, lock: Any) -> SafeString:
        if lock.is_impossible:
            why = gettext("expires too late") if lock.is_too_long else gettext("the database's clock was set back")
            shown = noted(badge("impossible", _("impossible")), why)
        else:
            shown = badge("stale", _("stale")) if lock.is_stale else badge("held", _("held"))
            shown = noted(shown, gettext("stopped by %s") % lock.stopped_by if lock.stopped_by else "")
        return with_progress(narrow(shown, how_long(lock)), lock)

    @admin.display(description=_("holder"), ordering="hostname")
    def holder(self, lock: JobLock) -> SafeString:
        return noted(breakable(lock.hostname), gettext("pid %d") % lock.pid)

    @admin.display(description=_("command"), ordering="command")
    def command_line(self, lock: JobLock) -> SafeString | str:
        return breakable(lock.command) or NOTHING

    @admin.display(description=_("held for"), ordering="-acquired_at")
    def held_for(self, lock: Any) -> str:
        return held_for(lock)

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

    # --- stopping

    @admin.action(description=_("Stop runs"), permissions=["stop"])
    def stop(self, request: HttpRequest, queryset: QuerySet[JobLock]) -> HttpResponse:
        return ask_to_stop(self, request, [target_of_run(lock) for lock in queryset])

    def stop_view(self, request: HttpRequest) -> HttpResponse:
        """On GET, ask whether to stop the named runs and tasks. On POST, stop them, and none that came after them."""
        if not self.has_stop_permission(request):
            raise PermissionDenied
        if request.method != "POST":
            return ask_to_stop(self, request, targets_in(request.GET))
        for level, message in stop_all(request, targets_in(request.POST)):
            self.message_user(request, message, level)
        return HttpResponseRedirect(way_back(request.POST))

    # --- clearing

    def get_urls(self) -> list[URLPattern]:
        ours = {"clear": self.clear_view, "stop": self.stop_view}
        views = {name: outside_requests(self.admin_site.admin_view(view)) for name, view in ours.items()}
        return [
            *(path(f"{name}/", view, name=f"django_singlejob_joblock_{name}") for name, view in views.items()),
            *super().get_urls(),
        ]

    @admin.action(description=_("Clear stale locks"), permissions=["clear"])
    def clear(self, request: HttpRequest, queryset: object) -> HttpResponse:
        return self._ask(request, request.POST.getlist(ACTION_CHECKBOX_NAME))

    def clear_view(self, request: HttpRequest) -> HttpResponse:
        """On GET, begin to watch the named locks. On POST, clear those that were shown and whose watch is over. A
        request never waits for a watch to end."""
        if not (self.has_view_permission(request) and self.has_clear_permission(request)):
            raise PermissionDenied
        if request.method != "POST":
            return self._ask(request, request.GET.getlist("name"))
        forced = set(request.POST.getlist("force"))
        if forced and not self.has_force_permission(request):
            raise PermissionDenied
        return self._clear_all(request, forced)

    def _ask(self, request: HttpRequest, names: Sequence[str]) -> HttpResponse:
        found = _held(names)
        left = set(names) - {lock.name for lock in found}
        # Each lock that was held has a gate.
        free = sorted(gates().filter(name__in=filter(is_storable, left)).values_list("name", flat=True))
        if missing := left - {*free}:
            self.report_missing(request, sorted(missing))
        if missing and not (found or free):
            return HttpResponseRedirect(address("joblock_changelist"))
        return self._show(request, found, free=free)

    def _clear_all(self, request: HttpRequest, forced: Container[str]) -> HttpResponse:
        texts = request.POST.getlist("lock")
        shown = {sighting.name: sighting for text in texts if (sighting := read(text, request.user))}
        # If what was seen of a lock cannot be read, only its name is known.
        staying: dict[str, Sighting | None] = dict.fromkeys(set(request.POST.getlist("name")) - shown.keys())
        if staying or len(shown) < len(set(texts)):
            message = gettext(
                "Some locks were not cleared, because this page was changed or was made for another user. Look again."
            )
            self.message_user(request, message, messages.ERROR)
        rows, until = {lock.name: lock for lock in _held(shown)}, local_now() + LONGEST_CLEAR
        for name, sighting in shown.items():
            is_late = local_now() >= until
            answer = late(name) if is_late else self._clear(request, sighting, rows.get(name), force=name in forced)
            self.message_user(request, answer.message, answer.level)
            if answer.stay is not Stay.NOT:
                staying[name] = sighting if answer.stay is Stay.WATCHED else None
        if left := [lock for lock in _held(staying) if lock.is_suspected or lock.name in forced]:
            return self._show(request, left, watched=staying)
        return HttpResponseRedirect(address("joblock_changelist"))

    def _show(
        self,
        request: HttpRequest,
        found: Sequence[JobLock],
        *,
        watched: Mapping[str, Sighting | None] = MappingProxyType({}),
        free: Sequence[str] = (),
    ) -> HttpResponse:
        """The page that asks whether to clear the locks that were just read. The watches of ``watched`` go on."""
        self.furnish(found)
        may_force = self.has_force_permission(request)
        context = {
            **self.admin_site.each_context(request),
            "title": gettext("Clear locks"),
            "original": gettext("Clear"),  # for the breadcrumbs
            "has_view_permission": True,
            "opts": self.opts,
            "media": self.media + Media(js=[COUNTDOWN]),
            "locks": [self._panel(request, lock, watched.get(lock.name)) for lock in found],
            "free": free,
            "is_any_clearable": any(lock.is_suspected for lock in found) or (found and may_force),
            "may_force": may_force,
        }
        return TemplateResponse(request, "admin/django_singlejob/joblock/clear.html", context)

    def _panel(self, request: HttpRequest, lock: JobLock, sighting: Sighting | None) -> dict[str, Any]:
        if sighting is None or sighting.left(lock) is None:
            sighting = Sighting.of(lock)
        left = sighting.left(lock) or ZERO
        return {
            "row": lock,
            "command": breakable(lock.command),
            "sighting": sign(sighting, request.user),
            "state": self.state(lock),
            "held_for": self.held_for(lock),
            "heartbeat": self.heartbeat(lock),
            "seconds": f"{left.total_seconds():.3f}" if left else "",
            "over_at": over_at(lock, left),
            "is_in_doubt": left > margin(lock) + SECOND,
        }

    def _clear(self, request: HttpRequest, shown: Sighting, lock: JobLock | None, *, force: bool) -> ClickAnswer:
        """Clear the lock if it is still the one that was shown and, unless ``force``, its holder counts as dead."""
        if lock is None:
            return ClickAnswer(gettext("The lock %s is already free.") % shown.name, Stay.NOT, messages.INFO)
        if answer := left_alone_because(shown, lock, force=force):
            return answer
        is_cleared = clear_at_once(lock, force=force, error=_by(request, force=force))
        if is_cleared:
            return self._cleared(request, lock, force=force)
        if is_cleared is None:
            return left_alone(lock, gettext("its holder, or another process, is writing at the moment"), Stay.WATCHED)
        return left_alone(lock, gettext("its holder gave a sign of life just now"), Stay.CHANGED)

    def _cleared(self, request: HttpRequest, lock: JobLock, *, force: bool) -> ClickAnswer:
        deed = gettext("Cleared by force; its holder was %s.") if force else gettext("Cleared; its holder was %s.")
        message, user = deed % lock.holder, cast("int", request.user.pk)
        for row, flag in (lock, DELETION), (JobStatus(name=lock.job_name or lock.name), CHANGE):
            LogEntry.objects.log_actions(user, [row], flag, message, single_object=True)
        logger.warning(
            "The lock %r (%s) was cleared in the admin by %s.",
            lock.name,
            lock.holder,
            request.user,
            extra=lock.facts(),
        )
        facts = {"name": lock.name, "holder": lock.holder}
        forced = gettext("The lock %(name)s was cleared by force; its holder was %(holder)s.")
        cleared = gettext("The lock %(name)s was cleared; its holder was %(holder)s.")
        return ClickAnswer((forced if force else cleared) % facts, Stay.NOT, messages.SUCCESS)


def _by(request: HttpRequest, *, force: bool) -> str:
    """The error to record for the run that held the lock."""
    how = "by force " if force else ""
    return f"The lock was cleared {how}in the admin by {request.user.get_username()}."


def _held(names: Collection[str]) -> list[JobLock]:
    """The locks of these names that are held."""
    return locks().filter(name__in=filter(is_storable, names)).order_by("name").watched()
