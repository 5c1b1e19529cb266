"""``manage.py run_singleton``: run a job, or a command, from a crontab or by hand."""

import shlex
import sys
import traceback
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from django.core.management import get_commands
from django.core.management.base import CommandError, CommandParser, no_translations

from django_singlejob.conf import ZERO, options
from django_singlejob.jobs import registry
from django_singlejob.jobs.management_command import ManagementCommand
from django_singlejob.jobs.names import validate_own_name
from django_singlejob.jobs.schedule import Schedule, next_slot
from django_singlejob.jobs.words import schedule_in_words
from django_singlejob.locking.lease import Lease
from django_singlejob.locking.position import MissedSlots, schedules
from django_singlejob.management.arguments import RARE, lease, seconds
from django_singlejob.management.exit_status import (
    EX_USAGE,
    discover_jobs,
    explained,
    refuse_settings,
    status_and_line,
    status_of_skip,
    where_traceback_is,
)
from django_singlejob.management.output import Output, add_format, verbosity_of_news
from django_singlejob.management.past_slot import moment, past_slot, refused
from django_singlejob.management.progress_bar import ProgressBar
from django_singlejob.management.run_arguments import (
    ParserWithCommand,
    begin_of_list,
    days_of_list,
    exit_status,
    json_arguments,
    split_arguments,
)
from django_singlejob.management.slots_to_come import list_slots
from django_singlejob.management.supervising import SupervisingCommand
from django_singlejob.models.jobs import gates
from django_singlejob.process.clock import CENTURY, instant_in_words, project_zone, utc_now
from django_singlejob.process.escaping import shown
from django_singlejob.process.received_signals import ReceivedSignals, deferred_signals
from django_singlejob.running.command import ShellCommand
from django_singlejob.running.order import Order, Work
from django_singlejob.running.outcomes import Outcome, logged
from django_singlejob.running.runner import most_slots, run_due, work_of
from django_singlejob.running.shared import SharedMemory

# How to see a traceback at once. After `-m NAME`, the option would be that command's.
SEEN_WITH = "run_singleton --traceback"


