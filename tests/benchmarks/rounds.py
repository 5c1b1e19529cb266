"""Rounds in which all candidates take turns, so that noise of the machine affects them all alike."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from statistics import median, quantiles
from typing import TypeVar

from tests.benchmarks.candidates import Candidate

C = TypeVar("C", bound=Candidate)
# Before its first round. psycopg prepares what it has seen five times, SQLAlchemy caches what it has compiled.
WARM_UP = 8


def take_turns(candidates: Sequence[C], *, rounds: int, cycles: int) -> dict[C, list[float]]:
    """Seconds for one cycle, for each candidate and round. Each turn is a few cycles."""
    for candidate in candidates:
        repeat(candidate, WARM_UP)
    times: dict[C, list[float]] = {candidate: [] for candidate in candidates}
    for number in range(rounds):
        # Another one begins each time, because the turn before may leave the database something to do.
        first = number % len(candidates)
        for candidate in [*candidates[first:], *candidates[:first]]:
            times[candidate].append(repeat(candidate, cycles) / cycles)
    return times


def repeat(candidate: Candidate, cycles: int) -> float:
    """Seconds."""
    candidate.prepare()
    start = time.perf_counter()
    for _ in range(cycles):
        candidate.act()
    return time.perf_counter() - start


def ratios(values: Iterable[float], floor: Iterable[float]) -> list[float]:
    """Of each round."""
    return [value / least for value, least in zip(values, floor, strict=True)]


def spread(values: Sequence[float]) -> str:
    """The median and the quartiles."""
    low, _, high = quantiles(values, n=4, method="inclusive")
    return f"{rounded(median(values))} ({rounded(low)} to {rounded(high)})"


def rounded(value: float) -> str:
    """To three digits, at most two of them behind the point."""
    return f"{value:.{2 if abs(value) < 10 else 1 if abs(value) < 100 else 0}f}"
