"""What is wrong with a job, a lock, a queue or a worker: a level, what happened, and what to do."""

import shlex
from collections.abc import Iterator, Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from django.db import models
from django.utils.formats import number_format
from django.utils.functional import lazy
from django.utils.text import format_lazy
from django.utils.translation import gettext, gettext_lazy as _, ngettext_lazy

from django_singlejob import registry
from django_singlejob.clock import instant_in_words
from django_singlejob.conf import ZERO
from django_singlejob.monitoring.health import MOST as WORST, Health, Level, State, has_other_schedule, zone_of
from django_singlejob.monitoring.queues import LATE, Queue
from django_singlejob.monitoring.workers import Worker, serves
from django_singlejob.names import NAME_LENGTH
from django_singlejob.querysets.rows import Unreadable
from django_singlejob.timeline import is_fence_used_up

if TYPE_CHECKING:
    from django.utils.functional import _StrOrPromise

    from django_singlejob.models import JobLock, JobStatus

DAY, HOUR, MINUTE, SECOND = timedelta(days=1), timedelta(hours=1), timedelta(minutes=1), timedelta(seconds=1)


class Trouble(models.TextChoices):
    """What may be wrong with a queue, a worker or rows. A job or a lock has a ``State``."""

    NO_WORKER = "no_worker", _("without any worker")
    UNSERVED = "unserved", _("unserved")
    DEAD = "dead", _("dead")
    IMPOSSIBLE_ROW = "impossible_row", _("impossible row")
    NOT_JUDGED = "not_judged", _("not judged")
    NOT_IMPORTED = "not_imported", _("not imported")
    OTHER_SCHEDULE = "other_schedule", _("with another schedule")
    FAILED = "failed", _("failed lately")
    LATE = "late", _("late")


About = Literal["job", "lock", "queue", "worker", "row", "code"]


class Finding(NamedTuple):
    """Something that needs attention.

    Attributes:
        kind: what is wrong.
        level: how bad it is.
        about: the kind of thing that it is about.
        subject: the name of the job, the lock or the queue; for a worker, the name of its lock; for any other row, its
            table and its primary key; for rows that were not judged, what they are.
        what_happened: a sentence for people.
        what_to_do: the advice that follows it.
    """

    kind: State | Trouble
    level: Level
    about: About
    subject: str
    what_happened: "_StrOrPromise"
    what_to_do: "_StrOrPromise"

    @property
    def rank(self) -> tuple[int, int, str]:
        """Sorts the worst findings first; within a level, those that may have caused others."""
        return -self.level, _RANKS.index(self.kind), self.subject


_RANKS: list[State | Trouble] = [
    Trouble.NO_WORKER,
    Trouble.UNSERVED,
    Trouble.DEAD,
    Trouble.IMPOSSIBLE_ROW,
    Trouble.NOT_JUDGED,
    Trouble.NOT_IMPORTED,
    *State,
    Trouble.OTHER_SCHEDULE,
    Trouble.FAILED,
    Trouble.LATE,
]


def roughly(duration: timedelta) -> str:
    """A duration in at most two units, none below a second: ``2 days 3 hours``."""
    precision = HOUR if duration >= DAY else MINUTE if duration >= HOUR else SECOND
    rest, parts = max(duration, ZERO) // precision * precision, []
    for length, name in _UNITS:
        count, rest = divmod(rest, length)
        if count:
            parts.append(name % count)
    return " ".join(parts) or _UNITS[-1][1] % 0


_UNITS = [
    (DAY, ngettext_lazy("%d day", "%d days")),
    (HOUR, ngettext_lazy("%d hour", "%d hours")),
    (MINUTE, ngettext_lazy("%d minute", "%d minutes")),
    (SECOND, ngettext_lazy("%d second", "%d seconds")),
]
_roughly = lazy(roughly, str)
_grouped = lazy(partial(number_format, force_grouping=True), str)


def _text(text: "_StrOrPromise", *parts: Any, **facts: Any) -> "_StrOrPromise":
    return format_lazy(text, *parts, **facts)


