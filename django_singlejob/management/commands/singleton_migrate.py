"""``manage.py singleton_migrate``: ``migrate``, on one server at a time."""

import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from django.core.management import call_command, get_commands, load_command_class
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DatabaseError, Error
from django.db.migrations import Migration

from django_singlejob.database import errors
from django_singlejob.database.transactions import alias, has_one_writer
from django_singlejob.exceptions import JobInterrupted, SingleJobError
from django_singlejob.jobs.names import MIGRATE_LOCK
from django_singlejob.jobs.registry import Job
from django_singlejob.locking.lease import Lease
from django_singlejob.locking.request import Reason
from django_singlejob.management.arguments import lease, seconds
from django_singlejob.management.exit_status import (
    EX_TEMPFAIL,
    explained,
    refuse_settings,
    status_and_line,
    status_of_skip,
)
from django_singlejob.management.migrating import explanation, migrate_ours
from django_singlejob.management.supervising import SupervisingCommand
from django_singlejob.models.locks import locks
from django_singlejob.process.clock import local_now, sleep
from django_singlejob.process.escaping import shown
from django_singlejob.process.received_signals import ReceivedSignals, deferred_signals
from django_singlejob.running.current_run import current_run
from django_singlejob.running.order import Order, Work
from django_singlejob.running.outcomes import Outcome
from django_singlejob.running.runner import Run, outcome_of, work_of
from django_singlejob.running.shared import SharedMemory

if TYPE_CHECKING:
    from django_singlejob.models import JobLock

# How long to wait for another server by default, in seconds.
WAIT = 600
# Seconds between two looks at another server's lock.
PAUSE = 1.0
# The longest that the race for our own tables may take, in seconds. Our migrations take one or two.
RACE = 60.0

_OWN_OPTIONS = ("wait", "lease")


class Command(SupervisingCommand):
    help = (
        "Runs migrate on one server at a time, also on an empty database. The other servers wait, and exit with 0 if "
        "nothing is left. Takes the arguments of migrate."
    )
    requires_system_checks = ()  # migrate runs them

    _has_told = False

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
            type=lease,
            metavar="S",
            help="How long the lease lasts without a heartbeat, in seconds. If a server dies while it migrates, "
            "another one goes on a little later than that.",
        )

    def handle(self, **given: Any) -> None:
        if given["plan"] or given["check_unapplied"]:
            self._migrate(given)
            return
        refuse_settings()
        self.fork_first()
        with deferred_signals(is_last=self.is_last, is_guest=not self.is_last) as signals:
            outcome = self._attempt(given, signals)
        if outcome:
            self._end(outcome, signals)

    def _attempt(self, given: dict[str, Any], signals: ReceivedSignals) -> Outcome | None:
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
                outcome = self._run(given)
            if outcome.reason not in (Reason.HELD, Reason.UNDECIDED) or local_now() >= give_up_at:
                return outcome

    def _wait_for_others(self, given: dict[str, Any], give_up_at: float, signals: ReceivedSignals) -> None:
        """Wait while another server migrates. If its lease has expired, the acquisition finds out if it is dead."""
        with explained():
            while lock := _found_lock():
                if not self._has_told:
                    self._has_told = True
                    self._say(given, f"Another server migrates ({lock.holder}): waiting.")
                if lock.is_suspected or local_now() >= give_up_at:
                    return
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

    def _run(self, given: dict[str, Any]) -> Outcome:
        job, kind = self.job(given), f"{__name__}.work_of_migrate"
        with self.supervisor() as supervisor:
            return outcome_of(Run(job, trigger="command", kind=kind, facts={"given": given}), supervisor)

    def job(self, given: dict[str, Any]) -> Job:
        """What runs under the lock, with these options."""
        body = partial(self._migrate_if_needed, given)
        return Job(name=MIGRATE_LOCK, func=body, lease=given["lease"], max_attempts=1)

    def _migrate_if_needed(self, given: dict[str, Any]) -> None:
        """The body, under the lock."""
        run = current_run()
        with ExitStack() as block:
            is_alone = run is not None and has_one_writer(alias()) and given["database"] == alias()
            if run and is_alone:
                block.enter_context(run.lease.only_writer())
            if self._is_anything_left(given):
                self._migrate(given, run.lease if run and is_alone else None)
            else:
                self._say(given, "Nothing to migrate.")

    def _migrate(self, given: dict[str, Any], lease: Lease | None = None) -> None:
        """Call the command ``migrate``. ``lease``: the one to renew after each migration."""
        progress = _Progress(lease)
        passed = {name: value for name, value in given.items() if name not in _OWN_OPTIONS}
        # Not our own streams, which end each text with a line end.
        passed |= {"stdout": self.stdout._out, "stderr": self.stderr._out}
        try:
            call_command(progress.noted_of(_load_migrate()), **passed)
        except DatabaseError as error:
            words = explanation(error, progress.only, given["database"]) if progress.only else ""
            if not words:
                raise
            raise CommandError(shown(words)) from error

    def _say(self, given: dict[str, Any], line: str) -> None:
        if given["verbosity"] > 0:
            self.stdout.write(shown(line))

    def _end(self, outcome: Outcome, signals: ReceivedSignals) -> None:
        """Raise how the attempt ended, unless it was successful."""
        if outcome.reason == Reason.HELD:
            words = f"Nothing was migrated: another server ({outcome.holder}) migrates, and --wait is over."
            raise CommandError(shown(words), returncode=EX_TEMPFAIL)
        if outcome.error and not isinstance(outcome.error, (SingleJobError, JobInterrupted)):
            raise outcome.error  # as migrate itself does
        status, line = status_and_line(outcome, signum=signals.received)
        if status := status or status_of_skip(outcome, EX_TEMPFAIL):
            raise CommandError(shown(line), returncode=status) from outcome.error


def work_of_migrate(order: Order, lease: Lease, memory: SharedMemory) -> Work:
    """What an executor does."""
    given = order.facts["given"]
    command = Command(no_color=given["no_color"], force_color=given["force_color"])
    return work_of(command.job(given), order, lease)


class _Progress:
    """Takes note of what ``migrate`` does.

    Attributes:
        begun: the migrations that it has begun.
    """

    def __init__(self, lease: Lease | None) -> None:
        self.begun: list[Migration] = []
        self._lease = lease

    @property
    def only(self) -> Migration | None:
        """The migration that it has begun; ``None`` if there are more, or none."""
        return self.begun[0] if len(self.begun) == 1 else None

    def noted_of(self, command: Any) -> Any:
        """The command itself, which tells about its progress from now on."""
        if usual := getattr(command, "migration_progress_callback", None):
            command.migration_progress_callback = partial(self._note, usual)
        return command

    def _note(self, usual: Callable[..., None], action: str, *given: Any) -> None:
        usual(action, *given)
        if action in ("apply_start", "unapply_start"):
            self.begun.append(given[0])
        elif self._lease and action in ("apply_success", "unapply_success"):
            self._lease.renew()  # before a server that has waited for this transaction can take the lock


def _load_migrate() -> BaseCommand:
    """The command, which may be the project's own."""
    app = cast("Any", get_commands()["migrate"])
    return app if isinstance(app, BaseCommand) else load_command_class(app, "migrate")


def _found_lock() -> "JobLock | None":
    """The lock of the server that migrates; ``None`` if none does, or if there is no table for locks yet."""
    try:
        return next(iter(locks().filter(name=MIGRATE_LOCK).survey()), None)
    except Error as error:
        if errors.is_connection_lost(error):
            raise
        return None


def _exit_after(signals: ReceivedSignals) -> None:
    if signals.received:
        sys.exit(128 + signals.received)
