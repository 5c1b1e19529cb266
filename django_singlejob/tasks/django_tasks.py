"""Connects one-offs with Django's tasks: finds the task that a row is for, presents the row as a ``TaskResult``, and
sends the tasks' signals. Django 5.2 has tasks only with the package django-tasks."""

from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from django_singlejob.jobs import registry
from django_singlejob.jobs.registry import Job
from django_singlejob.models.one_offs import errors_in
from django_singlejob.tasks.api import HAS_TASKS
from django_singlejob.tasks.modules import exception_at, found_at, is_allowed, is_broken

if HAS_TASKS:
    from django_singlejob.tasks.api import (
        InvalidTask,
        InvalidTaskBackend,
        Task,
        TaskContext,
        TaskError,
        TaskResult,
        TaskResultStatus,
        task_finished,
        task_started,
    )

    STATUSES = {
        "waiting": TaskResultStatus.READY,
        "in_progress": TaskResultStatus.RUNNING,
        "done": TaskResultStatus.SUCCESSFUL,
        "failed": TaskResultStatus.FAILED,
        "cancelled": TaskResultStatus.FAILED,
    }

    class StoredError(TaskError):
        """An error of a row."""

        __slots__ = ()

        @property
        def exception_class(self) -> type[BaseException]:
            """The class of the exception. Raises ``ImportError`` if it cannot be found, or if only an import that the
            project has not allowed would find it; ``ValueError`` if the path leads to something else."""
            return exception_at(self.exception_class_path)


if TYPE_CHECKING:
    from django_singlejob.models import OneOffJob


def find(row: "OneOffJob") -> "Task[..., Any] | None":
    """The task that the row is for: the task over its job, or the one at its dotted path. ``None`` if the row was not
    enqueued as a task, or if a worker cannot find the task here: ``why_unknown`` says why."""
    if not row.backend or not HAS_TASKS:
        return None
    if registry.is_known(row.job_name):
        # A job is found by its name, wherever it is defined now. This path comes from the code, not from the row.
        return _at(registry.get(row.job_name).path)
    return _at(row.task_path) if is_allowed(row.task_path) else None


def why_unknown(path: str) -> str:
    """Why a worker does not find a task at this path: the beginning of a sentence."""
    if not is_allowed(path):
        return (
            f"The task {path!r} is not looked up, because its module has not been imported, and is not in an installed "
            "app"
        )
    if is_broken(path):
        return f"The module of the task {path!r} cannot be imported"
    return f"This release of the code has no task {path!r}"


def is_found(task: "Task[..., Any]") -> bool:
    """Whether a worker can find the task too: its module must have it under its function's name."""
    found = _at(task.module_path)
    return found is not None and found.func == task.func


def job_of(task: "Task[..., Any]") -> Job | None:
    """The singleton job that is the task's function, if it is one."""
    func: object = task.func
    return func if isinstance(func, Job) else None


def _at(path: str) -> "Task[..., Any] | None":
    found = found_at(path)
    return found if isinstance(found, Task) else None


def result_of(row: "OneOffJob", task: "Task[..., Any]") -> "TaskResult[..., Any]":
    """The row as a ``TaskResult``."""
    # If it was to run at once, one statement set both to the same time.
    run_after = None if row.run_after == row.created_at else row.run_after
    result: TaskResult[..., Any] = TaskResult(
        task=_as_enqueued(task, row.priority, row.queue_name, run_after, row.backend),
        id=str(row.pk),
        status=STATUSES[row.status],
        enqueued_at=row.created_at,
        started_at=row.started_at,
        finished_at=row.finished_at,
        last_attempted_at=row.started_at,
        args=row.args,
        kwargs=row.kwargs,
        backend=row.backend,
        errors=_errors_of(row),
        # An interrupted attempt does not count.
        worker_ids=row.worker_ids.splitlines()[-row.attempt :] if row.attempt else [],
    )
    # The dataclass is frozen and its constructor takes no return value. Django's own backend sets it like this.
    object.__setattr__(result, "_return_value", row.result)
    return result


@lru_cache(maxsize=1000)
def _as_enqueued(
    task: "Task[..., Any]", priority: int, queue_name: str, run_after: datetime | None, backend: str
) -> "Task[..., Any]":
    try:
        return task.using(priority=priority, queue_name=queue_name, run_after=run_after, backend=backend)
    except (InvalidTask, InvalidTaskBackend):
        return task  # the settings have changed and do not allow these options any more


def _errors_of(row: "OneOffJob") -> "list[TaskError]":
    """The error of each attempt that failed, the oldest first."""
    # A row that was written by hand may have only the last one.
    last = {"error_class": row.error_class, "traceback": row.traceback, "error": row.error}
    found = list(errors_in(row.errors)) or [last]
    return [
        StoredError(exception_class_path=error["error_class"], traceback=error["traceback"] or error["error"])
        for error in found
        if error["error_class"]
    ]


def begin(row: "OneOffJob", task: "Task[..., Any]") -> list[Any]:
    """Send ``task_started``. Returns what the task's function is passed before its own arguments."""
    result = result_of(row, task)
    task_started.send_robust(sender=type(result.task.get_backend()), task_result=result)
    return [TaskContext(task_result=result)] if task.takes_context else []


def end(row: "OneOffJob", task: "Task[..., Any]") -> None:
    """Send ``task_finished`` if the task has finished. After an exception, call this while it is being handled."""
    result = result_of(row, task)
    if result.is_finished:
        task_finished.send_robust(sender=type(result.task.get_backend()), task_result=result)
