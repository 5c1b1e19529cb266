"""``manage.py singleton_status``: how jobs, queues and workers are doing, for people and for monitoring."""

import argparse
import sys
from collections.abc import Sequence
from itertools import chain, groupby
from typing import TYPE_CHECKING, Any, NoReturn

from django.core.management.base import CommandError, CommandParser, no_translations

from django_singlejob.conf import ZERO, quoted
from django_singlejob.jobs.discovery import autodiscover
from django_singlejob.locking.request import Reason
from django_singlejob.management.arguments import CallableCommand, instant, queue, reason, text, whole_number
from django_singlejob.management.exit_status import (
    EX_FAILED,
    EX_USAGE,
    discover_jobs,
    explained,
    explanation_of,
    refuse_settings,
)
from django_singlejob.management.job_page import job_page
from django_singlejob.management.output import Output, add_format, as_json
from django_singlejob.management.screen import on_one_screen
from django_singlejob.management.tables import distance, printable, table
from django_singlejob.monitoring.acknowledging import acknowledge
from django_singlejob.monitoring.facts import VERSION, status_of
from django_singlejob.monitoring.findings import SECOND, Finding, in_figures, roughly
from django_singlejob.monitoring.health import Health, State
from django_singlejob.monitoring.queues import Queue
from django_singlejob.monitoring.verdict import Scope, Verdict, judge
from django_singlejob.monitoring.workers import SeenWorker, Server
from django_singlejob.process import rooms
from django_singlejob.process.clock import instant_in_words, project_zone
from django_singlejob.process.escaping import listed
from django_singlejob.process.holder import this_user
from django_singlejob.process.logs import in_english
from django_singlejob.process.progress import Progress

if TYPE_CHECKING:
    from django_singlejob.models import JobStatus

EX_UNKNOWN = 3  # to Nagios

# The most lines of a table, and of advice: many systems that run --check keep much less.
MOST_LINES, MOST_LINES_OF_CHECK = 1_000, 100


def positive_number(value: object) -> int:
    """A whole number of 1 or more, which may be given as text."""
    number = whole_number(value)
    if not number:
        raise argparse.ArgumentTypeError(f"{quoted(value)} is not a whole number of 1 or more.")
    return number


