"""The settings of the application's processes. CLUSTER_DATABASE is their entry in DATABASES, as JSON."""

from __future__ import annotations

import json
import os

from tests.clusters import LEASE
from tests.settings import *  # noqa: F403

INSTALLED_APPS = [*INSTALLED_APPS, "tests.clusters"]  # noqa: F405
DATABASES = {"default": json.loads(os.environ["CLUSTER_DATABASE"])}
SINGLEJOB = {"LEASE": LEASE, "HOSTNAME": f"server-{os.environ['CLUSTER_SERVER']}"}
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"timed": {"format": "%(asctime)s %(levelname)s %(message)s"}},
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "timed"}},
    "root": {"handlers": ["console"], "level": "INFO"},
}
