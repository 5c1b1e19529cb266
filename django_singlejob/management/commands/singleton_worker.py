"""``manage.py singleton_worker``: run jobs and one-offs when they are due."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from django.conf import settings
from django.core.management.base import CommandError, CommandParser, OutputWrapper
from django.db import connections

from django_singlejob.conf import ZERO, options
from django_singlejob.database import transactions
from django_singlejob.database.unusable import database_name
from django_singlejob.exceptions import DatabaseUnreachable, JobTimeout
from django_singlejob.jobs import registry
from django_singlejob.jobs.discovery import has_tasks
from django_singlejob.jobs.names import PATH_LENGTH
from django_singlejob.locking.request import Reason
from django_singlejob.management.arguments import RARE, queue, seconds, text, whole_number
from django_singlejob.management.exit_status import (
    EX_TEMPFAIL,
    EX_USAGE,
    discover_jobs,
    explained,
    lines_about,
    refuse_settings,
    status_and_line,
    where_traceback_is,
)
from django_singlejob.management.output import flush, verbosity_of_news
from django_singlejob.management.supervising import SupervisingCommand
from django_singlejob.process import messages, program, received_signals, rooms
from django_singlejob.process.alive import AliveFile
from django_singlejob.process.code import Code
from django_singlejob.process.escaping import printable, shown
from django_singlejob.process.received_signals import ReceivedSignals, deferred_signals
from django_singlejob.running.outcomes import Outcome
from django_singlejob.worker.loop import Worker
from django_singlejob.worker.tick import Plan

DISABLED = "SINGLEJOB['ENABLED'] is False: this worker runs nothing."
# The options that each mode ignores.
_IGNORED = {
    "once": ["drain", "processes", "threads", "grace", "interval", "max_jobs", "no_reload"],
    "drain": ["interval", "no_reload"],
}


class Command(SupervisingCommand):
    help = (
        "Runs what is due, several at once, until it gets a signal: jobs whose slots are due or were cut off, "
        "one-offs and tasks. With --once it runs what is due now, one after the other, and exits: with this, a single "
        "crontab line (* * * * *) on every server is enough for all jobs. With --drain it exits when nothing is due."
    )
    requires_system_checks = ()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        rooms.find("lane")  # now, in executors too: later, the package may have been replaced by another release

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--once", action="store_true", help="Runs what is due now, one after the other, and exits.")
        parser.add_argument(
            "--queue",
            action="append",
            default=[],
            dest="queues",
            type=queue,
            metavar="NAME",
            help="Runs only the one-offs and tasks of this queue, and all slots. May be given several times (default: "
            "all queues).",
        )
        parser.add_argument(
            "--processes",
            type=whole_number,
            metavar="N",
            help=f"How many jobs run at once, each in a process of its own (default: {Plan.processes}).",
        )
        parser.add_argument(
            "--threads",
            type=whole_number,
            metavar="N",
            help=f"How many of Django's tasks run at once, in one process for all (default: {Plan.threads}).",
        )
        parser.add_argument(
            "--grace",
            type=seconds,
            metavar="S",
            help="How many seconds unfinished runs may go on after a signal before they are interrupted. A second "
            f"signal interrupts them at once (default: {Plan.grace.total_seconds():.0f}).",
        )
        parser.add_argument(
            "--drain", action="store_true", help="Runs what is due, and exits when nothing is due any more."
        )
        rare = parser.add_argument_group(RARE)
        rare.add_argument(
            "--max-jobs",
            type=whole_number,
            metavar="N",
            help="Exits after about N runs, so that a supervisor starts a new worker.",
        )
        rare.add_argument(
            "--alive",
            type=text,
            metavar="FILE",
            help="Touches this file while it goes on, so that a probe can test the file's age. The file is deleted at "
            "the end.",
        )
        rare.add_argument(
            "--interval",
            type=seconds,
            metavar="S",
            help="Seconds between two looks for what is due, varied by up to a fifth (default: "
            f"{Plan.interval.total_seconds():.0f}).",
        )
        rare.add_argument(
            "--no-reload", action="store_true", help="Does not restart when the code changes, even if DEBUG is True."
        )
        rare.add_argument(
            "--inline",
            action="store_true",
            help="Runs everything in this process, one after the other, for example in a debugger, and not in children "
            "that can be ended.",
        )

    def check_options(self, parser: CommandParser, given: dict[str, Any]) -> None:
        for mode, ignored in _IGNORED.items():
            for option in ignored:
                if given[mode] and given[option] not in (None, False):
                    parser.error(f"--{option.replace('_', '-')} has no effect with --{mode}. Remove one of them.")

    def handle(self, **given: Any) -> None:
        discover_jobs()
        if given["interval"] == ZERO or 0 in (given["max_jobs"], given["processes"], given["threads"]):
            message = "--interval, --max-jobs, --processes and --threads must be more than 0."
            raise CommandError(message, returncode=EX_USAGE)
        refuse_settings()
        with (
            deferred_signals(is_last=self.is_last, is_guest=not self.is_last) as signals,
            explained(),
        ):
            status = self._work(given, signals)
        if status:
            sys.exit(status)

    def _work(self, given: dict[str, Any], signals: ReceivedSignals) -> int:
        """Returns the exit status."""
        code, alive = Code(), AliveFile(given["alive"]) if given["alive"] else None
        has_children = not given["inline"] and self.has_executors()
        plan = replace(_plan(given, alive), in_children=has_children, is_quiet=self._is_quiet(given))
        is_reloaded = settings.DEBUG and plan.is_endless and not given["no_reload"]
        plan, status = replace(plan, is_outdated=code.has_changed_lately) if is_reloaded else plan, 0

        worker = Worker(plan, _reporter(given))
        with _touched(alive, worker), closing(worker.work()) as outcomes:
            self._begin(plan, given, is_supervisor=worker.is_supervisor)
            for outcome in outcomes:
                reported_status = self.tell(outcome, plan, given, signals)
                status = status or reported_status
        # What has started a worker, or a drain, is to start it anew. A pass of cron comes again anyway.
        is_temporary = worker.has_given_up or (worker.is_outdated and not plan.once)
        status = status or worker.status_of_tasks or (EX_TEMPFAIL if is_temporary else 0)
        if is_reloaded and code.has_changed_lately() and not signals.received:
            self.stdout.write("The code has changed. The worker restarts.")
            start_anew()
        # For an endless worker, a signal is the normal way to stop.
        if signals.received and not (plan.is_endless or (plan.once and status)):
            status = 128 + signals.received
        return status

    def _begin(self, plan: Plan, given: dict[str, Any], *, is_supervisor: bool) -> None:
        if not plan.once:
            introduction = _introduction(plan, is_supervisor=is_supervisor)
            self._write(self.stdout, shown(introduction), given, self._verbosity_of_news(given))
        if not options().enabled:
            self._write(self.stdout, DISABLED, given, self._verbosity_of_news(given))
        elif plan.once and not (registry.all_jobs() or has_tasks()):
            self._write(self.stderr, registry.NO_JOB, given, 1)

    def tell(self, outcome: Outcome, plan: Plan, given: dict[str, Any], signals: ReceivedSignals | None) -> int:
        """Print a line for the outcome. Returns the exit status that it calls for."""
        reported_status = self._print(outcome, given, signals)
        return reported_status if _counts(outcome, plan) else 0

    def _print(self, outcome: Outcome, given: dict[str, Any], signals: ReceivedSignals | None) -> int:
        signum = signals.received if signals else None
        status, message = status_and_line(outcome, signum=signum, traceback=where_traceback_is(outcome))
        is_failure = outcome.status == "failed" or isinstance(outcome.error, JobTimeout)
        lines = lines_about(outcome) if is_failure and self._is_quiet(given) else []
        # On all servers but one, another server was faster.
        is_no_news = outcome.refusal not in (None, Reason.UNDECIDED, Reason.NOT_BEGUN)
        if status:
            self._write(self.stderr, "\n  ".join(map(shown, [message, *lines])), given, 1)
        else:
            self._write(self.stdout, shown(message), given, 2 if is_no_news else self._verbosity_of_news(given))
        return status

    def _is_quiet(self, given: dict[str, Any]) -> bool:
        """Whether only failures are printed, because cron mails what is."""
        return bool(given["once"]) and 1 <= given["verbosity"] < self._verbosity_of_news(given)

    def _verbosity_of_news(self, given: dict[str, Any]) -> int:
        """What a worker that runs all day writes is its log, and not a mail of cron's."""
        return verbosity_of_news(self.stdout) if given["once"] or given["drain"] else 1

    def _write(self, stream: OutputWrapper, text: str, given: dict[str, Any], verbosity: int) -> None:
        if given["verbosity"] >= verbosity:
            stream.write(text)


