"""Jobs that write their slots into the file `$LOG`, a line for each run."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

from django_singlejob import SkipRun, singleton_job
from tests.app.jobs import LEASE, this_run
from tests.waiting import work_for

SECOND = timedelta(seconds=1)


def log() -> None:
    run = this_run()
    assert run.slot
    with Path(os.environ["LOG"]).open("a") as file:
        file.write(f"{run.lease.name} {run.slot.isoformat()}\n")


@singleton_job(schedule=SECOND, lease=LEASE)
def logs() -> None:
    log()


@singleton_job(schedule=SECOND, lease=LEASE, catch_up="all")
def logs_each() -> None:
    log()


@singleton_job(schedule=SECOND, lease=LEASE)
def logs_slowly() -> None:
    log()
    work_for(1.5)


@singleton_job(schedule=2 * SECOND, lease=LEASE)
def logs_and_fails() -> None:
    log()
    raise ZeroDivisionError


@singleton_job(schedule=2 * SECOND, lease=LEASE)
def logs_and_skips() -> None:
    log()
    raise SkipRun("holiday")
