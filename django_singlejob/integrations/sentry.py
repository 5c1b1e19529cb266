"""Sentry: check-ins of jobs with a schedule, and tags for the events of runs.

sentry_sdk.init(integrations=[SinglejobIntegration()])
"""

import logging
import os
import re
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import sentry_sdk
from django.apps import apps
from django.utils.module_loading import import_string
from sentry_sdk.integrations import Integration
from sentry_sdk.scope import add_global_event_processor
from sentry_sdk.transport import make_transport

import django_singlejob
from django_singlejob.jobs.schedule import Cron, Every
from django_singlejob.process.logs import PREFIX
from django_singlejob.signals import job_finished, job_started, lock_taken_over

if TYPE_CHECKING:
    from sentry_sdk.types import Event, Hint, MonitorConfig

    from django_singlejob import CurrentRun, Job

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
        for signal, receive in _RECEIVERS:
            signal.connect(receive)
        add_global_event_processor(_tagged)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=_renew_transport)


def _is_on() -> bool:
    return sentry_sdk.get_client().get_integration(SinglejobIntegration) is not None


# --- check-ins


def _receiver(name: str) -> Callable[..., None]:
    """The receiver of this name. Its module is imported when it is first called: the SDK is set up in the settings,
    when no model can be imported yet."""

    def receive(**kwargs: Any) -> None:
        if _is_on():
            import_string(f"django_singlejob.integrations.check_ins.{name}")(**kwargs)

    return receive


def _note_facts(*, run: "CurrentRun", error: BaseException | None, **kwargs: Any) -> None:
    if error:
        with suppress(Exception):  # an exception may refuse attributes
            error.singlejob_facts = _facts(run)  # type: ignore[attr-defined]


_RECEIVERS = [
    (job_started, _receiver("check_in")),
    (job_finished, _note_facts),
    (job_finished, _receiver("check_out")),
    (lock_taken_over, _receiver("check_out_dead")),
]


# --- monitors


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
    schedules = import_string("django_singlejob.locking.position.schedules")  # settings import this module
    in_force = schedules(name=job.name).get(job.name)
    schedule = in_force and _schedule(in_force)
    if not (policy and in_force and schedule):
        return None
    return {
        "schedule": schedule,
        "timezone": in_force.time_zone,
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
