"""The tests' settings, with what a set-up changes about them: JSON in `$SET_UP`."""

from __future__ import annotations

import json
import os

from tests.settings import *  # noqa: F403

# What is logged is not what a command prints.
LOGGING = {"version": 1, "loggers": {"django_singlejob": {"handlers": ["null"], "propagate": False}}}
LOGGING["handlers"] = {"null": {"class": "logging.NullHandler"}}

globals().update(json.loads(os.environ["SET_UP"]))
