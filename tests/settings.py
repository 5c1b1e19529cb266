"""Settings of the tests and of the processes that they start. `tests/databases.py` sets DATABASE_URL."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import django
import environ

from tests.browser.policy import POLICY

env = environ.Env()
is_in_life = bool(env("SINGLEJOB_TEST_LIFE", default=""))

SECRET_KEY = "only-for-tests"
USE_TZ = True
TIME_ZONE = "UTC"
ROOT_URLCONF = "tests.urls"
STATIC_URL = "static/"
# Leases in tests are short, so that the tests do not wait for long.
SILENCED_SYSTEM_CHECKS = ["singlejob.W003"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "django_singlejob",
    "tests.app.apps.TestAppConfig",
]
if django.VERSION < (6, 0):
    INSTALLED_APPS.append("django_tasks")

MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]

# No page may do what a strict policy forbids.
SECURE_CSP = POLICY
if django.VERSION >= (6, 0):
    MIDDLEWARE.append("django.middleware.csp.ContentSecurityPolicyMiddleware")
else:
    MIDDLEWARE.append("tests.browser.policy.PolicyMiddleware")

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]

database = env.db("DATABASE_URL", default=f"sqlite:///{Path(__file__).parent / 'tests.sqlite3'}")
# Each session has its own name, so that several can share one server.
test_name = env("SINGLEJOB_TEST_NAME", default="test_singlejob")
options = database.setdefault("OPTIONS", {})
isolation = env("SINGLEJOB_TEST_ISOLATION", default="")

if database["ENGINE"] == "django.db.backends.sqlite3":
    # A file, never :memory:, because other processes open it too.
    test_name = str(Path(database["NAME"]).with_name(f"{test_name}.sqlite3"))
    if not env.bool("SINGLEJOB_TEST_SQLITE_DEFAULTS", default=False):
        options |= {
            "transaction_mode": "IMMEDIATE",
            "timeout": 20,
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL",
        }
elif isolation and database["ENGINE"] == "django.db.backends.postgresql":
    # Each process of the tests would load it in vain.
    import psycopg

    options["isolation_level"] = psycopg.IsolationLevel[isolation.upper().replace(" ", "_")]
elif isolation:
    options["isolation_level"] = isolation

if is_in_life:
    from tests.life import everywhere

    INSTALLED_APPS += everywhere.INSTALLED_APPS
    ELASTIC_APM, CACHES, LOGGING = everywhere.ELASTIC_APM, everywhere.CACHES, everywhere.LOGGING
    if database["ENGINE"] == "django.db.backends.postgresql":
        # As documented, but as short as the leases of the tests.
        options["pool"] = {"timeout": 2, "reconnect_timeout": 2}

DATABASES = {"default": database | {"TEST": {"NAME": test_name}}}

SINGLEJOB: dict[str, Any] = {}
if env.bool("SINGLEJOB_TEST_SINGLE_STATEMENT", default=False):
    SINGLEJOB = {"SINGLE_STATEMENT": True}

if not env.bool("SINGLEJOB_TEST_ENABLED", default=True):
    SINGLEJOB = {"ENABLED": False}

if (output := env.int("SINGLEJOB_TEST_OUTPUT", default=None)) is not None:
    SINGLEJOB = {"OUTPUT": output}
if admin_url := env("SINGLEJOB_TEST_ADMIN_URL", default=""):
    SINGLEJOB = {**SINGLEJOB, "ADMIN_URL": admin_url}
if output_file := env("SINGLEJOB_TEST_OUTPUT_FILE", default=""):
    SINGLEJOB = {**SINGLEJOB, "OUTPUT_FILE": output_file}
if ping_url := env("SINGLEJOB_TEST_PING_URL", default=""):
    SINGLEJOB = {**SINGLEJOB, "PING_URL": ping_url}

# Django 5.2 ignores this.
TASKS = {"default": {"BACKEND": "django_singlejob.backends.SingleJobBackend", "QUEUES": []}}
