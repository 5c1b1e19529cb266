"""How often one cycle waits for the server: round trips, counted on the wire, so that BEGIN, COMMIT and switches of
autocommit count too. For SQLite: its statements."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from django.db import connection

from tests.benchmarks.candidates import PAPER, Candidate, connected_to, cycles, database_url, held, losses
from tests.benchmarks.paper import Paper, paper_on
from tests.benchmarks.rounds import WARM_UP, repeat
from tests.benchmarks.tables import Table, by_work
from tests.benchmarks.wire import Wire, traced, wire_to

CYCLES = 20
PORTS = {"postgresql": 5432, "mysql": 3306}


def fill(table: Table) -> None:
    unit = "statements" if connection.vendor == "sqlite" else "waits"
    with counting() as (paper, count):
        counts = {str(candidate): count(candidate) for candidate in cycles(paper)}
        with held(paper):
            counts |= {str(candidate): count(candidate) for candidate in losses(paper)}
    for work, cells in by_work(counts):
        table.row(f"{work}: {unit}", {way: f"{value:g}" for way, value in cells.items()})


@contextmanager
def counting() -> Iterator[tuple[Paper, Callable[[Candidate], float]]]:
    """The paper's recipe, and a function that counts what one cycle of a candidate needs."""
    if connection.vendor == "sqlite":
        with paper_on(database_url()) as paper:
            yield paper, lambda candidate: statements(candidate, paper)
    else:
        with on_a_wire() as (wire, paper):
            yield paper, lambda candidate: round_trips(candidate, wire)


@contextmanager
def on_a_wire() -> Iterator[tuple[Wire, Paper]]:
    """Django and the paper's recipe, both connected through the same proxy."""
    url = urlsplit(database_url())
    with wire_to(url.hostname or "127.0.0.1", url.port or PORTS[connection.vendor]) as wire:
        through = wire.url(url.geturl())
        with connected_to(through), paper_on(through) as paper:
            yield wire, paper


def round_trips(candidate: Candidate, wire: Wire) -> float:
    repeat(candidate, WARM_UP)
    before = wire.count
    repeat(candidate, CYCLES)
    return (wire.count - before) / CYCLES


def statements(candidate: Candidate, paper: Paper) -> float:
    repeat(candidate, WARM_UP)
    connected: Any = paper.driver_connection() if candidate.way == PAPER else connection.connection
    with traced(connected) as traces:
        repeat(candidate, CYCLES)
    return len(traces) / CYCLES