class Command(SupervisingCommand):
    help = (
        "Runs a job, a management command or a shell command, unless another server is running it. For a job with a "
        "schedule, it runs the slot that is due now, each slot once across all servers."
    )
    requires_system_checks = ()

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        usual = super().create_parser(prog_name, subcommand, **kwargs)
        return ParserWithCommand(
            parents=[usual],
            add_help=False,
            prog=usual.prog,
            usage="%(prog)s JOB [options]\n       %(prog)s [LOCK] [options] -m COMMAND [ARG ...]\n"
            "       %(prog)s LOCK [options] -- COMMAND [ARG ...]\n       %(prog)s --list",
            description=usual.description,
            formatter_class=usual.formatter_class,
            called_from_command_line=usual.called_from_command_line,
            epilog="Exit status: 0 the job ran or was skipped (see -E); 1 the job failed; 2 wrong usage or unknown "
            "job; 69 the database is unreachable; 75 the lease was lost, or the run did not begin; 77 the database "
            "does not permit it; 78 a setting is invalid or the database is not set up; 128+n ended by signal n. "
            "The exit status of a command is passed on.",
        )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "name", nargs="?", metavar="JOB", help="The name of a registered job or, before -m or --, of a lock."
        )
        parser.add_argument(
            "--now",
            action="store_true",
            help="Runs the job by hand, whatever its schedule and however recently it ran.",
        )
        parser.add_argument(
            "--slot",
            type=moment,
            metavar="WHEN",
            help="Runs a past slot of the job by hand, which has no successful run, such as 2026-11-22T03:00. Without "
            "an offset, it is in the zone of the job.",
        )
        parser.add_argument(
            "--args",
            dest="arguments",
            type=json_arguments,
            metavar="JSON",
            help="The job's arguments: a JSON list, or an object of keyword arguments.",
        )
        parser.add_argument(
            "--wait",
            type=seconds,
            metavar="S",
            help="How long to wait for a held lock, in seconds (default: the job's own, else 0).",
        )
        parser.add_argument(
            "-E",
            "--conflict-exit-code",
            dest="skipped_status",
            type=exit_status,
            default=0,
            metavar="CODE",
            help="The exit status if the job was skipped (default: 0).",
        )
        parser.add_argument("--list", action="store_true", help="Lists the registered jobs.")
        parser.add_argument(
            "--from",
            type=begin_of_list,
            metavar="WHEN",
            help="For --list: lists the slots from then on, a date or 2026-11-22T03:00 (default with --days: now).",
        )
        parser.add_argument(
            "--days",
            type=days_of_list,
            metavar="N",
            help="For --list: lists the slots of 1 to 31 days (default with --from: 1).",
        )
        add_format(parser)
        rare = parser.add_argument_group(RARE)
        rare.add_argument(
            "--lease", type=lease, metavar="S", help="How long the lease lasts without a heartbeat, in seconds."
        )
        rare.add_argument(
            "--max-runtime",
            type=seconds,
            metavar="S",
            help="How many seconds it may run until it is ended (default: the job's own, else no limit).",
        )
        rare.add_argument(
            "--min-interval",
            type=seconds,
            metavar="S",
            help="How many seconds after its last start the job may start again, so that servers whose clocks differ "
            'run it once (default: the job\'s own; for a job without a schedule, SINGLEJOB["MIN_INTERVAL"]).',
        )
        rare.add_argument(
            "--standby",
            action="store_true",
            help="Waits for the lock for as long as it takes: for a daemon that runs on one server, and on another one "
            "if that server fails.",
        )
        rare.add_argument(
            "-o",
            "--close",
            action="store_true",
            help="For a command that starts a daemon: releases the lock when the command itself exits (default: when "
            "the last process that it started exits).",
        )
        rare.add_argument(
            "--inline",
            action="store_true",
            help="Runs the job in this process, for example in a debugger, and not in a child that can be ended.",
        )

    def check_options(self, parser: CommandParser, given: dict[str, Any]) -> None:
        if not (given["name"] or given["management"] or given["list"]):
            parser.error(
                "Name a job or a command: JOB, or -m COMMAND [ARG ...], or LOCK -- COMMAND [ARG ...], or --list."
            )
        if (given["child"] or given["management"]) and given["arguments"] is not None:
            parser.error("--args is only for jobs. Pass the arguments of a command behind its name.")
        if given["inline"] and given["child"]:
            parser.error("--inline is only for jobs: a shell command has a process of its own. Remove it.")
        _check_combinations(parser, given)
        if not given["list"] and (given["format"] != "text" or given["from"] or given["days"]):
            parser.error("--from, --days and --format are only for --list. Add it, or leave them out.")
        if given["close"] and not given["child"]:
            parser.error("--close is only for shell commands: LOCK --close -- COMMAND [ARG ...]")

    def handle(self, **given: Any) -> None:
        status = 0
        discover_jobs()
        with explained():
            if given["list"]:
                self._list(Output(self, given), given)
                return
            refuse_settings()
            job = _with_options(_job(given, self._shell_command(given)), given)
            shell_command = job.func if isinstance(job.func, ShellCommand) else None
            _check_arguments(job, given)
            if given["slot"]:
                given["slot"] = past_slot(job, given["slot"])
            is_scheduled = job.schedule is not None and not _is_by_hand(given)
            has_one_run = not is_scheduled or most_slots(job) == 1
            if has_one_run and not (shell_command or given["inline"]):
                self.fork_first()
            with (
                deferred_signals(is_last=self.is_last, is_guest=not self.is_last) as signals,
                MissedSlots(),
                ProgressBar(self.stderr) as bar,
                nullcontext() if given["inline"] else self.supervisor(has_one_run=has_one_run) as supervisor,
            ):
                # A shell command cannot tell how far it is.
                on_grant = bar.begin if supervisor and given["verbosity"] > 0 and not shell_command else None
                terms = _terms(given, is_scheduled=is_scheduled)
                arguments = split_arguments(given["arguments"])
                for outcome in run_due(job, *arguments, supervisor=supervisor, on_grant=on_grant, **terms):
                    bar.end()
                    reported_status = self._tell(logged(outcome), shell_command, given, signals)
                    status = status or reported_status
        if status:  # the first one
            sys.exit(status)

    def _shell_command(self, given: dict[str, Any]) -> ShellCommand | None:
        if not given["child"]:
            return None

        def notify(message: str) -> None:
            self._print_error(given, f"{given['name']}: {message}")

        return ShellCommand(given["child"], notify, is_alone=given["close"])

    def _print_error(self, given: dict[str, Any], message: str) -> None:
        if given["verbosity"] > 0:
            self.stderr.write(shown(message))

    def _print_news(self, given: dict[str, Any], message: str) -> None:
        # What a command writes may be a file that somebody needs.
        stream = self.stderr if given["child"] or given["management"] else self.stdout
        if given["verbosity"] >= verbosity_of_news(stream):
            stream.write(shown(message), str)  # without the colour of errors

    @no_translations
    def _list(self, output: Output, given: dict[str, Any]) -> None:
        if not registry.all_jobs():
            output.error(registry.NO_JOB)
        if given["from"] or given["days"]:
            list_slots(output, given["from"], given["days"])
            return
        in_force = schedules()
        for job in registry.all_jobs():
            lock = "" if job.lock == job.name else f" (lock {job.lock})"
            output.line(f"{job.name}{lock}: {job.description or job.path}")
            if schedule := in_force.get(job.name):
                due = instant_in_words(next_slot(schedule, utc_now()), project_zone())
                output.line(f"    {schedule_in_words(schedule)}{_instead_of(job, schedule)}; next: {due}")
        if given["format"] == "json":
            refuse_settings()
            counts = dict(gates().of_jobs().values_list("name", "run_count"))
            facts = [_facts(job, in_force.get(job.name)) for job in registry.all_jobs()]
            output.end({"jobs": [each | {"run_count": counts.get(each["name"], 0)} for each in facts]})

    def _tell(
        self, outcome: Outcome, shell_command: ShellCommand | None, given: dict[str, Any], signals: ReceivedSignals
    ) -> int:
        """Print the line for a slot. Returns its exit status."""
        if outcome.error and given["traceback"]:
            self.stderr.write("".join(traceback.format_exception(outcome.error)))
        terms: dict[str, Any] = {
            "child_status": shell_command.status if shell_command else None,
            "traceback": "" if given["traceback"] else f"{where_traceback_is(outcome)}, or with {SEEN_WITH}",
        }
        line = refused(outcome, given["slot"]) or status_and_line(outcome, signum=signals.received, **terms)
        status, message = line
        (self._print_error if status else self._print_news)(given, message)
        return status or status_of_skip(outcome, given["skipped_status"])


