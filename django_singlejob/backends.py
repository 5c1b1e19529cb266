"""The backend for Django's own tasks, from Django 6.0 on.

::

    TASKS = {"default": {"BACKEND": "django_singlejob.backends.SingleJobBackend"}}
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

from django.core import checks
from django.tasks import Task, TaskResult
from django.tasks.backends.base import BaseTaskBackend
from django.tasks.exceptions import InvalidTask, TaskResultDoesNotExist
from django.tasks.signals import task_enqueued

from django_singlejob.names import NAME_LENGTH
from django_singlejob.one_offs import django_tasks
from django_singlejob.one_offs.enqueue import Order
from django_singlejob.querysets.one_offs import one_offs

MAX_ATTEMPTS = 3
_KEY = re.compile(r"[1-9][0-9]{0,18}", re.ASCII)


def _is_key(result_id: object) -> bool:
    return isinstance(result_id, str) and _KEY.fullmatch(result_id) is not None


class SingleJobBackend(BaseTaskBackend):
    """Enqueues tasks as one-offs, which ``singleton_worker`` runs.

    A task whose function is a singleton job runs under that job's lock; all others run beside each other.

    Options:
        max_attempts: how often a task that is no singleton job is begun at most, if its workers die (default: 3).
    """

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        self._max_attempts = self.options.get("max_attempts", MAX_ATTEMPTS)

    def validate_task(self, task: Task[..., Any]) -> None:
        """Raise ``InvalidTask`` for what can never be run."""
        if job := django_tasks.job_of(task):
            # What is to be looked at is the function, and a copy of the task would be validated once more.
            plain = {name: getattr(task, name) for name in ("priority", "queue_name", "run_after", "takes_context")}
            super().validate_task(cast("Task[..., Any]", SimpleNamespace(func=job.func, **plain)))
        else:
            super().validate_task(task)
        if len(task.module_path) > NAME_LENGTH:
            raise InvalidTask(f"{task.module_path!r} is too long: at most {NAME_LENGTH} characters are kept.")

    def enqueue(self, task: Task[..., Any], args: Any, kwargs: Any) -> TaskResult[..., Any]:  # type: ignore[override]
        """Have a worker run it. Inside a transaction it is seen when that is committed.

        Raises ``InvalidOrder`` for arguments that cannot be kept, naming the one, and ``InvalidTask``.
        """
        self.validate_task(task)
        if not django_tasks.is_found(task):
            raise InvalidTask(
                f"No worker would find the task under {task.module_path!r}: give the variable in its module the "
                "function's name, as @task does."
            )
        row = self._order(task).enqueue(*args, **kwargs)
        result = django_tasks.result_of(row, task)
        task_enqueued.send_robust(type(self), task_result=result)
        return result

    def _order(self, task: Task[..., Any]) -> Order:
        job = django_tasks.job_of(task)
        return Order(
            job_name=job.name if job else "",
            task_path="" if job else task.module_path,
            max_attempts=job.most_attempts if job else self._max_attempts,
            queue_name=task.queue_name,
            priority=task.priority,
            run_after=task.run_after,
            backend=self.alias,
        )

    def get_result(self, result_id: str) -> TaskResult[..., Any]:
        """What has become of a task. Raises ``TaskResultDoesNotExist``: it was never enqueued here, or was pruned, or
        this release of the code does not know it, or the id is not text."""
        row = one_offs().exclude(backend="").filter(pk=result_id).first() if _is_key(result_id) else None
        task = django_tasks.find(row) if row else None
        if row is None or task is None:
            raise TaskResultDoesNotExist(result_id)
        return django_tasks.result_of(row, task)

    def check(self, **kwargs: Any) -> Iterator[checks.CheckMessage]:  # type: ignore[override]
        """E009, E010: the options."""
        if unknown := sorted(set(self.options) - {"max_attempts"}):
            yield checks.Error(
                f"TASKS[{self.alias!r}]['OPTIONS'] has no key {unknown[0]!r}.",
                hint="The only one is: max_attempts.",
                id="singlejob.E009",
            )
        if not isinstance(self._max_attempts, int) or self._max_attempts < 1:
            yield checks.Error(
                f"TASKS[{self.alias!r}]['OPTIONS']['max_attempts'] is {self._max_attempts!r}, but must be 1 or more.",
                hint="It is how often a task is begun at most, if its workers die.",
                id="singlejob.E010",
            )
