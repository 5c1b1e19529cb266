"""The marks of servers: each that asks for what is due says so, every few minutes. They decide nothing."""

import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from hashlib import sha256
from typing import Any, NamedTuple

from django.db import Error
from django.db.models import DateTimeField, DurationField, ExpressionWrapper, F, Func, Q, QuerySet, Value
from django.db.models.functions import Greatest, Least

from django_singlejob.conf import ZERO, options
from django_singlejob.control.notes import noted
from django_singlejob.database import errors, transactions
from django_singlejob.database.time_limits import limited
from django_singlejob.jobs import registry
from django_singlejob.jobs.discovery import why_not_registered
from django_singlejob.models.notes import NoteKind
from django_singlejob.models.passes import WorkerPass, passes
from django_singlejob.models.rows import delete_rows, in_utc
from django_singlejob.monitoring.this_release import this_release
from django_singlejob.process import rooms
from django_singlejob.process.clock import DBNow, utc_now
from django_singlejob.process.escaping import printable
from django_singlejob.process.holder import Holder, this_process
from django_singlejob.process.logs import about

logger = logging.getLogger("django_singlejob")

# About five minutes, but cron comes a bit sooner or later.
MARK_EVERY = timedelta(minutes=4.5)
# A server that has not been seen for this long, and for twice its last gap, has stopped asking.
SILENT_AFTER = timedelta(minutes=15)
# From one mark to the next.
USUALLY_AWAY = timedelta(minutes=6)
# How long each statement may take: what is due waits meanwhile.
PATIENCE = timedelta(milliseconds=500)
# A server that was seen for a shorter time is forgotten after that time, any other after three days. No more rows than
# these are kept.
SHORT, FORGOTTEN_AFTER, MOST = timedelta(hours=1), timedelta(days=3), 200
YEAR = timedelta(days=365)
# What asks by day only has long gaps at night, and short ones by day. A long gap is remembered for five times as long.
FADES_IN = 5
TROUBLE_LENGTH = 1_000
DISABLED = "SINGLEJOB['ENABLED'] is False."


class Mark(NamedTuple):
    """What a server says of itself.

    Attributes:
        holder: the process that asks.
        queues: the queues that it serves; empty: all.
        is_once: whether it is a pass, which ends by itself.
        release: which code runs there; empty if that is not known.
        trouble: why not everything that is due runs there; empty if it does.
    """

    holder: Holder
    queues: Sequence[str] = ()
    is_once: bool = True
    release: str = ""
    trouble: str = ""

    @property
    def key(self) -> str:
        """A hash of the server and the queues, which can be long and many."""
        return sha256(json.dumps([self.holder.hostname, *self.names]).encode()).hexdigest()

    @property
    def names(self) -> list[str]:
        """The queues, in order."""
        return sorted({*self.queues})

    @property
    def news(self) -> dict[str, str]:
        """What is recorded as soon as it changes."""
        return {"release": self.release, "trouble": self.trouble}


def mark(queues: Sequence[str], others: "Sequence[QuerySet[Any]]", *, is_once: bool, is_first: bool) -> bool:
    """Record that this server asks for what is due in these queues, unless it has done so lately.

    ``is_first``: whether this process has not done so before. Returns whether any of the ``others`` has a row, which
    the same statement asks. Whatever goes wrong, the pass goes on.
    """
    mine, found = Mark(this_process(), queues, is_once, this_release(), _trouble()), set[int]()
    try:
        try:
            found = _found([fresh(mine), *others])
        except Error:  # somebody may have locked one of the other tables
            found = _found([fresh(mine)])
        if 0 not in found:
            with _limited():
                goes_on = record(mine, keeps_gap=is_once and not is_first)
            with _limited():  # not with the other rows: others forget the same ones
                _forget()
            # After an outage, what is late will run in a moment.
            if goes_on and (tell := rooms.find("tell")):
                tell()
    except Exception as error:
        message = "Monitoring does not see this server, because its mark could not be recorded: %s"
        level = logging.WARNING if options().enabled else logging.INFO
        logger.log(level, message, errors.words_of(error), extra=about(reason=error))
        if errors.is_connection_lost(error):
            transactions.drop(transactions.alias())
    return bool(found - {0})


