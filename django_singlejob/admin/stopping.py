"""The page that asks whether to stop runs and tasks: what it was asked for, what it shows, and what a click does."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from urllib.parse import urlencode
from uuid import UUID

from django.contrib import messages
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.admin.utils import quote
from django.http import HttpRequest, HttpResponse, QueryDict
from django.utils.translation import gettext, gettext_lazy as _, ngettext

from django_singlejob.admin.addresses import address
from django_singlejob.admin.cells import breakable, clock_time, duration, noted
from django_singlejob.admin.read_only import ReadOnlyAdmin, user_name
from django_singlejob.control.stopping import (
    Obstacle,
    lock_of,
    obstacle_to_one_off,
    obstacle_to_run,
    stop_one_off,
    stop_run,
)
from django_singlejob.jobs.names import is_storable
from django_singlejob.locking.liveness import grace_of
from django_singlejob.models import JobLock, JobStatus, OneOffJob
from django_singlejob.models.jobs import gates
from django_singlejob.models.one_offs import one_offs
from django_singlejob.models.runs import runs

if TYPE_CHECKING:
    from django.utils.functional import _StrOrPromise

# The pages from which a run or a task can be stopped, and to which the user returns.
PAGES = ("jobstatus", "jobrun", "oneoffjob")
# What is read of a one-off: not its arguments, which may be long.
_COLUMNS = ("job_name", "task_path", "status", "version", "token", "started_at", "stopped_by")
# A form has no more.
MOST = 200


class StoppingAdmin(ReadOnlyAdmin):
    """A page from which runs and tasks can be stopped."""

    def has_stop_permission(self, request: HttpRequest) -> bool:
        """The permission to stop them, and to see the page that asks first."""
        return self.may(request, "view_joblock") and self.may(request, "stop_joblock")


class Target(NamedTuple):
    """What a page has shown of a run or of a task, and its rows now.

    Attributes:
        name: that of the lock, or of the task with its number.
        field: the same as the value of a form's field.
        lock: the lock of its token; ``None`` if it was released, or taken over.
        row: the one-off, if it is a task, or if its job is not running.
    """

    name: str
    field: str
    lock: JobLock | None
    row: OneOffJob | None = None

    @property
    def obstacle(self) -> Obstacle | None:
        """Why it cannot be stopped; ``None`` if it can."""
        if self.row:
            return obstacle_to_one_off(self.row, self.lock)
        return obstacle_to_run(self.lock) if self.lock else Obstacle.OVER

    def stop(self, by: str) -> Obstacle | None:
        """Stop it if it is still what was shown. Returns why not, or ``None``."""
        if self.row:
            return stop_one_off(self.row, by)
        return stop_run(self.lock, by) if self.lock else Obstacle.OVER

    @property
    def facts(self) -> "list[tuple[_StrOrPromise, object]]":
        """What the page shows of it, and what would happen."""
        lock = self.lock
        assert lock  # noqa: S101  (otherwise there is an obstacle)
        since = (self.row and self.row.started_at) or lock.acquired_at
        job = self.row.name if self.row else lock.job_name or _("none (a block of code or a command)")
        holder = (_("Holder"), noted(lock.holder, breakable(lock.command)))
        shown = [(_("Job or task"), job), holder, (_("Running"), noted(duration(lock.now - since), clock_time(since)))]
        if self.row:
            words = gettext("when it calls raise_if_stopped(). A task that never does runs to its end.")
            return [*shown, (_("Asked to end"), words)]
        return [*shown, (_("Asked to end"), _asked(lock)), (_("Killed"), _killed(lock))]


def _asked(lock: JobLock) -> str:
    return gettext("by its holder's next heartbeat, in %s at most") % duration(lock.heartbeat_interval)


def _killed(lock: JobLock) -> str:
    grace = duration(grace_of(lock.heartbeat_interval, lock.lease))
    words = gettext("%s after that, if a command runs it. In other code, lease.check() raises JobStopped.")
    return words % grace


# --- what a page is asked for


def stop_page(lock: JobLock | None, model: str = "", key: object = "") -> str:
    """The URL of the page that asks whether to stop what holds the lock. ``model`` and ``key``: the page that has the
    link. Empty if it cannot be stopped."""
    if lock is None or obstacle_to_run(lock):
        return ""
    return _url([("run", _field_of_run(lock))], model, key)


def stop_page_of_one_off(row: Any) -> str:
    """The same for the attempt that the row of a one-off, with ``is_dead``, shows."""
    may_run = row.status == "in_progress" and not row.is_dead
    return _url([("task", _field_of_task(row))], "oneoffjob", row.pk) if may_run else ""


def note_of_stop(row: OneOffJob) -> str:
    """What to say of a task in progress that was stopped; empty if it was not."""
    is_marked = row.status == "in_progress" and row.stopped_by
    return gettext("stopped by %s, and has not asked yet") % row.stopped_by if is_marked else ""


def _url(targets: list[tuple[str, str]], model: str, key: object) -> str:
    return f"{address('joblock_stop')}?{urlencode([*targets, ('from', model), ('back', str(key))])}"


def way_back(query: QueryDict) -> str:
    """The URL of the page from which the user came."""
    model, key = query.get("from", ""), query.get("back", "")
    if model not in PAGES:
        return address("joblock_changelist")
    return address(f"{model}_change", quote(key)) if key and is_storable(key) else address(f"{model}_changelist")


def targets_in(query: QueryDict) -> list[Target]:
    """What the link or the form names. A name that is none of ours is passed over."""
    runs = (_run_in(text) for text in query.getlist("run")[:MOST])
    tasks = (_task_in(text) for text in query.getlist("task")[:MOST])
    return [target for target in (*runs, *tasks) if target]


def target_of_run(lock: JobLock) -> Target:
    """The run that holds this lock, which was read ``judged``."""
    return Target(lock.name, _field_of_run(lock), lock)


def target_of_one_off(row: OneOffJob, version: str = "") -> Target:
    """The attempt that the row shows, or, if that is not ``version``, the one that was shown before it and is over."""
    lock = lock_of(row.token) if row.status == "in_progress" and version in ("", str(row.version)) else None
    if lock and row.job_name:
        return target_of_run(lock)
    return Target(f"{row.name} #{row.pk}", _field_of_task(row, version), lock, row)


def _field_of_task(row: OneOffJob, version: str = "") -> str:
    return f"{row.pk}:{version or row.version}"


def _field_of_run(lock: JobLock) -> str:
    return lock.token.hex


def _run_in(text: str) -> Target | None:
    try:
        token = UUID(text.partition(":")[0])
    except ValueError:
        return None
    lock = lock_of(token)
    return target_of_run(lock) if lock else Target(_name_of(token) or token.hex, token.hex, None)


def _name_of(token: UUID) -> str | None:
    """What the lock of a token was called, or its job; ``None`` if no row knows the token any more."""
    rows = gates().filter(token=token).values_list("name"), runs().filter(token=token).values_list("job_name")
    return next((name for found in rows for (name,) in found), None)


def _task_in(text: str) -> Target | None:
    key, _colon, version = text.partition(":")
    if not (key.isdecimal() and version.isdecimal() and len(key) < 19 and len(version) < 19):
        return None
    row = one_offs().filter(pk=int(key), version__gte=int(version)).only(*_COLUMNS).first()
    return target_of_one_off(row, version) if row else None


# --- what a click does


def stop_all(request: HttpRequest, targets: list[Target]) -> Iterator[tuple[int, str]]:
    """Stop each of them. Yields the level and the text of a message to the user."""
    for target in targets:
        # A later attempt must not be hit either, which has another lock, or none.
        obstacle = target.stop(user_name(request)) if target.lock else Obstacle.OVER
        if obstacle:
            words = gettext("The run of %(name)s was not stopped: %(why)s.") % {
                "name": target.name,
                "why": obstacle.label,
            }
            yield messages.WARNING, words
            continue
        _log(request, target)
        of_run, of_task = (
            gettext("The run of %s is asked to stop: its holder finds out with its next heartbeat."),
            gettext("The run of %s is asked to stop: it ends as soon as it asks."),
        )
        yield messages.SUCCESS, (of_task if target.row else of_run) % target.name


def _log(request: HttpRequest, target: Target) -> None:
    rows: list[Any] = [target.row] if target.row else [target.lock]
    if target.lock and target.lock.job_name:
        rows.append(JobStatus(name=target.lock.job_name))
    user = cast("int", request.user.pk)
    for row in rows:
        LogEntry.objects.log_actions(user, [row], CHANGE, gettext("Stopped."), single_object=True)


# --- the page


def ask_to_stop(page: ReadOnlyAdmin, request: HttpRequest, targets: list[Target], came_from: str = "") -> HttpResponse:
    """The page that asks whether to stop these. ``came_from``: the model whose list the user comes from."""
    some = [target for target in targets if target.obstacle is None]
    sent = [("from", request.GET.get("from", came_from)), ("back", request.GET.get("back", ""))]
    refused = [_why_not(target, target.obstacle) for target in targets if target.obstacle]
    context = {
        "title": gettext("Stop runs"),
        "original": gettext("Stop"),  # for the breadcrumbs
        "target": address("joblock_stop"),
        "fields": [*(("task" if target.row else "run", target.field) for target in some), *sent],
        "explanation": _will_happen(len(some)),
        "panels": [(breakable(target.name), target.facts) for target in some],
        "refused": refused,
        "button": gettext("Stop"),
        "way_back": way_back(request.GET),
    }
    return page.ask(request, context)


def _will_happen(count: int) -> str:
    words = ngettext(
        "%d run is asked to end, and is not started again. It is recorded as interrupted by you. Its job runs again "
        "at its next slot. If it ends before, nothing happens.",
        "%d runs are asked to end, and are not started again. They are recorded as interrupted by you. Their jobs run "
        "again at their next slots. If one ends before, nothing happens to it.",
        count,
    )
    return words % count


def _why_not(target: Target, obstacle: Obstacle | None) -> str:
    why = obstacle.label if obstacle else ""
    return gettext("%(name)s cannot be stopped: %(why)s.") % {"name": target.name, "why": why}
