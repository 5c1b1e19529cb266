"""Moves the clocks that this package reads: the database's, and those of this process."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta
from math import inf
from typing import Any
from unittest.mock import patch
from weakref import WeakKeyDictionary

from django.conf import settings
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import DateTimeField, Value
from django.db.models.functions import Cast
from django.db.models.sql.compiler import SQLCompiler
from django.test import override_settings
from django.utils import timezone

from django_singlejob.conf import options
from django_singlejob.locking.heartbeat import Heartbeats
from django_singlejob.locking.lease import Lease
from django_singlejob.process import clock
from django_singlejob.process.clock import DBNow, local_now, utc_now
from django_singlejob.testing.arguments import instant_of

# By statement.
_moments: WeakKeyDictionary[SQLCompiler, datetime] = WeakKeyDictionary()
# How often the thread that sends heartbeats, which sends none meanwhile, looks whether that is over. Seconds.
_PAUSE = 0.5


@contextmanager
def travel(to: datetime | timedelta | str) -> Iterator[None]:
    """Move the clocks during the block: to an instant, given as an aware datetime or in ISO 8601, or by a
    ``timedelta``. From there they go on.

    It moves the database's clock as this package's queries see it, this package's own clocks, and the ``now()`` of
    ``django.utils.timezone``. Python's own clocks stay: use another tool for them, around the block. Inside the block,
    it would move all these clocks further.

    Where this package would sleep, its clocks move on instead. Nothing in this process sends heartbeats by itself. A
    lease in hand that ends before the instant is lost, as if this process had been suspended; if the ``max_runtime`` of
    its job is over by then, ``check()`` raises ``JobTimeout`` instead.

    Raises ``SingleJobError`` for anything else, and for a datetime that is not aware.
    """
    by = to if isinstance(to, timedelta) else instant_of(to) - utc_now()
    with ExitStack() as life:
        life.enter_context(patch.object(clock, "time", _MovedTime(vars(clock)["time"], by)))
        life.enter_context(patch.object(timezone, "now", utc_now))
        for name in ("as_mysql", "as_postgresql", "as_sqlite"):
            life.enter_context(patch.object(DBNow, name, _as_moved))
        life.enter_context(patch.object(Lease, "deadline", property(_deadline)))
        life.enter_context(patch.object(Heartbeats, "beat", lambda _: None))
        life.enter_context(patch.object(Heartbeats, "next_at", property(lambda _: local_now() + _PAUSE)))
        if options().single_statement:  # its text has the name of the database's clock
            changed = {**settings.SINGLEJOB, "SINGLE_STATEMENT": False}
            life.enter_context(override_settings(SINGLEJOB=changed))
        yield


class _MovedTime:
    """Replaces the module ``time`` in ``process.clock``."""

    def __init__(self, before: Any, by: timedelta) -> None:
        self._before, self._ahead = before, by.total_seconds()

    def time(self) -> float:
        return float(self._before.time()) + self._ahead

    def monotonic(self) -> float:
        return float(self._before.monotonic()) + self._ahead

    def clock_gettime(self, which: int) -> float:
        return float(self._before.clock_gettime(which)) + self._ahead

    def sleep(self, seconds: float) -> None:
        self._ahead += seconds


def _as_moved(now: DBNow, compiler: SQLCompiler, connection: BaseDatabaseWrapper, **_: Any) -> Any:
    """The SQL of the moved time, which is the same wherever it stands in a statement."""
    moment = _moments.setdefault(compiler, utc_now())
    return compiler.compile(Cast(Value(moment, output_field=DateTimeField()), DateTimeField()))


def _deadline(lease: Lease) -> float:
    """When the holder stops trusting itself, also in a ``TestCase``, where no other process can see the lock."""
    # A command would have ended the run in time, and renewed its lease until then.
    if lease.is_only_writer or lease.runtime_ends_at <= local_now():
        return inf
    return local_now() + (lease.expires_at - utc_now()).total_seconds()
