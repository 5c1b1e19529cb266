"""Sentry: check-ins of jobs with a schedule, and tags for the events of runs.

sentry_sdk.init(integrations=[SinglejobIntegration()])
"""

import logging
import os
import re
from contextlib import suppress
from datetime import timedelta
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import sentry_sdk
from django.apps import apps
from sentry_sdk.crons import capture_checkin
from sentry_sdk.integrations import Integration
from sentry_sdk.scope import add_global_event_processor
from sentry_sdk.transport import make_transport

import django_singlejob
from django_singlejob.integrations.outbox import Outbox
from django_singlejob.jobs.schedule import Cron, Every
from django_singlejob.process.logs import PREFIX, about
from django_singlejob.signals import job_finished, job_started

if TYPE_CHECKING:
    from sentry_sdk.types import Event, Hint, MonitorConfig

    from django_singlejob import CurrentRun, Job

logger = logging.getLogger("django_singlejob")

_LONGEST_SLUG = 50
# Four weeks.
_MOST_MINUTES = 40_320
# The units of an interval, the longest first, in minutes. Sentry has no seconds.
_UNITS = (("week", 10_080), ("day", 1440), ("hour", 60), ("minute", 1))
_MINUTE = timedelta(minutes=1)
# The tags of an event, and what they are in a log record.
_TAGS = ("job", "run", "slot")
# Those of Django, and of the package django-tasks.
_TASK_LOGGERS = ("django.tasks", "django_tasks")


class SinglejobIntegration(Integration):
    """Pass it to ``sentry_sdk.init``."""

    identifier = "singlejob"

    @staticmethod
    def setup_once() -> None:
        job_started.connect(_check_in)
        job_finished.connect(_check_out)
        add_global_event_processor(_tagged)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=_renew_transport)


def _is_on() -> bool:
    return sentry_sdk.get_client().get_integration(SinglejobIntegration) is not None


# --- check-ins


def _check_in(*, run: "CurrentRun", **kwargs: Any) -> None:
    _put(run, "in_progress", is_start=True)


def _check_out(
    *, run: "CurrentRun", status: str, duration: timedelta, error: BaseException | None, **kwargs: Any
) -> None:
    if error:
        with suppress(Exception):  # an exception may refuse attributes
            error.singlejob_facts = _facts(run)  # type: ignore[attr-defined]
    _put(run, "ok" if status in ("successful", "skipped") else "error", duration.total_seconds())


def _put(run: "CurrentRun", status: str, duration: float | None = None, *, is_start: bool = False) -> None:
    """Check in. The SDK has a thread, which begins after a fork: this is why the outbox does it."""
    if _is_on() and (config := monitor_config(run.job)) and run.slot:
        check_in = partial(
            capture_checkin,
            monitor_slug=monitor_slug(run.job.name),
            check_in_id=run.lease.token.hex,
            status=status,
            duration=duration,
            monitor_config=config,
        )
        _outbox.put(check_in, _give_up, is_start=is_start)


_outbox = Outbox("check-ins")


def _give_up(why: str) -> None:
    logger.warning("A check-in was not passed to Sentry: %s", why, extra=about())


def monitor_slug(name: str) -> str:
    """The job's name as Sentry allows it: of 50 characters at most, and without dots and colons. Two jobs never share
    one, or the silence of one would hide behind the other."""
    slug = re.sub(r"[^a-z0-9_-]", "-", name)
    if slug == name and len(name) <= _LONGEST_SLUG:
        return name
    return f"{slug[: _LONGEST_SLUG - 9]}-{sha256(name.encode()).hexdigest()[:8]}"


def monitor_config(job: "Job") -> "MonitorConfig | None":
    """How Sentry is to watch the job. ``None`` if it cannot: without a schedule, or with an interval that is not a
    number of minutes."""
    policy = job.policy
    schedule = policy and _schedule(policy.schedule)
    if not (policy and schedule):
        return None
    return {
        "schedule": schedule,
        "timezone": policy.schedule.time_zone,
        "checkin_margin": _minutes(policy.misfire_grace),
        # Without a limit, the longest that there is: otherwise Sentry takes half an hour for it.
        "max_runtime": _minutes(job.max_runtime) if job.max_runtime else _MOST_MINUTES,
    }


def _schedule(schedule: Cron | Every) -> Any:
    if isinstance(schedule, Cron):
        return {"type": "crontab", "value": schedule.text}
    minutes, rest = divmod(schedule.interval, _MINUTE)
    if rest:
        return None
    unit, length = next((unit, length) for unit, length in _UNITS if minutes % length == 0)
    return {"type": "interval", "value": minutes // length, "unit": unit}


def _minutes(length: timedelta) -> int:
    """Sentry counts in whole minutes."""
    return min(max(1, -(-length // _MINUTE)), _MOST_MINUTES)


# --- events


def _tagged(event: "Event", hint: "Hint") -> "Event | None":
    """Tag the event of a run: while it runs, after it has failed, or from a record of this package. ``None`` if it
    would be the second event of a failure."""
    if not _is_on() or "type" in event:
        return event
    if _is_second(hint):
        return None
    _, error, _ = hint.get("exc_info") or (None, None, None)
    facts = {**_facts_of_current(), **getattr(error, "singlejob_facts", {}), **event.get("extra", {})}
    tags = {name: str(facts[PREFIX + name]) for name in _TAGS if facts.get(PREFIX + name)}
    event["tags"] = {**tags, **event.get("tags", {})}
    return event


def _is_second(hint: "Hint") -> bool:
    """Whether Django logs that a task has failed without the exception: the process that ran it has logged that."""
    record = hint.get("log_record")
    # Without an exception, django-tasks logs (None, None, None).
    return isinstance(record, logging.LogRecord) and record.name in _TASK_LOGGERS and not any(record.exc_info or ())


def _facts_of_current() -> dict[str, Any]:
    # Until then, nothing runs, and what runs jobs cannot be imported.
    run = django_singlejob.current_run() if apps.models_ready else None
    return _facts(run) if run else {}


def _facts(run: "CurrentRun") -> dict[str, Any]:
    return run.lease.grant.facts(job=run.job.name)


def _renew_transport() -> None:
    """Send what a forked child captures on connections of its own: those of its parent are in use."""
    client = sentry_sdk.get_client()
    if client.is_active() and _is_on():
        client.transport = make_transport(client.options)
