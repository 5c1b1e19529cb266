"""How many instructions the client and the server carry out for one cycle: the same on a busy machine. The server is
PostgreSQL's process of the connection, without what its other processes do. And how many bytes a cycle writes to the
write-ahead log."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
from django.core.management import call_command
from django.db import connection, connections

from tests.benchmarks import counted, valgrind
from tests.benchmarks.candidates import PAPER, Candidate, connected_to, cycles, held, losses
from tests.benchmarks.paper import Paper, paper_on
from tests.benchmarks.rounds import WARM_UP, repeat
from tests.benchmarks.servers import CountedPostgreSQL, DurablePostgreSQL, running
from tests.benchmarks.tables import Table, by_work
from tests.databases import PostgreSQL

PATIENCE = 900
# Of the server: more than of the client, because they cost less.
CYCLES = 30
# Of the warm-up or of these, those whose log is measured.
LOGGED = 5
MILLION = 1_000_000
MISSING = "instructions: left out, because valgrind is not installed"


def fill(table: Table) -> None:
    client = client_instructions() if valgrind.is_installed() else {}
    server: dict[str, int] = {}
    written: dict[str, int] = {}
    if connection.vendor == "postgresql":
        server, written = on_a_server_of_our_own()
    if not client:
        table.note(MISSING)
    for work, cells in by_work(client):
        table.row(f"{work}: million instructions of the client", millions(cells))
    for work, cells in by_work(server):
        table.row(f"{work}: million instructions of the server", millions(cells))
    for work, cells in by_work({name: client[name] + count for name, count in server.items()}):
        table.row(f"{work}: million instructions of both", millions(cells))
    for work, cells in by_work(written):
        table.row(f"{work}: bytes of WAL", {way: f"{count:,}" for way, count in cells.items()})


def millions(cells: dict[str, int]) -> dict[str, str]:
    return {way: f"{count / MILLION:.2f}" for way, count in cells.items()}


# --- the client


def client_instructions() -> dict[str, int]:
    """For each candidate."""
    with tempfile.TemporaryDirectory(prefix="singlejob-") as folder:
        command = [*valgrind.command(Path(folder)), sys.executable, "-m", "tests.benchmarks", "counted"]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=PATIENCE, check=True)
        pids: dict[str, list[int]] = json.loads(done.stdout.splitlines()[-1])
        counts = {name: [valgrind.instructions(Path(folder), pid) or 0 for pid in pair] for name, pair in pids.items()}
    return {name: (more - fewer) // counted.CYCLES for name, (fewer, more) in counts.items()}


# --- the server


def on_a_server_of_our_own() -> tuple[dict[str, int], dict[str, int]]:
    """Instructions, empty if they cannot be counted, and bytes of WAL, for each candidate."""
    kind = CountedPostgreSQL if valgrind.is_installed() else DurablePostgreSQL
    with running(kind) as server, connected_to(server.url), paper_on(server.url) as paper:
        call_command("migrate", run_syncdb=True, verbosity=0)
        found = list(each(server, paper))
    instructions = {name: count for name, count, _ in found if count is not None}
    return instructions, {name: written for name, _, written in found}


def each(server: PostgreSQL, paper: Paper) -> Iterator[tuple[str, int | None, int]]:
    # The first connections fill the caches that the server shares.
    for candidate in cycles(paper):
        backend(server, paper, candidate, WARM_UP)
    yield from (measured(server, paper, candidate) for candidate in cycles(paper))
    with held(paper):
        yield from (measured(server, paper, candidate) for candidate in losses(paper))


def measured(server: PostgreSQL, paper: Paper, candidate: Candidate) -> tuple[str, int | None, int]:
    fewer, _ = backend(server, paper, candidate, WARM_UP)
    more, written = backend(server, paper, candidate, WARM_UP + CYCLES)
    if not isinstance(server, CountedPostgreSQL):
        return str(candidate), None, written
    instructions = server.instructions(more) - server.instructions(fewer)
    return str(candidate), instructions // CYCLES, written


def backend(server: PostgreSQL, paper: Paper, candidate: Candidate, count: int) -> tuple[int, int]:
    """Do this number of cycles on a connection that is closed then. The server's process, and the bytes of WAL that
    one of the last cycles wrote."""
    with psycopg.connect(server.url, autocommit=True) as observer:
        repeat(candidate, count - LOGGED)
        before = wal_position(observer)
        repeat(candidate, LOGGED)
        written = wal_position(observer) - before
    pid: int = driver_connection(paper, candidate).info.backend_pid
    connections.close_all()
    paper.engine.dispose()
    return pid, written // LOGGED


def driver_connection(paper: Paper, candidate: Candidate) -> psycopg.Connection:
    connected: psycopg.Connection = paper.driver_connection() if candidate.way == PAPER else connection.connection
    return connected


def wal_position(observer: psycopg.Connection) -> int:
    row = observer.execute("SELECT pg_current_wal_insert_lsn() - '0/0'").fetchone()
    return int(row[0]) if row else 0
