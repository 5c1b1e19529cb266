"""Settings of the workers that are killed: their leases are short, so that others soon take over."""

from __future__ import annotations

from datetime import timedelta

from tests.benchmarks.settings import *  # noqa: F403
from tests.benchmarks.settings import SINGLEJOB

SINGLEJOB = SINGLEJOB | {"LEASE": timedelta(seconds=5)}
