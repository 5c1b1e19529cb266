"""Calls the database from an event loop, in Django's single thread. A cancellation leaves no lock behind."""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import TypeVar

from asgiref.sync import sync_to_async

from django_singlejob.conf import ZERO
from django_singlejob.locking.acquire import Acquisition
from django_singlejob.locking.endings import ending
from django_singlejob.locking.lease import Lease
from django_singlejob.locking.request import LockRequest, Refusal
from django_singlejob.process.clock import sleep_in_loop

T = TypeVar("T")


async def acquire_in_loop(request: LockRequest) -> Lease | Refusal:
    """Like ``acquire``, but wait in the loop, so that Django's thread is free meanwhile."""
    acquisition = Acquisition(request)
    answers: list[Lease | Refusal | float] = []
    try:
        while True:
            await finished(lambda: answers.append(acquisition.ask()))
            if not isinstance(answer := answers.pop(), float):
                return answer
            await sleep_in_loop(answer)
    except asyncio.CancelledError as cancelled:
        with suppress(asyncio.CancelledError):
            await finished(partial(_leave_nothing, acquisition, answers, cancelled))
        raise


def _leave_nothing(
    acquisition: Acquisition, answers: Iterable[Lease | Refusal | float], cancelled: BaseException
) -> None:
    for lease in answers:
        if isinstance(lease, Lease):
            lease.finish(ending(cancelled, duration=ZERO))
    acquisition.leave_nothing()


async def finished(function: Callable[[], T]) -> T:
    """Call ``function`` in Django's thread and return its value. A cancellation is raised after it has returned."""
    cancelled = None
    call = asyncio.ensure_future(sync_to_async(function)())
    while not call.done():
        try:
            await asyncio.shield(call)
        except asyncio.CancelledError as error:
            cancelled = error
        except Exception:  # raised again below
            break
    value = call.result()
    if cancelled:
        raise cancelled
    return value
