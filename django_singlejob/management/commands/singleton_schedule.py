"""``manage.py singleton_schedule``: give a job another schedule than the code's, until that is reset."""

import sys
from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

from django.core.management.base import CommandError, CommandParser, no_translations

from django_singlejob.control.schedules import Own, give_schedule, parsed, refusal
from django_singlejob.exceptions import InvalidSchedule
from django_singlejob.jobs import registry
from django_singlejob.jobs.registry import Job
from django_singlejob.jobs.schedule import Schedule, parse
from django_singlejob.jobs.words import schedule_in_words
from django_singlejob.locking.position import has_due, is_waiting
from django_singlejob.management.arguments import CallableCommand, reason, text
from django_singlejob.management.exit_status import EX_TEMPFAIL, EX_USAGE, discover_jobs, explained, refuse_settings
from django_singlejob.management.output import Output, add_format
from django_singlejob.models.jobs import gates
from django_singlejob.monitoring.health import schedule_of
from django_singlejob.process.clock import instant_in_words
from django_singlejob.process.holder import this_user
from django_singlejob.to_come import Preview, preview

# How long to wait for a fenced transaction of the job, in seconds.
PATIENCE = 5.0


class Command(CallableCommand):
    help = (
        "Gives a job another schedule than the code's, through deploys, until that is reset. Shows the next slots "
        "before and after. A slot that is due is run first. Without a schedule, shows the one in force."
    )
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name", type=text, metavar="JOB", help="The name of the job.")
        parser.add_argument(
            "schedule",
            nargs="?",
            type=text,
            metavar="SCHEDULE",
            help='A cron expression, such as "0 4 * * *", a name such as @daily, or an interval, such as PT15M.',
        )
        parser.add_argument(
            "--time-zone",
            type=text,
            metavar="ZONE",
            help="The IANA time zone of the cron expression (default: the job's own).",
        )
        parser.add_argument("--because", type=reason, metavar="TEXT", help="The reason, for others to read.")
        parser.add_argument("--reset", action="store_true", help="Follows the code again.")
        parser.add_argument("--dry-run", action="store_true", help="Only shows what would change.")
        add_format(parser)

    def check_options(self, parser: CommandParser, given: dict[str, Any]) -> None:
        is_change = given["schedule"] is not None or given["reset"]
        if given["schedule"] is not None and given["reset"]:
            parser.error("Give a SCHEDULE, or --reset, which follows the code again.")
        if given["time_zone"] and given["schedule"] is None:
            parser.error("--time-zone goes with a SCHEDULE.")
        if (given["because"] or given["dry_run"]) and not is_change:
            parser.error("--because and --dry-run go with a SCHEDULE, or with --reset.")

    @no_translations
    def handle(self, **given: Any) -> None:
        self._output = Output(self, given)
        discover_jobs()
        refuse_settings()
        with explained():
            job = registry.get(given["name"])
            gates().remember(job.name)
            self._status = gates().filter(name=job.name).survey()[job.name]
            if given["schedule"] is None and not given["reset"]:
                self._show(job)
            else:
                self._change(job, given)

    def _show(self, job: Job) -> None:
        now = schedule_of(self._status) or (job.policy and job.policy.schedule)
        self._output.line(f"{job.name}: {self._origin(job)}")
        coming = preview(now, self._status.now) if now else None
        for line in _column(coming) if coming else ["It has no schedule."]:
            self._output.line(f"  {line}")
        if is_waiting(self._status):
            self._output.line(f"A slot is due. It is run first, as above; then: {self._origin(job)}")
        self._output.end(self._facts(job) | {"slots": _slots(coming)})

    def _origin(self, job: Job) -> str:
        own = Own.of(self._status)
        code = schedule_in_words(job.policy.schedule) if job.policy else "none"
        return f"{_in_words(own)}. In the code: {code}." if own.schedule else f"{code}."

    def _change(self, job: Job, given: dict[str, Any]) -> None:
        asked = given["schedule"]
        wanted = None if given["reset"] else parsed(job, asked, given["time_zone"] or "")
        if why := refusal(job, wanted):
            raise CommandError(why, returncode=EX_USAGE)
        seen = Own.of(self._status)
        if job.policy is None:  # in the code any more: only what is left of an operator's can go
            is_changed = self._carry_out(job, wanted, seen, Own(), given) if not given["dry_run"] else None
            self._output.end(self._facts(job) | {"changed": is_changed, "slots_before": [], "slots": []})
            return
        own = Own(wanted.text, wanted.time_zone) if wanted else Own()
        now, then = schedule_of(self._status) or job.policy.schedule, wanted or job.policy.schedule
        before, after = (preview(each, self._status.now) for each in (now, then))
        self._output.line(f"{job.name}: from {schedule_in_words(now)} to {schedule_in_words(then)}")
        for left, right in zip_longest(["Now", *_column(before)], ["Then", *_column(after)], fillvalue=""):
            self._output.line(f"  {left:<34}  {right}".rstrip())
        if has_due(self._status):
            self._output.line("A slot is due. It is run first.")
        is_changed = self._carry_out(job, wanted, seen, own, given) if not given["dry_run"] else None
        facts = {"changed": is_changed, "slots_before": _slots(before), "slots": _slots(after)}
        self._output.end(self._facts(job) | facts)

    def _carry_out(self, job: Job, wanted: Schedule | None, seen: Own, own: Own, given: dict[str, Any]) -> bool:
        if seen == own:
            waits = " It is changed already, and follows the new schedule after the slot that is due."
            self._output.line(f"Nothing to change.{waits if is_waiting(self._status) else ''}")
            return False
        why = {"by": this_user(), "reason": given["because"] or ""}
        is_given = give_schedule(job, wanted, instead_of=seen, patience=PATIENCE, **why)
        if not is_given:
            what = "another transaction is using it" if is_given is None else "somebody else has just changed it"
            self._output.error(f"The schedule of {job.name!r} was not changed: {what}. Try again.")
            sys.exit(EX_TEMPFAIL)
        self._status = gates().filter(name=job.name).survey()[job.name]
        self._output.line("Changed." if wanted else "Reset.")
        return True

    def _facts(self, job: Job) -> dict[str, Any]:
        own, code = Own.of(self._status), job.policy and job.policy.schedule
        return {
            "name": job.name,
            "own": own._asdict() if own.schedule else None,
            "code": {"schedule": code.text, "time_zone": code.time_zone} if code else None,
        }


def _in_words(own: Own) -> str:
    try:
        return schedule_in_words(parse(*own))
    except InvalidSchedule as error:
        return f"{own.schedule} {own.time_zone}, which this machine does not know ({error})"


def _slots(coming: Preview | None) -> list[str]:
    if coming is None:
        return []
    return [slot.astimezone(coming.schedule.zone).isoformat() for slot in (*coming.slots, *coming.around)]


def _column(coming: Preview) -> Iterator[str]:
    """The slots, and the change of clocks among them."""
    for slot, is_after_gap, is_after_change in coming.marked():
        if is_after_gap:
            yield "..."
        if is_after_change:
            yield "(clocks change)"
        yield instant_in_words(slot, coming.schedule.zone)
