"""The settings of a project that has what real ones have. Its secret leaves the environment when they are loaded."""

from __future__ import annotations

import os
from pathlib import Path

from tests.settings import *  # noqa: F403
from tests.settings import INSTALLED_APPS

SECRET = os.environ.pop("LIFE_SECRET")
FOLDER = Path(os.environ["LIFE_FOLDER"])

INSTALLED_APPS = [app for app in INSTALLED_APPS if not app.startswith("tests.")] + ["tests.life.apps.LifeConfig"]

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {
        "direct": {"class": "logging.FileHandler", "filename": FOLDER / "direct.log"},
        "queued": {"()": "tests.life.project.queued_handler", "filename": FOLDER / "queued.log"},
        "warnings": {"class": "logging.FileHandler", "filename": FOLDER / "warnings.log", "level": "WARNING"},
    },
    "loggers": {"life": {"handlers": ["direct", "queued"], "level": "INFO"}},
    "root": {"handlers": ["warnings"]},
}
