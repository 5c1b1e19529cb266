"""The client whose instructions are counted: `valgrind ... python -m tests.benchmarks counted`.

For each candidate it forks twice: one process does some cycles, the other one as many more as are counted. It prints
which process did what."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

from django.db import connections

from tests.benchmarks.candidates import Candidate, cycles, database_url, held, losses
from tests.benchmarks.paper import Paper, paper_on
from tests.benchmarks.rounds import WARM_UP, repeat

CYCLES = 10


def report() -> None:
    """Print the processes, as JSON: for each candidate, the pid with fewer cycles and the one with more."""
    with paper_on(database_url()) as paper:
        pids = dict(pairs(paper, cycles(paper)))
        with held(paper):
            pids |= dict(pairs(paper, losses(paper)))
    print(json.dumps(pids), flush=True)


def pairs(paper: Paper, candidates: list[Candidate]) -> Iterator[tuple[str, list[int]]]:
    for candidate in candidates:
        yield str(candidate), [forked(paper, candidate, WARM_UP + more) for more in (0, CYCLES)]


def forked(paper: Paper, candidate: Candidate, count: int) -> int:
    """The pid of a process that has done this number of cycles, on connections of its own."""
    connections.close_all()
    paper.engine.dispose()
    pid = os.fork()
    if not pid:
        repeat(candidate, count)
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    if status:
        raise RuntimeError(f"{candidate} ended with status {status}.")
    return pid
