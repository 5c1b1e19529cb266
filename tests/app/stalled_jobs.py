"""A job whose slots are missed."""

from __future__ import annotations

from django_singlejob import singleton_job
from tests.app.jobs import LEASE


@singleton_job(schedule="@yearly", catch_up="none", lease=LEASE)
def is_missed() -> None:
    """Does nothing."""
