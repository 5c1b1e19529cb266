"""A run of a job that is due: of a slot, of a one-off, or of pruning. Its steps are carried out here or in a child."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast

from asgiref.sync import sync_to_async
from django.core.exceptions import ObjectDoesNotExist
from django.db import Error

from django_singlejob.database import errors
from django_singlejob.exceptions import InvalidOrder
from django_singlejob.jobs.registry import Job
from django_singlejob.models.one_offs import one_offs
from django_singlejob.process.clock import local_now
from django_singlejob.running import django_tasks
from django_singlejob.running.enqueue import arguments_of
from django_singlejob.running.reports import Report, logged, report_steps, waitless
from django_singlejob.running.runner import RunRequest
from django_singlejob.running.supervisor import Steps, Supervisor

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


def call_of(job: Job) -> DueRun:
    """A run that neither a schedule nor a one-off is the reason for."""
    return DueRun(job, lambda supervisor: report_steps(RunRequest(job, local_now()), supervisor, logged))


def slot_of(job: Job) -> DueRun:
    """A run of the job's next slot."""
    return DueRun(job, partial(_slot_steps, job), is_slot=True)


def _slot_steps(job: Job, supervisor: Supervisor | None) -> Steps[Report]:
    return report_steps(RunRequest(waitless(job), local_now(), trigger="schedule"), supervisor, logged)


def one_off_of(job: Job, row: "OneOffJob") -> DueRun:
    """A run of the job's one-off."""
    return DueRun(job, partial(_one_off_steps, job, row))


def _one_off_steps(job: Job, row: "OneOffJob", supervisor: Supervisor | None) -> Steps[Report]:
    """Run the one-off, if the lock of its job can be acquired."""
    asked = waitless(job)
    if task := django_tasks.find(row):
        asked = replace(asked, func=_of_task(job, row, task))
    asked, args, kwargs = _with_arguments(asked, row)
    request = RunRequest(asked, local_now(), args, kwargs, trigger=row.trigger, one_off=row)
    report = yield from report_steps(request, supervisor, logged)
    return _send_finished(row, task, report) if task and not report.reason else report


def _with_arguments(job: Job, row: "OneOffJob") -> tuple[Job, Sequence[Any], Mapping[str, Any]]:
    """The job, and what its function is passed. If the row's arguments cannot be used, a job that fails once."""
    try:
        return job, *arguments_of(row)
    except InvalidOrder as mistake:
        return replace(job, func=partial(_raise, mistake), retries=0), (), {}


def _raise(error: Exception) -> NoReturn:
    raise error


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


def _of_task(job: Job, row: "OneOffJob", task: "Task[..., Any]") -> Callable[..., Any]:
    """The job's function, as a Django task calls it: sends the signal that the task has begun, and passes a context."""

    def begin() -> list[Any]:
        return django_tasks.begin(one_offs().get(pk=row.pk), task)

    async def function_async(*args: Any, **kwargs: Any) -> Any:
        return await job.func(*await sync_to_async(begin)(), *args, **kwargs)

    def function(*args: Any, **kwargs: Any) -> Any:
        return job.func(*begin(), *args, **kwargs)

    return function_async if job.is_async else function
