"""One-offs of jobs that were enqueued as Django's tasks: they run as jobs, and the tasks' signals are sent."""

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from asgiref.sync import sync_to_async
from django.core.exceptions import ObjectDoesNotExist
from django.db import Error

from django_singlejob.database import errors
from django_singlejob.exceptions import UnknownJob
from django_singlejob.jobs.registry import Job
from django_singlejob.locking.lease import Lease
from django_singlejob.models.one_offs import one_offs
from django_singlejob.running.order import Order, Work
from django_singlejob.running.outcomes import Outcome
from django_singlejob.running.runner import Run, outcome_steps, registered, work_of
from django_singlejob.running.shared import SharedMemory
from django_singlejob.running.supervisor import Steps, Supervisor
from django_singlejob.tasks import django_tasks

if TYPE_CHECKING:
    from django.tasks import Task

    from django_singlejob.models import OneOffJob

logger = logging.getLogger("django_singlejob")


def one_off_steps(run: Run, row: "OneOffJob", supervisor: Supervisor | None) -> Steps[Outcome]:
    """Run the one-off as ``outcome_steps`` does, and as a task if it was enqueued as one."""
    task = django_tasks.find(row)
    if task is None:
        return (yield from outcome_steps(run, supervisor))
    run.job, run.kind = _as_task(run.job, row, task), f"{__name__}.work_of_task"
    outcome = yield from outcome_steps(run, supervisor)
    return outcome if outcome.refusal else _send_finished(run, row, task, outcome)


def work_of_task(order: Order, lease: Lease, memory: SharedMemory) -> Work:
    """What an executor does for the one-off of a job that was enqueued as a task."""
    job, row = registered(order), one_offs().get(pk=order.facts["one_off"])
    task = django_tasks.find(row)
    if task is None:
        raise UnknownJob(django_tasks.why_unknown(row.task_path))
    return work_of(_as_task(job, row, task), order, lease)


def _send_finished(run: Run, row: "OneOffJob", task: "Task[..., Any]", outcome: Outcome) -> Outcome:
    try:
        ended = one_offs().get(pk=row.pk)
        to_log = None if outcome.is_logged_by_child else outcome.error
        _while_handled(to_log, partial(django_tasks.end, ended, task))
    except (Error, ObjectDoesNotExist) as error:
        message = "The signal that the task of %s has finished could not be sent: %s"
        extra = run.granted.grant.facts(reason=error) if run.granted else outcome.about(error)
        logger.warning(message, row, errors.words_of(error), extra=extra)
        return outcome
    return replace(outcome, is_logged=ended.status == "failed")


def _while_handled(error: BaseException | None, act: Callable[[], object]) -> None:
    """Call ``act`` while the error, if there is one, is being handled: receivers of signals log it."""
    try:
        if error:
            raise error  # noqa: TRY301
    except BaseException:
        act()
    else:
        act()


def _as_task(job: Job, row: "OneOffJob", task: "Task[..., Any]") -> Job:
    """The job, whose function is called as a Django task's: after the signal that the task has begun, and with a
    context."""

    def begin() -> list[Any]:
        return django_tasks.begin(one_offs().get(pk=row.pk), task)

    async def function_async(*args: Any, **kwargs: Any) -> Any:
        return await job.func(*await sync_to_async(begin)(), *args, **kwargs)

    def function(*args: Any, **kwargs: Any) -> Any:
        return job.func(*begin(), *args, **kwargs)

    return replace(job, func=function_async if job.is_async else function)
