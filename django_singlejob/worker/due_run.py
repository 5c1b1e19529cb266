"""A run of a job that is due: of a slot, of a one-off, or of pruning. Its steps are carried out here or in a child."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

from asgiref.sync import sync_to_async
from django.core.exceptions import ObjectDoesNotExist
from django.db import Error

from django_singlejob.database import errors
from django_singlejob.exceptions import InvalidOrder, UnknownJob
from django_singlejob.jobs.registry import Job
from django_singlejob.locking.lease import Lease
from django_singlejob.models.one_offs import one_offs
from django_singlejob.process.clock import local_now
from django_singlejob.running import django_tasks
from django_singlejob.running.enqueue import arguments_of
from django_singlejob.running.order import Order, Work
from django_singlejob.running.reports import Report, registered, report_steps, waitless, work_of
from django_singlejob.running.runner import RunRequest
from django_singlejob.running.shared import SharedMemory
from django_singlejob.running.supervisor import Steps, Supervisor
from django_singlejob.worker.due import PRUNING

if TYPE_CHECKING:
    from django.tasks import Task

    from django_singlejob.models import OneOffJob

logger = logging.getLogger("django_singlejob")

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class DueRun:
    """A run of a job, in this process or in a child. ``is_slot``: whether a slot of its schedule is due."""

    job: Job
    steps: Callable[[Supervisor | None], Steps[Report]]
    is_slot: bool = False

    @property
    def name(self) -> str:
        return self.job.name

    def __call__(self) -> Report:
        return _at_once(self.steps(None))


def _at_once(steps: Steps[T]) -> T:
    """The value of steps that wait for nothing."""
    try:
        next(steps)
    except StopIteration as end:
        return cast("T", end.value)
    raise AssertionError("Without a supervisor, no step waits.")


def pruning() -> DueRun:
    """A run that deletes what is old."""
    asked = RunRequest(PRUNING, local_now(), kind=f"{__name__}.work_of_pruning")
    return DueRun(PRUNING, lambda supervisor: report_steps(asked, supervisor))


def work_of_pruning(order: Order, lease: Lease, memory: SharedMemory) -> Work:
    """What an executor does for that."""
    return work_of(PRUNING, order, lease)


def slot_of(job: Job) -> DueRun:
    """A run of the job's next slot."""
    return DueRun(job, partial(_slot_steps, job), is_slot=True)


def _slot_steps(job: Job, supervisor: Supervisor | None) -> Steps[Report]:
    return report_steps(RunRequest(waitless(job), local_now(), trigger="schedule"), supervisor)


def one_off_of(job: Job, row: "OneOffJob") -> DueRun:
    """A run of the job's one-off."""
    return DueRun(job, partial(_one_off_steps, job, row))


def _one_off_steps(job: Job, row: "OneOffJob", supervisor: Supervisor | None) -> Steps[Report]:
    """Run the one-off, if the lock of its job can be acquired."""
    asked = waitless(job)
    request = RunRequest(asked, local_now(), trigger=row.trigger, one_off=row)
    if task := django_tasks.find(row):
        request = request._replace(job=_as_task(asked, row, task), kind=f"{__name__}.work_of_task")
    try:
        args, kwargs = arguments_of(row)
        request = request._replace(args=args, kwargs=kwargs)
    except InvalidOrder as mistake:
        request = request._replace(job=replace(request.job, retries=0), mistake=mistake)
    report = yield from report_steps(request, supervisor)
    return _send_finished(row, task, report) if task and not report.reason else report


def work_of_task(order: Order, lease: Lease, memory: SharedMemory) -> Work:
    """What an executor does for the one-off of a job that was enqueued as a task."""
    job, row = registered(order), one_offs().get(pk=order.facts["one_off"])
    task = django_tasks.find(row)
    if task is None:
        raise UnknownJob(django_tasks.why_unknown(row.task_path))
    return work_of(_as_task(job, row, task), order, lease)


def _send_finished(row: "OneOffJob", task: "Task[..., Any]", report: Report) -> Report:
    try:
        ended = one_offs().get(pk=row.pk)
        to_log = None if report.is_logged_by_child else report.error
        _while_handled(to_log, partial(django_tasks.end, ended, task))
    except (Error, ObjectDoesNotExist) as error:
        message = "The signal that the task of %s has finished could not be sent: %s"
        logger.warning(message, row, errors.words_of(error), extra=report.about(error))
        return report
    return report._replace(is_logged=ended.status == "failed")


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