# --- jobs and locks


def of_health(health: Health, failures: int) -> Iterator[Finding]:
    """What is wrong with a job or a lock, if anything. ``failures``: the failures in a row that are critical."""
    level = _level(health, failures)
    if level:
        what_happened, what_to_do = _story(health)
        yield Finding(
            kind=health.state,
            level=level,
            about="job" if health.is_job else "lock",
            subject=health.name,
            what_happened=what_happened,
            what_to_do=what_to_do,
        )
    if health.status and has_other_schedule(health.status):
        yield _of_other_schedule(health.status)
    if health.status and is_fence_used_up(health.status):
        yield Finding(
            kind=Trouble.IMPOSSIBLE_ROW,
            level=Level.CRITICAL,
            about="job" if health.is_job else "lock",
            subject=health.name,
            what_happened=_text(_("The fence of {name!r} cannot grow: its lock is not granted."), name=health.name),
            what_to_do=_("Set fence of its JobStatus to a smaller number, greater than the fences of its runs."),
        )


def _of_other_schedule(status: "JobStatus") -> Finding:
    facts = {"name": status.name, "schedule": f"{status.schedule} {status.time_zone}"}
    what = _("The job {name!r} has another schedule in the database ({schedule}) than in this release of the code.")
    return Finding(
        kind=Trouble.OTHER_SCHEDULE,
        level=Level.WARNING,
        about="job",
        subject=status.name,
        what_happened=_text(what, **facts),
        what_to_do=_(
            "After a deploy, the new schedule begins when a worker looks, or when cron requests the job. If this goes "
            "on, another project with a job of this name uses the same database: rename one of the jobs."
        ),
    )


def _level(health: Health, failures: int) -> Level:
    if health.state == State.FAILING and health.status and health.status.consecutive_failures < failures:
        return Level.WARNING
    return health.state.level


def _story(health: Health) -> "tuple[_StrOrPromise, _StrOrPromise]":
    name, status, lock = health.name, health.status, health.lock
    match health.state:
        case State.IMPOSSIBLE | State.STALE | State.OVERRUNNING | State.DELAYED if lock:
            return _story_of_lock(health, lock)
        case State.OVERDUE | State.AHEAD | State.FAILING if status:
            return _story_of_status(health, status)
    return (
        _text(_("The job {name!r} has a schedule, but no server has ever requested it."), name=name),
        _("Check that cron or a worker runs, with a release that has this job."),
    )


def _story_of_lock(health: Health, lock: "JobLock") -> "tuple[_StrOrPromise, _StrOrPromise]":
    facts = {"name": lock.name, "job": health.name, "holder": _holder(lock)}
    match health.state:
        case State.IMPOSSIBLE:
            if lock.is_too_long:
                return _text(_("The lock {name!r} is held by {holder} for longer than any lease."), **facts), _IF_DEAD
            what = _(
                "The lock {name!r} is held by {holder}, whose last heartbeat is {ahead} in the future: the database's "
                "clock was set back."
            )
            return _text(what, **facts, ahead=_roughly(lock.heartbeat_at - lock.now)), _IF_DEAD
        case State.STALE:
            what = _("The lock {name!r} is held by {holder}, which has sent no heartbeat for {silence}.")
            return _text(what, **facts, silence=_roughly(lock.now - lock.heartbeat_at)), _IF_DEAD
    assert health.status  # noqa: S101  (it has a mean duration or a slot, so it has a gate)
    if health.state == State.DELAYED and health.status.next_slot:
        what = _("The job {job!r} has been due for {late}, since {slot}, while {holder} has held its lock for {time}.")
        late, slot = health.status.now - health.status.next_slot, _slot(health.status)
        lengths = {"late": _roughly(late), "slot": slot, "time": _roughly(lock.now - lock.acquired_at)}
        return _text(what, **facts, **lengths), _IF_ALIVE
    what = _("The job {job!r} has been running for {time} on {holder}; its mean duration is {mean}.")
    lengths = {"time": _roughly(lock.now - lock.acquired_at), "mean": _roughly(health.status.mean_duration or ZERO)}
    return _text(what, **facts, **lengths), _IF_ALIVE