# The options that say what is printed of a task, which its own process does.
_OF_LINES = ("once", "drain", "verbosity", "no_color", "force_color")


def _reporter(given: dict[str, Any]) -> tuple[str, Any]:
    return f"{__name__}.teller", {name: given[name] for name in _OF_LINES}


def teller(given: dict[str, Any]) -> Callable[[Outcome], int]:
    """What prints the line of a task, in another process, as these options say."""
    command = Command(no_color=given["no_color"], force_color=given["force_color"])
    plan = Plan(once=given["once"], drain=given["drain"])
    return lambda outcome: command.tell(outcome, plan, given, received_signals.in_force)


def _plan(given: dict[str, Any], alive: AliveFile | None) -> Plan:
    names = ("once", "drain", "interval", "queues", "processes", "threads", "grace", "max_jobs")
    chosen = {name: given[name] for name in names if given[name] is not None}
    return Plan(**chosen | ({"touch": alive.touch, "last": alive.delete} if alive else {}))


@contextmanager
def _touched(alive: AliveFile | None, worker: Worker) -> Iterator[None]:
    """Have the file of ``--alive`` exist, if that is given."""
    if alive is None:
        yield
        return
    if not worker.is_supervisor:
        message = "--alive needs jobs to run in processes of their own, but this worker runs them itself. Remove it."
        raise CommandError(message, returncode=EX_USAGE)
    try:
        alive.create()
    except OSError as error:
        message = f"The file of --alive, {str(alive.path)!r}, cannot be written: {error.strerror}. Name another one."
        raise CommandError(shown(message), returncode=EX_USAGE) from error
    try:
        yield
    finally:
        alive.delete()


