"""``manage.py singleton_why``: why a job runs or does not, now or at a slot."""

import argparse
from datetime import datetime
from typing import Any

from django.core.management.base import CommandParser, no_translations

from django_singlejob.conf import quoted
from django_singlejob.management.arguments import CallableCommand, text
from django_singlejob.management.exit_status import discover_jobs, explained, refuse_settings
from django_singlejob.management.output import Output, add_format
from django_singlejob.management.past_slot import moment
from django_singlejob.monitoring.causes import Answer
from django_singlejob.monitoring.why import why

# No schedule began earlier, and zones have no rules for much later.
YEARS = range(1970, 2101)


def near(value: object) -> datetime:
    """An instant of these years."""
    found = moment(value)
    if found.year not in YEARS:
        raise argparse.ArgumentTypeError(f"{quoted(value)} is too far away: use the years {YEARS[0]} to {YEARS[-1]}.")
    return found


class Command(CallableCommand):
    help = (
        "Says why a job runs or does not: now, or, with --at, at a slot. One sentence, what proves it, and what to do. "
        "What nothing proves is not known: then it says what would show it."
    )
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name", type=text, metavar="JOB", help="The name of the job.")
        parser.add_argument(
            "--at",
            type=near,
            metavar="INSTANT",
            help='A slot, in ISO 8601, such as "2026-11-22 03:00". Without an offset, it is in the zone of the job.',
        )
        add_format(parser)

    @no_translations
    def handle(self, **given: Any) -> None:
        discover_jobs()
        with explained():
            refuse_settings()
            answers = why(given["name"], given["at"])
        output = Output(self, given)
        for answer in answers:
            output.line(answer.sentence)
            for line in answer.evidence:
                output.line(f"  {line}")
            if answer.remedy:
                output.line(answer.remedy)
        output.end({"answers": [*map(_facts, answers)]})


def _facts(answer: Answer) -> dict[str, Any]:
    return {**answer._asdict(), "cause": answer.cause.value}
