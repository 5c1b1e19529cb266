"""How a job is doing, in a few words."""

from collections.abc import Iterator, Sequence
from typing import Any

from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from django_singlejob.admin.cells import badge, breakable, cut, duration, figure, noted
from django_singlejob.admin.charts import share
from django_singlejob.conf import options
from django_singlejob.models import JobLock, JobStatus
from django_singlejob.models.jobs import gates, mean_of
from django_singlejob.monitoring.acknowledging import Acknowledged
from django_singlejob.monitoring.health import Health, State, due_since
from django_singlejob.process.clock import instant_in_words
from django_singlejob.process.escaping import shown
from django_singlejob.process.progress import LINE_LENGTH, Progress

# Of the last line, a list shows this much.
LISTED = 80


def state(health: Health) -> SafeString:
    """The job's state, with a few details."""
    found = noted(badge(health.state, health.state.label), story(health))
    return with_progress(found, health.lock) if health.lock else found


def story(health: Health) -> str:
    """The details of the state, such as the holder and since when; empty if there are none."""
    return _of_state(health) or (_held(health.lock) if health.lock else "")


def _of_state(health: Health) -> str:
    status, lock = health.status, health.lock
    match health.state:
        case State.PAUSED if status:
            return _pause(status)
        case State.STALE if lock:
            facts = {"holder": lock.holder, "silence": duration(lock.now - lock.heartbeat_at)}
            return _("%(holder)s: no sign of life for %(silence)s") % facts
        case State.IMPOSSIBLE if lock:
            return _why_impossible(lock)
        case State.OVERDUE if status and (due := due_since(status)):
            return _("by %s") % duration(status.now - due)
        case State.AHEAD:
            return _("the database's clock was set back")
        case State.FAILING if status and status.consecutive_failures > 1:
            return _("%d times in a row") % status.consecutive_failures
        case State.UNSEEN:
            return _("is cron or a worker running?")
    return ""


def _held(lock: JobLock) -> str:
    facts = {"holder": lock.holder, "held_for": duration(lock.now - lock.acquired_at)}
    return _("%(holder)s, for %(held_for)s") % facts


def _pause(status: JobStatus) -> str:
    """Until when, by whom and why; empty if nobody said."""
    zone = timezone.get_current_timezone()
    until = _("until %s") % instant_in_words(status.paused_until, zone) if status.paused_until else ""
    by = _("paused by %s") % status.paused_by if status.paused_by else ""
    facts = ", ".join(filter(None, (until, by)))
    return shown(": ".join(filter(None, (facts, status.pause_reason))))


def _why_impossible(lock: JobLock) -> str:
    if lock.is_too_long:
        return _("%(holder)s: its lock expires later than any lease can") % {"holder": lock.holder}
    facts = {"holder": lock.holder, "ahead": duration(lock.heartbeat_at - lock.now)}
    return (
        _("%(holder)s: its last heartbeat lies %(ahead)s in the future, because the database's clock was set back")
        % facts
    )


def how_long(lock: JobLock) -> str:
    """For how long a lock has been held, or for how long its holder has been silent: a dead holder does not run."""
    if lock.is_too_long:
        return _("for %s") % duration(lock.now - lock.acquired_at)
    if lock.is_impossible:
        return _("last heartbeat in %s") % duration(lock.heartbeat_at - lock.now)
    if lock.is_stale:
        return _("silent for %s") % duration(lock.now - lock.heartbeat_at)
    return _("for %s") % duration(lock.now - lock.acquired_at)


def add_means(held: Sequence[Any]) -> None:
    """Tell each of these locks the ``mean`` duration of its job; ``None`` if it is not known."""
    statuses = gates().filter(name__in={lock.job_name for lock in held}).survey()
    for lock in held:
        lock.mean = mean_of(statuses[lock.job_name]) if lock.job_name in statuses else None


def held_for(lock: Any) -> str:
    """For how long a lock has been held, and a bar that is full at ``lock.mean``, the mean duration of its job
    (``None`` if there is none)."""
    length = lock.now - lock.acquired_at
    if lock.mean is None:
        return duration(length)
    times = length / lock.mean
    kind = "bad" if lock.is_suspected else "warn" if times >= options().overrun_factor else "busy"
    return noted(duration(length), share(times, _("mean %s") % duration(lock.mean), kind))


# --- how far a run is


def with_progress(state: SafeString, lock: JobLock) -> SafeString:
    """A state, and below it how far the run that holds the lock is, if that is known."""
    return format_html("{}{}", state, progress(lock, most=LISTED))


def progress(lock: JobLock, *, most: int = LINE_LENGTH) -> SafeString:
    """How far the run that holds the lock is: a bar, the figures, and the last line of its output, cut to ``most``
    characters; 0 for none of it. Empty if nothing is known. A dead holder has no bar: it does not run."""
    told = Progress.read(lock.progress)
    words, line = ", ".join(_words(told)), breakable(cut(told.line, most)) if most else ""
    bar = "" if told.share is None or lock.is_suspected else _bar(told.share, words)
    return noted(noted(bar, breakable(words)), line)


def _bar(part: float, words: str) -> SafeString:
    bar = '<progress class="singlejob-progress" max="1" value="{}" aria-label="{}"></progress>'
    return format_html(bar, f"{part:.3f}", words)


def _words(told: Progress) -> Iterator[str]:
    """``120 of 500``, ``importing``."""
    if told.done is not None:
        done, total = figure(told.done), told.total
        yield done if total is None else _("%(done)s of %(total)s") % {"done": done, "total": figure(total)}
    if told.text:
        yield shown(told.text)


def by_whom(acknowledged: Acknowledged) -> SafeString:
    """The user who has acknowledged something, until when, and why."""
    by, until, reason = acknowledged
    text = _("acknowledged by {by} until {until}").format(by=by, until=instant_in_words(until))
    return format_html("{} {}", badge("acknowledged", text), shown(reason))
