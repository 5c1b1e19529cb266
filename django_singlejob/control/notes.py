"""Notes of what happened to a job beside its runs, so that it can be explained later. They decide nothing, and nothing
fails because of them."""

import json
import logging
from contextlib import nullcontext
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from django.db import Error, connections, transaction

from django_singlejob.database import errors, transactions
from django_singlejob.database.time_limits import limited
from django_singlejob.jobs.names import REASON_LENGTH
from django_singlejob.jobs.slots import MisfireOutcome
from django_singlejob.models.notes import DETAILS_LENGTH, JobNote, NoteKind, notes
from django_singlejob.process.clock import DBNow
from django_singlejob.process.escaping import printable
from django_singlejob.process.holder import USER_LENGTH
from django_singlejob.process.logs import about

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

    from django_singlejob import Lease
    from django_singlejob.models import JobLock

logger = logging.getLogger("django_singlejob")

# How long a note may take: what it is about waits meanwhile.
PATIENCE = timedelta(milliseconds=500)
# The text and the time zone.
Schedule = tuple[str, str]
_LENGTHS = {"by": USER_LENGTH, "reason": REASON_LENGTH, "details": DETAILS_LENGTH}


def noted(kind: NoteKind, job_name: str, **facts: Any) -> bool:
    """Write a note, in the transaction that is open, if one is. Returns ``True``, always: if the note is refused, that
    is logged, and all else goes on. Raises only what has undone the whole transaction."""
    facts |= {name: printable(facts[name], length) for name, length in _LENGTHS.items() if name in facts}
    alias = transactions.alias()
    connection = connections[alias]
    own = nullcontext() if connection.in_atomic_block else transactions.durable(alias, statement_timeout=PATIENCE)
    try:
        with own, limited(alias, PATIENCE), transaction.atomic(using=alias):
            _limit_wait(connection)
            notes().bulk_create([JobNote(kind=kind, job_name=job_name, at=DBNow(), **facts)])
    except Error as error:
        if connection.in_atomic_block and connection.needs_rollback:
            raise  # all of the transaction is undone
        message = "The note on %r (%s) could not be written: %s"
        logger.warning(message, job_name, kind.value, errors.words_of(error), extra=about(job=job_name, reason=error))
    return True


def _limit_wait(connection: "BaseDatabaseWrapper") -> None:
    """Somebody may have locked the table. It is the last statement of its transaction."""
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute(f"SET LOCAL lock_timeout = '{PATIENCE // timedelta(milliseconds=2)}ms'")


# --- receivers of signals


def note_misfire(name: str, reason: str, first: datetime, slot: datetime, count: int, **_: Any) -> None:
    """Note that slots were given up. One that is run late has a run."""
    if reason != MisfireOutcome.LATE:
        noted(NoteKind.MISSED, name, first_slot=first, last_slot=slot, number=count, details=str(reason))


def note_schedule(
    name: str, before: Schedule, after: Schedule, next_slot: datetime | None, since: datetime, **_: Any
) -> None:
    """Note which schedule a job had, and which one it has since then."""
    details = json.dumps({"before": before, "after": after, "since": since.isoformat()})
    noted(NoteKind.SCHEDULE_CHANGED, name, first_slot=next_slot, details=details)


def note_takeover(lock: "JobLock", lease: "Lease | None", **_: Any) -> None:
    """Note that the lock of a dead holder was cleared. If it was taken over, a run shows that."""
    if lease is None:
        noted(NoteKind.CLEARED, lock.job_name or lock.name, details=lock.holder)
