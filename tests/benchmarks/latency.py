"""How long a cycle takes on a database that is farther away: in times of the latency that is added to a round trip.

The whole cycle, with what it takes without that latency, and only what the latency adds: on a busy machine, and for a
short latency, the two differ."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from django.db import connection

from tests.benchmarks.candidates import RAW, Candidate, cycles
from tests.benchmarks.plots import Plotter
from tests.benchmarks.rounds import spread, take_turns
from tests.benchmarks.tables import Table, by_work
from tests.benchmarks.waits import on_a_wire
from tests.benchmarks.wire import Wire

# In seconds.
LATENCIES = (0.001, 0.005)
ROUNDS = 20
CYCLES = 2


@dataclass(frozen=True, kw_only=True)
class FarAway(Candidate):
    """The same on a database that is farther away, by this latency."""

    wire: Wire
    latency: float

    def prepare(self) -> None:
        super().prepare()
        self.wire.delay.value = self.latency


def fill(table: Table, plotter: Plotter) -> None:
    if connection.vendor == "sqlite":
        return
    times = measured()
    for latency in LATENCIES:
        added = f"{latency * 1000:g} ms more a round trip"
        for work, ways in by_work(dict(in_times(latency, times, whole=True))):
            table.row(f"{work}, {added}: cycle / latency", {way: spread(values) for way, values in ways.items()})
        for work, ways in by_work(dict(in_times(latency, times, whole=False))):
            table.row(f"{work}, {added}: longer / latency", {way: spread(values) for way, values in ways.items()})
    plotter.latency({latency: dict(in_times(latency, times, whole=False)) for latency in LATENCIES})


def measured() -> dict[tuple[str, float], list[float]]:
    """The rounds' seconds, by candidate and latency."""
    with on_a_wire() as (wire, paper):
        near = [candidate for candidate in cycles(paper) if candidate.way != RAW]
        far = [
            FarAway(work=each.work, way=each.way, act=each.act, wire=wire, latency=latency)
            for each in near
            for latency in (0.0, *LATENCIES)
        ]
        times = take_turns(far, rounds=ROUNDS, cycles=CYCLES)
    return {(str(each), each.latency): times[each] for each in far}


def in_times(
    latency: float, times: dict[tuple[str, float], list[float]], *, whole: bool
) -> Iterator[tuple[str, list[float]]]:
    """For each candidate: its rounds, in times of the latency. If not `whole`, without what it takes nearby."""
    for (name, each), values in times.items():
        if each == latency:
            nearby = [0.0] * len(values) if whole else times[name, 0.0]
            yield name, [(value - near) / latency for value, near in zip(values, nearby, strict=True)]
