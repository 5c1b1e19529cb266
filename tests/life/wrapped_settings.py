"""The settings of that project, with a command of its own around the worker."""

from __future__ import annotations

from tests.life.settings import *  # noqa: F403
from tests.life.settings import INSTALLED_APPS

INSTALLED_APPS = [*INSTALLED_APPS, "tests.life.wrapper"]
