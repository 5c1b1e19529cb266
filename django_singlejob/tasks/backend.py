"""The backend: it enqueues tasks, and finds their results."""

from __future__ import annotations

import os
import re
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from asgiref.sync import sync_to_async
from django.apps import apps
from django.core import checks

from django_singlejob.conf import quoted
from django_singlejob.jobs.names import NAME_LENGTH
from django_singlejob.jobs.registry import MOST_ATTEMPTS
from django_singlejob.models.one_offs import one_offs
from django_singlejob.running.enqueue import AnyCall, Order
from django_singlejob.tasks import django_tasks
from django_singlejob.tasks.api import (
    BaseTaskBackend,
    InvalidTask,
    Task,
    TaskResult,
    TaskResultDoesNotExist,
    task_enqueued,
)
from django_singlejob.tasks.modules import is_allowed, is_importable
from django_singlejob.tasks.retries import retries_of

if TYPE_CHECKING:
    from django_singlejob.models import OneOffJob

MAX_ATTEMPTS = 3
# A package imports its own modules when its app is loaded.
_PACKAGES = tuple(sysconfig.get_path(name) + os.sep for name in ("purelib", "platlib"))
_KEY = re.compile(r"[1-9][0-9]{0,18}", re.ASCII)


def _is_key(result_id: object) -> bool:
    return isinstance(result_id, str) and _KEY.fullmatch(result_id) is not None


class SingleJobBackend(BaseTaskBackend):
    """Enqueues tasks as one-offs, which ``singleton_worker`` runs.

    A task whose function is a singleton job runs under that job's lock. All other tasks run concurrently.

    Options:
        max_attempts: how many times a task that is not a singleton job may be started if its workers die (default: 3;
            one that has ``@retried``: once more than its ``retries``, if that is more).
    """

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        self._max_attempts = self.options.get("max_attempts", MAX_ATTEMPTS)

    def validate_task(self, task: Task[..., Any]) -> None:
        """Raise ``InvalidTask`` if the task can never run."""
        if job := django_tasks.job_of(task):
            # Validate the job's function. A copy of the task would be validated again when it is created.
            plain = {name: getattr(task, name) for name in ("priority", "queue_name", "run_after", "takes_context")}
            super().validate_task(cast("Task[..., Any]", SimpleNamespace(func=job.func, **plain)))
        else:
            super().validate_task(task)
        if len(task.module_path) > NAME_LENGTH:
            raise InvalidTask(
                f"The path {task.module_path!r} is longer than {NAME_LENGTH} characters. Shorten the name of the task "
                "or of its module."
            )

    def enqueue(  # type: ignore[override]
        self, task: Task[..., Any], args: Any, kwargs: Any, *, unique: bool | str = False
    ) -> TaskResult[..., Any]:
        """Enqueue the task for a worker. If a transaction is open, workers see the task after the commit. ``unique``:
        see ``Order``; the result is of the task that waits.

        Raises ``InvalidOrder``, naming the argument, if an argument cannot be stored, and ``InvalidTask``.
        """
        order = self._order(task, unique)
        return self._enqueued(task, order.enqueue(*args, **kwargs))

    async def aenqueue(  # type: ignore[override]
        self, task: Task[..., Any], args: Any, kwargs: Any, *, unique: bool | str = False
    ) -> TaskResult[..., Any]:
        """The same, for an ``async def``."""
        return await sync_to_async(self.enqueue)(task, args, kwargs, unique=unique)

    def enqueue_many(
        self, task: Task[..., Any], calls: Iterable[AnyCall], *, unique: bool = False
    ) -> list[TaskResult[..., Any]]:
        """Enqueue the task once for each call: a pair of its arguments, as a list or tuple, and its keyword arguments,
        as a dict. Enqueues all of them or none, and returns their results in the same order. ``unique``: whether only
        one waits with the same arguments.

        Raises ``InvalidOrder``, naming the call and the argument, if one cannot be stored, and ``InvalidTask``.
        """
        order = self._order(task, unique)
        rows = order.enqueue_many(calls)
        found = {pk: self._enqueued(task, row) for pk, row in {row.pk: row for row in rows}.items()}
        return [found[row.pk] for row in rows]

    async def aenqueue_many(
        self, task: Task[..., Any], calls: Iterable[AnyCall], *, unique: bool = False
    ) -> list[TaskResult[..., Any]]:
        """The same, for an ``async def``."""
        return await sync_to_async(self.enqueue_many)(task, calls, unique=unique)

    def _enqueued(self, task: Task[..., Any], row: OneOffJob) -> TaskResult[..., Any]:
        result = django_tasks.result_of(row, task)
        if row.asked < 2:  # a row that waited already has been announced
            task_enqueued.send_robust(type(self), task_result=result)
        return result

    def _order(self, task: Task[..., Any], unique: bool | str) -> Order:
        """Raises ``InvalidTask`` if no worker could run the task."""
        self.validate_task(task)
        if problem := _why_not_found(task):
            raise InvalidTask(problem)
        job = django_tasks.job_of(task)
        return Order(
            job_name=job.name if job else "",
            task_path="" if job else task.module_path,
            max_attempts=job.most_attempts if job else self._most_attempts(task),
            queue_name=task.queue_name,
            priority=task.priority,
            run_after=task.run_after,
            backend=self.alias,
            unique=unique,
        )

    def _most_attempts(self, task: Task[..., Any]) -> int:
        most: int = self._max_attempts
        retries = retries_of(task.func)
        return max(most, retries.retries + 1) if retries else most

    def get_result(self, result_id: str) -> TaskResult[..., Any]:
        """Return the result of a task. Raises ``TaskResultDoesNotExist`` if the task was never enqueued here, was
        pruned, or cannot be found by a worker of this release, or if the id is invalid."""
        row = one_offs().exclude(backend="").filter(pk=result_id).first() if _is_key(result_id) else None
        task = django_tasks.find(row) if row else None
        if row is None or task is None:
            raise TaskResultDoesNotExist(result_id)
        return django_tasks.result_of(row, task)

    def check(self, **kwargs: Any) -> Iterator[checks.CheckMessage]:  # type: ignore[override]
        """E009: the options exist. E010: their values are valid. W012: workers can find the tasks."""
        for task in _tasks_of(self.alias):
            if problem := _why_not_found(task):
                yield checks.Warning(problem, hint="Until then, enqueue() raises InvalidTask.", id="singlejob.W012")
            elif not (django_tasks.job_of(task) or _is_imported_by_workers(task.module_path)):
                yield checks.Warning(
                    f"Workers may not find the task {task.module_path!r}: they do not import its module.",
                    hint="Move the task into an installed app, or import its module in the tasks.py of one.",
                    id="singlejob.W012",
                )
        if unknown := sorted(set(self.options) - {"max_attempts"}):
            yield checks.Error(
                f"TASKS[{self.alias!r}]['OPTIONS'] contains the unknown key {quoted(unknown[0])}.",
                hint="The only valid key is 'max_attempts'.",
                id="singlejob.E009",
            )
        if not isinstance(self._max_attempts, int) or not 1 <= self._max_attempts <= MOST_ATTEMPTS:
            yield checks.Error(
                f"TASKS[{self.alias!r}]['OPTIONS']['max_attempts'] is {quoted(self._max_attempts)}, but must be 1 or "
                f"more, and {MOST_ATTEMPTS} at most.",
                hint="Set it to how many times a task may be started if its workers die.",
                id="singlejob.E010",
            )


