"""The tables, with every write that decides something and every filter, a file for each kind of row.

Each write is one conditional statement, judged by the number of rows it changed and by the database's clock. Reading
the row again would not work, because a REPEATABLE READ snapshot is stale. ``save()`` and ``delete()`` of an instance
would not work either, because they resurrect a row or end the lease of a successor.
"""

from django_singlejob.models.alerts import JobAlert
from django_singlejob.models.jobs import JobStatus, Overview
from django_singlejob.models.locks import JobLock
from django_singlejob.models.notes import JobNote
from django_singlejob.models.one_offs import OneOffJob, OneOffStatus
from django_singlejob.models.passes import WorkerPass
from django_singlejob.models.runs import JobRun, RunStatus, RunTrigger

__all__ = [
    "JobAlert",
    "JobLock",
    "JobNote",
    "JobRun",
    "JobStatus",
    "OneOffJob",
    "OneOffStatus",
    "Overview",
    "RunStatus",
    "RunTrigger",
    "WorkerPass",
]
