"""The thread that keeps the leases of the tests' own process."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from django_singlejob.locking import keeper
from django_singlejob.locking.keeper import kept_alive
from tests.waiting import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable

    from django_singlejob import Lease


def dismiss() -> None:
    """End the thread, if there is one."""
    thread = keeper._keeper._thread
    if isinstance(thread, threading.Thread):  # in a simulation, it is none
        keeper._keeper._heartbeats._kept.clear()
        keeper._keeper._calls.put(None)
        thread.join(PATIENCE)
        assert not thread.is_alive()


def keep(lease: Lease, body: Callable[[], object]) -> None:
    with kept_alive(lease):
        body()


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "heartbeats"]
