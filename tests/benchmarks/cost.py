"""How long a cycle takes, in times of the paper's recipe, and of two bare statements through Django's own cursor."""

from __future__ import annotations

from collections.abc import Sequence

from tests.benchmarks.candidates import (
    LOCK,
    LOST_LOCK,
    LOST_RUN,
    PAPER,
    RAW,
    RUN,
    Candidate,
    cycles,
    database_url,
    held,
    losses,
)
from tests.benchmarks.paper import paper_on
from tests.benchmarks.rounds import ratios, spread, take_turns
from tests.benchmarks.tables import Table, by_work

ROUNDS = 100
CYCLES = 4
#: A work, and the way to do it whose time is 1.
FLOORS = {(RUN, PAPER): [RUN, LOCK], (RUN, RAW): [RUN], (LOST_RUN, PAPER): [LOST_RUN, LOST_LOCK]}


def fill(table: Table) -> None:
    with paper_on(database_url()) as paper:
        times = measured(cycles(paper))
        with held(paper):
            times |= measured(losses(paper))
    for (work, way), works in FLOORS.items():
        for each in works:
            cells = {other: spread(ratios(value, times[work][way])) for other, value in times[each].items()}
            table.row(f"{each} / {way}", cells)


def measured(candidates: Sequence[Candidate]) -> dict[str, dict[str, list[float]]]:
    """Seconds in each round, by work and way."""
    times = take_turns(candidates, rounds=ROUNDS, cycles=CYCLES)
    return dict(by_work({str(candidate): values for candidate, values in times.items()}))
