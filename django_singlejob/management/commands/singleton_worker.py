"""``manage.py singleton_worker``: runs what is due."""

import sys
from contextlib import closing
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError, CommandParser

from django_singlejob import registry
from django_singlejob.conf import ZERO
from django_singlejob.exceptions import SingleJobError
from django_singlejob.locking.acquire import Reason
from django_singlejob.management.arguments import CallableCommand, seconds, whole_number
from django_singlejob.management.exit_status import EX_USAGE, Result, asking_the_database, of_error, of_outcome
from django_singlejob.management.reload import Code, start_anew
from django_singlejob.received_signals import ReceivedSignals, deferred_signals, status_if_given_up
from django_singlejob.second_signal import second_signal_heeded
from django_singlejob.worker.loop import Plan, work
from django_singlejob.worker.tick import Report, tick


class Command(CallableCommand):
    help = (
        "Runs what is due, several at a time, until it is told to end: each job that has a slot which is due, again "
        "those whose holders died, and one-offs. With --once, one after the other: so it is the one crontab line for "
        "all of them, on every server: * * * * *"
    )
    requires_system_checks = ()

    # Whether the process ends behind this command, which then has the last word on its exit status.
    _is_last = False

    def run_from_argv(self, argv: list[str]) -> None:
        self._is_last = True
        super().run_from_argv(argv)

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--once", action="store_true", help="Looks once, and ends.")
        parser.add_argument(
            "--threads",
            type=whole_number,
            default=Plan.threads,
            metavar="N",
            help=f"Runs so many at the same time at most, each in a thread of its own (default: {Plan.threads}).",
        )
        parser.add_argument(
            "--grace",
            type=seconds,
            default=Plan.grace,
            metavar="S",
            help="What is under way when it is told to end has so many seconds, then it is interrupted; or at once, if "
            f"it is told again (default: {Plan.grace.total_seconds():.0f}).",
        )
        parser.add_argument(
            "--interval",
            type=seconds,
            default=Plan.interval,
            metavar="S",
            help=f"Looks every so many seconds, give or take a fifth (default: {Plan.interval.total_seconds():.0f}).",
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
        parser.add_argument(
            "--no-reload", action="store_true", help="Goes on with the code as it is, also with DEBUG = True."
        )

    def handle(self, **given: Any) -> None:
        try:
            registry.autodiscover()
            if given["interval"] == ZERO or 0 in (given["max_jobs"], given["threads"]):
                raise CommandError("--interval, --max-jobs and --threads must be more than 0.", returncode=EX_USAGE)
            with (
                deferred_signals(is_last=self._is_last) as signals,
                second_signal_heeded(signals, is_last=self._is_last),
                asking_the_database(),
            ):
                status = self._once(given, signals) if given["once"] else self._work(given, signals)
        except (SingleJobError, ImproperlyConfigured) as error:
            raise CommandError(str(error), returncode=EX_USAGE) from error
        if status:
            sys.exit(status)

    def _once(self, given: dict[str, Any], signals: ReceivedSignals) -> int:
        """Returns the exit status, of several jobs the first that is none."""
        status = 0
        with closing(tick(given["queues"])) as reports:
            for report in reports:
                result = self._tell(report, given, signals)
                status = status or result.status
        return status or (128 + signals.received if signals.received else 0)

    def _work(self, given: dict[str, Any], signals: ReceivedSignals) -> int:
        """To be told to end is how it ends well, unless the database had to be given up."""
        code = Code()
        is_reloaded = settings.DEBUG and not given["no_reload"]
        plan = Plan(
            **{name: given[name] for name in ("interval", "queues", "threads", "grace", "max_jobs")},
            is_outdated=code.is_outdated if is_reloaded else lambda: False,
        )
        with closing(work(plan)) as reports:
            for report in reports:
                self._tell(report, given, signals)
        if is_reloaded and code.is_outdated() and not signals.received:
            self.stdout.write("The code has changed: starting anew.")
            start_anew()
        return status_if_given_up()

    def _tell(self, report: Report, given: dict[str, Any], signals: ReceivedSignals) -> Result:
        result = _result(report, signals.received)
        # That others were faster is what happens on every server but one.
        if given["verbosity"] > (1 if _is_skip(report) else 0):
            (self.stderr if result.is_error else self.stdout).write(result.message)
        return result


def _is_skip(report: Report) -> bool:
    return report.outcome is not None and report.outcome.reason not in (None, Reason.UNDECIDED)


def _result(report: Report, signum: int | None) -> Result:
    if report.outcome:
        return of_outcome(report.name, report.outcome, signum=signum)
    assert report.error  # noqa: S101  (either the one or the other)
    return of_error(report.name, report.error, signum=signum)
