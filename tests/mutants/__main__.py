"""Breaks the protocol in copies of the tree, one mutant at a time, and shows which tests and which schedules notice."""

from __future__ import annotations

import argparse
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from tests.databases import DATABASES
from tests.mutants.copies import copied
from tests.mutants.mutant import SIMULATION
from tests.mutants.mutants import MUTANTS
from tests.mutants.verdicts import judge, problems_of_the_unchanged

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.mutants.verdicts import Verdict

PLACES = (*DATABASES, SIMULATION)


def main() -> int:
    given = arguments()
    mutants = [mutant for mutant in MUTANTS if not given.only or mutant.name in given.only]
    places = given.database or [place for place in PLACES if place != "mysql" or "MYSQL_URL" in os.environ]
    pairs = [(mutant, place) for mutant in mutants for place in places if mutant.is_tried_in(place)]
    # All copies are copies of one, so the tree may be edited meanwhile.
    with copied() as tree, ThreadPoolExecutor(given.jobs) as pool:
        problems = [*chain(*pool.map(partial(problems_of_the_unchanged, mutants, tree), places))]
        if problems:
            print("The unchanged tree is not green, so nothing can be judged:", *problems, sep="\n    ")
            return 1
        status = report(pool.map(lambda pair: judge(pair[0], pair[1], tree), pairs))
    if SIMULATION in places:
        print(*[f"{mutant.name}: {mutant.simulation}" for mutant in mutants if mutant.is_out_of_reach], sep="\n")
    return status


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    names = [mutant.name for mutant in MUTANTS]
    parser.add_argument("--only", action="append", choices=names, metavar="NAME", help="only this mutant; repeatable")
    parser.add_argument("--database", action="append", choices=PLACES, help="repeatable; default: all that there are")
    parser.add_argument("--jobs", type=int, default=2, help="how many runs at the same time")
    return parser.parse_args()


def report(verdicts: Iterable[Verdict]) -> int:
    """Print each verdict as soon as it is known. Returns the status to exit with: 1 if there is a problem."""
    begun_at, judged, bad = time.monotonic(), 0, 0
    for verdict in verdicts:
        print(verdict, flush=True)
        judged, bad = judged + 1, bad + bool(verdict.problem)
    print(f"{judged} runs in {time.monotonic() - begun_at:.0f} s, {bad} with a problem")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
