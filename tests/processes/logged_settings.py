"""The settings of servers that run the jobs of `tests/app/logged_jobs.py`."""

from __future__ import annotations

import os

from tests.processes.worker_settings import *  # noqa: F403
from tests.processes.worker_settings import SINGLEJOB

SINGLEJOB = {**SINGLEJOB, "AUTODISCOVER": ["logged_jobs"], "HOSTNAME": os.environ["SERVER"]}
