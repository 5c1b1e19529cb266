"""What is measured: one cycle of each kind, and the ways to grant that this version has."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import environ
from django.conf import settings
from django.db import connection, connections

from django_singlejob import LockHeld, conf, job_lock, singleton_job
from tests.benchmarks.paper import Paper
from tests.benchmarks.tables import Table

PAPER, PORTABLE, ONE_STATEMENT = "the paper's recipe", "portable", "one statement"
RUN, LOCK, RAW = "run cycle", "lock cycle", "two raw statements"
LOST_RUN, LOST_LOCK = "losing a run", "losing a lock"
HELD = "bench.held"
# So long that no heartbeat is due while something is measured.
LONG = timedelta(hours=2)
TABLE = "bench_paper_lock"


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One kind of work, done in one way. `prepare()` comes before the work, and is not measured."""

    work: str
    way: str
    act: Callable[[], object]

    def prepare(self) -> None:
        choose(self.way)

    def __str__(self) -> str:
        return f"{self.work}, {self.way}"


def ways() -> list[str]:
    """How this version can grant a lock on this database."""
    has_one_statement = "SINGLE_STATEMENT" in conf.KEYS and connection.vendor == "postgresql"
    return [PORTABLE, ONE_STATEMENT] if has_one_statement else [PORTABLE]


def new_table(database: str) -> Table:
    return Table(f"Work, {database}", [PAPER, RAW, *ways()])


def choose(way: str) -> None:
    if "SINGLE_STATEMENT" in conf.KEYS and way in ways():
        settings.SINGLEJOB = SETTINGS[way]
        conf.options()  # it validates the settings when they have changed, so do that now


GIVEN: dict[str, Any] = getattr(settings, "SINGLEJOB", {})
SETTINGS = {way: GIVEN | {"SINGLE_STATEMENT": way == ONE_STATEMENT} for way in (PORTABLE, ONE_STATEMENT)}


def cycles(paper: Paper) -> list[Candidate]:
    """Take a free lock and release it."""
    return [
        Candidate(work=RUN, way=PAPER, act=lambda: paper.run("bench.paper")),
        Candidate(work=RUN, way=RAW, act=insert_and_delete),
        *(Candidate(work=RUN, way=way, act=job) for way in ways()),
        *(Candidate(work=LOCK, way=way, act=lock) for way in ways()),
    ]


def losses(paper: Paper) -> list[Candidate]:
    """Ask for a lock that is held: see `held()`."""
    return [
        Candidate(work=LOST_RUN, way=PAPER, act=lambda: paper.run(HELD)),
        *(Candidate(work=LOST_RUN, way=way, act=held_job) for way in ways()),
        *(Candidate(work=LOST_LOCK, way=way, act=be_refused) for way in ways()),
    ]


@contextmanager
def held(paper: Paper) -> Iterator[None]:
    """Somebody else holds the locks that are lost."""
    paper.acquire(HELD)
    with job_lock(HELD, lease=LONG):
        yield
    paper.release(HELD)


@singleton_job("bench.job", lease=LONG)
def job() -> None:
    pass


@singleton_job(HELD, lease=LONG)
def held_job() -> None:
    pass


def lock() -> None:
    with job_lock("bench.lock", lease=LONG):
        pass


def be_refused() -> None:
    with contextlib.suppress(LockHeld), job_lock(HELD):
        pass


def insert_and_delete() -> None:
    """Through Django's own cursor, in autocommit."""
    with connection.cursor() as cursor:
        cursor.execute(f"INSERT INTO {TABLE} (name) VALUES (%s)", ["bench.raw"])
        cursor.execute(f"DELETE FROM {TABLE} WHERE name = %s", ["bench.raw"])


# --- where


@contextmanager
def connected_to(url: str) -> Iterator[None]:
    """Meanwhile, Django's default database is this one, in all threads."""
    config: dict[str, Any] = connections.settings["default"]
    before = dict(config)
    connections.close_all()
    config |= environ.Env.db_url_config(url) | {"TEST": before["TEST"]}
    if config["ENGINE"] == before["ENGINE"]:
        config["OPTIONS"] = before["OPTIONS"] | config.get("OPTIONS", {})
    try:
        yield
    finally:
        connections.close_all()
        config.clear()
        config |= before


def database_url() -> str:
    """The database that is measured."""
    return os.environ["DATABASE_URL"]
