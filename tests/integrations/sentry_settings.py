"""The settings of a project that uses Sentry."""

from __future__ import annotations

import os

import sentry_sdk

from django_singlejob.integrations.sentry import SinglejobIntegration
from tests.processes.worker_settings import *  # noqa: F403
from tests.processes.worker_settings import SINGLEJOB

SINGLEJOB = {**SINGLEJOB, "AUTODISCOVER": ["jobs", "sentry_jobs"]}

integrations = [] if os.environ.get("SENTRY_WITHOUT") else [SinglejobIntegration()]
sentry_sdk.init(dsn=os.environ["SENTRY_DSN"], integrations=integrations)
