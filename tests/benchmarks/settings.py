"""Settings of the benchmarks and of the workers that they start. A rival takes part if it is installed and can run."""

from __future__ import annotations

from importlib.util import find_spec

import django

from tests.settings import *  # noqa: F403
from tests.settings import DATABASES, INSTALLED_APPS

HAS_TASKS = django.VERSION >= (6, 0)
HAS_RIVALS = (
    HAS_TASKS
    and DATABASES["default"]["ENGINE"] == "django.db.backends.postgresql"
    and all(find_spec(name) for name in ("django_ox", "django_tasks_db", "procrastinate"))
)

if HAS_TASKS:  # its tasks.py is imported
    INSTALLED_APPS = [*INSTALLED_APPS, "tests.benchmarks"]
TASKS = {"default": {"BACKEND": "django_singlejob.backends.SingleJobBackend"}}

if HAS_RIVALS:
    INSTALLED_APPS = [*INSTALLED_APPS, "django_ox", "django_tasks_db"]
    TASKS["django-ox"] = {"BACKEND": "django_ox.backend.OxBackend"}
    TASKS["django-tasks-db"] = {"BACKEND": "django_tasks_db.DatabaseBackend"}
