"""What the tests of the keeper and of its heartbeats share: bodies whose lease is kept alive, and its threads."""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING

from django_singlejob.interrupt import Window
from django_singlejob.locking.keeper import Keeper, kept_alive

if TYPE_CHECKING:
    from collections.abc import Callable

    from django_singlejob import Lease

BEAT = timedelta(seconds=0.05)
PATIENCE = 10


def dismiss(keeper: Keeper) -> None:
    """End the keeper's thread, if it has one, and wait for those that it started."""
    thread, keeper._watcher, keeper._thread = keeper._thread, None, None
    keeper.wake()
    for each in threading.enumerate():
        if each is thread or each.name.startswith(("heartbeats ", "reports of leases ")):
            each.join(PATIENCE)
            assert not each.is_alive()


def keep(lease: Lease, body: Callable[[], object], max_runtime: timedelta | None = None) -> None:
    with Window() as window, kept_alive(lease, window, max_runtime):
        window.run(body)


def wait_until(see: Callable[[], object]) -> None:
    """In short steps, so that an interrupt gets in."""
    deadline = time.monotonic() + PATIENCE
    while not see():
        assert time.monotonic() < deadline, "It was never seen."
        time.sleep(0.01)


def never() -> bool:
    return False


def threads(name: str) -> list[str]:
    return [thread.name for thread in threading.enumerate() if name in thread.name]