def _introduction(plan: Plan, *, is_supervisor: bool) -> str:
    """``django-singlejob 1.0: 2 processes and 4 threads, all queues, 12 jobs (9 with a schedule), database 'default'
    (postgresql, shop).``"""
    jobs = registry.all_jobs()
    scheduled = sum(job.schedule is not None for job in jobs)
    alias = transactions.alias()
    queues = f"queues {', '.join(map(repr, plan.queues))}" if plan.queues else "all queues"
    where = f"{_counted(plan.processes, 'process')} and {_counted(plan.threads, 'thread')}"
    return (
        f"django-singlejob {_version()}: {where if is_supervisor else 'this process'}, {queues}, "
        f"{_counted(len(jobs), 'job')} ({scheduled} with a schedule), "
        f"database {alias!r} ({connections[alias].vendor}, {printable(database_name(alias), PATH_LENGTH)})."
    )


def _version() -> str:
    try:
        return version("django-singlejob")
    except PackageNotFoundError:  # the package was copied into a project
        return "(unknown version)"


def _counted(count: int, noun: str) -> str:
    ending = "es" if noun.endswith("s") else "s"
    return f"{count} {noun}{'' if count == 1 else ending}"


def _counts(outcome: Outcome, plan: Plan) -> bool:
    """Whether this outcome counts for the exit status. With ``--drain``, it counts only if something may not have been
    run because of it; for an endless worker, only if it ended the worker."""
    if outcome.refusal == Reason.NOT_BEGUN:  # it is tried again, until the worker gives up
        return False
    if plan.once or outcome.is_hopeless:
        return True
    is_away = isinstance(outcome.error, DatabaseUnreachable) or outcome.unusable is not None
    return plan.drain and (is_away or outcome.refusal == Reason.UNDECIDED)


def start_anew() -> None:
    """Replace this process with a new one of the same program. Does not return."""
    if messages.end():
        flush([sys.stdout, sys.stderr])
    os.chdir(program.directory or os.curdir)
    os.execve(sys.executable, program.command_line(), program.environment())  # noqa: S606
