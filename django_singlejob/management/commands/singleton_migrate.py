"""``manage.py singleton_migrate``: ``migrate``, on one server at a time."""

import sys
from contextlib import ExitStack
from functools import partial
from typing import Any, cast

from django.core.management import call_command, get_commands, load_command_class
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DatabaseError, Error
from django.db.migrations import Migration

from django_singlejob.conf import ZERO
from django_singlejob.database import errors
from django_singlejob.database.transactions import alias, has_one_writer
from django_singlejob.exceptions import JobInterrupted, SingleJobError
from django_singlejob.jobs.names import MIGRATE_LOCK
from django_singlejob.jobs.registry import Job
from django_singlejob.locking.request import Reason
from django_singlejob.management.arguments import CallableCommand, seconds
from django_singlejob.management.exit_status import EX_TEMPFAIL, EX_USAGE, explained, refuse_settings, verdict
from django_singlejob.management.own_tables import migrate_ours
from django_singlejob.management.unfinished import explanation
from django_singlejob.models.locks import locks
from django_singlejob.process.clock import local_now, sleep
from django_singlejob.process.escaping import shown
from django_singlejob.process.received_signals import ReceivedSignals, signals_of_command
from django_singlejob.running import runner
from django_singlejob.running.reports import Report, log_in_child, logged_quietly, report_of

# How long to wait for another server by default, in seconds.
WAIT = 600
# Seconds between two looks at another server's lock.
PAUSE = 1.0
# The longest that the race for our own tables may take, in seconds. Our migrations take one or two.
RACE = 60.0

_OWN_OPTIONS = ("wait", "lease")