class Command(CallableCommand):
    help = (
        "Shows how everything is doing: each job with its state, the holder of its lock, its last run and its next "
        "slot; the queues; the workers. With --check the exit status is that of a Nagios plugin."
    )
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "name", nargs="?", type=text, metavar="NAME", help="Shows the page of this job: all that is known of it."
        )
        parser.add_argument(
            "--check",
            action="store_true",
            help="Exits with the status of a Nagios plugin: 0 if all is well, 1 for a warning, 2 if something is "
            "critical, 3 if nothing is known.",
        )
        parser.add_argument(
            "--job",
            action="append",
            default=[],
            type=text,
            metavar="NAME",
            help="Looks only at this job or lock. May be given several times. Queues are left out unless --queue names "
            "them.",
        )
        parser.add_argument(
            "--queue",
            action="append",
            default=[],
            type=queue,
            metavar="NAME",
            help="Looks only at this queue. May be given several times. Jobs are left out unless --job names them.",
        )
        parser.add_argument(
            "--ignore",
            action="append",
            default=[],
            type=text,
            metavar="NAME",
            help="Leaves out the job (with its one-offs), the lock, the queue or the server of this name. May be given "
            "several times.",
        )
        parser.add_argument(
            "--failures",
            default=1,
            type=positive_number,
            metavar="N",
            help="A job is critical after N failures in a row, and a queue after N in the last hour if these are at "
            "least half of what finished. Fewer failures are a warning. Default: 1.",
        )
        known = "Acknowledges what is wrong with this job, queue or server: it is shown, but alarms nobody for a while."
        parser.add_argument("--acknowledge", type=text, metavar="NAME", help=known)
        until = "When that ends, in ISO 8601; the job's next success ends it, too. Default: in a day. At most: a week."
        parser.add_argument("--until", type=instant, metavar="INSTANT", help=until)
        parser.add_argument("--because", type=reason, metavar="TEXT", help="The reason, for others to read.")
        trial = "Sends a mail to each address of NOTIFY and of the jobs' notify. Exits with 1 if one cannot be sent."
        parser.add_argument("--send-test", action="store_true", help=trial)
        add_format(parser, "table")

    def check_options(self, parser: CommandParser, given: dict[str, Any]) -> None:
        if given["acknowledge"] is None and (given["until"] or given["because"]):
            parser.error("--until and --because go with --acknowledge NAME.")
        if given["name"] is not None and any(given[other] for other in ("job", "queue", "acknowledge", "send_test")):
            parser.error("NAME is the page of one job. For several, use --job.")

    @no_translations
    def handle(self, **given: Any) -> None:
        if given["acknowledge"] is not None:
            self._acknowledge(given, given["acknowledge"])
            return
        if given["send_test"]:
            self._send_test(given)
            return
        named = [given["name"]] if given["name"] else given["job"]
        scope = Scope(jobs=named, queues=given["queue"], ignored=given["ignore"])
        try:
            broken = autodiscover()
            refuse_settings()
            verdict = judge(scope, failures=given["failures"], with_last_runs=True, broken=broken)
        except Exception as error:
            self._give_up(error, explanation_of(error), given)
        is_json = given["format"] == "json"
        if given["name"] and not (is_json or given["check"]) and verdict.healths[0].is_job:
            with explained():
                self.stdout.write("\n".join(job_page(verdict)))
            return
        most = MOST_LINES_OF_CHECK if given["check"] else MOST_LINES
        lines = [] if is_json else _lines(verdict, most)
        shown = lines if given["check"] else on_one_screen(verdict, lines)
        self.stdout.write(as_json(status_of(verdict).as_dict()) if is_json else "\n".join(shown))
        if given["check"] and verdict.level:
            sys.exit(verdict.level)

    def _acknowledge(self, given: dict[str, Any], name: str) -> None:
        output = Output(self, given)
        discover_jobs()
        with explained():
            refuse_settings()
            kinds = [found.kind for found in judge().findings if found.subject == name]
            if not kinds:
                raise CommandError(f"Nothing is wrong with {quoted(name)}.", returncode=EX_USAGE)
            values, terms = [kind.value for kind in kinds], {"by": this_user(), "reason": given["because"] or ""}
            try:
                until = acknowledge(name, values, given["until"], **terms)
            except ValueError as error:
                raise CommandError(f"--until: {error}", returncode=EX_USAGE) from None
        labels = listed(kind.label for kind in kinds)
        output.line(f"Acknowledged until {instant_in_words(until)}: {name} is {labels}.")
        output.end({"name": name, "kinds": values, "until": until})

    def _send_test(self, given: dict[str, Any]) -> None:
        output = Output(self, given)
        discover_jobs()
        with explained():
            sent: dict[str, bool] = rooms.find("send_test")()
        if not sent:
            raise CommandError("Neither SINGLEJOB['NOTIFY'] nor a job's notify has an address.", returncode=EX_USAGE)
        for address in filter(sent.get, sent):
            output.line(f"Sent to {address}.")
        output.end({"sent": sent})
        if not all(sent.values()):
            sys.exit(EX_FAILED)

    def _give_up(self, error: Exception, explanation: CommandError | None, given: dict[str, Any]) -> NoReturn:
        """Report that nothing is known."""
        problem = str(explanation or f"{type(error).__name__}: {error}")
        if given["check"]:
            # Monitoring reads standard output. To it, the exit status 1 of a traceback is only a warning.
            unknown = as_json({"version": VERSION, "level": "unknown", "error": problem})
            self.stdout.write(unknown if given["format"] == "json" else f"UNKNOWN: {printable(problem)}")
            sys.exit(EX_UNKNOWN)
        if explanation:
            raise explanation from error
        raise error


def _lines(verdict: Verdict, most: int) -> list[str]:
    """At most this many lines of each table, and of the advice."""
    tables = [
        _table_of_jobs(verdict.healths),
        table(
            ("FAILING", "LAST ERROR"),
            (
                (health.name, health.status.last_error)
                for health in verdict.healths
                if health.state == State.FAILING and health.status and health.status.last_error
            ),
        ),
        table(
            ("PAUSED", "UNTIL", "BY", "BECAUSE"),
            (_row_of_pause(health.status) for health in verdict.healths if health.status and health.status.is_paused),
        ),
        table(
            ("QUEUE", "DUE", "OLDEST", "FAILED LATELY", "WORKERS"),
            (_row_of_queue(queue, verdict.served_by(queue)) for queue in verdict.queues),
        ),
        table(
            ("WORKER", "QUEUES", "STATE", "LAST SEEN"),
            (_row_of_worker(worker) for worker in verdict.workers if not worker.is_once),
        ),
        table(("SERVER", "QUEUES", "ASKS", "LAST SEEN", "RELEASE", "CLOCK"), map(_row_of_server, verdict.servers)),
    ]
    # A table begins with an empty line and its titles, the advice with an empty line.
    lines = [*chain(*(_bounded(table, most + 2) for table in tables)), *_bounded(_advice(verdict.findings), most + 1)]
    return [_summary(verdict), *lines]


def _bounded(lines: list[str], most: int) -> list[str]:
    left_out = f"... and {len(lines) - most} more: --format json has all of them."
    return lines if len(lines) <= most else [*lines[:most], left_out]


