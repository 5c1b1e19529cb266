"""The settings of the workers that tests start: their own leases are short, too."""

from __future__ import annotations

from datetime import timedelta

from tests.settings import *  # noqa: F403
from tests.settings import SINGLEJOB

SINGLEJOB = {**SINGLEJOB, "LEASE": timedelta(seconds=5)}
