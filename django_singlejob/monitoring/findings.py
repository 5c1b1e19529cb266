"""What is wrong with a job, a lock, a queue or a worker: a level, what happened, and what to do.

``KINDS`` is the table of all kinds of findings. The functions below it say which of them apply.
"""

import shlex
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from django.db import models
from django.utils.formats import number_format
from django.utils.functional import lazy
from django.utils.text import format_lazy
from django.utils.translation import gettext, gettext_lazy as _, ngettext, ngettext_lazy

from django_singlejob.conf import ZERO
from django_singlejob.jobs import registry
from django_singlejob.jobs.discovery import remedy_for, why_not_registered
from django_singlejob.jobs.schedule import Every
from django_singlejob.models.unreadable import Unreadable
from django_singlejob.monitoring.acknowledging import Acknowledged
from django_singlejob.monitoring.evidence import last_edits
from django_singlejob.monitoring.health import (
    MOST as WORST,
    Health,
    Level,
    State,
    due_since,
    has_other_schedule,
    schedule_of,
    zone_of_schedule,
)
from django_singlejob.monitoring.marks import FORGOTTEN_AFTER
from django_singlejob.monitoring.queues import LATE, Queue
from django_singlejob.monitoring.workers import SeenWorker, Server, serves
from django_singlejob.process.clock import instant_in_words
from django_singlejob.process.escaping import listed

if TYPE_CHECKING:
    from django.utils.functional import _StrOrPromise

DAY, HOUR, MINUTE, SECOND = timedelta(days=1), timedelta(hours=1), timedelta(minutes=1), timedelta(seconds=1)


class Trouble(models.TextChoices):
    """What may be wrong with a queue, a worker, a server or rows. A job or a lock has a ``State``."""

    NO_WORKER = "no_worker", _("without any worker")
    UNSERVED = "unserved", _("unserved")
    DEAD = "dead", _("dead")
    SILENT = "silent", _("not asking any more")
    IMPEDED = "impeded", _("impeded")
    NOT_JUDGED = "not_judged", _("not judged")
    NOT_IMPORTED = "not_imported", _("not imported")
    UNREADABLE = "unreadable", _("unreadable")
    NO_JOB = "no_job", _("without any job")
    OTHER_SCHEDULE = "other_schedule", _("with another schedule")
    CODE_CHANGED = "code_changed", _("with a schedule that has changed in the code")
    TOO_OFTEN = "too_often", _("more often than passes")
    FAILED = "failed", _("failed lately")
    LATE = "late", _("late")

    @property
    def level(self) -> Level:
        """How bad it is at its worst."""
        return Level.WARNING if self in _MILD else Level.CRITICAL


_MILD = (
    Trouble.SILENT,
    Trouble.IMPEDED,
    Trouble.NO_JOB,
    Trouble.OTHER_SCHEDULE,
    Trouble.CODE_CHANGED,
    Trouble.TOO_OFTEN,
    Trouble.LATE,
)
About = Literal["job", "lock", "queue", "worker", "server", "row", "code"]
Facts = dict[str, Any]
Kind = State | Trouble


class Finding(NamedTuple):
    """Something that needs attention.

    Attributes:
        kind: what is wrong.
        level: how bad it is.
        about: the kind of thing that it is about.
        subject: the name of the job, the lock, the queue or the server; for a worker, the name of its lock; for any
            other row, its table and its primary key; for rows that were not judged, what they are.
        what_happened: a sentence for people.
        what_to_do: the advice that follows it.
        since: when it began (UTC); ``None`` if the rows do not tell.
        acknowledged: who has acknowledged it; ``None``: nobody, or that is over.
    """

    kind: Kind
    level: Level
    about: About
    subject: str
    what_happened: "_StrOrPromise"
    what_to_do: "_StrOrPromise"
    since: datetime | None = None
    acknowledged: Acknowledged | None = None

    @property
    def rank(self) -> tuple[bool, int, int, str]:
        """Sorts the worst findings first; within a level, those that may have caused others."""
        return self.acknowledged is not None, -self.level, list(KINDS).index(self.kind), self.subject


# --- the kinds of findings


class Words(NamedTuple):
    """What is said of a finding, with the names of facts in braces."""

    what_happened: "_StrOrPromise"
    what_to_do: "_StrOrPromise"


