"""What an acquisition looks at: a lock and its gates, in one read."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple

from django.db import connections
from django.db.models import CharField, DurationField, Q

from django_singlejob.clock import local_now
from django_singlejob.conf import ZERO
from django_singlejob.querysets.compiled import Given, Reading, Statement
from django_singlejob.querysets.jobs import gates
from django_singlejob.querysets.locks import locks
from django_singlejob.querysets.rows import UNREADABLE, in_utc, refusing_unreadable
from django_singlejob.timeline import ask_with_timeline, sql_on

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from django_singlejob.models import JobLock, JobStatus


class Seen(NamedTuple):
    """What was seen at one instant.

    Attributes:
        lock: the lock; ``None`` if it is free.
        gates: the gates that exist, by name.
        at: right after the instant, as ``local_now()``.
    """

    lock: JobLock | None
    gates: Mapping[str, JobStatus]
    at: float


def look(name: str, own_name: str, min_interval: timedelta) -> Seen:
    """Read a lock, and its gate and that of the job, as ``locks().look_up`` and ``gates().look_up`` do.

    Raises ``UnreadableRow`` if one of them cannot be read.
    """
    try:
        return ask_with_timeline(locks().db, lambda: _look_once(name, own_name, min_interval))
    except UNREADABLE:
        # One by one, which tells which of them it is.
        with refusing_unreadable():
            return Seen(locks().look_up(name), gates().look_up({name, own_name}, min_interval), local_now())


def _look_once(name: str, own_name: str, min_interval: timedelta) -> Seen:
    alias = locks().db
    shape = (alias, sql_on(alias), own_name != name, min_interval > ZERO)
    if shape not in _known:
        _known[shape] = _Look(has_own_gate=own_name != name, has_interval=min_interval > ZERO)
    return _known[shape].ask(alias, {"name": name, "own_name": own_name, "min_interval": min_interval})


class _Look:
    """One statement that reads a lock and its gates."""

    def __init__(self, *, has_own_gate: bool, has_interval: bool) -> None:
        name, own_name = Given("name", CharField()), Given("own_name", CharField())
        interval = Given("min_interval", DurationField()) if has_interval else ZERO
        wanted = Q(name=name) | Q(name=own_name) if has_own_gate else Q(name=name)
        self._lock = Reading(locks().filter(name=name).watchable())
        self._gate = Reading(gates().filter(wanted).startable(interval))
        lock, gate = self._lock.statement, self._gate.statement
        # Both may be missing.
        self._statement = Statement(
            f"SELECT held.*, gate.* FROM (SELECT 1 AS here) here LEFT JOIN ({lock.sql}) held ON 1 = 1 "  # noqa: S608
            f"LEFT JOIN ({gate.sql}) gate ON 1 = 1",
            [*lock.params, *gate.params],
        )

    def ask(self, alias: str, given: Mapping[str, Any]) -> Seen:
        with connections[alias].cursor() as cursor:
            cursor.execute(self._statement.sql, self._statement.filled(given, connections[alias]))
            found, at = cursor.fetchall(), local_now()
        lock = self._lock.row(found[0][: self._lock.width])
        read = [self._gate.row(values[self._lock.width :]) for values in found]
        return Seen(lock and in_utc(lock), {gate.name: in_utc(gate) for gate in read if gate}, at)


# By database and shape.
_known: dict[tuple[object, ...], _Look] = {}
