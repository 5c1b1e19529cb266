"""Run one copy of a job on many servers, with nothing but the database Django already has.

The public names are imported on first use, so you can import this package at any time. All but the exceptions need
Django's models: use them where you may import models.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from django.core.exceptions import AppRegistryNotReady

from django_singlejob.process.program import is_executor

if TYPE_CHECKING:
    from django_singlejob.exceptions import (
        DatabaseUnreachable,
        DatabaseUnusable,
        DuplicateJob,
        InvalidName,
        InvalidOrder,
        InvalidSchedule,
        JobDied,
        JobFailed,
        JobInterrupted,
        JobStopped,
        JobTimeout,
        LeaseLost,
        LockHeld,
        SingleJobError,
        SkipRun,
        UnknownJob,
        UnsafeTransaction,
    )
    from django_singlejob.jobs.registry import Job
    from django_singlejob.locking.lease import Lease
    from django_singlejob.locking.request import Reason
    from django_singlejob.monitoring.facts import status
    from django_singlejob.running.current_run import CurrentRun, current_run, raise_if_stopped
    from django_singlejob.running.decorators import command_job, job_lock, shell_job, singleton_job
    from django_singlejob.running.outcomes import SKIPPED, Outcome, Skipped
    from django_singlejob.tasks.retries import retried

__version__ = "0.2.0"

__all__ = [
    "SKIPPED",
    "CurrentRun",
    "DatabaseUnreachable",
    "DatabaseUnusable",
    "DuplicateJob",
    "InvalidName",
    "InvalidOrder",
    "InvalidSchedule",
    "Job",
    "JobDied",
    "JobFailed",
    "JobInterrupted",
    "JobStopped",
    "JobTimeout",
    "Lease",
    "LeaseLost",
    "LockHeld",
    "Outcome",
    "Reason",
    "SingleJobError",
    "SkipRun",
    "Skipped",
    "UnknownJob",
    "UnsafeTransaction",
    "command_job",
    "current_run",
    "is_executor",
    "job_lock",
    "raise_if_stopped",
    "retried",
    "shell_job",
    "singleton_job",
    "status",
]

_HOMES = {
    "singleton_job": "running.decorators",
    "command_job": "running.decorators",
    "job_lock": "running.decorators",
    "shell_job": "running.decorators",
    "SKIPPED": "running.outcomes",
    "Skipped": "running.outcomes",
    "CurrentRun": "running.current_run",
    "Outcome": "running.outcomes",
    "Reason": "locking.request",
    "current_run": "running.current_run",
    "raise_if_stopped": "running.current_run",
    "Lease": "locking.lease",
    "Job": "jobs.registry",
    "status": "monitoring.facts",
    "retried": "tasks.retries",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        home = import_module(f"{__name__}.{_HOMES.get(name, 'exceptions')}")
    except AppRegistryNotReady as error:
        raise AppRegistryNotReady(
            f"django_singlejob.{name} needs Django's models, which are not loaded yet. Put jobs into the jobs.py of an "
            "app, not into its __init__.py; in a script, call django.setup() first."
        ) from error
    return getattr(home, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
