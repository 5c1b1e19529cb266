"""Plays scenarios on clusters of its own, one after the other, and prints a table of what the witness saw."""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from tests.clusters import galera_scenarios, postgres_scenarios
from tests.clusters.report import table

if TYPE_CHECKING:
    from tests.clusters.report import Rows
    from tests.clusters.scenario import Scenario
    from tests.clusters.witness import Figures

SCENARIOS = {one.name: one for one in [*postgres_scenarios.SCENARIOS, *galera_scenarios.SCENARIOS]}

parser = argparse.ArgumentParser(prog="python -m tests.clusters", description=__doc__)
parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help=f"any of {', '.join(SCENARIOS)} (default: all)")
parser.add_argument("--seconds", type=float, default=10, help="how long they work before and after the fault")
parser.add_argument("--seed", type=int, help="for the timing of the faults; the processes are not seeded")
parser.add_argument("--rounds", type=int, default=1, help="how often each scenario is played")
parser.add_argument("--keep", action="store_true", help="keep all histories and logs, not only of broken scenarios")


def main() -> int:
    given = parser.parse_args()
    names = given.scenarios or list(SCENARIOS)
    if unknown := set(names) - SCENARIOS.keys():
        parser.error(f"No such scenario: {', '.join(sorted(unknown))}. There are: {', '.join(SCENARIOS)}.")
    seed = random.randrange(10**6) if given.seed is None else given.seed
    random.seed(seed)
    print(f"Seed {seed}.", flush=True)
    rows: Rows = {}
    # Ctrl-C ends this early: the table shows what was played until then.
    with suppress(KeyboardInterrupt):
        for number in range(given.rounds):
            for name in names:
                title = f"{name} {number + 1}" if given.rounds > 1 else name
                rows[title] = play(SCENARIOS[name], given.seconds, is_kept=given.keep)
    print(*table(rows), sep="\n")
    return any(broken for _, broken in rows.values())


def play(scenario: Scenario, seconds: float, *, is_kept: bool) -> tuple[Figures, dict[str, float]]:
    folder = Path(tempfile.mkdtemp(prefix="singlejob-cluster-"))
    seen = scenario.play(folder, seconds)
    broken = scenario.broken(seen)
    print(f"{scenario.name}: {broken or 'as promised'}", flush=True)
    if broken or is_kept:
        print(f"    Its history and logs are in {folder}.", flush=True)
    else:
        shutil.rmtree(folder)
    return seen, broken


signal.signal(signal.SIGTERM, signal.default_int_handler)
sys.exit(main())
