"""What grows, and how: with registered jobs, recorded runs, contenders for one lock, workers, and leases in one
process. One table and one plot each. Counts, or ratios to the smallest point."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from django.db import connection, connections

from tests.benchmarks import curves_contenders, curves_history, curves_jobs, curves_leases, curves_workers
from tests.benchmarks.curves_point import Point
from tests.benchmarks.plots import Plotter
from tests.benchmarks.tables import Table


@dataclass(frozen=True, kw_only=True)
class Curve:
    """``of``: what there is more and more of. ``unit``: of the lines of the plot."""

    name: str
    of: str
    unit: str
    measure: Callable[[], Iterable[Point]]
    is_log: bool = True


CURVES = (
    Curve(
        name="jobs",
        of="registered jobs",
        unit="processor time, in times of that with 10 jobs",
        measure=curves_jobs.points,
    ),
    Curve(
        name="history",
        of="recorded runs",
        unit="processor time, in times of that with 1 000 runs",
        measure=curves_history.points,
    ),
    Curve(
        name="contenders",
        of="contenders for one lock",
        unit="in times of one contender's grant",
        measure=curves_contenders.points,
    ),
    Curve(
        name="workers",
        of="worker processes",
        unit="tasks a second, in times of one worker's",
        measure=curves_workers.points,
        is_log=False,
    ),
    Curve(name="leases", of="leases in one process", unit="in one heartbeat interval", measure=curves_leases.points),
)


def compare(plotter: Plotter) -> None:
    """Prints the tables."""
    for curve in CURVES:
        points = list(shown(curve))
        if points:
            plotter.curve(curve.name, curve.of, curve.unit, points, is_log=curve.is_log)
        connections.close_all()


def shown(curve: Curve) -> Iterable[Point]:
    """The points, each printed as soon as it is measured."""
    table = None
    for point in curve.measure():
        table = table or Table(f"{curve.of}, {connection.display_name}", [*point.cells])
        table.row(f"{point.size:,}", point.cells)
        yield point
