"""What the passes of a worker and two looks at all jobs cost, with 10 to 10,000 registered jobs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

from tests.benchmarks.curves_point import Cost, Point, compared, cost
from tests.benchmarks.jobs import COUNTS, DUE, ROUNDS, Worker, acts, fall_due, many_jobs


def points() -> Iterator[Point]:
    least: dict[str, Cost] = {}
    for count in COUNTS:
        costs = measured(count)
        least = least or costs
        yield compared(count, costs, least)


def measured(count: int) -> dict[str, Cost]:
    costs = {}
    with many_jobs(count), closing(Worker()) as worker:
        for name, act in acts(worker).items():
            fall_due(DUE if name == f"tick, {DUE} due" else 0)
            costs[name] = cost(act, ROUNDS)
    return costs
