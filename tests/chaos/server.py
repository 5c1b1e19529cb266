"""One server: it calls jobs again and again, and enqueues one-offs (`calls`), or it is a command that runs them: its
arguments are those of `manage.py`. The executors of the command are processes of this program too."""

from __future__ import annotations

import faulthandler
import itertools
import logging
import os
import random
import signal
import sys
import time
from typing import TYPE_CHECKING

import django
from django.conf import settings
from django.core.management import CommandError, call_command, execute_from_command_line

if TYPE_CHECKING:
    from collections.abc import Callable

django.setup()

from django.db import Error  # noqa: E402

from django_singlejob import SKIPPED, LeaseLost, LockHeld, SingleJobError, is_executor  # noqa: E402
from django_singlejob.process.received_signals import deferred_signals  # noqa: E402
from tests.chaos import LEASE, jobs  # noqa: E402
from tests.chaos.history import now  # noqa: E402

logger = logging.getLogger(__name__)


def serve() -> None:
    with deferred_signals() as signals:
        while not signals.received:
            try:
                step()
            except (Error, SingleJobError, CommandError, KeyboardInterrupt) as error:
                if not isinstance(error, LeaseLost | LockHeld | KeyboardInterrupt):
                    logger.warning("It failed: %s: %s", type(error).__name__, error)
                time.sleep(random.uniform(0, 0.1))


def step() -> None:
    match jobs.conditions.taken_order("clear_stale_locks", "prune_singletons"):
        case "clear_stale_locks":
            call_command("clear_stale_locks")
        case "prune_singletons":
            call_command("prune_singletons", keep=50)
    if random.random() < 0.1:
        order(next(numbers))
    calls: list[Callable[[], object]] = [jobs.alone, jobs.left, jobs.right, jobs.block]
    if random.choice(calls)() is SKIPPED:
        time.sleep(random.uniform(0.02, 0.1))


def order(number: int) -> None:
    jobs.chore.enqueue(number)
    jobs.history.note("ordered", number=number)


class Formatter(logging.Formatter):
    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802
        return f"{now():.3f} server {jobs.number}, pid {os.getpid()}"


handler = logging.StreamHandler()
handler.setFormatter(Formatter("%(asctime)s %(levelname)s %(message)s"))
logging.basicConfig(handlers=[handler], level=logging.INFO)
settings.SINGLEJOB = {"LEASE": LEASE, "HOSTNAME": f"server-{jobs.number}"}
numbers = itertools.count(os.getpid() * 1_000_000)
random.seed()
faulthandler.register(signal.SIGUSR1)
jobs.conditions.impose()
if not is_executor():
    jobs.history.note("up", name=sys.argv[1])
if sys.argv[1] != "run_singleton":  # which forks its executor only if it has no threads
    jobs.onlooker.start()
serve() if sys.argv[1] == "calls" else execute_from_command_line(sys.argv)
