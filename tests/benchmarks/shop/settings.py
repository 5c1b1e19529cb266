"""Its settings. Some projects start a thread when they are loaded, for metrics or feature flags, and some load much."""

from __future__ import annotations

import os
import threading

from tests.settings import DATABASES, SECRET_KEY, USE_TZ

__all__ = ["DATABASES", "SECRET_KEY", "USE_TZ"]

INSTALLED_APPS = ["django.contrib.contenttypes", "django.contrib.auth", "django_singlejob", "tests.benchmarks.shop"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

if os.environ.get("SHOP_HEAVY"):
    import celery  # noqa: F401
    import prometheus_client  # noqa: F401
    import psycopg  # noqa: F401
    import rq  # noqa: F401
    import sentry_sdk  # noqa: F401

    from tests.settings import MIDDLEWARE, TEMPLATES  # noqa: F401  # the admin's checks want them

    rooms = ["admin", "sessions", "messages", "staticfiles", "sitemaps", "humanize"]
    INSTALLED_APPS += [f"django.contrib.{name}" for name in rooms]

if os.environ.get("SHOP_THREAD"):
    threading.Thread(target=threading.Event().wait, daemon=True).start()