# Which options have no effect beside another one.
_NO_EFFECT = {"standby": ("wait", "min_interval", "now"), "slot": ("standby", "now", "min_interval")}


def _check_combinations(parser: CommandParser, given: dict[str, Any]) -> None:
    for chosen, others in _NO_EFFECT.items():
        for option in others:
            if given[chosen] and given[option] not in (None, False):
                parser.error(f"--{option.replace('_', '-')} has no effect with --{chosen}. Remove one of them.")
    if given["slot"] and (given["child"] or given["management"] or given["list"]):
        parser.error("--slot is only for jobs that have a schedule: JOB --slot 2026-11-22T03:00")


def _is_by_hand(given: dict[str, Any]) -> bool:
    """Whether somebody wants the run, whatever the schedule and however recently it ran."""
    return bool(given["now"] or given["slot"])


def _terms(given: dict[str, Any], *, is_scheduled: bool) -> dict[str, Any]:
    """On which terms the job is run: see ``Run``."""
    if is_scheduled:
        return {"early": options().slot_tolerance}
    trigger = "manual" if _is_by_hand(given) else "command"
    terms = {"trigger": trigger, "command": given["child"] or None, "slot": given["slot"]}
    if words := given["management"]:
        terms |= {"command": [sys.argv[0], *words], "kind": f"{__name__}.work_of_command", "facts": {"command": words}}
    return terms


def work_of_command(order: Order, lease: Lease, memory: SharedMemory) -> Work:
    """What an executor does for a management command that is not a registered job."""
    name, *arguments = order.facts["command"]
    job = registry.Job(name=order.facts["job"], func=ManagementCommand(name, arguments, module=__name__))
    return work_of(job, order, lease)


