"""Django's tasks, for the tests: each does what `body` does."""

from __future__ import annotations

import asyncio
import inspect
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from django_singlejob import retried, singleton_job
from tests.app.tasks_api import task

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.app.tasks_api import TaskContext


def echo(*args: Any, **kwargs: Any) -> Any:
    return [args, kwargs]


#: What the tasks do. A test puts another function here; for the asynchronous tasks it may return a coroutine.
body: Callable[..., Any] = echo


async def body_async(*args: Any, **kwargs: Any) -> Any:
    await asyncio.sleep(0)
    value = body(*args, **kwargs)
    return await value if inspect.isawaitable(value) else value


@task
def plain(*args: Any, **kwargs: Any) -> Any:
    return body(*args, **kwargs)


@task
async def asynchronous(*args: Any, **kwargs: Any) -> Any:
    return await body_async(*args, **kwargs)


@task(takes_context=True)
def with_context(context: TaskContext[..., Any], *args: Any) -> Any:
    return body(context, *args)


@task(takes_context=True)
async def asynchronous_with_context(context: TaskContext[..., Any], *args: Any) -> Any:
    return await body_async(context, *args)


# --- those that are retried


@task
@retried(retries=2)
def delivered(*args: Any) -> Any:
    return body(*args)


@task
@retried(retries=2)
async def delivered_asynchronous(*args: Any) -> Any:
    return await body_async(*args)


@task(takes_context=True)
@retried(retries=2, retry_delay=timedelta())
def delivered_with_context(context: TaskContext[..., Any], *args: Any) -> Any:
    return body(context, *args)


@task
@retried(retries=2, retry_delay=timedelta(hours=20), on=(ConnectionError, TypeError))
def fetched(*args: Any) -> Any:
    return body(*args)


# --- those that are singleton jobs


@task
@singleton_job("stock", retries=1, retry_delay=timedelta(), max_attempts=2)
def stock(*args: Any, **kwargs: Any) -> Any:
    return body(*args, **kwargs)


@task
@singleton_job("stock_asynchronous")
async def stock_asynchronous(*args: Any, **kwargs: Any) -> Any:
    return await body_async(*args, **kwargs)


@task(takes_context=True)
@singleton_job("stock_with_context")
def stock_with_context(context: TaskContext[..., Any], *args: Any) -> Any:
    return body(context, *args)


@task(takes_context=True)
@singleton_job("stock_asynchronous_with_context")
async def stock_asynchronous_with_context(context: TaskContext[..., Any], *args: Any) -> Any:
    return body(context, *args)