def _why_not_found(task: Task[..., Any]) -> str:
    """Why no worker can find the task; empty if nothing is known that prevents it."""
    path = task.module_path
    if django_tasks.job_of(task) is None and not is_allowed(path):
        return f"Workers cannot find the task {path!r}, because it is defined in a __main__. Move it into an app."
    if not django_tasks.is_found(task):
        return (
            f"Workers cannot find a task at {path!r}. Assign the task to a variable of its module that has the "
            "function's name, as @task does."
        )
    return ""


def _tasks_of(alias: str) -> list[Task[..., Any]]:
    """The tasks of this backend that some module of this process has."""
    values = (value for module in [*sys.modules.values()] for value in [*getattr(module, "__dict__", {}).values()])
    # Not isinstance, for which a lazy object evaluates itself.
    found = {id(value): cast("Task[..., Any]", value) for value in values if issubclass(type(value), Task)}
    tasks = (task for task in found.values() if task.backend == alias)
    return sorted(tasks, key=lambda task: task.module_path)


def _is_imported_by_workers(path: str) -> bool:
    """Whether a worker imports the task's module: because it may, or because it does so when it loads the apps. A
    package outside the project is taken for one that does."""
    name = path.rpartition(".")[0]
    file = getattr(sys.modules.get(name), "__file__", None) or ""
    ours: Any = apps.get_app_config("django_singlejob")
    return is_importable(path) or name in ours.loaded or file.startswith(_PACKAGES)
