"""How a job is doing, in a few words."""

from django.utils import timezone
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from django_singlejob.admin.cells import badge, duration, noted
from django_singlejob.models import JobLock, JobStatus
from django_singlejob.monitoring.health import Health, State
from django_singlejob.process.clock import instant_in_words
from django_singlejob.process.escaping import shown


def state(health: Health) -> SafeString:
    """The job's state, with a few details."""
    return noted(badge(health.state, health.state.label), story(health))


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
        case State.OVERDUE if status and status.next_slot:
            return _("by %s") % duration(status.now - status.next_slot)
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
