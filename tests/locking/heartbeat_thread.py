"""The thread that renews the leases of the tests' own process."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from django_singlejob.locking import heartbeat
from django_singlejob.locking.heartbeat import renewing
from tests.waiting import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable

    from django_singlejob import Lease


def dismiss() -> None:
    """End the thread, if there is one."""
    thread = heartbeat._own_thread._thread
    if isinstance(thread, threading.Thread):  # in a simulation, it is none
        heartbeat._own_thread._heartbeats._heartbeats.clear()
        heartbeat._own_thread._calls.put(None)
        thread.join(PATIENCE)
        assert not thread.is_alive()


def renew_during(lease: Lease, body: Callable[[], object]) -> None:
    with renewing(lease):
        body()


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "heartbeats"]
