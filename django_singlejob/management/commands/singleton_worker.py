"""``manage.py singleton_worker``: runs what is due."""

import os
import sys
from contextlib import closing, suppress
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NoReturn

from django.conf import settings
from django.core.management.base import CommandError, CommandParser
from django.db import connections

from django_singlejob import database, registry
from django_singlejob.conf import ZERO
from django_singlejob.exceptions import DatabaseUnreachable
from django_singlejob.holder import printable, redact
from django_singlejob.locking.request import Reason
from django_singlejob.management.arguments import CallableCommand, seconds, whole_number
from django_singlejob.management.exit_status import (
    EX_USAGE,
    discover_jobs,
    explained,
    is_error,
    refuse_settings,
    verdict,
)
from django_singlejob.management.reload import Code, start_anew
from django_singlejob.names import PATH_LENGTH
from django_singlejob.received_signals import ReceivedSignals, deferred_signals, status_if_given_up
from django_singlejob.reports import Report
from django_singlejob.second_signal import second_signal_heeded
from django_singlejob.worker.loop import Worker
from django_singlejob.worker.tick import Plan

# What the one mode makes no use of, and the other.
_IGNORED = {
    "once": ["drain", "threads", "grace", "interval", "max_jobs", "no_reload"],
    "drain": ["interval", "no_reload"],
}


class Command(CallableCommand):
    help = (
        "Runs what is due, several at a time, until it is told to end: each job that has a slot which is due, again "
        "those whose holders died, and one-offs. With --once, one after the other: so it is the one crontab line for "
        "all of them, on every server: * * * * *. With --drain, until nothing is due any more."
    )
    requires_system_checks = ()

    # Whether the process ends behind this command, which then has the last word on its exit status.
    _is_last = False

    def run_from_argv(self, argv: list[str]) -> None:
        self._is_last = True
        super().run_from_argv(argv)

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--once", action="store_true", help="Looks once, runs what is due one after the other, and ends."
        )
        parser.add_argument("--drain", action="store_true", help="Ends when nothing is due any more.")
        parser.add_argument(
            "--threads",
            type=whole_number,
            metavar="N",
            help=f"Runs so many at the same time at most, each in a thread of its own (default: {Plan.threads}).",
        )
        parser.add_argument(
            "--grace",
            type=seconds,
            metavar="S",
            help="What is under way when it is told to end has so many seconds, then it is interrupted; or at once, if "
            f"it is told again (default: {Plan.grace.total_seconds():.0f}).",
        )
        parser.add_argument(
            "--interval",
            type=seconds,
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

    def check_options(self, parser: CommandParser, given: dict[str, Any]) -> None:
        for mode, ignored in _IGNORED.items():
            for option in ignored:
                if given[mode] and given[option] not in (None, False):
                    parser.error(f"--{option.replace('_', '-')} has no effect with --{mode}: leave one of them out.")

    def handle(self, **given: Any) -> None:
        discover_jobs()
        if given["interval"] == ZERO or 0 in (given["max_jobs"], given["threads"]):
            raise CommandError("--interval, --max-jobs and --threads must be more than 0.", returncode=EX_USAGE)
        refuse_settings()
        with (
            deferred_signals(is_last=self._is_last) as signals,
            second_signal_heeded(signals, is_last=self._is_last),
            explained(),
        ):
            status = self._work(given, signals)
        if status:
            sys.exit(status)

    def _work(self, given: dict[str, Any], signals: ReceivedSignals) -> int:
        """Returns the exit status."""
        code, plan = Code(), _plan(given)
        is_reloaded = settings.DEBUG and plan.is_endless and not given["no_reload"]
        worker = Worker(replace(plan, is_outdated=code.is_outdated) if is_reloaded else plan)
        status = 0
        if not plan.once and given["verbosity"] > 0:
            self._introduce(plan)
        with closing(worker.work()) as reports:
            for report in reports:
                reported_status = self._print(report, given, signals)
                status = status or (reported_status if _counts(report, plan) else 0)
        if is_reloaded and code.is_outdated() and not signals.received:
            self.stdout.write("The code has changed: starting anew.")
            start_anew()
        if plan.is_endless:
            status = status_if_given_up() or status  # to be told to end is how it ends well
        elif signals.received and not (plan.once and status):
            status = 128 + signals.received
        if worker.is_left_under_way and self._is_last:
            _exit_around(status)
        return status

    def _introduce(self, plan: Plan) -> None:
        with suppress(OSError, ValueError, AttributeError):  # stdout may be closed, or there may be none
            self.stdout.write(_introduction(plan))
            self.stdout.flush()  # a log shows it now, not after the first run

    def _print(self, report: Report, given: dict[str, Any], signals: ReceivedSignals) -> int:
        status, message = verdict(report, signum=signals.received)
        # That others were faster is what happens on every server but one.
        is_no_news = report.reason not in (None, Reason.UNDECIDED)
        if given["verbosity"] > (1 if is_no_news else 0):
            (self.stderr if is_error(report) else self.stdout).write(message)
        return status


def _plan(given: dict[str, Any]) -> Plan:
    names = ("once", "drain", "interval", "queues", "threads", "grace", "max_jobs")
    return Plan(**{name: given[name] for name in names if given[name] is not None})


def _introduction(plan: Plan) -> str:
    """``django-singlejob 1.0: 4 threads, all queues, 12 jobs, database 'default' (postgresql, shop).``"""
    alias = database.alias()
    queues = f"queues {', '.join(map(repr, plan.queues))}" if plan.queues else "all queues"
    # A name may be a whole URL to some drivers.
    name = redact([str(connections[alias].settings_dict["NAME"])])
    return (
        f"django-singlejob {_version()}: {_counted(plan.threads, 'thread')}, {queues}, "
        f"{_counted(len([*registry.all_jobs()]), 'job')}, "
        f"database {alias!r} ({connections[alias].vendor}, {printable(name, PATH_LENGTH)})."
    )


def _version() -> str:
    try:
        return version("django-singlejob")
    except PackageNotFoundError:  # somebody has copied the package into a project
        return "(unknown version)"


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _counts(report: Report, plan: Plan) -> bool:
    """Whether it may be the exit status. With ``--drain`` it is only if it may have kept something from being run, and
    of an endless worker only if it has ended it."""
    if plan.once or report.is_hopeless:
        return True
    is_undecided = isinstance(report.error, DatabaseUnreachable) or report.unusable or report.reason == Reason.UNDECIDED
    return plan.drain and bool(is_undecided)


def _exit_around(status: int) -> NoReturn:
    """End this process though a thread goes on: Python would wait for some, such as those of asyncio."""
    for stream in sys.stdout, sys.stderr:
        with suppress(OSError, ValueError, AttributeError):  # it may be closed, or there may be none
            stream.flush()
    os._exit(status)