class Command(CallableCommand):
    help = (
        "Runs migrate on one server at a time, also on an empty database. The other servers wait, and exit with 0 if "
        "nothing is left. Takes the arguments of migrate."
    )
    requires_system_checks = ()  # migrate runs them

    # Whether the process exits after this command, which then decides the exit status.
    _is_last = False
    _has_told = False

    def run_from_argv(self, argv: list[str]) -> None:
        self._is_last = True
        super().run_from_argv(argv)

    def add_arguments(self, parser: CommandParser) -> None:
        migrate = _load_migrate()
        migrate.add_arguments(parser)
        if migrate.requires_system_checks:
            parser.add_argument("--skip-checks", action="store_true", help="Skip system checks.")
        parser.add_argument(
            "--wait",
            type=seconds,
            metavar="S",
            default=seconds(WAIT),
            help=f"How long to wait for another server that migrates, in seconds (default: {WAIT}).",
        )
        parser.add_argument(
            "--lease",
            type=seconds,
            metavar="S",
            help="How long the lease lasts without a heartbeat, in seconds. If a server dies while it migrates, "
            "another one goes on a little later than that.",
        )

    def handle(self, **given: Any) -> None:
        if given["plan"] or given["check_unapplied"]:
            self._migrate(given)
            return
        if given["lease"] == ZERO:
            raise CommandError("--lease must be longer than 0 seconds.", returncode=EX_USAGE)
        refuse_settings()
        with signals_of_command(is_program=self._is_last) as signals:
            report = self._attempt(given, signals)
        if report:
            self._end(report, signals)

    def _attempt(self, given: dict[str, Any], signals: ReceivedSignals) -> Report | None:
        """Migrate, or wait until another server has. Returns ``None`` if nothing is left to migrate."""
        give_up_at = local_now() + given["wait"].total_seconds()
        while True:
            self._wait_for_others(given, give_up_at, signals)
            with explained():
                if not self._is_anything_left(given):
                    self._say(given, "Nothing to migrate.")
                    return None
                migrate_ours(min(give_up_at, local_now() + RACE))
                _exit_after(signals)
                report = self._run(given)
            if report.reason != Reason.HELD or local_now() >= give_up_at:
                return report

    def _wait_for_others(self, given: dict[str, Any], give_up_at: float, signals: ReceivedSignals) -> None:
        """Wait while another server migrates. Whether one that is silent is dead, the acquisition finds out."""
        with explained():
            while (holder := _migrating_server()) is not None and local_now() < give_up_at:
                if not self._has_told:
                    self._has_told = True
                    self._say(given, f"Another server migrates ({holder}): waiting.")
                sleep(PAUSE)
                _exit_after(signals)

    def _is_anything_left(self, given: dict[str, Any]) -> bool:
        if given["prune"] or given["run_syncdb"]:
            return True  # migrate cannot tell without doing it
        try:
            self._migrate({**given, "check_unapplied": True, "verbosity": 0, "skip_checks": True})
        except SystemExit as end:
            return bool(end.code)
        except DatabaseError as error:
            if errors.is_connection_lost(error):
                raise
            return True  # another server may be creating tables at this moment
        return False

    def _run(self, given: dict[str, Any]) -> Report:
        job = Job(name=MIGRATE_LOCK, func=partial(self._migrate_if_needed, given), lease=given["lease"], max_attempts=1)
        log = log_in_child(job, logged_quietly) if self._is_last else None
        return report_of(job, partial(runner.run, job, trigger="command", log_in_child=log))

    def _migrate_if_needed(self, given: dict[str, Any]) -> None:
        """The body, under the lock."""
        with ExitStack() as block:
            run = runner.current_run()
            if run and has_one_writer(alias()) and given["database"] == alias():
                block.enter_context(run.lease.only_writer())
            if self._is_anything_left(given):
                self._migrate(given)
            else:
                self._say(given, "Nothing to migrate.")

    def _migrate(self, given: dict[str, Any]) -> None:
        """Call the command ``migrate``."""
        command = _Migrate(_load_migrate())
        passed = {name: value for name, value in given.items() if name not in _OWN_OPTIONS}
        # Not our own streams, which end each text with a line end.
        passed |= {"stdout": self.stdout._out, "stderr": self.stderr._out}
        try:
            call_command(command.command, **passed)
        except DatabaseError as error:
            if (
                command.first
                and command.is_at_first
                and (words := explanation(error, command.first, given["database"]))
            ):
                raise CommandError(shown(words)) from error
            raise

    def _say(self, given: dict[str, Any], line: str) -> None:
        if given["verbosity"] > 0:
            self.stdout.write(shown(line))

    def _end(self, report: Report, signals: ReceivedSignals) -> None:
        """Raise how the attempt ended, unless it was successful."""
        if report.reason == Reason.HELD and report.outcome:
            words = f"Nothing was migrated: another server ({report.outcome.holder}) migrates, and --wait is over."
            raise CommandError(shown(words), returncode=EX_TEMPFAIL)
        if report.error and not isinstance(report.error, (SingleJobError, JobInterrupted)):
            raise report.error  # as migrate itself does
        status, line = verdict(report, signum=signals.received, skipped_status=EX_TEMPFAIL)
        if status:
            raise CommandError(shown(line), returncode=status) from report.error


class _Migrate:
    """The command ``migrate``, and which migration it applies.

    Attributes:
        first: the first migration that it has begun; ``None`` if it has begun none.
        is_at_first: whether it has begun no other one.
    """

    def __init__(self, command: Any) -> None:
        self.command = command
        self.first: Migration | None = None
        self.is_at_first = True
        self._usual = getattr(command, "migration_progress_callback", None)
        if self._usual:
            self.command.migration_progress_callback = self._note

    def _note(self, action: str, migration: Migration | None = None, fake: bool = False) -> None:
        if action in ("apply_start", "unapply_start"):
            self.is_at_first = self.first is None
            self.first = self.first or migration
        if self._usual:
            self._usual(action, migration, fake)


def _load_migrate() -> BaseCommand:
    """The command, which may be the project's own."""
    app = cast("Any", get_commands()["migrate"])
    return app if isinstance(app, BaseCommand) else load_command_class(app, "migrate")


def _migrating_server() -> str | None:
    """The server that migrates, in words; ``None`` if none does, or if the lock's table does not exist yet."""
    try:
        lock = locks().live().filter(name=MIGRATE_LOCK).first()
    except Error as error:
        if errors.is_connection_lost(error):
            raise
        return None
    return lock.holder if lock else None


def _exit_after(signals: ReceivedSignals) -> None:
    if signals.received:
        sys.exit(128 + signals.received)
