"""Django's own tasks for the threads of a worker; Django has none before 6.0, where this cannot be imported."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from django.tasks import TaskContext, task

from tests.app import jobs


@task(takes_context=True)
def noted(context: TaskContext[..., Any], number: int, seconds: float = 0.0, file: str = "") -> None:
    jobs.note(number, context.attempt, seconds, file)


@task
def nothing(number: int) -> None:
    """No sooner begun than ended."""


@task
def nap(seconds: float) -> None:
    """In C, where no interrupt gets through."""
    jobs.say("started")
    time.sleep(seconds)


@task
def meets(number: int, count: int) -> None:
    jobs.meet(number, count)


@task(takes_context=True)
def tells(context: TaskContext[..., Any]) -> Any:
    jobs.wait_or_tell()
    return context.attempt


@task
async def tells_async() -> None:
    jobs.say("started")
    try:
        await asyncio.sleep(jobs.A_MINUTE)
    except asyncio.CancelledError:
        jobs.say("told")
        raise


@task
def forks(how_the_child_ends: str) -> Any:
    return jobs.forks.__wrapped__(how_the_child_ends)
