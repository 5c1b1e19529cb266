"""Findings that somebody has acknowledged: they are shown, and alarm nobody until that ends."""

from collections.abc import Collection, Iterable
from datetime import datetime, timedelta
from typing import NamedTuple

from django.db import transaction
from django.db.models import Exists, OuterRef

from django_singlejob.control.notes import noted
from django_singlejob.database import transactions
from django_singlejob.models.alerts import JobAlert, alerts
from django_singlejob.models.jobs import database_now
from django_singlejob.models.notes import NoteKind
from django_singlejob.models.runs import runs
from django_singlejob.process.clock import DBNow, instant_in_words

# How long an acknowledgement lasts: by default, and at most.
USUAL, LONGEST = timedelta(days=1), timedelta(days=7)


class Acknowledged(NamedTuple):
    """The user, until when, and why."""

    by: str
    until: datetime
    reason: str


def acknowledge(subject: str, kinds: Collection[str], until: datetime | None, *, by: str, reason: str) -> datetime:
    """Acknowledge these kinds of findings about a job, a queue or a server, until then (``None``: for a day) or until
    its next success. Returns when it ends. Raises ``ValueError`` if that is past, or too far away."""
    now = database_now()
    until = until or now + USUAL
    if not now < until <= now + LONGEST:
        why = "past" if until <= now else f"more than {LONGEST.days} days away"
        raise ValueError(f"{instant_in_words(until)} is {why}. Give an instant within {LONGEST.days} days.")
    with transaction.atomic(using=transactions.alias()):
        for kind in sorted(kinds):
            alerts().bulk_create([JobAlert(subject=subject, kind=kind)], ignore_conflicts=True)
            facts = {"acknowledged_until": until, "acknowledged_by": by, "reason": reason}
            alerts().filter(subject=subject, kind=kind).update(acknowledged_at=DBNow(), **facts)
        details = ", ".join(sorted(kinds))
        noted(NoteKind.ACKNOWLEDGED, subject, by=by, reason=reason, until=until, details=details)
    return until


def acknowledged(subjects: Iterable[str]) -> dict[tuple[str, str], Acknowledged]:
    """What is acknowledged of these, by subject and kind. A run that was successful since then has ended it."""
    # Found by the instants: a run of an older release ends it, too.
    successful = runs().filter(job_name=OuterRef("subject"), status="successful")
    since = Exists(successful.filter(finished_at__gt=OuterRef("acknowledged_at")))
    found = alerts().filter(subject__in={*subjects}, acknowledged_until__gt=DBNow()).exclude(since)
    return {
        (row.subject, row.kind): Acknowledged(row.acknowledged_by, row.acknowledged_until, row.reason)
        for row in found
        if row.acknowledged_until
    }
