"""One-offs that wait only once: an INSERT that, where such a row waits already, locks that in its place."""

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from django.db import Error, connections, transaction
from django.db.models import Case, F, SmallIntegerField, Value, When
from django.db.models.functions import Greatest

from django_singlejob.database import errors, transactions
from django_singlejob.models.one_offs import OneOffJobQuerySet, one_offs
from django_singlejob.process.clock import DBNow
from django_singlejob.running.enqueue import Call, closed_if_lost, in_batches

if TYPE_CHECKING:
    from django_singlejob.models import OneOffJob

# How many times to try if other callers are in the way.
TRIES = 3


def insert_unique(alias: str, columns: Mapping[str, Any], calls: Sequence[Call]) -> "list[OneOffJob]":
    """A row that waits, and that nobody has touched, for each ``unique_key``: see ``running.enqueue.insert``."""
    # Sorted: two callers that need the same rows do not wait for each other.
    distinct = sorted({call.unique_key: call for call in calls}.values(), key=attrgetter("unique_key"))
    left = TRIES
    while True:
        left -= 1
        try:
            with closed_if_lost(alias), transactions.synchronous(alias), transaction.atomic(using=alias):
                found = {row.unique_key: row for batch in in_batches(distinct) for row in _asked(alias, columns, batch)}
            return [found[call.unique_key] for call in calls]
        except Error as error:
            if not left or connections[alias].in_atomic_block or not errors.is_transient(error):
                raise


def _asked(alias: str, columns: Mapping[str, Any], batch: Sequence[Call]) -> OneOffJobQuerySet:
    # What waits already is written as it is, which locks the row: no worker begins it before the caller's commit, nor
    # without what the caller has written. MySQL cannot name the index, but a new row violates no other one.
    target = connections[alias].features.supports_update_conflicts_with_target
    conflict: dict[str, Any] = {"update_conflicts": True, "update_fields": ["status"]}
    conflict |= {"unique_fields": ["waiting_key"]} if target else {}
    one_offs().bulk_create([one_offs().model(**columns, **call._asdict()) for call in batch], **conflict)
    waiting = one_offs().filter(waiting_key__in=[call.unique_key for call in batch])
    run_after = columns.get("run_after", DBNow())
    changes = {
        "asked": F("asked") + 1,
        "run_after": Case(When(run_after__gt=run_after, then=run_after), default=F("run_after")),
        "priority": Greatest(F("priority"), Value(columns["priority"], SmallIntegerField())),
    }
    waiting.update(**changes)
    return waiting
