"""What it costs to get a lock, and not to get it, when 1 to 200 servers ask for it at the same instant. The servers are
threads of one interpreter, as in the race: the winner also waits for the losers' Python code."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from statistics import fmean, median
from threading import Lock
from typing import Any, NamedTuple

from django.db import connection

from tests.benchmarks.candidates import PORTABLE, choose
from tests.benchmarks.curves_point import Point
from tests.benchmarks.race import WARM_UP, contested, crew
from tests.benchmarks.rounds import rounded

CONTENDERS = (1, 2, 5, 10, 20, 50, 100, 200)
# In all rounds of one size, about as many asks.
ASKS, LEAST, MOST = 1000, 5, 50


class Asked(NamedTuple):
    """By one server: the processor seconds of its thread, and its statements."""

    seconds: float
    statements: int


class Costs(NamedTuple):
    """Of each round: how long the winner waited. Of each ask: its cost."""

    waits: list[float]
    winners: list[Asked]
    losers: list[Asked]


def points() -> Iterator[Point]:
    choose(PORTABLE)
    alone: Costs | None = None
    for count in CONTENDERS:
        if count + 3 > most_connections():
            return
        costs = race(count)
        alone = alone or costs
        yield point(count, costs, alone)


def point(count: int, costs: Costs, alone: Costs) -> Point:
    floor = median(asked.seconds for asked in alone.winners)
    lines = {
        "the winner waits": median(costs.waits) / median(alone.waits),
        "winner's processor time": median(asked.seconds for asked in costs.winners) / floor,
    }
    cells = {name: rounded(value) for name, value in lines.items()}
    if costs.losers:
        lines["a loser's processor time"] = median(asked.seconds for asked in costs.losers) / floor
        cells["a loser's processor time"] = rounded(lines["a loser's processor time"])
    cells["statements of the winner"] = rounded(fmean(asked.statements for asked in costs.winners))
    cells["statements of a loser"] = rounded(fmean(asked.statements for asked in costs.losers)) if costs.losers else ""
    return Point(count, {name: cells.get(name, "") for name in COLUMNS}, lines)


COLUMNS = (
    "the winner waits",
    "winner's processor time",
    "a loser's processor time",
    "statements of the winner",
    "statements of a loser",
)


def race(servers: int) -> Costs:
    costs, ask = Costs([], [], []), Ask()
    rounds = max(LEAST, min(MOST, ASKS // servers))
    with crew(servers) as call:
        for number in range(WARM_UP + rounds):
            if number == WARM_UP:
                ask.forget()
            costs.waits.append(call(ask))
    return Costs(costs.waits[WARM_UP:], ask.winners, ask.losers)


class Ask:
    """A contest that notes what each server spent on it, the winner up to its grant."""

    def __init__(self) -> None:
        self._lock = Lock()
        self.forget()

    def forget(self) -> None:
        self.winners: list[Asked] = []
        self.losers: list[Asked] = []

    def __call__(self, body: Callable[[], None]) -> None:
        connection.ensure_connection()
        count, start, has_won = Count(), time.thread_time(), False

        def noted_body() -> None:
            nonlocal has_won
            has_won = True
            with self._lock:
                self.winners.append(Asked(time.thread_time() - start, count.statements))
            body()

        with connection.execute_wrapper(count):
            contested(noted_body)
        if not has_won:
            with self._lock:
                self.losers.append(Asked(time.thread_time() - start, count.statements))


class Count:
    """Counts the statements of a connection."""

    def __init__(self) -> None:
        self.statements = 0

    def __call__(self, execute: Callable[..., Any], *arguments: Any) -> Any:
        self.statements += 1
        return execute(*arguments)


def most_connections() -> float:
    """How many the server allows."""
    sql = {"postgresql": "SHOW max_connections", "mysql": "SELECT @@max_connections"}.get(connection.vendor)
    if sql is None:
        return float("inf")
    with connection.cursor() as cursor:
        cursor.execute(sql)
        return int(cursor.fetchone()[0])
