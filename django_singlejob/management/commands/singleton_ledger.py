"""``manage.py singleton_ledger``: what became of each slot that jobs should have had."""

import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta, tzinfo
from typing import Any

from django.core.management.base import CommandError, CommandParser, no_translations

from django_singlejob.management.arguments import CallableCommand, instant, text
from django_singlejob.management.exit_status import EX_USAGE, discover_jobs, explained, refuse_settings
from django_singlejob.management.output import Output, add_format
from django_singlejob.models.jobs import database_now
from django_singlejob.monitoring.ledger import (
    MISSED,
    NOT_RUN,
    Ledger,
    SlotOutcome,
    Stretch,
    ledger_of,
    scheduled_jobs,
)
from django_singlejob.process.clock import instant_in_words

EX_MISSED, EX_TWICE = 1, 2
DAY = timedelta(days=1)
NO_RECORD = SlotOutcome.NO_RECORD
NOT_ONCE = {*NOT_RUN, SlotOutcome.TWICE, SlotOutcome.DUE, SlotOutcome.SCHEDULE_NOT_KNOWN}


class Command(CallableCommand):
    help = (
        "Lists what became of each slot: how many ran once, twice or not at all, and why. Exits with 1 if a slot was "
        "missed or cut off, and with 2 if one ran twice."
    )
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        name = "The name of a job. Default: all jobs with a schedule."
        parser.add_argument("names", nargs="*", default=[], type=text, metavar="JOB", help=name)
        since = "The first slots, in ISO 8601, such as 2026-11-22T03:00. Default: a day before --until."
        parser.add_argument("--since", type=instant, metavar="INSTANT", help=since)
        until = "Only the slots before that. Default: now."
        parser.add_argument("--until", type=instant, metavar="INSTANT", help=until)
        add_format(parser)

    @no_translations
    def handle(self, **given: Any) -> None:
        discover_jobs()
        output = Output(self, given)
        with explained():
            refuse_settings()
            until = given["until"] or database_now()
            since = given["since"] or until - DAY
            if since >= until:
                raise CommandError("--since must be earlier than --until.", returncode=EX_USAGE)
            ledgers = []
            for name in dict.fromkeys(given["names"] or scheduled_jobs()):
                ledgers.append(ledger_of(name, since, until))
                for line in _lines(ledgers[-1], since):
                    output.line(line)
        if len(ledgers) > 1:
            output.line(f"In all: {_summary(sum((ledger.counts for ledger in ledgers), Counter()))}.")
        output.end({"since": since, "until": until, "jobs": [*map(_facts, ledgers)]})
        if status := _status(ledgers):
            sys.exit(status)


def _status(ledgers: Iterable[Ledger]) -> int:
    found = {outcome for ledger in ledgers for outcome in ledger.counts}
    if SlotOutcome.TWICE in found:
        return EX_TWICE
    return EX_MISSED if found & MISSED else 0


def _lines(ledger: Ledger, since: datetime) -> Iterator[str]:
    zone = ledger.zone
    if ledger.since is None:
        yield f"{ledger.name}: no slot is recorded yet."
        return
    yield f"{ledger.name}: {_summary(ledger.counts)}."
    if ledger.since > since:
        begin = instant_in_words(ledger.since, zone)
        many = f"before {begin}: there are too many slots. Use a shorter time."
        yield f"  {many}" if ledger.is_cut else f"  the record begins at {begin}."
    for stretch in ledger.stretches:
        yield f"  {_when(stretch, zone)}: {_reason(stretch, zone)}"
    if ledger.left_out:
        yield f"  {ledger.left_out:,} more are left out. Use a shorter time."


def _summary(counts: Counter[SlotOutcome]) -> str:
    """``410 ran once (3 failed), 0 twice, 2 did not (1 missed, 1 paused)``."""
    once = Counter({outcome: count for outcome, count in counts.items() if outcome not in NOT_ONCE})
    not_run = Counter({outcome: count for outcome, count in counts.items() if outcome in NOT_RUN - {NO_RECORD}})
    yet = f", {counts[SlotOutcome.DUE]:,} due" if counts[SlotOutcome.DUE] else ""
    other = counts[SlotOutcome.SCHEDULE_NOT_KNOWN]
    unknown = f"; the schedule of {other:,} more is not known" if other else ""
    unknown += f"; of {counts[NO_RECORD]:,} there is no record" if counts[NO_RECORD] else ""
    twice = counts[SlotOutcome.TWICE]
    return f"{_counted(once, 'ran once')}, {twice:,} twice, {_counted(not_run, 'did not')}{yet}{unknown}"


def _counted(counts: Counter[SlotOutcome], what: str) -> str:
    parts = [f"{counts[each]:,} {each.label}" for each in SlotOutcome if counts[each] and each != SlotOutcome.RAN]
    aside = f" ({', '.join(parts)})" if parts else ""
    return f"{counts.total():,} {what}{aside}"


def _when(stretch: Stretch, zone: tzinfo) -> str:
    first, number = instant_in_words(stretch.slots[0], zone), len(stretch.slots)
    return first if number == 1 else f"{first} to {instant_in_words(stretch.slots[-1], zone)}, {number:,} slots"


def _reason(stretch: Stretch, zone: tzinfo) -> str:
    """Why, without the slot, with which the line begins."""
    if stretch.answer is None:
        return f"{stretch.outcome.label}."
    if stretch.outcome == SlotOutcome.TWICE:
        return f"ran twice. {' '.join(stretch.answer.evidence)}"
    sentence = stretch.answer.sentence.removeprefix(f"{instant_in_words(stretch.slots[0], zone)} ")
    return sentence.removeprefix("was not run: ")


def _facts(ledger: Ledger) -> dict[str, Any]:
    counts = {outcome.value: ledger.counts[outcome] for outcome in SlotOutcome}
    facts = ledger._asdict()
    del facts["entries"]
    return {
        **facts,
        "zone": str(ledger.zone),
        "counts": counts,
        "stretches": [*map(_facts_of_stretch, ledger.stretches)],
    }


def _facts_of_stretch(stretch: Stretch) -> dict[str, Any]:
    answer = stretch.answer
    return {
        "first": stretch.slots[0],
        "last": stretch.slots[-1],
        "number": len(stretch.slots),
        "outcome": stretch.outcome.value,
        "cause": answer.cause.value if answer else None,
        "sentence": answer.sentence if answer else "",
        "evidence": answer.evidence if answer else [],
    }
