"""Jobs for a project that uses Sentry."""

from __future__ import annotations

from datetime import timedelta

import sentry_sdk

from django_singlejob import current_run, singleton_job
from tests.app.tasks_api import task
from tests.waiting import work_until_ended

LEASE = timedelta(seconds=6)


# No slot of a yearly schedule comes due while a test runs.
@singleton_job(schedule="@yearly", lease=LEASE, max_runtime=timedelta(minutes=10))
def checked() -> None: ...


@singleton_job(schedule="@yearly", lease=LEASE)
def checked_and_waits() -> None:
    print("started", flush=True)
    work_until_ended()


@singleton_job(schedule="@yearly", lease=LEASE)
def checked_and_waits_at_first() -> None:
    run = current_run()
    assert run is not None
    if run.attempt == 1:
        checked_and_waits.__wrapped__()


@singleton_job(schedule="@yearly", lease=LEASE)
def checked_and_fails() -> None:
    fails.__wrapped__()


@singleton_job(lease=LEASE)
def fails() -> None:
    raise ValueError("no such customer")


@singleton_job(lease=LEASE)
async def fails_async() -> None:
    raise ValueError("no such customer")


# With this lease, it has ten seconds to log its failure, and to send the event, before it is killed.
@singleton_job(lease=timedelta(minutes=1), max_runtime=timedelta(seconds=0.5))
def takes_too_long() -> None:
    work_until_ended()


@singleton_job(lease=LEASE)
def captures() -> None:
    sentry_sdk.capture_message("halfway")


@task
def fails_as_task() -> None:
    fails.__wrapped__()


@task
@singleton_job("fails_as_both", lease=LEASE, max_attempts=1)
def fails_as_both() -> None:
    fails.__wrapped__()
