"""The settings of the workers that tests start, with a handler that writes each record to standard error."""

from __future__ import annotations

from tests.processes.worker_settings import *  # noqa: F403

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {"console": {"class": "logging.StreamHandler"}},
    "loggers": {"django_singlejob": {"handlers": ["console"], "level": "INFO"}},
}
