"""The thread that keeps the leases of the tests' own process."""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING

from django_singlejob.locking import keeper
from django_singlejob.locking.keeper import kept_alive

if TYPE_CHECKING:
    from collections.abc import Callable

    from django_singlejob import Lease

BEAT = timedelta(seconds=0.05)
PATIENCE = 10


def dismiss() -> None:
    """End the thread, if there is one."""
    if thread := keeper._keeper._thread:
        keeper._keeper._heartbeats._kept.clear()
        keeper._keeper._calls.put(None)
        thread.join(PATIENCE)
        assert not thread.is_alive()


def keep(lease: Lease, body: Callable[[], object]) -> None:
    with kept_alive(lease):
        body()


def wait_until(see: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not see():
        assert time.monotonic() < deadline, "It was never seen."
        time.sleep(0.01)


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "heartbeats"]