_IF_ALIVE = _("Look at what it is doing: its holder is alive, so it keeps its lock.")
_IF_DEAD = _(
    "If the holder is dead, the next caller or a worker takes the lock over. To free it now, run clear_stale_locks."
)
# What may have caused others comes first.
KINDS: dict[Kind, Words] = {
    Trouble.NO_WORKER: Words(_("{waiting} No worker is alive."), _("Start singleton_worker.")),
    Trouble.UNSERVED: Words(
        _("{waiting} No live worker serves this queue."),
        _(
            "Start singleton_worker --queue {argument}. If the name is mistyped, fix it in the code, cancel the "
            "one-offs, and enqueue them again."
        ),
    ),
    Trouble.DEAD: Words(
        _("The worker {holder} has died: it has sent no heartbeat for {silence}."),
        _("Start a worker: it puts back what this one was running."),
    ),
    Trouble.SILENT: Words(
        _("The server {server} has not asked for what is due for {time}."),
        _(
            "Check there that cron or the worker runs, and that the project starts. If the server is gone for good, "
            "this is forgotten {days} days after it was last seen."
        ),
    ),
    Trouble.IMPEDED: Words(
        _("The server {server} does not run everything that is due. {trouble}"),
        _("Correct it there. Other servers run what they can meanwhile."),
    ),
    Trouble.NOT_JUDGED: Words(
        _("More than {count} jobs or locks look bad, and no others were judged."),
        _("Look at the lists of jobs and locks in the admin: one of the others may be critical."),
    ),
    Trouble.NOT_IMPORTED: Words("{problem}", "{remedy}"),
    Trouble.UNREADABLE: Words(
        _("The row {key!r} of {table} cannot be read, because of its column {column!r}: {problem}."),
        _("Correct it in the database. Until then it is left out, and everything else goes on."),
    ),
    State.IMPOSSIBLE: Words(
        _(
            "The lock {lock!r} is held by {holder}, whose last heartbeat is {ahead} in the future: the database's "
            "clock was set back."
        ),
        _IF_DEAD,
    ),
    State.STALE: Words(
        _("The lock {lock!r} is held by {holder}, which has sent no heartbeat for {silence}."), _IF_DEAD
    ),
    State.OVERDUE: Words(
        _("The job {name!r} has been due for {late}, since {slot}, and is not being run."),
        _("Check that cron or a worker runs on at least one server."),
    ),
    State.AHEAD: Words(
        _("The job {name!r} waits for {slot}, which is too far away: the database's clock was set back."),
        _(
            "If the clock is right now, set next_slot and last_slot of its JobStatus to None: it goes on with its "
            "next slot from now."
        ),
    ),
    State.FAILING: Words(
        ngettext_lazy(
            "The last run of the job {name!r} failed.",
            "The last {count} runs of the job {name!r} did not succeed.",
            "count",
        ),
        _("Look for the error in the history and in the log, fix it, and run the job again."),
    ),
    State.OVERRUNNING: Words(
        _("The job {name!r} has been running for {time} on {holder}; its mean duration is {mean}."), _IF_ALIVE
    ),
    State.DELAYED: Words(
        _("The job {name!r} has been due for {late}, since {slot}, while {holder} has held its lock for {time}."),
        _IF_ALIVE,
    ),
    State.UNSEEN: Words(
        _("The job {name!r} has a schedule, but no server has ever requested it."),
        _("Check that cron or a worker runs, with a release that has this job."),
    ),
    Trouble.NO_JOB: Words(
        _("No job is registered."),
        _("Put a function with @singleton_job into the jobs.py of an app, and the app into INSTALLED_APPS."),
    ),
    Trouble.OTHER_SCHEDULE: Words(
        _("The job {name!r} has another schedule in the database ({schedule}) than in this release of the code."),
        _(
            "After a deploy, the new schedule begins when a worker looks, or when cron requests the job. If this goes "
            "on, another project with a job of this name uses the same database: rename one of the jobs."
        ),
    ),
    Trouble.CODE_CHANGED: Words(
        _(
            "The schedule of the job {name!r} has changed in the code, from {before} to {after}, since {by} gave it "
            "another one ({own}) at {since}, which stays in force."
        ),
        _('Reset it, by singleton_schedule {argument} --reset --because "...", or give it again.'),
    ),
    Trouble.TOO_OFTEN: Words(
        _("The job {name!r} is due every {interval}, and cron begins a pass once a minute at most: slots are lost."),
        _("Keep a singleton_worker running, or give the job a longer interval."),
    ),
    Trouble.FAILED: Words(
        ngettext_lazy(
            "{failed} of {count} one-off of the queue {name!r} that finished in the last hour failed.",
            "{failed} of {count} one-offs of the queue {name!r} that finished in the last hour failed.",
            "count",
        ),
        _("Look for their errors in the admin's list of one-offs, fix them, and retry the one-offs."),
    ),
    Trouble.LATE: Words(
        _("{waiting} A worker serves this queue."),
        _(
            "Look at the workers' log. If they cannot keep up, start more. Otherwise the one-offs wait for the locks "
            "of their jobs, or for a release that knows them."
        ),
    ),
}
# Some have a variant.
_DEAD_AMONG_OTHERS = KINDS[Trouble.DEAD]._replace(
    what_to_do=_("Find out why it died. Another worker puts back what it was running.")
)
_ON_SOME_SERVERS = KINDS[State.OVERDUE]._replace(
    what_to_do=_("Check that cron or a worker runs on a server that its on= names: {servers}.")
)
_TOO_LONG = KINDS[State.IMPOSSIBLE]._replace(
    what_happened=_("The lock {lock!r} is held by {holder} for longer than any lease.")
)
_ABANDONED = KINDS[State.FAILING]._replace(
    what_happened=ngettext_lazy(
        "The last run of the job {name!r} was abandoned, because its holder died.",
        "The last {count} runs of the job {name!r} did not succeed. The last one was abandoned, because its holder "
        "died.",
        "count",
    )
)
_INTERRUPTED = KINDS[State.FAILING]._replace(
    what_happened=ngettext_lazy(
        "The last run of the job {name!r} was interrupted.",
        "The last {count} runs of the job {name!r} did not succeed. The last one was interrupted.",
        "count",
    ),
    what_to_do=_(
        "Look in the history for what interrupted it, and for an error before that. If it needs more time, raise its "
        "max_runtime or the worker's --grace."
    ),
)
_SKIPPED_SINCE = KINDS[State.FAILING]._replace(
    what_happened=ngettext_lazy(
        "The job {name!r} failed, and its last run skipped itself.",
        "The job {name!r} did not succeed {count} times, and its last run skipped itself.",
        "count",
    )
)
# By the status of the last run.
_AFTER = {"abandoned": _ABANDONED, "interrupted": _INTERRUPTED, "skipped": _SKIPPED_SINCE}
_UNCOUNTED = KINDS[Trouble.FAILED]._replace(
    what_happened=ngettext_lazy(
        "{failed} one-off of the queue {name!r} failed in the last hour.",
        "{failed} one-offs of the queue {name!r} failed in the last hour.",
        "number",
    )
)
_WAITING = ngettext_lazy(
    "{count} one-off has been due in the queue {name!r} for {age}.",
    "{count} one-offs are due in the queue {name!r}, the oldest for {age}.",
    "number",
)


