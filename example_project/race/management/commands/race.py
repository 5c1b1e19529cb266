"""``manage.py race``: the experiment of Lu 2025 (doi 10.38124/ijisrt/25nov415), with our lock.

Ten servers, a hundred rounds. In each round all servers ask for the same hourly job at the same instant, and one of
them runs it. The lock cost is how long the winner waited for the lock.

Why is there exactly one winner in each round? Not because all servers ask while one holds the lock: on a busy machine a
server can be so slow that the winner has finished by then, and the lock is free. With insert-and-delete, the paper's
recipe, the slow server would win as well. Making the holder wait for it would only hide the gap. Instead the job has a
``min_interval`` of half an hour, as an hourly job in a crontab should. The statement that decides which server wins
checks that too, so the slow server gets "already ran". Between two rounds an hour passes, not by waiting but by moving
``last_started_at`` back in the database.
"""

import argparse
import sys
from collections.abc import Iterable
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import connection

from race import report
from race.paper import DOI
from race.results import Round
from race.servers import ServerLost, running
from race.track import history_since, newest_run, race
from race.verdict import faults

MOST_FAULTS = 10


class Command(BaseCommand):
    help = f"Lets servers race for one job, round after round: the experiment of doi {DOI} with our lock."
    requires_migrations_checks = True

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--servers", type=_count, default=10, metavar="N", help="How many servers race (default: 10)."
        )
        parser.add_argument("--rounds", type=_count, default=100, metavar="N", help="How many rounds (default: 100).")
        kind = parser.add_mutually_exclusive_group()
        kind.add_argument("--processes", action="store_true", help="Each server is a process (the default).")
        kind.add_argument("--threads", action="store_true", help="Each server is a thread, as in the paper.")

    def handle(self, *, servers: int, rounds: int, threads: bool, **options: Any) -> None:
        kind = "threads" if threads else "processes"
        self.stdout.write(f"{servers} servers ({kind}) race {rounds} rounds for one job on {connection.display_name}:")
        self.stdout.write(f"the experiment of Lu 2025 (doi {DOI}), with our lock.")
        before = newest_run()
        try:
            results = self._race(servers, rounds, threads=threads)
        except ServerLost as error:
            raise CommandError(f"The race cannot go on: {error}") from error
        except KeyboardInterrupt:
            raise CommandError("The race was stopped.", returncode=130) from None
        self._report(results)
        self._judge(results, history_since(before))
        self._section("What to try next", [report.next_steps(" ".join(sys.orig_argv[:2]))])

    def _race(self, servers: int, rounds: int, *, threads: bool) -> list[Round]:
        results = []
        self._progress("starting the servers")
        with running(servers, as_threads=threads) as crew:
            for each in race(crew, rounds):
                results.append(each)
                self._progress(f"round {each.number} of {rounds}")
        self._progress("")
        return results

    def _progress(self, text: str) -> None:
        """One line that overwrites itself; nothing if this is not a terminal."""
        if self.stdout.isatty():
            self.stdout.write(f"\r{text:<30}\r", ending="")
            self.stdout.flush()

    def _report(self, results: list[Round]) -> None:
        self._section("Table 1. Who won, and what the lock cost", report.winners(results))
        self._section("Table 2. Wins per server", report.wins_per_server(results))
        self._section("The lock cost: how long the winner waited", report.lock_costs(results))

    def _section(self, title: str, lines: Iterable[str]) -> None:
        self.stdout.write("\n" + self.style.MIGRATE_HEADING(title) + "\n\n" + "\n".join(lines))

    def _judge(self, results: list[Round], history: list[int]) -> None:
        self._section("The losers", report.refusals(results))
        if found := faults(results, history):
            more = [f"... and {len(found) - MOST_FAULTS} more."] if len(found) > MOST_FAULTS else []
            raise CommandError("\n".join(["This race has faults:", *found[:MOST_FAULTS], *more]))
        verdict = self.style.SUCCESS(f"  Exactly one winner in each of {len(results)} rounds.")
        proof = "  No two servers were inside the job together. The history has one run a round."
        self._section("The verdict", [verdict, proof])


def _count(text: str) -> int:
    if text.isdecimal() and int(text) > 0:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 1 or more.")
