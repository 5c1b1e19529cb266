"""PostgreSQL's timeline: it tells apart the database servers that have been the primary one after another.

A standby that is promoted begins a new timeline, whose number is greater by one. An asynchronous standby may have lost
the last grants, and would give out their fences again. This is why the timeline is the high part of each fence: a
promoted standby never gives out a fence of the primary that it followed, whatever the failover loses, even while both
are alive. Two standbys of one primary may take the same number if neither has followed the other.

If a gate's fence has an older timeline, the last grant was made before a failover, or after it by a server that is
lost. The holder may not know this yet, so the lock is not granted before the holder has had time to find out: see
``JobStatus.is_from_failover`` and ``Acquisition``.
"""

import logging
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from django.db import Error, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import BigIntegerField, Func

from django_singlejob.database import errors
from django_singlejob.process.clock import local_now, since
from django_singlejob.process.escaping import printable
from django_singlejob.process.logs import about

if TYPE_CHECKING:
    from django.db.models.sql.compiler import SQLCompiler

logger = logging.getLogger("django_singlejob")

T = TypeVar("T")

# The number of low bits of a fence that count the grants of one timeline.
GRANT_BITS = 32

# Any role may call these functions. pg_control_checkpoint() lags behind a promotion. A standby has no current position.
SQL = (
    "CASE WHEN pg_is_in_recovery() THEN 0 "
    "ELSE ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint END"
)

PROBLEM_LENGTH = 200

# The databases that do not report their timeline.
_silent: set[str] = set()
# By database and timeline: when this process first saw it, as `local_now()`.
_known_since: dict[tuple[str, int], float] = {}


class Timeline(Func):
    """The server's timeline, 1 or greater. 0 if it is unknown, because the server is a standby, is not PostgreSQL, or
    does not report it."""

    output_field = BigIntegerField()

    def as_sql(
        self, compiler: "SQLCompiler", connection: BaseDatabaseWrapper, *_: Any, **__: Any
    ) -> tuple[str, tuple[str | int, ...]]:
        return "0", ()

    def as_postgresql(
        self, compiler: "SQLCompiler", connection: BaseDatabaseWrapper, **_: Any
    ) -> tuple[str, tuple[str | int, ...]]:
        return sql_on(connection.alias), ()


def sql_on(alias: str) -> str:
    """How to ask this PostgreSQL for its timeline. It changes if the database refuses to report it."""
    return "0" if alias in _silent else SQL


def known_for(alias: str, timeline: int) -> timedelta:
    """How long this process has known that the database is on this timeline, which it may learn by this call."""
    return since(_known_since.setdefault((alias, timeline), local_now()))


def ask_with_timeline(alias: str, ask: Callable[[], T]) -> T:
    """Call ``ask``, whose query includes the timeline, and return its value. If the database refuses to report the
    timeline, it is 0 from then on."""
    if alias in _silent or connections[alias].vendor != "postgresql":
        return ask()
    try:
        return _undoable(alias, ask)
    except Error as error:
        if not errors.is_refused(error):
            raise
        return _ask_without(alias, ask, error)


def _undoable(alias: str, ask: Callable[[], T]) -> T:
    if not connections[alias].in_atomic_block:
        return ask()
    with transaction.atomic(using=alias):  # in a TestCase, whose transaction would not survive the refused query
        return ask()


def _ask_without(alias: str, ask: Callable[[], T], error: Error) -> T:
    _silent.add(alias)
    try:
        answer = ask()
    except BaseException:
        _silent.discard(alias)  # it was something else that was refused
        raise
    problem = printable(str(error), PROBLEM_LENGTH)
    message = "The database %r does not report its timeline, so a failover may repeat fences (%s)."
    logger.warning(message, alias, problem, extra=about(reason=error))
    return answer
