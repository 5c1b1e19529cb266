"""Django's tasks: from Django 6.0 on its own, before that those of the package django-tasks, if it is installed."""

from typing import TYPE_CHECKING

import django

HAS_TASKS = True

if TYPE_CHECKING or django.VERSION >= (6, 0):
    from django.tasks import Task, TaskContext, TaskResult, TaskResultStatus
    from django.tasks.backends.base import BaseTaskBackend
    from django.tasks.base import TaskError
    from django.tasks.exceptions import InvalidTask, InvalidTaskBackend, TaskResultDoesNotExist
    from django.tasks.signals import task_enqueued, task_finished, task_started
else:
    try:
        from django_tasks.backends.base import BaseTaskBackend
        from django_tasks.base import (
            DEFAULT_TASK_PRIORITY,  # noqa: F401  (new in 0.12; older releases have other names than Django)
            Task,
            TaskContext,
            TaskError,
            TaskResult,
            TaskResultStatus,
        )
        from django_tasks.exceptions import (
            InvalidTaskBackendError as InvalidTaskBackend,
            InvalidTaskError as InvalidTask,
            TaskResultDoesNotExist,
        )
        from django_tasks.signals import task_enqueued, task_finished, task_started
    except ImportError:
        # It is not installed, or older than our extra asks for: the project has it for another package.
        HAS_TASKS = False

__all__ = [
    "HAS_TASKS",
    "BaseTaskBackend",
    "InvalidTask",
    "InvalidTaskBackend",
    "Task",
    "TaskContext",
    "TaskError",
    "TaskResult",
    "TaskResultDoesNotExist",
    "TaskResultStatus",
    "task_enqueued",
    "task_finished",
    "task_started",
]
