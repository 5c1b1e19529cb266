"""The settings of workers with a handler and a receiver that wait until somebody opens `$HANDLER` and `$RECEIVER`."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

from django.db.backends.signals import connection_created

from django_singlejob.signals import job_finished
from tests.processes.worker_settings import *  # noqa: F403
from tests.processes.worker_settings import SINGLEJOB


def wait_for(name: str) -> None:
    """Wait until somebody writes to the pipe that this variable names."""
    if pipe := os.environ.get(name):
        Path(pipe).read_bytes()
        Path(f"{pipe}.over").touch()


class SlowHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        if "has no job" in record.getMessage():
            wait_for("HANDLER")


def slow_receiver(*, name: str, **kwargs: Any) -> None:
    if name == "quick":
        wait_for("RECEIVER")


SINGLEJOB = {**SINGLEJOB, "AUTODISCOVER": ["jobs", "stalled_jobs"]}


job_finished.connect(slow_receiver)

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {"slow": {"()": SlowHandler}, "console": {"class": "logging.StreamHandler"}},
    "loggers": {"django_singlejob": {"handlers": ["slow", "console"], "level": "INFO"}},
}


def fail(**kwargs: Any) -> None:
    raise ZeroDivisionError


if "SENTRY" in os.environ:
    # It wraps each receiver. Without an address, it sends nothing. Each process of other tests would load it in vain.
    import sentry_sdk
    from sentry_sdk.integrations.django import DjangoIntegration

    sentry_sdk.init(integrations=[DjangoIntegration()], auto_enabling_integrations=False)

if "FAULT" in os.environ:
    connection_created.connect(fail)
