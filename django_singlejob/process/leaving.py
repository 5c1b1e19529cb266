"""The end of a process that is not the program any more: one that it has forked went on as the program, and ended as
one, with all that is registered for the end. This one only sends what it still has to say."""

import atexit
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

from django_singlejob.process.clock import wait
from django_singlejob.process.logs import flush_handlers
from django_singlejob.process.received_signals import start_thread

# How long it may take to send the rest. Seconds.
PATIENCE = 2.0

# What to call, and how long all of it may take at least.
_at_end: dict[Callable[[], object], float] = {}


def at_end(call: Callable[[], object], *, patience: float = PATIENCE) -> None:
    """Have this called when the process ends, whether it is the program by then or not, within ``patience`` seconds."""
    _at_end[call] = patience
    atexit.register(call)


def leave(status: int) -> NoReturn:
    """End this process with the exit status, without what the program has registered for its end."""
    with suppress(RuntimeError):  # there is no thread to be had
        wait(start_thread(_send_the_rest, "last messages").join, max(_at_end.values(), default=PATIENCE))
    os._exit(status)


def _send_the_rest() -> None:
    for call in reversed([*_at_end]):
        with suppress(Exception):
            call()
    flush_handlers()
    # Its client sends in a thread, and would be flushed by what it has registered.
    if sentry := sys.modules.get("sentry_sdk"):
        with suppress(Exception):
            sentry.flush()
