"""``manage.py prune_singletons``: delete old runs from the history."""

import argparse
from datetime import timedelta
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from django_singlejob.conf import options
from django_singlejob.querysets import runs

# No run is older, and the databases count no further.
CENTURY = 36_525


class Command(BaseCommand):
    help = (
        "Deletes the runs that have ended and began longer ago than --days, and of each job those beyond its newest "
        "--keep. Nothing that the locks need is in the history: it may be pruned to nothing."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--days", type=_whole_number, metavar="N", help='Default: SINGLEJOB["HISTORY_DAYS"].')
        parser.add_argument("--keep", type=_whole_number, metavar="N", help='Default: SINGLEJOB["HISTORY_KEEP"].')
        parser.add_argument("--dry-run", action="store_true", help="Only counts them.")

    def handle(self, **given: Any) -> None:
        days = options().history_days if given["days"] is None else given["days"]
        keep = options().history_keep if given["keep"] is None else given["keep"]
        surplus = runs().surplus(timedelta(days=min(days, CENTURY)), keep)
        if given["dry_run"]:
            self.stdout.write(f"Runs that would be deleted: {surplus.count()}.")
        else:
            self.stdout.write(f"Runs deleted: {surplus.prune()}.")


def _whole_number(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number, 0 or more.")
    return int(text)
