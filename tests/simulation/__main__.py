"""Simulates schedules until a number or a time is reached, and explains the first one that breaks a promise."""

from __future__ import annotations

import argparse
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

import django

parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
parser.add_argument("--schedules", type=int, help="how many to simulate (default: as many as there is time for)")
parser.add_argument("--seconds", type=float, default=60, help="for how long to simulate (default: 60)")
parser.add_argument("--seed", type=int, default=1, help="that of the first schedule; the next one has the next")
parser.add_argument("--scenario", default="", help="only this one (default: each schedule draws one)")
parser.add_argument("--profile", default="", choices=["", "one_host", "servers"], help="only this one (default: drawn)")
parser.add_argument("--processes", type=int, default=1, help="how many processes simulate (default: 1)")
parser.add_argument("--violations", type=int, default=1, help="after how many of them to end (default: 1)")
parser.add_argument("--history", action="store_true", help="print the history of each schedule; for a few of them")
parser.add_argument("--replay", help="a single schedule, as it was printed")
parser.add_argument("--trace", type=Path, help="write the events to this file, see tests/simulation/trace.py")
parser.add_argument(
    "--database",
    default="sqlite",
    choices=["sqlite", "postgresql", "mysql"],
    help="on which database (default: sqlite); postgresql uses DATABASE_URL, mysql uses MYSQL_URL",
)
parser.add_argument(
    "--isolation",
    default="",
    choices=["read uncommitted", "read committed", "repeatable read", "serializable"],
    help="the isolation level on a server (default: read committed)",
)
parser.add_argument(
    "--single-statement", action="store_true", help="on PostgreSQL: grant and release with one statement each"
)
parser.add_argument("--exhaustive", metavar="SCENARIO", help="carry out all schedules of a short scenario, or of 'all'")
parser.add_argument(
    "--preemptions", type=int, help="with --exhaustive: the most preemptions in a schedule (default: any number)"
)
parser.add_argument(
    "--faults", type=int, default=1, help="with --exhaustive: the most faults in a schedule (default: 1)"
)
given = parser.parse_args()

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
if given.database == "sqlite":
    os.environ.pop("DATABASE_URL", None)
elif given.database == "mysql":
    os.environ["DATABASE_URL"] = os.environ.get("MYSQL_URL", "")
if given.database == "sqlite" and given.isolation:
    parser.error("--isolation needs a server: name it with --database")
if given.database != "sqlite" and not os.environ.get("DATABASE_URL"):
    parser.error(f"--database {given.database} needs {'MYSQL' if given.database == 'mysql' else 'DATABASE'}_URL")
if given.single_statement:
    os.environ["SINGLEJOB_TEST_SINGLE_STATEMENT"] = "1"
django.setup()

from tests.simulation.campaign import Summary, Task, carried_out, explained, theatre  # noqa: E402
from tests.simulation.explore.search import search_all  # noqa: E402
from tests.simulation.report import explanation_lines, summary_lines  # noqa: E402
from tests.simulation.scenarios import SCENARIOS  # noqa: E402
from tests.simulation.schedule import Schedule  # noqa: E402
from tests.simulation.trace import Trace, listening  # noqa: E402


def main() -> int:
    if given.exhaustive:
        return search_all(given)
    task = Task(
        seed=given.seed,
        scenario=given.scenario,
        profile=given.profile,
        schedules=given.schedules,
        seconds=given.seconds,
        most_violations=given.violations,
        database=given.database,
        isolation=given.isolation,
    )
    if given.history or given.replay or given.trace:
        return show(task)
    begun_at = time.monotonic()
    summary = shared(task, given.processes)
    print(*summary_lines(summary, time.monotonic() - begun_at), sep="\n")
    for schedule, _ in summary.violations[:1]:
        print(*explanation_lines(schedule, task, *explained(schedule, task)), sep="\n")
    return int(bool(summary.violations))


def shared(task: Task, processes: int) -> Summary:
    """Simulate in several processes, which divide the seeds among them."""
    if processes == 1:
        return carried_out(task)
    number = None if task.schedules is None else -(-task.schedules // processes)
    shares = [replace(task, seed=task.seed + n, stride=processes, schedules=number) for n in range(processes)]
    summary = Summary()
    with ProcessPoolExecutor(processes, mp_context=get_context("fork")) as pool:
        for part in pool.map(carried_out, shares):
            summary.merge(part)
    return summary


def show(task: Task) -> int:
    """Simulate a few schedules, and show what happened."""
    schedules = [Schedule.from_json(given.replay)] if given.replay else task.all
    end, is_broken = time.monotonic() + task.seconds, False
    with theatre(task.database, task.isolation) as stage, ExitStack() as stack:
        file = stack.enter_context(given.trace.open("w")) if given.trace else None
        if file:
            stack.enter_context(listening())
        for schedule in schedules:
            if time.monotonic() >= end:
                break
            result = stage.play(schedule, is_kept=given.history, trace=Trace(file) if file else None)
            if given.history:
                print(f"{schedule.scenario} on {schedule.profile}, seed {schedule.seed}", result.history, "", sep="\n")
            is_broken = is_broken or bool(result.violation)
    return int(is_broken)


if given.scenario and given.scenario not in SCENARIOS:
    parser.error(f"--scenario is one of: {', '.join(SCENARIOS)}")
sys.exit(main())
