"""One-offs that wait only once: an INSERT that, where such a row waits already, locks that in its place."""

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from django.db import Error, connections, transaction
from django.db.models import Case, F, SmallIntegerField, Value, When
from django.db.models.functions import Greatest

from django_singlejob.database import errors, transactions
from django_singlejob.models.one_offs import OneOffJobQuerySet, one_offs
from django_singlejob.process.clock import DBNow, backoff, sleep
from django_singlejob.running.enqueue import Call, closed_if_lost, in_batches

if TYPE_CHECKING:
    from django_singlejob.models import OneOffJob

# How many times to try if other callers are in the way.
TRIES = 10


def insert_unique(alias: str, columns: Mapping[str, Any], calls: Sequence[Call]) -> "list[OneOffJob]":
    """A row that waits, and that nobody has touched, for each ``unique_key``: see ``running.enqueue.insert``."""
    # Sorted: two callers that need the same rows do not wait for each other.
    distinct = sorted({call.unique_key: call for call in calls}.values(), key=attrgetter("unique_key"))
    # In the caller's own transaction, only the caller may try again.
    tries = 1 if connections[alias].in_atomic_block or not connections[alias].get_autocommit() else TRIES
    for left, pause in zip(reversed(range(tries)), backoff(), strict=False):
        sleep(pause)
        try:
            with closed_if_lost(alias), transactions.synchronous(alias), transaction.atomic(using=alias):
                found = {row.unique_key: row for batch in in_batches(distinct) for row in _asked(alias, columns, batch)}
            return [found[call.unique_key] for call in calls]
        except Error as error:
            if not (left and errors.is_transient(error)):
                raise
    raise AssertionError


def _asked(alias: str, columns: Mapping[str, Any], batch: Sequence[Call]) -> OneOffJobQuerySet:
    """Lock the row that waits for each of these, if there is one, or insert it. No worker begins it before the caller's
    commit, nor without what the caller has written."""
    keys = [call.unique_key for call in batch]
    # Only seen, and so not locked: on MySQL, to lock by this index would lock what is beside it, too.
    seen = dict(one_offs().filter(waiting_key__in=keys).values_list("unique_key", "pk"))
    of_these = one_offs().filter(pk__in=[*seen.values()], version=0).still_waiting()
    if seen and of_these.update(**_changes(columns)) == len(seen):
        batch = [call for call in batch if call.unique_key not in seen]
    if batch:
        _insert(alias, columns, batch)
        one_offs().filter(waiting_key__in=[call.unique_key for call in batch]).update(**_changes(columns))
    return one_offs().filter(waiting_key__in=keys)


def _changes(columns: Mapping[str, Any]) -> dict[str, Any]:
    run_after = columns.get("run_after", DBNow())
    return {
        "asked": F("asked") + 1,
        "run_after": Case(When(run_after__gt=run_after, then=run_after), default=F("run_after")),
        "priority": Greatest(F("priority"), Value(columns["priority"], SmallIntegerField())),
    }


def _insert(alias: str, columns: Mapping[str, Any], batch: Sequence[Call]) -> None:
    """Insert the rows. In place of one that waits by now, write that as it is, which locks it."""
    # MySQL cannot name the index, but a new row violates no other one.
    target = connections[alias].features.supports_update_conflicts_with_target
    conflict: dict[str, Any] = {"update_conflicts": True, "update_fields": ["status"]}
    conflict |= {"unique_fields": ["waiting_key"]} if target else {}
    one_offs().bulk_create([one_offs().model(**columns, **call._asdict()) for call in batch], **conflict)