def _finding(
    kind: Kind,
    about: About,
    subject: str,
    facts: Facts,
    words: Words | None = None,
    *,
    is_mild: bool = False,
    since: datetime | None = None,
) -> Finding:
    """``words``: the variant that applies; ``None``: what ``KINDS`` says. ``is_mild``: whether it is only a warning."""
    happened, remedy = (format_lazy(text, **facts) for text in words or KINDS[kind])
    level = Level.WARNING if is_mild else kind.level
    return Finding(kind, level, about, subject, happened, remedy, since)


# --- jobs and locks


def of_health(health: Health, failures: int) -> Iterator[Finding]:
    """What is wrong with a job or a lock, if anything. ``failures``: the failures in a row that are critical, unless
    the job says how many."""
    about: About = "job" if health.is_job else "lock"
    if registry.is_known(health.name):
        failures = registry.get(health.name).failures or failures
    status, state = health.status, health.state
    if state.level:
        is_mild = bool(state == State.FAILING and status and status.consecutive_failures < failures)
        facts, since = _facts(health), _since(health)
        found = _finding(state, about, health.name, facts, _variant(health), is_mild=is_mild, since=since)
        yield _with_success(found, health) if state == State.FAILING else found
    if status and has_other_schedule(status):
        yield _finding(Trouble.OTHER_SCHEDULE, "job", health.name, _facts(health))