_IF_ALIVE = _("Look at what it is doing: its holder is alive, so it keeps its lock.")
_IF_DEAD = _(
    "If the holder is dead, the next caller or a worker takes the lock over. To free it now, run clear_stale_locks."
)


def _story_of_status(health: Health, status: "JobStatus") -> "tuple[_StrOrPromise, _StrOrPromise]":
    facts: dict[str, Any] = {"name": health.name}
    if status.next_slot:
        facts |= {"slot": _slot(status), "late": _roughly(status.now - status.next_slot)}
    match health.state:
        case State.OVERDUE:
            what = _("The job {name!r} has been due for {late}, since {slot}, and is not being run.")
            return _text(what, **facts), _("Check that cron or a worker runs on at least one server.")
        case State.AHEAD:
            what = _("The job {name!r} waits for {slot}, which is too far away: the database's clock was set back.")
            return _text(what, **facts), _(
                "If the clock is right now, set next_slot and last_slot of its JobStatus to None: it goes on with its "
                "next slot from now."
            )
    return _how_it_failed(health.name, status), _(
        "Look for the error in the history and in the log, fix it, and run the job again."
    )


def _slot(status: "JobStatus") -> str:
    return instant_in_words(status.next_slot, zone_of(status)) if status.next_slot else ""


def _how_it_failed(name: str, status: "JobStatus") -> "_StrOrPromise":
    is_abandoned = status.last_status == "abandoned"
    if status.consecutive_failures > 1 and is_abandoned:
        what = _(
            "The last {count} runs of the job {name!r} did not succeed. The last one was abandoned, because its holder "
            "died."
        )
    elif status.consecutive_failures > 1:
        what = _("The last {count} runs of the job {name!r} did not succeed.")
    elif is_abandoned:
        what = _("The last run of the job {name!r} was abandoned, because its holder died.")
    else:
        what = _("The last run of the job {name!r} failed.")
    return _text(what, name=name, count=status.consecutive_failures)


def _holder(lock: "JobLock") -> str:
    return repr(lock.holder)[1:-1]


# --- rows


def of_row(row: Unreadable) -> Finding:
    """A row that cannot be read. Nothing is granted under its name, and everything else goes on without it."""
    about, subject = _ABOUTS.get(row.model.__name__, "row"), f"{row.key!s:.{NAME_LENGTH}}"
    return Finding(
        kind=Trouble.IMPOSSIBLE_ROW,
        level=Level.CRITICAL,
        about=about,
        subject=f"{row.table} {subject}" if about == "row" else subject,
        what_happened=str(row),
        what_to_do=_("It was written by hand or by another program: correct it in the database."),
    )


_ABOUTS: dict[str, About] = {"JobStatus": "job", "JobLock": "lock"}


def of_cut() -> Finding:
    """More than ``WORST`` jobs or locks look bad. No others were judged, and one of these may be critical."""
    return Finding(
        kind=Trouble.NOT_JUDGED,
        level=Level.CRITICAL,
        about="row",
        subject=gettext("jobs and locks"),
        what_happened=_text(
            _("More than {count} jobs or locks look bad, and no others were judged."), count=_grouped(WORST)
        ),
        what_to_do=_("Look at the lists of jobs and locks in the admin: one of the others may be critical."),
    )


def of_code(error: Exception) -> Finding:
    """The jobs cannot be registered, so some of them may be missing."""
    return Finding(
        kind=Trouble.NOT_IMPORTED,
        level=Level.CRITICAL,
        about="code",
        subject=gettext("jobs"),
        what_happened=registry.why_not_registered(error),
        what_to_do=registry.remedy_for(error),
    )


# --- queues


def of_queue(queue: Queue, workers: Sequence[Worker], failures: int) -> Iterator[Finding]:
    """What is wrong with a queue, if anything. Failures are critical if they are at least half of what finished lately,
    and at least as many as ``failures``."""
    if queue.oldest > LATE:
        yield _waiting(queue, [worker for worker in workers if worker.is_live])
    if queue.failed:
        yield _failed(queue, failures)


