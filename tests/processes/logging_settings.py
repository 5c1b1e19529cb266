"""The tests' settings, with a handler that writes each record, and the traceback, to standard error."""

from tests.settings import *  # noqa: F403

LOGGING = {
    "version": 1,
    "handlers": {"console": {"class": "logging.StreamHandler"}},
    "loggers": {"django_singlejob": {"handlers": ["console"], "level": "WARNING"}},
}
