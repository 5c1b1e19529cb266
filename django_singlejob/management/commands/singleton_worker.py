"""``manage.py singleton_worker``: runs what is due."""

import sys
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import Error

from django_singlejob import database, registry
from django_singlejob.exceptions import SingleJobError
from django_singlejob.interrupt import deferred_signals
from django_singlejob.management.results import EX_UNAVAILABLE, EX_USAGE, Result, of_error, of_outcome
from django_singlejob.scheduler import Report, tick


class Command(BaseCommand):
    help = (
        "Runs each job that has a slot which is due, and again those whose holders died. With --once it is the one "
        "crontab line for all of them, on every server: * * * * *"
    )
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--once", action="store_true", required=True, help="Looks once, and ends.")

    def handle(self, **given: Any) -> None:
        status = 0
        try:
            registry.autodiscover()
            with deferred_signals() as signals:
                for report in tick():
                    result = _result(report, signals.received)
                    self._say(result, given["verbosity"], is_skip=bool(report.outcome and report.outcome.reason))
                    status = status or result.status
                if signals.received and not status:
                    status = 128 + signals.received
        except Error as error:
            if not database.is_connection_lost(error):
                raise
            raise CommandError(f"The database does not answer: {error}", returncode=EX_UNAVAILABLE) from error
        except (SingleJobError, ImproperlyConfigured) as error:
            raise CommandError(str(error), returncode=EX_USAGE) from error
        if status:
            sys.exit(status)

    def _say(self, result: Result, verbosity: int, *, is_skip: bool) -> None:
        # That others were faster is what happens on every server but one.
        if verbosity > (1 if is_skip else 0):
            (self.stderr if result.is_error else self.stdout).write(result.message)


def _result(report: Report, signum: int | None) -> Result:
    if report.outcome:
        return of_outcome(report.job.name, report.outcome, signum=signum)
    assert report.error  # noqa: S101  (either the one or the other)
    return of_error(report.job.name, report.error)
