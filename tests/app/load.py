"""Django's tasks for the threads of a worker."""

from __future__ import annotations

import asyncio
import os
import signal
from datetime import timedelta
from threading import Event
from typing import Any

from django_singlejob import JobInterrupted, raise_if_stopped, retried
from tests.app import jobs
from tests.app.tasks_api import TaskContext, task


@task(takes_context=True)
def noted(context: TaskContext[..., Any], number: int, seconds: float = 0.0, file: str = "") -> None:
    jobs.note(number, context.attempt, seconds, file)


@task
def nothing(number: int) -> None:
    """Does nothing."""


@task
def nap(seconds: float) -> None:
    """Waits in C, where no interrupt reaches it."""
    jobs.say("started")
    Event().wait(seconds)


@task
def meets(number: int, count: int) -> None:
    jobs.meet(number, count)


@task(takes_context=True)
def tells(context: TaskContext[..., Any]) -> Any:
    jobs.wait_or_tell()
    return context.attempt


@task
async def tells_async() -> None:
    try:
        jobs.say("started")
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        jobs.say("caught")
        raise


@task
def forks(how_the_child_ends: str) -> Any:
    return jobs.forks.__wrapped__(how_the_child_ends)


@task(takes_context=True)
def crashes_once(context: TaskContext[..., Any]) -> int:
    jobs.say("started", os.getpid())
    if context.attempt == 1:
        os.kill(os.getpid(), signal.SIGSEGV)
    return context.attempt


@task
def crashes(signum: int) -> None:
    os.kill(os.getpid(), signum)


@task
def asks_its_terminal() -> str:
    return jobs.ask_terminal()


@task
def says_its_process() -> None:
    jobs.say("started", os.getpid())
    jobs.wait_until_told()


@task
def interrupts_itself() -> None:
    raise JobInterrupted(signal.SIGTERM)


@task
def asks() -> None:
    jobs.say("started")
    while True:
        raise_if_stopped()
        jobs.rest(0.01)


@task(takes_context=True)
@retried(retries=2, retry_delay=timedelta(hours=1))
def falters(context: TaskContext[..., Any]) -> int:
    if context.attempt == 1:
        raise ConnectionError("down")
    return context.attempt


@task
@retried(retries=2, retry_delay=timedelta())
def asks_and_is_retried() -> None:
    asks.call()