def _found(asked: "Sequence[QuerySet[Any]]") -> set[int]:
    """The places of those that have a row."""
    with _limited():
        first, *rest = (rows.order_by().values_list(Value(place)) for place, rows in enumerate(asked))
        return {place for (place,) in first.union(*rest)}


@contextmanager
def _limited() -> Iterator[None]:
    alias = transactions.alias()
    with transactions.durable(alias, statement_timeout=PATIENCE), limited(alias, PATIENCE):
        yield


def _trouble() -> str:
    if not options().enabled:
        return DISABLED
    return printable(" ".join(map(why_not_registered, registry.failures.values())), TROUBLE_LENGTH)


def fresh(mine: Mark) -> "QuerySet[WorkerPass]":
    """The row of this server, if it says all this, and was written a moment ago."""
    return passes().filter(seen(MARK_EVERY), key=mine.key, **mine.news)


def record(mine: Mark, *, keeps_gap: bool = False) -> bool:
    """Record that the server asks, now. ``keeps_gap``: because it goes on asking. Returns whether it was not away for
    longer than usual."""
    facts: dict[str, Any] = {
        "seen_at": DBNow(),
        "pid": mine.holder.pid,
        "is_once": mine.is_once,
        "clock_error": _between(Value(utc_now(), DateTimeField()), DBNow()),
        **mine.news,
    }
    rows = passes().filter(key=mine.key)
    for row in rows.judged(seen(MARK_EVERY)):
        away = max(row.now - row.seen_at, ZERO)  # the database's clock may have been set back
        gap = row.gap if keeps_gap else min(max(away, (row.gap or ZERO) - away / FADES_IN, -YEAR), YEAR)
        rows.update(gap=gap, **facts)
        if SILENT_AFTER < away < FORGOTTEN_AFTER and not keeps_gap:
            details = json.dumps({"hostname": mine.holder.hostname, "queues": mine.names})
            noted(NoteKind.SERVER_BACK, "", first_slot=row.seen_at, last_slot=row.now, details=details)
        return away <= max(row.gap or ZERO, USUALLY_AWAY)
    facts |= {"key": mine.key, "queues": mine.names, "hostname": mine.holder.hostname, "first_seen_at": DBNow()}
    passes().bulk_create([WorkerPass(**facts)], ignore_conflicts=True)
    # Each pass may be a container of its own, with a name of its own.
    return passes().filter(seen(USUALLY_AWAY)).exclude(key=mine.key).exists()


def _between(later: Any, earlier: Any) -> Func:
    """A year at most: somebody may have written any instant."""
    between = ExpressionWrapper(later - earlier, output_field=DurationField())
    year, ago = (Value(length, DurationField()) for length in (YEAR, -YEAR))
    return Least(Greatest(between, ago), year)


def _forget() -> None:
    # By their keys: MySQL would lock all that it reads.
    latest, old = passes().order_by("-seen_at").values_list("key", flat=True), passes().filter(IS_OLD)
    if keys := [*old.values_list("key", flat=True), *latest[MOST:]]:
        delete_rows(passes().filter(~seen(SILENT_AFTER), key__in=sorted(keys)))


# Containers have another name each time.
IS_SHORT = Q(seen_at__lt=F("first_seen_at") + SHORT)
IS_OLD = Q(seen_at__lt=DBNow() - FORGOTTEN_AFTER) | (IS_SHORT & Q(seen_at__lt=DBNow() - SHORT))


def marks(recently: timedelta) -> list[WorkerPass]:
    """The rows that were written within ``FORGOTTEN_AFTER``, the latest first, with ``now`` and ``is_recent``: whether
    within the time ``recently``."""
    rows = passes().filter(seen(FORGOTTEN_AFTER)).exclude(IS_OLD).judged(seen(recently))
    return [in_utc(row) for row in rows.order_by("-seen_at", "key")[:MOST]]


def seen(within: timedelta) -> Q:
    """Whether a row was written within this time. One in the future was written before the clock was set back."""
    return Q(seen_at__gt=DBNow() - within, seen_at__lte=DBNow() + within)
