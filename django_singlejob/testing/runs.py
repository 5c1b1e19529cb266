"""Runs what is due in the test's process, shows what waits, and lets a run's time be over."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from django_singlejob.conf import options
from django_singlejob.database import transactions
from django_singlejob.exceptions import JobTimeout, SingleJobError
from django_singlejob.jobs.registry import Job
from django_singlejob.jobs.schedule import MINUTE
from django_singlejob.models.one_offs import one_offs
from django_singlejob.process.clock import local_now
from django_singlejob.running.outcomes import Outcome
from django_singlejob.signals import job_started
from django_singlejob.testing.arguments import discover, instant_of, job_of
from django_singlejob.testing.clocks import travel
from django_singlejob.worker.due import follow_code
from django_singlejob.worker.loop import Worker
from django_singlejob.worker.tick import Plan

if TYPE_CHECKING:
    from django_singlejob.models import OneOffJob


def run_due(at: datetime | str | None = None) -> list[Outcome]:
    """Run what is due at this instant, or now: slots, one-offs and tasks, as one pass of a worker here does. Returns
    the outcomes, in order: nothing that a job raises is raised, it is the ``error`` of an outcome. No URL is pinged.

    ``at`` is an aware datetime, or ISO 8601. The clocks move there as by ``travel``. A schedule that is new to the
    database is followed from a minute before, so that the slot of this minute is due; without ``at``, from now on.

    Raises ``SingleJobError`` for another ``at``, if jobs are disabled, or if a module of jobs cannot be imported, and
    ``UnsafeTransaction`` inside a transaction.
    """
    discover()
    transactions.refuse_open_transaction(transactions.alias(), is_of_job=True)
    if not options().enabled:
        raise SingleJobError("run_due() runs nothing while SINGLEJOB['ENABLED'] is False: override it in the test.")
    with ExitStack() as life:
        for name in ("ping_start", "ping_end", "ping_death"):
            # A monitor of production would take this for it.
            life.enter_context(patch(f"django_singlejob.integrations.pings.{name}"))
        if at is not None:
            instant = instant_of(at)
            with travel(instant - MINUTE):
                follow_code()
            life.enter_context(travel(instant))
        return [*Worker(Plan(once=True)).work()]


def enqueued(job: Any) -> "list[OneOffJob]":
    """The one-offs of a job, or of one of Django's tasks, that wait, with their ``args`` and ``kwargs``, the oldest
    first. What an open transaction has enqueued counts.

    Raises ``UnknownJob``, and ``SingleJobError`` if this is neither a job, nor the name of one, nor a task.
    """
    path = getattr(job, "module_path", None)
    if path is None or isinstance(job.func, Job):
        which = {"job_name": job_of(job if path is None else job.func).name}
    else:
        which = {"task_path": path}
    return [*one_offs().waiting().filter(**which).order_by("pk")]


@contextmanager
def times_out(job: Job | str, at: str = "") -> Iterator[None]:
    """Let the time of each run of this job be over that begins in the block.

    The next ``check()`` raises ``JobTimeout`` in the body, as a command raises it wherever the body is. ``at``: the
    dotted path of a function that the body calls, as for ``unittest.mock.patch``, which raises it in its place.

    Raises ``SingleJobError`` if the job has no ``max_runtime``, and ``UnknownJob``.
    """
    found = job_of(job)
    if found.max_runtime is None:
        raise SingleJobError(f"The job {found.name!r} has no max_runtime, so its time is never over. Give it one.")

    def end(name: str, run: Any, **_: Any) -> None:
        if name == found.name:
            run.lease.runtime_ends_at = local_now()

    with ExitStack() as life:
        if at:
            life.enter_context(patch(at, side_effect=JobTimeout))
        job_started.connect(end)
        life.callback(job_started.disconnect, end)
        yield