def _summary(verdict: Verdict) -> str:
    """What Nagios shows: ``CRITICAL: 1 overdue (hourly_report). Jobs and locks: 12. | due=0 failed=0 workers=2``."""
    findings = [finding for finding in verdict.findings if not finding.acknowledged]
    by_kind = (list(group) for _kind, group in groupby(findings, key=lambda finding: finding.kind))
    well = "all is well" if verdict.is_enabled else in_english(Reason.DISABLED.label)
    troubles = ", ".join(map(_troubles, by_kind)) or well
    count = len(verdict.findings) - len(findings)
    known = f"; {count} acknowledged" if count else ""
    summary = f"{troubles}{known}. Jobs and locks: {in_figures(len(verdict.healths), is_cut=verdict.is_cut)}."
    return f"{verdict.level.name}: {summary} | {_figures(verdict)}"


def _troubles(found: Sequence[Finding]) -> str:
    """The findings of one kind: ``2 overdue (backup, hourly_report)``."""
    return f"{len(found)} {found[0].kind.label} ({listed(map(_subject, found))})"


def _subject(finding: Finding) -> str:
    name = printable(finding.subject)
    return f"{finding.about} {name}" if finding.about in ("queue", "worker", "server", "row") else name


def _figures(verdict: Verdict) -> str:
    figures = {
        "due": sum(queue.due for queue in verdict.queues),
        "failed": sum(queue.failed for queue in verdict.queues),
        "workers": sum(worker.is_live for worker in verdict.workers),
    }
    return " ".join(f"{name}={count}" for name, count in figures.items())


def _advice(findings: Sequence[Finding]) -> list[str]:
    lines = [f"{_level(found)}: {found.what_happened} {found.what_to_do}" for found in findings]
    return ["", *map(printable, lines)] if lines else []


def _level(finding: Finding) -> str:
    if finding.acknowledged is None:
        return finding.level.name
    by, until, reason = finding.acknowledged
    because = f" ({reason})" if reason else ""
    return f"ACKNOWLEDGED by {by} until {instant_in_words(until)}{because}"


def _table_of_jobs(healths: Sequence[Health]) -> list[str]:
    """The worst first, with a column for the progress if any run tells it."""
    healths = sorted(healths, key=lambda health: (-health.state.level, health.name))
    titles, rows = ("JOB", "STATE", "HOLDER", "LAST RUN", "NEXT SLOT"), [*map(_row, healths)]
    told = [Progress.read(health.lock.progress).in_short if health.lock else "" for health in healths]
    if not any(told):
        return table(titles, rows)
    wider = ((*row[:3], each, *row[3:]) for row, each in zip(rows, told, strict=True))
    return table((*titles[:3], "PROGRESS", *titles[3:]), wider)


def _row(health: Health) -> tuple[object, ...]:
    status, lock = health.status, health.lock
    holder = f"{lock.holder} for {roughly(lock.now - lock.acquired_at)}" if lock else ""
    return (health.name, health.state.label, holder, _last(status) if status else "", _next(health))


def _row_of_pause(status: "JobStatus") -> tuple[object, ...]:
    until = instant_in_words(status.paused_until, project_zone()) if status.paused_until else "resumed"
    return (status.name, until, status.paused_by, status.pause_reason)


def _row_of_queue(queue: Queue, workers: int) -> tuple[object, ...]:
    due, oldest = in_figures(queue.due, is_cut=queue.is_cut), roughly(queue.oldest) if queue.due else ""
    return (queue.name, due, oldest, _failed(queue), workers)


def _failed(queue: Queue) -> str:
    """How many failed, of how many: ``20 of 25``."""
    failed = in_figures(queue.failed, is_cut=queue.is_failed_cut)
    return f"{failed} of {queue.finished}" if queue.finished else str(failed)


def _row_of_worker(worker: SeenWorker) -> tuple[object, ...]:
    state, seen = "alive" if worker.is_live else "dead", instant_in_words(worker.seen_at, project_zone())
    return (worker.holder, ", ".join(worker.queues) or "all", state, seen)


def _row_of_server(server: Server) -> tuple[object, ...]:
    """With its clock, if that is wrong by a second or more."""
    how = "impeded" if server.trouble else "by passes" if server.is_once else "by a worker"
    off = abs(server.clock_error or ZERO)
    clock = f"{roughly(off)} {'fast' if server.clock_error == off else 'slow'}" if off >= SECOND else ""
    queues, age = ", ".join(server.queues) or "all", f"{roughly(server.age)} ago"
    return (server.hostname, queues, how if server.is_asking else "no more", age, server.release, clock)


def _last(status: "JobStatus") -> str:
    if status.last_status in ("", "abandoned"):  # it is not known when its holder died
        return status.last_status
    return f"{status.last_status} {distance(status.now, status.last_finished_at)}".strip()


def _next(health: Health) -> str:
    if health.status and health.status.next_slot:
        slot = instant_in_words(health.status.next_slot, project_zone())
        return f"{slot}, {distance(health.status.now, health.status.next_slot)}"
    return ""
