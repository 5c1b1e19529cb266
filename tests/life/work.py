"""What the jobs and the tasks of this project do. What each returns, it also leaves as a note."""

from __future__ import annotations

import logging
import os
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from django.db import connection

from tests.life.project import CREDENTIAL, DICE, FOREIGN, JOURNAL, SCRATCH, SESSION, TRACER, note
from tests.life.settings import SECRET
from tests.waiting import PATIENCE, work_for

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger("life")

REQUESTS = 200
LINES = 50
NUMBERS = count(1)


def wait_until_told() -> None:
    while not Path(os.environ["GO"]).exists():
        work_for(0.01)


def reads_credential() -> str:
    """The secret that was in the environment when the program began, from a file that the project deletes."""
    return str(note("reads_credential", CREDENTIAL.read_text()))


def writes_scratch() -> str:
    """A file in a directory that the project deletes."""
    path = Path(SCRATCH) / uuid4().hex
    path.write_text(SECRET)
    return str(note("writes_scratch", path.read_text()))


def uses_session(about: str = "uses_session") -> int:
    """Ask many things, each of which must be answered with itself."""
    for _ in range(REQUESTS):
        for ask in (SESSION.ask, ask_the_database, ask_the_foreign_connection):
            request = uuid4().hex
            if (answer := ask(request)) != request:
                raise ValueError(f"{request} was answered by {answer}.")
    return int(note(about, REQUESTS))


def ask_the_database(request: str) -> str:
    with connection.cursor() as cursor:
        cursor.execute("SELECT %s", [request])
        return str(cursor.fetchone()[0])


def ask_the_foreign_connection(request: str) -> str:
    if FOREIGN is None:
        return request
    row = FOREIGN.execute("SELECT %s::text", [request]).fetchone()
    return str(row and row[0])


def writes_global_file() -> str:
    """A line that nobody flushes."""
    line = uuid4().hex
    JOURNAL.write(f"{line}\n")
    return str(note("writes_global_file", line))


def rolls_dice() -> list[float]:
    return list(note("rolls_dice", [DICE.random() for _ in range(3)]))


def is_traced() -> str:
    """A span that the project's thread exports."""
    span = uuid4().hex
    if not TRACER.record(span).wait(PATIENCE / 2):
        raise RuntimeError("Nothing exports the span.")
    return str(note("is_traced", span))


def logs_lines() -> str:
    run = uuid4().hex
    for number in range(LINES):
        logger.info("%s %d", run, number)
    return str(note("logs_lines", run))


def counts() -> int:
    """Which run of this kind it is in this process."""
    return int(note("counts", next(NUMBERS)))


#: What leaves nothing behind.
TIDY: list[Callable[[], object]] = [
    *(reads_credential, writes_scratch, uses_session, writes_global_file),
    *(rolls_dice, is_traced, logs_lines, counts),
]
