"""A task that does nothing, for Django's own tasks: the worker is measured, not the task."""

from __future__ import annotations

from django.tasks import task


@task
def noop() -> None:
    pass
