"""``manage.py forget_singleton``: forget names that the code no longer has."""

import sys
from typing import Any

from django.core.management.base import CommandParser

from django_singlejob.locking.forgetting import Obstacle, forget_name
from django_singlejob.management.arguments import CallableCommand
from django_singlejob.management.exit_status import EX_TEMPFAIL, EX_USAGE, discover_jobs, explained, refuse_settings

# A retry does not help.
_FINAL = (Obstacle.UNKNOWN, Obstacle.REGISTERED)


class Command(CallableCommand):
    help = (
        "Deletes what is recorded about the schedules, failures and durations of jobs and locks that the code no "
        "longer has. A name cannot be forgotten while its lock is held or its one-offs are waiting. Fences never go "
        "back, and the history keeps the runs until they are pruned."
    )
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("names", nargs="+", metavar="NAME", help="The name of a job or a lock.")

    def handle(self, **given: Any) -> None:
        discover_jobs()
        refuse_settings()
        with explained():
            statuses = [self._forget(name, given["verbosity"]) for name in given["names"]]
        if failed := next(filter(None, statuses), 0):
            sys.exit(failed)

    def _forget(self, name: str, verbosity: int) -> int:
        """Returns the exit status."""
        obstacle = forget_name(name)
        if obstacle is None:
            if verbosity:
                self.stdout.write(f"Forgot {name!r}.")
            return 0
        self.stderr.write(f"{name!r} was not forgotten: {obstacle.label}.")
        return EX_USAGE if obstacle in _FINAL else EX_TEMPFAIL
