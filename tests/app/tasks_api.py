"""What the tests use of Django's tasks. Before Django 6.0, that is in the package django-tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import django

if TYPE_CHECKING or django.VERSION >= (6, 0):
    from django.tasks import TaskContext, TaskResult, TaskResultStatus, default_task_backend, task, task_backends
    from django.tasks.base import TaskError
    from django.tasks.exceptions import InvalidTask, InvalidTaskBackend, TaskResultDoesNotExist, TaskResultMismatch
    from django.tasks.signals import task_enqueued, task_finished, task_started
else:
    from django_tasks import TaskContext, TaskResult, TaskResultStatus, default_task_backend, task, task_backends
    from django_tasks.base import TaskError
    from django_tasks.exceptions import (
        InvalidTaskBackendError as InvalidTaskBackend,
        InvalidTaskError as InvalidTask,
        TaskResultDoesNotExist,
        TaskResultMismatch,
    )
    from django_tasks.signals import task_enqueued, task_finished, task_started

#: Also the name of its logger.
PACKAGE = "django.tasks" if django.VERSION >= (6, 0) else "django_tasks"
SIGNALS = {"task_enqueued": task_enqueued, "task_started": task_started, "task_finished": task_finished}

__all__ = [
    "PACKAGE",
    "SIGNALS",
    "InvalidTask",
    "InvalidTaskBackend",
    "TaskContext",
    "TaskError",
    "TaskResult",
    "TaskResultDoesNotExist",
    "TaskResultMismatch",
    "TaskResultStatus",
    "default_task_backend",
    "task",
    "task_backends",
    "task_enqueued",
]
