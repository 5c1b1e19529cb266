"""Asking the database from an event loop, by Django's one thread. A cancellation leaves no lock behind."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from asgiref.sync import sync_to_async

from django_singlejob.clock import sleep_in_loop
from django_singlejob.conf import ZERO
from django_singlejob.locking.acquire import Acquisition, LockRequest, Refusal
from django_singlejob.locking.lease import Lease
from django_singlejob.results import ending

T = TypeVar("T")


async def acquire_in_loop(request: LockRequest) -> Lease | Refusal:
    """``acquire``, but it waits in the loop, so that Django's thread is free meanwhile."""
    acquisition = Acquisition(request)
    while True:
        answer, cancelled = await _to_the_end(acquisition.ask)
        if cancelled and isinstance(answer, Lease):
            end = ending(cancelled, duration=ZERO, acquire_duration=ZERO)
            await _to_the_end(partial(answer.finish, end))
        if isinstance(answer, float) and not cancelled:
            cancelled = await _cancelled_in_sleep(answer)
        if cancelled:
            await _to_the_end(acquisition.leave_nothing)
            raise cancelled
        if not isinstance(answer, float):
            return answer


async def _cancelled_in_sleep(seconds: float) -> asyncio.CancelledError | None:
    try:
        await sleep_in_loop(seconds)
    except asyncio.CancelledError as cancelled:
        return cancelled
    return None


async def finished(function: Callable[[], T]) -> T:
    """What it returns, called in Django's thread. A cancellation is raised once it has returned."""
    value, cancelled = await _to_the_end(function)
    if cancelled:
        raise cancelled
    return value


async def _to_the_end(function: Callable[[], T]) -> tuple[T, asyncio.CancelledError | None]:
    cancelled = None
    call = asyncio.ensure_future(sync_to_async(function)())
    while not call.done():
        try:
            await asyncio.shield(call)
        except asyncio.CancelledError as error:
            cancelled = error
        except Exception:  # raised again below
            break
    return call.result(), cancelled
