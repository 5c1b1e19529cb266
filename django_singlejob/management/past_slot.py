"""The past slot that somebody wants to run by hand: ``run_singleton JOB --slot 2026-11-22T03:00``."""

import argparse
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta, tzinfo

from django.core.management.base import CommandError

from django_singlejob.conf import quoted
from django_singlejob.jobs.registry import Job, zone_of
from django_singlejob.jobs.schedule import latest_slot, next_slot
from django_singlejob.locking.position import schedules
from django_singlejob.locking.request import Reason
from django_singlejob.management.arguments import text
from django_singlejob.management.exit_status import EX_USAGE
from django_singlejob.process.clock import instant_in_words, storable, utc_now
from django_singlejob.running.outcomes import Outcome


def moment(value: object) -> datetime:
    """An instant, as ISO 8601; without an offset, on the wall clock of the job's zone."""
    try:
        found = value if isinstance(value, datetime) else datetime.fromisoformat(text(value))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{quoted(value)} is not an instant, such as 2026-11-22T03:00.") from None
    if storable(found if found.tzinfo else found.replace(tzinfo=UTC)) is None:
        raise argparse.ArgumentTypeError(f"{quoted(value)} is too far away.")
    return found


def past_slot(job: Job, wanted: datetime) -> datetime:
    """The slot of the job's schedule at that moment. Raises ``CommandError`` if there is none, or if it is to come."""
    if job.policy is None:
        raise _mistake(f"The job {job.name!r} has no schedule, so it has no slots. To run it, use --now.")
    schedule = schedules(name=job.name)[job.name]
    instants = _instants(wanted, schedule.zone)
    first = instants[0] if instants else wanted.replace(tzinfo=schedule.zone)
    if first >= utc_now():
        raise _mistake(f"{wanted.isoformat()} is to come. Use a past slot or, to run {job.name!r} at once, --now.")
    slots = [instant for instant in instants if next_slot(schedule, instant - timedelta.resolution) == instant]
    if not slots:
        around = _written([latest_slot(schedule, first), next_slot(schedule, first)], schedule.zone)
        what = f"{wanted.isoformat()} is not a slot of the job {job.name!r}"
        raise _mistake(f"{what}. The slots around it are {' and '.join(around)}.")
    if len(slots) > 1:
        both = " or ".join(_written(slots, schedule.zone))
        raise _mistake(f"{wanted.isoformat()} comes twice, because clocks are set back then. Use {both}.")
    return slots[0]


def _instants(wanted: datetime, zone: tzinfo) -> list[datetime]:
    """In UTC. A wall clock may show the moment never, or twice, if clocks change."""
    if wanted.tzinfo:
        return [wanted.astimezone(UTC)]
    both = {wanted.replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (0, 1)}
    return sorted(instant for instant in both if instant.astimezone(zone).replace(tzinfo=None, fold=0) == wanted)


def _written(slots: Iterable[datetime], zone: tzinfo) -> list[str]:
    """As ``--slot`` reads them."""
    return [slot.astimezone(zone).isoformat() for slot in slots]


def _mistake(message: str) -> CommandError:
    return CommandError(message, returncode=EX_USAGE)


def refused(outcome: Outcome, slot: datetime | None) -> tuple[int, str] | None:
    """The exit status and the line, if what became of the chosen slot is why it was not run; ``None`` otherwise.

    That is decided under the lock. The status is 0 if it was run successfully: nothing is left to do."""
    if slot is None:
        return None
    which = f"{outcome.name}: skipped, the slot {instant_in_words(slot, zone_of(outcome.name))}"
    match outcome.reason:
        case Reason.ALREADY_RAN:
            return 0, f"{which} was run successfully. To run the job again, use --now."
        case Reason.NOT_DUE:
            return EX_USAGE, f"{which} is left to the schedule, which has not given it up. Leave out --slot."
    return None
