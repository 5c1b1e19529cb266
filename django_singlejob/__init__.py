"""Run one copy of a job on many servers, with nothing but the database Django already has.

The public names are imported on first use, so you can import this package at any time: before the settings are loaded,
before the apps are ready, or in an app's ``__init__``.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from django_singlejob.decorators import job_lock, singleton_job
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
        JobTimeout,
        LeaseLost,
        LockHeld,
        SingleJobError,
        UnknownJob,
        UnsafeTransaction,
    )
    from django_singlejob.locking.lease import Lease
    from django_singlejob.locking.request import Reason
    from django_singlejob.registry import Job
    from django_singlejob.runner import SKIPPED, CurrentRun, Outcome, current_run

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
    "JobTimeout",
    "Lease",
    "LeaseLost",
    "LockHeld",
    "Outcome",
    "Reason",
    "SingleJobError",
    "UnknownJob",
    "UnsafeTransaction",
    "current_run",
    "job_lock",
    "singleton_job",
]

_HOMES = {
    "singleton_job": "decorators",
    "job_lock": "decorators",
    "SKIPPED": "runner",
    "CurrentRun": "runner",
    "Outcome": "runner",
    "Reason": "locking.request",
    "current_run": "runner",
    "Lease": "locking.lease",
    "Job": "registry",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = import_module(f"{__name__}.{_HOMES.get(name, 'exceptions')}")
    return getattr(home, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
