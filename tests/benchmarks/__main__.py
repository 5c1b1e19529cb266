"""What a lock costs: beside the paper's bare INSERT and DELETE, and beside one SELECT, in turn on one connection."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from statistics import median
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import django

if TYPE_CHECKING:
    from collections.abc import Callable

ROUNDS = 300


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        url = os.environ.setdefault("DATABASE_URL", f"sqlite:///{folder}/bench.sqlite3")
        if "bench" not in url:
            sys.exit("It writes to its database: name one in DATABASE_URL whose name has the word bench in it.")
        os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
        django.setup()
        print(f"{urlsplit(url).scheme}, median of {ROUNDS} rounds")
        from tests.benchmarks.cost import acts  # noqa: PLC0415  (after the setup)

        show(measure(acts()))


def measure(acts: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Seconds for each act. In turn, so that a noisy machine is as noisy for all."""
    times: dict[str, list[float]] = {name: [] for name in acts}
    for _ in range(ROUNDS):
        for name, act in acts.items():
            start = time.perf_counter()
            act()
            times[name].append(time.perf_counter() - start)
    return {name: median(values) for name, values in times.items()}


def show(medians: dict[str, float]) -> None:
    for name, seconds in medians.items():
        floor = medians["one SELECT" if "refused" in name or "SELECT" in name else "INSERT and DELETE"]
        print(f"{name:40} {seconds * 1000:8.2f} ms {seconds / floor:8.1f} x")


main()
