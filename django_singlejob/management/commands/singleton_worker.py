"""``manage.py singleton_worker``: runs what is due."""

import sys
from datetime import timedelta
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import Error

from django_singlejob import database, registry
from django_singlejob.conf import ZERO
from django_singlejob.exceptions import SingleJobError
from django_singlejob.interrupt import Signals, deferred_signals
from django_singlejob.management.arguments import seconds, whole_number
from django_singlejob.management.results import EX_UNAVAILABLE, EX_USAGE, Result, of_error, of_outcome
from django_singlejob.scheduler import Report, tick
from django_singlejob.worker import work


class Command(BaseCommand):
    help = (
        "Runs what is due: each job that has a slot which is due, again those whose holders died, and one-offs; one "
        "after the other, until it is told to end. With --once it is the one crontab line for all of them, on every "
        "server: * * * * *"
    )
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--once", action="store_true", help="Looks once, and ends.")
        parser.add_argument(
            "--interval",
            type=seconds,
            default=timedelta(seconds=1),
            metavar="S",
            help="Looks every so many seconds, give or take a fifth (default: 1).",
        )
        parser.add_argument(
            "--queue",
            action="append",
            default=[],
            dest="queues",
            metavar="NAME",
            help="Runs one-offs of this queue only; may be given several times (default: of all).",
        )
        parser.add_argument(
            "--max-jobs",
            type=whole_number,
            metavar="N",
            help="Ends after so many runs, for a supervisor to start it anew.",
        )

    def handle(self, **given: Any) -> None:
        try:
            registry.autodiscover()
            if given["interval"] == ZERO or given["max_jobs"] == 0:
                raise CommandError("--interval and --max-jobs must be more than 0.", returncode=EX_USAGE)
            with deferred_signals() as signals:
                status = self._once(given, signals) if given["once"] else self._work(given, signals)
        except Error as error:
            if not database.is_connection_lost(error):
                raise
            raise CommandError(f"The database does not answer: {error}", returncode=EX_UNAVAILABLE) from error
        except (SingleJobError, ImproperlyConfigured) as error:
            raise CommandError(str(error), returncode=EX_USAGE) from error
        if status:
            sys.exit(status)

    def _once(self, given: dict[str, Any], signals: Signals) -> int:
        """Returns the exit status, of several jobs the first that is none."""
        status = 0
        for report in tick(given["queues"]):
            result = self._tell(report, given, signals)
            status = status or result.status
        return status or (128 + signals.received if signals.received else 0)

    def _work(self, given: dict[str, Any], signals: Signals) -> int:
        """To be told to end is how it ends well."""
        count = 0
        for report in work(given["interval"], given["queues"]):
            self._tell(report, given, signals)
            count += not _is_skip(report)
            if count == given["max_jobs"]:
                break
        return 0

    def _tell(self, report: Report, given: dict[str, Any], signals: Signals) -> Result:
        result = _result(report, signals.received)
        # That others were faster is what happens on every server but one.
        if given["verbosity"] > (1 if _is_skip(report) else 0):
            (self.stderr if result.is_error else self.stdout).write(result.message)
        return result


def _is_skip(report: Report) -> bool:
    return report.outcome is not None and report.outcome.reason is not None


def _result(report: Report, signum: int | None) -> Result:
    if report.outcome:
        return of_outcome(report.job.name, report.outcome, signum=signum)
    assert report.error  # noqa: S101  (either the one or the other)
    return of_error(report.job.name, report.error)
