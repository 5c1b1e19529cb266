"""Starts the servers, lets the nemesis torment them, winds them down, and judges what happened."""

from __future__ import annotations

import argparse
import io
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import django

parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
parser.add_argument("--seconds", type=float, default=60)
parser.add_argument("--servers", type=int, default=6, help="of six, two are workers and one is run_singleton")
parser.add_argument("--seed", type=int, help="for the order and the victims of the faults; the servers are not seeded")
parser.add_argument("--faults", default="", help='use only pairs of these, as in "killed,stopped" (default: all)')
parser.add_argument(
    "--single-statement", action="store_true", help="on PostgreSQL: grant and release with one statement each"
)
parser.add_argument("--keep", action="store_true", help="keep the history even if nothing is broken")
given = parser.parse_args()

if "chaos" not in urlsplit(os.environ.get("DATABASE_URL", "/chaos")).path:
    parser.error('The chaos empties its database: set DATABASE_URL to one whose name contains "chaos".')
folder = Path(tempfile.mkdtemp(prefix="singlejob-chaos-"))
url = os.environ.setdefault("DATABASE_URL", f"sqlite:///{folder}/chaos.sqlite3")
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
if given.single_statement:
    os.environ["SINGLEJOB_TEST_SINGLE_STATEMENT"] = "1"  # the servers inherit it
django.setup()

from django.core.management import call_command  # noqa: E402
from django.db import connection  # noqa: E402

from tests.chaos import LEASE  # noqa: E402
from tests.chaos.databases import created_if_missing, database  # noqa: E402
from tests.chaos.evidence import gathered, leftovers, orphans  # noqa: E402
from tests.chaos.judge import verdict  # noqa: E402
from tests.chaos.report import excerpt, section, summary  # noqa: E402
from tests.chaos.stage import Stage  # noqa: E402
from tests.chaos.torment import pairs, torment  # noqa: E402


def main() -> int:
    seed = random.randrange(10**6) if given.seed is None else given.seed
    random.seed(seed)
    print(f"{given.servers} servers for {given.seconds:.0f} s on {urlsplit(url).scheme}, seed {seed}", flush=True)
    with created_if_missing():
        return run()


def run() -> int:
    names = [name for name in given.faults.split(",") if name]
    call_command("migrate", run_syncdb=True, verbosity=0)
    call_command("flush", interactive=False, verbosity=0)
    with database(url, folder) as shared, Stage(shared, folder, given.servers) as stage:
        print(f"The servers are up; their logs are in {folder}.", flush=True)
        # Ctrl-C ends the torment early, and nothing else: what happened until then is judged.
        with suppress(KeyboardInterrupt):
            torment(stage, names, given.seconds)
        connection.close()  # it may have been interrupted in the middle of a statement
        stage.wind_down()
    left = orphans()
    time.sleep(LEASE.total_seconds())  # the lease of the last one that was killed expires
    call_command("clear_stale_locks", stdout=io.StringIO())
    left |= leftovers() | {"servers that did not exit": len(stage.hung)}
    return report(stage, left, len(pairs(stage, names)))


def report(stage: Stage, left: dict[str, int], possible_pairs: int) -> int:
    evidence = gathered(folder, left)
    violations = verdict(evidence)
    for violation in violations[:5]:
        print(*excerpt(evidence, violation), "", sep="\n")
    print(*summary(evidence, violations, possible_pairs), sep="\n")
    print(*section("Servers that exited without a signal", stage.exits or {"none": 0}), sep="\n")
    if stage.hung:
        print(f"These servers did not exit: {stage.hung}. Their logs show what their threads were doing.")
    return 1 if violations else 0


signal.signal(signal.SIGTERM, signal.default_int_handler)
status = 1
try:
    status = main()
finally:
    if status or given.keep:
        print(f"The history and the logs of the servers are in {folder}.")
    else:
        shutil.rmtree(folder)
sys.exit(status)
