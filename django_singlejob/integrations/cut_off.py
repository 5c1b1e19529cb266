"""Runs that were cut off, by a signal or by the death of their holder, as they are reported to other services.

What a signal cuts off is run again, so it is not reported; the second time in a row it is a failure, as in the rows.
What dies is a failure, which the process that takes its lock reports.
"""

from typing import TYPE_CHECKING

from django_singlejob.exceptions import JobInterrupted
from django_singlejob.jobs import registry
from django_singlejob.jobs.discovery import autodiscover
from django_singlejob.jobs.registry import Job
from django_singlejob.running.current_run import CurrentRun

if TYPE_CHECKING:
    from django_singlejob.models import JobLock


def is_taken_up_again(run: CurrentRun, error: BaseException | None) -> bool:
    """Whether a signal has ended the run, and what it was for is run again. ``False`` if the run before it was
    interrupted too."""
    grant = run.lease.grant
    if run.lease.stopped_by or grant.before.get("last_status") == "interrupted":
        return False
    if grant.slot:
        return isinstance(error, KeyboardInterrupt) and not grant.is_last_of_slot
    return isinstance(error, JobInterrupted) and grant.request.one_off is not None and run.job.most_attempts > 1


def job_of(lock: "JobLock") -> Job | None:
    """The job whose run had this lock. ``None`` if no job of that name is registered, as for a shell command."""
    if not registry.is_known(lock.job_name):
        autodiscover()  # a web server may not have needed it
    return registry.get(lock.job_name) if registry.is_known(lock.job_name) else None
