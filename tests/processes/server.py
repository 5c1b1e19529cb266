"""One server: its cron daemon fires for every slot, by a clock of its own, until the stop file appears.

The job is defined here, and not in `tests/app/jobs.py`, where every tick of every other test would find it due.
"""

from __future__ import annotations

import json
import os
import random
import select
import time
from argparse import ArgumentParser
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, SupportsIndex
from unittest.mock import patch

import django

django.setup()


from django_singlejob import singleton_job  # noqa: E402
from django_singlejob.conf import ZERO, options  # noqa: E402
from django_singlejob.jobs import slots  # noqa: E402
from django_singlejob.jobs.schedule import next_slot, parse  # noqa: E402
from django_singlejob.models import JobStatus  # noqa: E402
from django_singlejob.models.jobs import gates  # noqa: E402
from django_singlejob.process.clock import DBNow  # noqa: E402
from django_singlejob.running.runner import run_due  # noqa: E402
from tests.app.jobs import say, this_run, wait_until_told  # noqa: E402
from tests.app.models import SlotRun  # noqa: E402
from tests.contract.acts import tick  # noqa: E402
from tests.waiting import work_for, work_until_ended  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator


def sleep(seconds: float | SupportsIndex, /) -> None:
    """Python 3.11's `time.sleep` sleeps until an instant, which fails under libfaketime 0.9.10."""
    select.select([], [], [], float(seconds))


patch.object(time, "sleep", sleep).start()


def timely() -> None:
    """Takes a millisecond, except for the run that hangs. The last run pauses the job."""
    run = this_run()
    assert run.slot
    if run.attempt == 1 and SlotRun.objects.count() == given.hang_after:
        say("hanging in the slot", run.slot)
        work_until_ended()
    work_for(0.001)
    SlotRun.objects.create(slot=run.slot, attempt=run.attempt, ended_at=DBNow())
    if SlotRun.objects.count() == given.runs:
        JobStatus.objects.filter(name="timely").update(paused=True)


def serve() -> None:
    """Each time cron fires, do what one of the two crontab lines does: run_singleton's, or singleton_worker's."""
    reports: Counter[str] = Counter()
    for _ in cron():
        is_own_line = random.choice([True, False])
        for report in run_due(job, early=options().slot_tolerance) if is_own_line else tick():
            if report.error:
                say("raised", repr(report.error))
            else:
                reports[report.reason or "ran"] += 1
    say(json.dumps({"clock_error": clock_error(), **reports}))


def cron() -> Iterator[None]:
    """Yields when a daemon fires: never early by its own clock, and sometimes late."""
    schedule = parse(given.interval)
    # When the tests are killed, no server may go on without them.
    while os.getppid() == parent and not given.stop_file.exists():
        fires_at = next_slot(schedule, now()) + given.interval * random.uniform(0, 0.5)
        while (pause := fires_at - now()) > ZERO:
            work_for(pause.total_seconds())
        yield


def now() -> datetime:
    """This server's clock. On SQLite the database uses the same one, so only the clock that cron reads can be wrong."""
    skew: timedelta = given.skew
    return datetime.now(UTC) + skew


def clock_error() -> float:
    """The difference from the database's clock, in seconds."""
    return (now() - gates().look_up({"timely"}, ZERO)["timely"].now).total_seconds()


def seconds(text: str) -> timedelta:
    return timedelta(seconds=float(text))


parser = ArgumentParser()
parser.add_argument("--skew", type=seconds, default=ZERO)
parser.add_argument("--interval", type=seconds, required=True)
parser.add_argument("--catch-up", required=True)
parser.add_argument("--lease", type=seconds)
parser.add_argument("--runs", type=int, required=True)
parser.add_argument("--hang-after", type=int)
parser.add_argument("--stop-file", type=Path, required=True)
given = parser.parse_args()
parent = os.getppid()

# No slot is given up, however long the machine stands still.
slots.MAX_CATCH_UP = 10_000
job = singleton_job("timely", schedule=given.interval, catch_up=given.catch_up, lease=given.lease)(timely)
say("ready")
wait_until_told()
serve()
