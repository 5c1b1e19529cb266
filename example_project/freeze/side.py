"""The two sides of the comparison, and what happens on each. Nothing is left to chance: each step follows from what a
worker reports, and none from the time that has passed.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import wait
from typing import Protocol

from django.core.cache import cache

from .locks import LOCKS, NAME
from .models import Invoice
from .results import Result
from .workers import Report, Worker, WorkerLost

# Worker 1 is frozen before it writes this customer's invoice, and wakes when worker 2 is about to write that one's.
FROZEN_AT, WAKES_AT = 4, 7
# How long nobody may report anything, in seconds: a lease, a watch, and all that a busy machine needs.
PATIENCE = 60.0
# How often the screen may change, in seconds.
TICK = 0.1


class Screen(Protocol):
    def show(self, lock: str, worker: int, report: Report) -> None:
        """Something has happened."""

    def tick(self) -> None:
        """Time has passed."""


def compare(pace: float, screen: Screen) -> list[Result]:
    """Let both sides happen at the same time. An invoice takes ``pace`` seconds.

    Raises ``WorkerLost`` if a worker fails, or does not report anything for a long time.
    """
    Invoice.objects.all().delete()
    cache.delete(NAME)
    with _two_sides(pace, screen) as sides:
        for side in sides:
            side.begin()
        _carry_out(sides, screen)
        return [side.result() for side in sides]


@contextmanager
def _two_sides(pace: float, screen: Screen) -> Iterator[list["Side"]]:
    workers = [Worker.start(lock, number, pace) for lock in LOCKS for number in (1, 2)]
    try:
        for worker in workers:
            worker.hear()  # it is ready
        yield [Side(pair, screen) for pair in (workers[:2], workers[2:])]
    finally:
        for worker in workers:
            worker.let_go()
        for worker in workers:
            worker.end()


def _carry_out(sides: list["Side"], screen: Screen) -> None:
    give_up_at = time.monotonic() + PATIENCE
    while at_work := {worker.line: (side, worker) for side in sides for worker in side.at_work}:
        ready = wait(at_work, TICK)
        for line, (side, worker) in at_work.items():
            if line in ready:
                side.hear(worker)
                give_up_at = time.monotonic() + PATIENCE
        if time.monotonic() > give_up_at:
            raise WorkerLost(f"No worker has reported anything for {PATIENCE:.0f} seconds.")
        screen.tick()


class Side:
    """Two workers that use the same lock.

    Attributes:
        at_work: those that have not ended.
    """

    def __init__(self, workers: list[Worker], screen: Screen) -> None:
        self._first, self._second = workers
        self._lock, self._screen = self._first.lock, screen
        self.at_work = list(workers)
        self._written: set[int] = set()
        self._written_before: list[int] = []
        self._loss = ""

    def begin(self) -> None:
        self._begin(self._first)

    def _begin(self, worker: Worker) -> None:
        self._show(worker, Report("waits"))
        worker.answer()

    def hear(self, worker: Worker) -> None:
        """Do what follows from the worker's next report."""
        report = worker.hear()
        if report.act == "wrote":
            report = report._replace(act="repeats" if report.customer in self._written else "wrote")
            self._written.add(report.customer)
        self._show(worker, report)
        if report.act == "prepares":
            self._answer(worker, report.customer)
        elif report.act in ("done", "lost"):
            self.at_work.remove(worker)
            if worker is self._first:
                self._loss = report.detail

    def _answer(self, worker: Worker, customer: int) -> None:
        if (worker, customer) == (self._first, FROZEN_AT):
            worker.freeze()
            self._written_before = self._written_by(worker)
            self._show(worker, Report("frozen", detail=f"kill -STOP {worker.pid}"))
            self._begin(self._second)
        elif (worker, customer) == (self._second, WAKES_AT):
            self._show(self._first, Report("wakes", detail=f"kill -CONT {self._first.pid}"))
            self._first.wake()
        worker.answer()

    def _show(self, worker: Worker, report: Report) -> None:
        self._screen.show(self._lock, worker.number, report)

    def result(self) -> Result:
        """What the database has, and how worker 1 ended."""
        before = self._written_before
        after = self._written_by(self._first)[len(before) :]
        return Result(
            lock=self._lock, before=before, taken_over=self._written_by(self._second), after=after, loss=self._loss
        )

    def _written_by(self, worker: Worker) -> list[int]:
        """The customers for whom it has written an invoice, in that order."""
        rows = Invoice.objects.filter(lock=self._lock, worker=worker.number).order_by("pk")
        return list(rows.values_list("customer", flat=True))
