"""``manage.py forget_singleton``: forget names that the code no longer has."""

import sys
from typing import Any

from django.core.management.base import CommandParser, no_translations

from django_singlejob.escaping import quoted
from django_singlejob.locking.forgetting import Obstacle, forget_name
from django_singlejob.management.arguments import CallableCommand, text
from django_singlejob.management.exit_status import EX_TEMPFAIL, EX_USAGE, discover_jobs, explained, refuse_settings
from django_singlejob.management.output import Output, add_format

# A retry does not help.
_FINAL = (Obstacle.UNKNOWN, Obstacle.REGISTERED, Obstacle.OURS)


class Command(CallableCommand):
    help = (
        "Deletes what is recorded about the schedules, failures and durations of jobs and locks that the code no "
        "longer has. A name cannot be forgotten while its lock is held or its one-offs are waiting. Fences never go "
        "back, and the history keeps the runs until they are pruned."
    )
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("names", nargs="+", type=text, metavar="NAME", help="The name of a job or a lock.")
        add_format(parser)

    @no_translations
    def handle(self, **given: Any) -> None:
        output = Output(self, given)
        discover_jobs()
        refuse_settings()
        with explained():
            obstacles = {name: self._forget(name, output) for name in given["names"]}
        errors = [
            {"name": name, "reason": obstacle.value, "message": _message(name, obstacle)}
            for name, obstacle in obstacles.items()
            if obstacle
        ]
        output.end({"forgotten": [name for name, obstacle in obstacles.items() if not obstacle], "errors": errors})
        statuses = [EX_USAGE if obstacle in _FINAL else EX_TEMPFAIL for obstacle in obstacles.values() if obstacle]
        if statuses:
            sys.exit(statuses[0])

    def _forget(self, name: str, output: Output) -> Obstacle | None:
        obstacle = forget_name(name)
        if obstacle:
            output.error(_message(name, obstacle))
        else:
            output.line(f"Forgot {name!r}.")
        return obstacle


def _message(name: str, obstacle: Obstacle) -> str:
    return f"{quoted(name)} was not forgotten: {obstacle.label}."
