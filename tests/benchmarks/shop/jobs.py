"""Its jobs. What they do, the plain command does without the package's help."""

from __future__ import annotations

import os
from datetime import timedelta

from django_singlejob import singleton_job
from tests.benchmarks.shop.work import work

# How often the job is due, in seconds; 0: never.
EVERY = float(os.environ.get("SHOP_EVERY", "0"))


@singleton_job("shop.work", schedule=timedelta(seconds=EVERY) if EVERY else None)
def work_alone(file: str = "") -> None:
    work(file)