def _facts(job: registry.Job, schedule: Schedule | None) -> dict[str, Any]:
    return {
        "name": job.name,
        "lock": job.lock,
        "description": job.description,
        "path": job.path,
        "schedule": schedule_in_words(schedule) if schedule else "",
        "next_slot": next_slot(schedule, utc_now()) if schedule else None,  # by this server's clock
    }


def _instead_of(job: registry.Job, schedule: Schedule) -> str:
    """What to add to a schedule that an operator has given the job."""
    code = job.policy.schedule if job.policy else schedule
    return "" if code == schedule else f" (given by singleton_schedule; in the code: {schedule_in_words(code)})"


def _check_arguments(job: registry.Job, given: dict[str, Any]) -> None:
    if complaint := job.misfit(*split_arguments(given["arguments"])):
        hint = " Pass them with --args '[...]'." if given["arguments"] is None else ""
        raise CommandError(
            f"The job {job.name!r} does not accept these arguments: {complaint}. Its signature is "
            f"{job.signature}.{hint}",
            returncode=EX_USAGE,
        )


def _job(given: dict[str, Any], command: ShellCommand | None) -> registry.Job:
    if given["management"]:
        return _job_of_command(given)
    name = given["name"]
    if command is None:
        if registry.is_known(name) or name not in get_commands():
            return registry.get(name)
        raise CommandError(
            f"There is no job {name!r}. To run the management command of that name: run_singleton -m {name}",
            returncode=EX_USAGE,
        )
    if registry.is_known(name):
        raise CommandError(
            f"{name!r} is a registered job, and the success of a shell command would hide the job's failures. Give the "
            "command's lock a name that no job has. To have the job share that lock, pass its name to the decorator: "
            "@singleton_job(lock=...).",
            returncode=EX_USAGE,
        )
    return registry.Job(name=validate_own_name(name), func=command)


def _job_of_command(given: dict[str, Any]) -> registry.Job:
    words = given["management"]
    command = ManagementCommand(words[0], words[1:], module=__name__)
    name = given["name"] or command.command
    if not registry.is_known(name):
        return registry.Job(name=validate_own_name(name), func=command)
    job = registry.get(name)
    if job.func == command:
        return job
    raise CommandError(
        f"{name!r} is a registered job that runs something else: {job.path}. Give the command's lock a name that no "
        f"job has: run_singleton NAME -m {shlex.join(words)}",
        returncode=EX_USAGE,
    )


def _check_max_runtime(job: registry.Job, given: dict[str, Any]) -> None:
    if given["max_runtime"] == ZERO:
        raise CommandError("--max-runtime must be longer than 0 seconds.", returncode=EX_USAGE)
    if given["max_runtime"] and (job.max_runtime or given["inline"]):
        own = f"the job {job.name!r} has a max_runtime of its own, {job.max_runtime}"
        why = own if job.max_runtime else "with --inline, nothing can end the job"
        raise CommandError(f"--max-runtime cannot be used: {why}. Remove it.", returncode=EX_USAGE)


def _with_options(job: registry.Job, given: dict[str, Any]) -> registry.Job:
    _check_max_runtime(job, given)
    if given["standby"] and job.schedule is not None:
        message = f"--standby is for what runs all the time, and the job {job.name!r} has a schedule. Remove --standby."
        raise CommandError(message, returncode=EX_USAGE)
    # If the servers' clocks differ, a slot still runs only once. A job without a schedule needs a minimum interval.
    default = options().min_interval if job.schedule is None else ZERO
    usual = default if job.min_interval is None else job.min_interval
    min_interval = usual if given["min_interval"] is None else given["min_interval"]
    wait = job.wait if given["wait"] is None else given["wait"]
    return replace(
        job,
        on_held="skip",
        wait=CENTURY if given["standby"] else wait,
        lease=given["lease"] or job.lease,
        max_runtime=given["max_runtime"] or job.max_runtime,
        min_interval=ZERO if _is_by_hand(given) or given["standby"] else min_interval,
    )
