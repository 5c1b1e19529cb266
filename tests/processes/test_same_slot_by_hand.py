"""A past slot that two people run by hand at once, with real commands."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from django_singlejob.models import JobLock, JobRun
from tests.databases import APPS
from tests.processes.conftest import WAYS, both_ways

if TYPE_CHECKING:
    from pathlib import Path

    from tests.children import Spawn

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True, available_apps=APPS)]

SLOT = datetime(2026, 11, 22, 3, tzinfo=UTC)
# The command begins when the file `$GO` appears.
COMMAND = """
    import sys
    from django.core.management import execute_from_command_line
    from django_singlejob import is_executor, singleton_job
    from tests.app.jobs import rest, say, this_run, wait_until_told

    @singleton_job(schedule="0 3 * * *", time_zone="UTC")
    def nightly():
        say("it runs", this_run().slot.isoformat())
        rest(0.3)

    if not is_executor():
        say("ready")
        wait_until_told()
    execute_from_command_line(["manage.py", "run_singleton", "nightly", "--slot", "2026-11-22T03:00", *sys.argv[1:]])
"""


@both_ways
@pytest.mark.parametrize(
    ("options", "words"), [(["--wait=60"], "was run successfully"), ([], "skipped, "), (["-E=9"], "skipped, ")]
)
def test_of_two_commands_at_once_one_runs_it(spawn: Spawn, go: Path, options: list[str], words: str, way: str) -> None:
    commands = [spawn.code(COMMAND, "-v=2", *options, **WAYS[way]) for _ in range(2)]
    for command in commands:
        command.wait_for("ready")
    go.touch()
    statuses = sorted(command.finish() for command in commands)
    assert statuses == [0, 9 if "-E=9" in options else 0]
    said = "".join(command.output for command in commands)
    assert said.count("it runs 2026-11-22T03:00:00+00:00") == 1, said
    assert (said.count("ran its slot 2026-11-22 03:00:00 UTC"), said.count(words)) == (1, 1), said
    assert list(JobRun.objects.values_list("slot", "status", "trigger")) == [(SLOT, "successful", "manual")]
    assert not JobLock.objects.exists()
