"""Django's own tasks that do next to nothing: the worker is measured, not the task."""

from __future__ import annotations

import os
from typing import Any

from django.tasks import TaskContext, task

from django_singlejob import is_executor

# The process that is killed, if one is.
WORKER = os.getppid() if is_executor() else os.getpid()


@task
def noop() -> None:
    pass


@task(takes_context=True)
def noted(context: TaskContext[..., Any], number: int, file: str) -> None:
    """Leaves a line that outlives this process."""
    descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(descriptor, f"{number}/{context.attempt}/{WORKER}\n".encode())
    finally:
        os.close(descriptor)
