"""Checks every form of the models, and prints what spin found."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.model.checker import check, lacks
from tests.model.configurations import ALL

parser = argparse.ArgumentParser(prog="python -m tests.model", description=__doc__)
parser.add_argument("--short", action="store_true", help="only what the tests check")
parser.add_argument("--only", default="", help="only the forms whose name contains this")
parser.add_argument("--trails", action="store_true", help="print the steps to each violation, the mutants' too")
given = parser.parse_args()

if lacks():
    sys.exit(f"The models cannot be checked: {lacks()}.")
if not any(given.only in configuration.name for configuration in ALL):
    parser.error(f"--only is a part of one of: {', '.join(configuration.name for configuration in ALL)}")
is_as_expected = True
with tempfile.TemporaryDirectory(prefix="singlejob-model-") as folder:
    for number, configuration in enumerate(ALL):
        if given.only in configuration.name and (configuration.is_short or not given.short):
            verdict = check(configuration, Path(folder) / str(number))
            print(verdict.line, flush=True)
            if verdict.trail and (given.trails or not verdict.is_as_expected):
                print(verdict.trail)
            is_as_expected = is_as_expected and verdict.is_as_expected
sys.exit(not is_as_expected)