def of_edits(healths: Sequence[Health]) -> Iterator[Finding]:
    """The schedules that operators have given jobs whose schedules have changed in the code since."""
    own = {health.name: health.status for health in healths if health.status and health.status.own_schedule}
    for name, edit in last_edits(own).items():
        job = registry.get(name) if registry.is_known(name) else None
        schedule = job.policy.schedule if job and job.policy else None
        code = (schedule.text, schedule.time_zone) if schedule else ("", "")
        if schedule and edit.code != code:
            words = {"own": edit.own, "before": edit.code, "after": code}
            facts = {what: " ".join(pair).strip() or "-" for what, pair in words.items()}
            since = instant_in_words(edit.note.at)
            facts |= {"name": name, "argument": shlex.quote(name), "by": edit.note.by or "-", "since": since}
            yield _finding(Trouble.CODE_CHANGED, "job", name, facts, since=edit.note.at)


def _with_success(found: Finding, health: Health) -> Finding:
    """With the last success, if the history was read, and without the advice to run it again if an attempt runs."""
    success = getattr(health.status, "last_success_at", None)
    if success and health.status:
        ago = _roughly(health.status.now - success)
        told = format_lazy(_("The last success ended {time} ago."), time=ago)
        found = found._replace(what_happened=format_lazy("{} {}", found.what_happened, told))
    return found._replace(what_to_do=_("An attempt is running now.")) if health.lock else found


def of_short_interval(health: Health) -> Iterator[Finding]:
    """The job is due more often than cron can begin passes, which run only its latest slot."""
    job = registry.get(health.name) if registry.is_known(health.name) else None
    schedule = schedule_of(health.status) if health.status else None
    schedule = schedule or (job.policy.schedule if job and job.policy else None)
    if job and job.catch_up != "all" and isinstance(schedule, Every) and schedule.interval < MINUTE:
        yield _finding(Trouble.TOO_OFTEN, "job", job.name, {"name": job.name, "interval": _roughly(schedule.interval)})


def _variant(health: Health) -> Words | None:
    """``None`` if the state is as usual."""
    if health.state == State.IMPOSSIBLE and health.lock and health.lock.is_too_long:
        return _TOO_LONG
    if health.state == State.OVERDUE and _servers(health):
        return _ON_SOME_SERVERS
    if health.state == State.FAILING and health.status:
        return _AFTER.get(health.status.last_status)
    return None


def _servers(health: Health) -> Sequence[str]:
    """The servers that may run the job; empty: all of them."""
    return registry.get(health.name).on if registry.is_known(health.name) else ()


def _since(health: Health) -> datetime | None:
    """When the state began, as far as the rows tell; of failures, when the first of them ended; of a run that takes too
    long, when it began."""
    status, lock = health.status, health.lock
    if health.state == State.STALE and lock:
        return lock.expires_at
    if health.state == State.OVERRUNNING and lock:
        return lock.acquired_at
    if health.state in (State.OVERDUE, State.DELAYED) and status:
        return due_since(status)
    if health.state == State.FAILING and status:
        # Of an abandoned run, nobody knows when it ended.
        last = status.last_finished_at if status.last_status in ("failed", "interrupted") else None
        return getattr(status, "failing_since", None) or last
    return None


def _facts(health: Health) -> Facts:
    facts: Facts = {"name": health.name, "servers": listed(_servers(health))}
    if lock := health.lock:
        facts |= {
            "lock": lock.name,
            "holder": repr(lock.holder)[1:-1],
            "time": _roughly(lock.now - lock.acquired_at),
            "silence": _roughly(lock.now - lock.heartbeat_at),
            "ahead": _roughly(lock.heartbeat_at - lock.now),
        }
    if status := health.status:
        facts |= {
            "count": status.consecutive_failures,
            "mean": _roughly(status.mean_duration or ZERO),
            "schedule": f"{status.schedule} {status.time_zone}",
        }
        if due := due_since(status):
            slot = instant_in_words(due, zone_of_schedule(status))
            facts |= {"slot": slot, "late": _roughly(status.now - due)}
    return facts


