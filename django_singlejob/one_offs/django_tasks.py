"""Django's own tasks (``django.tasks``, there from Django 6.0 on) behind one-offs: which one a row is for, and what is
told of it. On Django 5.2 there are none."""

import logging
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import django
from django.utils.module_loading import import_string

from django_singlejob import registry
from django_singlejob.registry import Job

if django.VERSION >= (6, 0):
    from django.tasks import Task, TaskContext, TaskResult, TaskResultStatus
    from django.tasks.base import TaskError
    from django.tasks.exceptions import InvalidTask, InvalidTaskBackend
    from django.tasks.signals import task_finished, task_started

    STATUSES = {
        "waiting": TaskResultStatus.READY,
        "in_progress": TaskResultStatus.RUNNING,
        "done": TaskResultStatus.SUCCESSFUL,
        "failed": TaskResultStatus.FAILED,
        "cancelled": TaskResultStatus.FAILED,
    }

if TYPE_CHECKING:
    from django_singlejob.models import OneOffJob

logger = logging.getLogger("django_singlejob")


def find(row: "OneOffJob") -> "Task[..., Any] | None":
    """The task that the row is for: over its job, or else of that dotted path. ``None``: it was not asked for as a
    task, or this release of the code has no such task."""
    if not row.backend or django.VERSION < (6, 0):
        return None
    # A job is found by its name, wherever it stands by now.
    return _at(registry.get(row.job_name).path if registry.is_known(row.job_name) else row.task_path)


def is_found(task: "Task[..., Any]") -> bool:
    """Whether a worker would find it, too: it stands in its module under its function's name."""
    found = _at(task.module_path)
    return found is not None and found.func == task.func


def job_of(task: "Task[..., Any]") -> Job | None:
    """The singleton job that is the task's function, if it is one."""
    func: object = task.func
    return func if isinstance(func, Job) else None


def _at(path: str) -> "Task[..., Any] | None":
    try:
        found = import_string(path)
    except ImportError:
        return None
    except Exception:  # whatever a module does when it is imported: the other tasks are run
        logger.exception("The module of the task %r cannot be imported.", path)
        return None
    return found if isinstance(found, Task) else None


def result_of(row: "OneOffJob", task: "Task[..., Any]") -> "TaskResult[..., Any]":
    """The row as Django's tasks see it."""
    # Both are the time of one statement if it was to be run at once.
    run_after = None if row.run_after == row.created_at else row.run_after
    result: TaskResult[..., Any] = TaskResult(
        task=_as_asked(task, row.priority, row.queue_name, run_after, row.backend),
        id=str(row.pk),
        status=STATUSES[row.status],
        enqueued_at=row.created_at,
        started_at=row.started_at,
        finished_at=row.finished_at,
        last_attempted_at=row.started_at,
        args=row.args,
        kwargs=row.kwargs,
        backend=row.backend,
        errors=[_error_of(row)] if row.error_class else [],
        # One that was interrupted counts as no attempt.
        worker_ids=row.worker_ids.splitlines()[-row.attempt :] if row.attempt else [],
    )
    # It is frozen, and no argument of its constructor: Django's own backend sets it like this.
    object.__setattr__(result, "_return_value", row.result)
    return result


@lru_cache(maxsize=1000)
def _as_asked(
    task: "Task[..., Any]", priority: int, queue_name: str, run_after: datetime | None, backend: str
) -> "Task[..., Any]":
    try:
        return task.using(priority=priority, queue_name=queue_name, run_after=run_after, backend=backend)
    except (InvalidTask, InvalidTaskBackend):
        return task  # what the settings allow has changed since


def _error_of(row: "OneOffJob") -> "TaskError":
    return TaskError(exception_class_path=row.error_class, traceback=row.traceback or row.error)


def begin(row: "OneOffJob", task: "Task[..., Any]") -> list[Any]:
    """Tell whoever listens that the task has started. Returns what its function is called with before its arguments."""
    result = result_of(row, task)
    task_started.send_robust(sender=type(result.task.get_backend()), task_result=result)
    return [TaskContext(task_result=result)] if task.takes_context else []


def end(row: "OneOffJob", task: "Task[..., Any]") -> None:
    """Tell whoever listens that the task has finished, if it has; after an exception, while that is handled."""
    result = result_of(row, task)
    if result.is_finished:
        task_finished.send_robust(sender=type(result.task.get_backend()), task_result=result)
