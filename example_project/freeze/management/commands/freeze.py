"""``manage.py freeze``: what a worker that was frozen does when it wakes, with a plain lock and with ours.

Both sides run the same job, in ``freeze/locks.py``, at the same time, each with two workers, which are processes. The
plain lock is not a bad one of its kind: each lock that only expires lets a frozen worker go on, because nothing asks it
whether it still has the lock at the moment when it writes.
"""

from typing import Any

from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import connection

from freeze.results import faults, table
from freeze.screens import screen_on
from freeze.side import compare
from freeze.workers import WorkerLost

INTRODUCTION = """\
A job writes the invoices of ten customers, on {database}, with two locks:
  a plain lock:      cache.add("invoices", me, timeout=6)
  django-singlejob:  job_lock("invoices", lease=timedelta(seconds=6))
After three invoices, worker 1 is frozen (SIGSTOP), like a suspended machine.
Its lock expires, and worker 2 takes over. Then worker 1 wakes (SIGCONT): it
does not know that time has passed, and goes on.
"""
END = """\
The loop is the same (example_project/freeze/locks.py). But django-singlejob
writes in `with lease.atomic()`, a transaction that fails if another worker has
been granted the lock. A lock that only expires has nothing to check. Ours is
taken over later, because worker 2 first watches whether worker 1 is silent."""


class Command(BaseCommand):
    help = (
        "Freezes a worker until another one has taken over, with a plain lock and with ours, and shows who writes what."
    )
    requires_migrations_checks = True

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--pace", type=float, default=0.4, metavar="SECONDS", help="How long an invoice takes (default: 0.4)."
        )

    def handle(self, *, pace: float, **options: Any) -> None:
        call_command("createcachetable", verbosity=0)
        self.stdout.write(INTRODUCTION.format(database=connection.display_name) + "\n")
        try:
            results = compare(pace, screen_on(self.stdout, self.style))
        except WorkerLost as error:
            raise CommandError(str(error)) from error
        except KeyboardInterrupt:
            raise CommandError("The comparison was stopped.", returncode=130) from None
        self.stdout.write("\n".join(["", *table(results), "", END]))
        if found := [*faults(results)]:
            raise CommandError("\n".join(["This is not as it must be:", *found]))