# --- rows and code


def of_cut() -> Finding:
    """More than ``WORST`` jobs or locks look bad. No others were judged, and one of these may be critical."""
    return _finding(Trouble.NOT_JUDGED, "row", gettext("jobs and locks"), {"count": _grouped(WORST)})


def of_row(row: Unreadable) -> Finding:
    """The row is left out everywhere, because it cannot be read."""
    return _finding(Trouble.UNREADABLE, "row", f"{row.table} {row.key}".strip(), row._asdict())


def of_code(error: Exception) -> Finding:
    """A module, or a job, cannot be registered, so its jobs are missing."""
    facts = {"problem": why_not_registered(error), "remedy": remedy_for(error)}
    return _finding(Trouble.NOT_IMPORTED, "code", gettext("jobs"), facts)


def of_nothing() -> Finding:
    """There is nothing to judge: no job is registered or known, and the project has no tasks."""
    return _finding(Trouble.NO_JOB, "code", gettext("project"), {})


# --- queues


def of_queue(queue: Queue, workers: Sequence[SeenWorker], failures: int) -> Iterator[Finding]:
    """What is wrong with a queue, if anything. Failures are critical if they are at least half of what finished lately,
    and at least as many as ``failures``."""
    if queue.oldest > LATE:
        count, age = in_figures(queue.due, is_cut=queue.is_cut), _roughly(queue.oldest)
        waiting = format_lazy(_WAITING, name=queue.name, count=count, number=queue.due, age=age)
        facts: Facts = {"waiting": waiting, "argument": shlex.quote(queue.name)}
        yield _finding(_why_it_waits(queue, workers), "queue", queue.name, facts, since=queue.due_since)
    if queue.failed:
        failed = in_figures(queue.failed, is_cut=queue.is_failed_cut)
        facts = {"name": queue.name, "failed": failed, "number": queue.failed, "count": queue.finished}
        words = _UNCOUNTED if queue.finished is None else None
        is_mild = queue.failed < failures or queue.failed_share < 0.5
        yield _finding(Trouble.FAILED, "queue", queue.name, facts, words, is_mild=is_mild)


def _why_it_waits(queue: Queue, workers: Sequence[SeenWorker]) -> Trouble:
    alive = [worker for worker in workers if worker.is_live]
    if not alive:
        return Trouble.NO_WORKER
    return Trouble.LATE if any(serves(worker, queue.name) for worker in alive) else Trouble.UNSERVED


# --- workers


def of_worker(health: Health, *, is_last: bool) -> Iterator[Finding]:
    """What is wrong with the lock of a worker, if anything. A death is critical if no other worker is alive
    (``is_last``), because nothing puts back what this one was running."""
    if health.state == State.STALE:
        words = None if is_last else _DEAD_AMONG_OTHERS
        facts, since = _facts(health), _since(health)
        yield _finding(Trouble.DEAD, "worker", health.name, facts, words, is_mild=not is_last, since=since)
    else:
        yield from of_health(health, 1)


# --- servers


def of_server(server: Server) -> Iterator[Finding]:
    """What is wrong with a server that asks for what is due, or has stopped asking."""
    facts: Facts = {"server": _with_queues(server), "days": FORGOTTEN_AFTER.days, "trouble": server.trouble}
    if server.is_silent:
        facts["time"] = _roughly(server.age)
        yield _finding(Trouble.SILENT, "server", server.hostname, facts, since=server.seen_at)
    elif server.trouble and server.is_asking:
        yield _finding(Trouble.IMPEDED, "server", server.hostname, facts)


def _with_queues(server: Server) -> str:
    """``web-1``, or ``web-1 (queues mail, media)``."""
    if not server.queues:
        return server.hostname
    text = ngettext("queue %s", "queues %s", len(server.queues)) % listed(server.queues)
    return f"{server.hostname} ({text})"


# --- figures


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


def in_figures(count: int, *, is_cut: bool) -> "_StrOrPromise":
    """A count, which may be cut: ``3,000 or more``."""
    return format_lazy(_("{count} or more"), count=_grouped(count)) if is_cut else str(count)
