"""A task that does nothing, for Django's own tasks: what is measured is the worker."""

from __future__ import annotations

from django.tasks import task


@task
def noop() -> None:
    pass