def _waiting(queue: Queue, alive: Sequence[Worker]) -> Finding:
    kind, level, why, what_to_do = _why_it_waits(queue, alive)
    facts = {"name": queue.name, "count": in_figures(queue.due, is_cut=queue.is_cut), "age": _roughly(queue.oldest)}
    waiting = ngettext_lazy(
        "{count} one-off has been due in the queue {name!r} for {age}.",
        "{count} one-offs are due in the queue {name!r}, the oldest for {age}.",
        queue.due,
    )
    return Finding(
        kind=kind,
        level=level,
        about="queue",
        subject=queue.name,
        what_happened=_text("{} {}", _text(waiting, **facts), why),
        what_to_do=_text(what_to_do, name=shlex.quote(queue.name)),
    )


def _why_it_waits(queue: Queue, alive: Sequence[Worker]) -> "tuple[Trouble, Level, _StrOrPromise, _StrOrPromise]":
    if not alive:
        return Trouble.NO_WORKER, Level.CRITICAL, _("No worker is alive."), _("Start singleton_worker.")
    if not any(serves(worker, queue.name) for worker in alive):
        what_to_do = _(
            "Start singleton_worker --queue {name}. If the name is mistyped, fix it in the code, cancel the one-offs, "
            "and enqueue them again."
        )
        return Trouble.UNSERVED, Level.CRITICAL, _("No live worker serves this queue."), what_to_do
    what_to_do = _(
        "Look at the workers' log. If they cannot keep up, start more. Otherwise the one-offs wait for the locks of "
        "their jobs, or for a release that knows them."
    )
    return Trouble.LATE, Level.WARNING, _("A worker serves this queue."), what_to_do


def _failed(queue: Queue, failures: int) -> Finding:
    is_critical = queue.failed >= failures and queue.failed_share >= 0.5
    facts = {"failed": in_figures(queue.failed, is_cut=queue.is_failed_cut), "name": queue.name}
    if queue.finished is None:
        what = ngettext_lazy(
            "{failed} one-off of the queue {name!r} failed in the last hour.",
            "{failed} one-offs of the queue {name!r} failed in the last hour.",
            queue.failed,
        )
    else:
        what = ngettext_lazy(
            "{failed} of {count} one-off of the queue {name!r} that finished in the last hour failed.",
            "{failed} of {count} one-offs of the queue {name!r} that finished in the last hour failed.",
            queue.finished,
        )
    return Finding(
        kind=Trouble.FAILED,
        level=Level.CRITICAL if is_critical else Level.WARNING,
        about="queue",
        subject=queue.name,
        what_happened=_text(what, **facts, count=queue.finished),
        what_to_do=_("Look for their errors in the admin's list of one-offs, fix them, and retry the one-offs."),
    )


def in_figures(count: int, *, is_cut: bool) -> "_StrOrPromise":
    """A count, which may be cut: ``3,000 or more``."""
    return _text(_("{count} or more"), count=_grouped(count)) if is_cut else str(count)


# --- workers


def of_worker(health: Health, *, is_last: bool) -> Iterator[Finding]:
    """What is wrong with the lock of a worker, if anything. A death is critical if no other worker is alive
    (``is_last``), because nothing puts back what this one was running."""
    if health.state != State.STALE or not health.lock:
        yield from of_health(health, 1)
        return
    what = _("The worker {holder} has died: it has sent no heartbeat for {silence}.")
    facts = {"holder": _holder(health.lock), "silence": _roughly(health.lock.now - health.lock.heartbeat_at)}
    if is_last:
        what_to_do = _("Start a worker: it puts back what this one was running.")
    else:
        what_to_do = _("Find out why it died. Another worker puts back what it was running.")
    yield Finding(
        kind=Trouble.DEAD,
        level=Level.CRITICAL if is_last else Level.WARNING,
        about="worker",
        subject=health.name,
        what_happened=_text(what, **facts),
        what_to_do=what_to_do,
    )
