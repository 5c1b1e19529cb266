"""The experiment of the paper: servers ask for one lock at the same instant, round after round. The lock cost is how
long the winner waited for the lock. It keeps the lock until all others have been refused, so one wins each round."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from queue import SimpleQueue
from statistics import median
from threading import Barrier, Semaphore, Thread

from django.db import connections

from django_singlejob import LockHeld, job_lock, singleton_job
from tests.benchmarks.candidates import LOCK, LONG, PAPER, RUN, choose, database_url, ways
from tests.benchmarks.paper import Paper, paper_on
from tests.benchmarks.plots import Plotter
from tests.benchmarks.rounds import spread
from tests.benchmarks.tables import Table, by_work

# Servers, which are threads as in the paper, and rounds.
RACES = ((10, 100), (50, 30))
NAME = "bench.race"
WARM_UP = 3
PATIENCE = 60.0
#: Asks for the lock, and calls the body if it gets it.
Contest = Callable[[Callable[[], None]], object]


def fill(table: Table, plotter: Plotter) -> None:
    for servers, rounds in RACES:
        costs = race(servers, rounds)
        floor = median(costs[f"{RUN}, {PAPER}"])
        relative = {name: [cost / floor for cost in values] for name, values in costs.items()}
        for work, cells in by_work(relative):
            label = f"{servers} x {rounds} race: lock cost of a {work} / {PAPER}"
            table.row(label, {way: spread(values) for way, values in cells.items()})
        plotter.race(servers, relative)


def race(servers: int, rounds: int) -> dict[str, list[float]]:
    """The lock cost of each round, in seconds, for each candidate. Their rounds take turns."""
    with paper_on(database_url()) as paper, crew(servers) as call:
        contests = contests_of(paper)
        costs: dict[str, list[float]] = {name: [] for name in contests}
        for _ in range(WARM_UP + rounds):
            for name, contest in contests.items():
                choose(name.split(", ")[1])
                costs[name].append(call(contest))
    return {name: values[WARM_UP:] for name, values in costs.items()}


def contests_of(paper: Paper) -> dict[str, Contest]:
    return {
        f"{RUN}, {PAPER}": lambda body: paper.run(NAME, body),
        **{f"{RUN}, {way}": contested for way in ways()},
        **{f"{LOCK}, {way}": lock for way in ways()},
    }


@singleton_job(NAME, lease=LONG)
def contested(body: Callable[[], None]) -> None:
    body()


def lock(body: Callable[[], None]) -> None:
    with suppress(LockHeld), job_lock(NAME, lease=LONG):
        body()


# --- the servers


@contextmanager
def crew(count: int) -> Iterator[Callable[[Contest], float]]:
    """Servers that wait for a round. Yields a function that lets them race, and returns the winner's lock cost."""
    lines: list[SimpleQueue[tuple[Contest, Round] | None]] = [SimpleQueue() for _ in range(count)]
    servers = [Thread(target=serve, args=[line], daemon=True) for line in lines]
    for server in servers:
        server.start()

    def call(contest: Contest) -> float:
        this_round = Round(count)
        for line in lines:
            line.put((contest, this_round))
        return this_round.cost()

    try:
        yield call
    finally:
        for line in lines:
            line.put(None)
        for server in servers:
            server.join(PATIENCE)


def serve(line: SimpleQueue[tuple[Contest, Round] | None]) -> None:
    while task := line.get():
        contest, this_round = task
        this_round.take_part(contest)
    connections.close_all()


class Round:
    """One race of this number of servers."""

    def __init__(self, servers: int) -> None:
        self.servers = servers
        self.start = Barrier(servers)
        self.refused = Semaphore(0)
        #: From each server: the winner's lock cost in seconds, `None` from a loser, or what went wrong.
        self.answers: SimpleQueue[float | Exception | None] = SimpleQueue()

    def take_part(self, contest: Contest) -> None:
        costs: list[float] = []
        self.start.wait(PATIENCE)
        asked_at = time.perf_counter()

        def body() -> None:
            costs.append(time.perf_counter() - asked_at)
            for _ in range(self.servers - 1):
                self.refused.acquire(timeout=PATIENCE)

        try:
            contest(body)
        except Exception as error:
            self.answers.put(error)
            return
        if not costs:
            self.refused.release()
        self.answers.put(costs[0] if costs else None)

    def cost(self) -> float:
        """The winner's lock cost, when all servers are done."""
        costs = []
        for _ in range(self.servers):
            answer = self.answers.get(timeout=2 * PATIENCE)
            if isinstance(answer, Exception):
                raise answer
            if answer is not None:
                costs.append(answer)
        [cost] = costs
        return cost
