"""A slot that runs again as a one-off, in the executor of a real worker."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from django.utils import timezone

from django_singlejob.models import JobRun, OneOffJob
from tests.databases import APPS

if TYPE_CHECKING:
    from tests.children import Spawn

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True, available_apps=APPS)]

SLOT = "2026-11-22T03:00:00+00:00"
COMMAND = """
    import sys
    from django.core.management import execute_from_command_line
    from django_singlejob import singleton_job
    from tests.app.jobs import say, this_run

    @singleton_job(schedule="0 3 * * *", time_zone="UTC", retries=1)
    def nightly():
        say("attempt", this_run().attempt, "at", this_run().slot.isoformat())
        1 / 0

    execute_from_command_line(["manage.py", *sys.argv[1:]])
"""


@pytest.mark.on_database("sqlite")
def test_a_retry_knows_the_slot(spawn: Spawn) -> None:
    first = spawn.code(COMMAND, "run_singleton", "nightly", "--slot", "2026-11-22T03:00")
    first.finish()
    assert f"attempt 1 at {SLOT}" in first.output
    OneOffJob.objects.update(run_after=timezone.now())
    again = spawn.code(COMMAND, "singleton_worker", "--once")
    again.finish()
    assert f"attempt 2 at {SLOT}" in again.output
    assert [run.retried_slot and run.retried_slot.isoformat() for run in JobRun.objects.order_by("pk")] == [None, SLOT]
