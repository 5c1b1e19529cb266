"""Jobs that do what those of real projects do. With `LIFE_SCHEDULE`, those that come to an end have slots as well."""

from __future__ import annotations

import atexit
import logging
import os
import socket
from contextlib import suppress
from datetime import timedelta
from itertools import chain, repeat
from tempfile import TemporaryDirectory
from threading import Event, Thread, main_thread
from typing import IO, TYPE_CHECKING, Any
from uuid import uuid4

from django_singlejob import singleton_job
from tests.life import work
from tests.life.project import note
from tests.life.settings import FOLDER
from tests.life.work import wait_until_told
from tests.waiting import work_for

if TYPE_CHECKING:
    from collections.abc import Callable

LEASE = timedelta(seconds=12)
SLOTS: dict[str, Any] = {}
if "LIFE_SCHEDULE" in os.environ:
    SLOTS = {"schedule": os.environ["LIFE_SCHEDULE"], "catch_up": "all", "misfire_grace": timedelta(days=1)}
FILES: list[IO[str]] = []
SOCKETS: list[socket.socket] = []
#: Of the module, not of a run: it is there until the process ends.
OF_THE_MODULE = TemporaryDirectory(dir=FOLDER)


def job(function: Callable[..., Any]) -> Any:
    return singleton_job(function.__name__, lease=LEASE, **SLOTS)(function)


for function in work.TIDY:
    job(function)


# --- what runs leave behind


@job
def leaves_a_hook() -> str:
    run = uuid4().hex
    atexit.register(end_when_told, "leaves_a_hook", run)
    return str(note("leaves_a_hook", run))


@job
def leaves_a_thread() -> str:
    """A thread for which Python waits at its end."""
    run = uuid4().hex
    Thread(target=end_with_python, args=("leaves_a_thread", run)).start()
    return str(note("leaves_a_thread", run))


def end_with_python(about: str, run: str) -> None:
    """A slow machine may look for the thread much later. It is there still: its end is that of the main thread."""
    while main_thread().is_alive():
        work_for(0.01)
    end_when_told(about, run)


def end_when_told(about: str, run: str) -> None:
    note(f"what {about} goes on")
    wait_until_told()
    work_for(0.5)
    note(f"what {about} has ended", run)


@job
def leaves_a_file_open() -> str:
    """A file that is written when Python closes it."""
    run = uuid4().hex
    file = (FOLDER / f"left-{run}").open("w")
    file.write("all of it")
    FILES.append(file)
    return str(note("leaves_a_file_open", run))


@job
def disables_logging() -> str:
    logging.disable()
    return str(note("disables_logging", uuid4().hex))


@job
def changes_the_directory() -> str:
    os.chdir(FOLDER)
    return str(note("changes_the_directory", uuid4().hex))


@job
def closes_what_is_not_its_own() -> str:
    """As a program does that becomes a daemon. It then has files of its own under those numbers."""
    run = note("closes_what_is_not_its_own", uuid4().hex)
    os.closerange(3, 256)
    SOCKETS.extend(socket.socket() for _ in range(30))
    return str(run)


# --- what waits


@singleton_job(lease=LEASE, max_attempts=1000)
def waits() -> str:
    note("waits")
    wait_until_told()
    return "told"


# --- what has to be ended: each would end by itself, long after that

TOO_LONG = 30


def stubborn(function: Callable[[], Any]) -> Any:
    return singleton_job(function.__name__, lease=LEASE, max_runtime=timedelta(seconds=2))(function)


@stubborn
def hangs() -> None:
    note("hangs")
    Event().wait(TOO_LONG)


@stubborn
def swallows_everything() -> None:
    is_noted = False
    for _ in range(TOO_LONG):
        with suppress(BaseException):
            is_noted = is_noted or note("swallows_everything", value=True)
            Event().wait(1)


@stubborn
def in_c() -> None:
    """Holds the GIL, so that no thread of Python does anything."""
    sum(chain((note("in_c", 0) for _ in range(1)), repeat(0, 5_000_000_000)))
