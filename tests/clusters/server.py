"""A process of the application that calls jobs again and again: `calls` calls the short one and enqueues one-offs;
`holds` calls the long one; `keeps` calls one with a long lease. It goes on after any error of the database."""

from __future__ import annotations

import faulthandler
import itertools
import logging
import os
import random
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING

import django

if TYPE_CHECKING:
    from collections.abc import Callable

django.setup()

from django.db import Error  # noqa: E402

from django_singlejob import SKIPPED, SingleJobError  # noqa: E402
from django_singlejob.process.received_signals import (  # noqa: E402
    blocked_signals,
    deferred_signals,
    is_second_signal_received,
)
from tests.clusters import jobs  # noqa: E402

# How often a one-off is enqueued, in seconds.
PAUSE = 0.8
# How long it takes to end after a second signal, in seconds.
LAST_GRACE = 3.0

logger = logging.getLogger(__name__)


def serve(role: str) -> None:
    steps: dict[str, Callable[[], object]] = {"calls": call, "holds": hold, "keeps": jobs.kept}
    if role == "calls":
        # In another thread than the calls, which may have to wait for the database.
        with blocked_signals():
            threading.Thread(target=order, daemon=True).start()
    with blocked_signals():
        threading.Thread(target=exit_at_second_signal, daemon=True).start()
    with deferred_signals() as signals:
        while not signals.received:
            try:
                steps[role]()
            except (Error, SingleJobError, KeyboardInterrupt) as error:
                tell(error)
                time.sleep(random.uniform(0.05, 0.15))


def call() -> None:
    jobs.short()
    time.sleep(random.uniform(0.02, 0.1))


def hold() -> None:
    if jobs.long() is SKIPPED:
        time.sleep(random.uniform(0.1, 0.2))


def order() -> None:
    """Enqueue one-offs, and note those that are acknowledged."""
    for number in itertools.count(os.getpid() * 1_000_000):
        try:
            jobs.task.enqueue(number)
        except (Error, SingleJobError) as error:
            tell(error)
        else:
            jobs.history.note("ordered", number=number)
        time.sleep(PAUSE)


def exit_at_second_signal() -> None:
    """Exit although a COMMIT waits for a standby. Commands do that by themselves; in a program it is its own affair."""
    while not is_second_signal_received():
        time.sleep(0.1)
    time.sleep(LAST_GRACE)
    os._exit(1)


def tell(error: BaseException) -> None:
    logger.warning("It failed: %s: %s", type(error).__name__, error)


faulthandler.register(signal.SIGUSR1)
serve(sys.argv[1])
