"""The grant and the release as one statement each, for PostgreSQL: one request, one answer, one commit.

With ``SINGLE_STATEMENT``, this room handles the ordinary case. It decides as ``locking.grant`` and
``locking.release`` do, by the same conditions and in the same order: gate, lease, run. If anything is out of the
ordinary, it changes nothing, and the portable path goes on.

The SET LOCALs before the statement are part of the same request, which PostgreSQL carries out as one transaction. So
the limits already hold while the server waits for a table or a row, and they end with the request.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

from django.db import Error, connections
from django.db.models import Model

from django_singlejob.database import errors, transactions
from django_singlejob.database.timeline import GRANT_BITS, known_for, sql_on
from django_singlejob.locking.endings import Ending
from django_singlejob.locking.grant import Grant, PlannedRun
from django_singlejob.locking.recording import Writer, stay_away, writer
from django_singlejob.locking.request import LockRequest
from django_singlejob.models.jobs import MEAN_RUNS, gates
from django_singlejob.models.locks import LONGEST_LEASE, locks
from django_singlejob.models.rows import in_utc
from django_singlejob.models.runs import runs
from django_singlejob.process.clock import local_now, since

if TYPE_CHECKING:
    from django_singlejob.models import JobLock

_IDLE = 0  # of both drivers: no transaction is open


class Answer(NamedTuple):
    """What the statement says.

    Attributes:
        grant: what was granted; ``None`` if nothing was, and nothing was changed.
        lock: the lock's row, if it is in the way. If there is neither, the rows are out of the ordinary, or another
            caller was faster.
    """

    grant: Grant | None = None
    lock: "JobLock | None" = None


# --- what the kernel is given


def grant_at_once(
    request: LockRequest, doubt: Callable[[Grant], None], rule_out: Callable[[Grant], None]
) -> "Grant | JobLock | None":
    """Ask for the lock: see ``AtOnce`` in ``locking.acquire``."""
    asked_at, history = local_now(), writer(request.lease)
    if not is_ordinary_grant(request, history):
        return None
    grant = requested(request, uuid4())
    doubt(grant)
    try:
        answer = ask(grant, history)
    except Error as error:
        if was_undone(error):
            rule_out(grant)
        if grant.entry and took_long(asked_at, history):
            stay_away(error)
        if errors.is_connection_lost(error) or errors.is_transient(error) or errors.is_duplicate(error):
            raise
        return None
    if answer.grant is None:
        rule_out(grant)
    return answer.grant or answer.lock


def release_at_once(grant: Grant, ending: Ending | None, history: Writer) -> Callable[[], bool | None] | None:
    """How to release the lock: see ``PlanAtOnce`` in ``locking.release``."""
    return partial(release, grant, ending, history) if is_ordinary_release(grant, ending, history) else None


# --- which case is ordinary


def is_ordinary_grant(request: LockRequest, history: Writer) -> bool:
    """Whether one statement can grant this: neither slot nor one-off, behind one gate. The statement itself finds out
    whether the rows are ordinary too."""
    has_run = request.trigger is not None
    is_simple = request.policy is None and request.one_off is None and request.slot is None
    return is_simple and has_run == bool(request.job_name) and _has_one_gate(request) and _is_possible(history)


def is_ordinary_release(grant: Grant, ending: Ending | None, history: Writer) -> bool:
    """Whether one statement can release this: behind one gate, with nothing else to write, and a run that ends has its
    row in the history."""
    if ending is not None:
        is_ordinary = ending.was_begun and not (ending.is_cut_off or ending.writes_more)
        if not is_ordinary or grant.entry is None or grant.entry.pk is None:
            return False
    return (ending is None or _has_one_gate(grant.request)) and _is_possible(history)


def _has_one_gate(request: LockRequest) -> bool:
    return request.own_name == request.name


def _is_possible(history: Writer) -> bool:
    return history.patience is not None and _is_alone(transactions.alias())


def _is_alone(alias: str) -> bool:
    """Whether a statement on this thread's connection is a transaction of its own, on PostgreSQL."""
    connection: Any = connections[alias]
    if connection.vendor != "postgresql" or connection.in_atomic_block:
        return False
    connection.ensure_connection()
    # A BEGIN sent by hand is unknown to Django, and so is an autocommit that was turned off by hand.
    driver = connection.connection
    return bool(driver.autocommit and driver.info.transaction_status == _IDLE)


# --- the grant


def requested(request: LockRequest, token: Any) -> Grant:
    """The grant to request at this moment. Its fence is not known before it is granted."""
    return Grant.of(request, token, PlannedRun())


def ask(grant: Grant, history: Writer) -> Answer:
    """Ask for the grant with one statement. After an error, ``was_undone`` tells whether it may have been granted."""
    alias = transactions.alias()
    columns, request = grant.columns, grant.request
    parameters = {
        "name": request.name,
        "token": grant.token,
        "lease": request.lease,
        "min_interval": request.min_interval,
        "heartbeat_interval": request.heartbeat_interval,
        "hostname": columns["hostname"],
        "pid": columns["pid"],
        "command": columns["command"],
        "job_name": request.job_name,
        "sent_at": columns["sent_at"],
        "queues": json.dumps(columns["queues"]),
        "trigger": request.trigger,
        "requested_by": request.requested_by,
    }
    row = _answer(alias, history, _grant_sql(sql_on(alias), grant.entry is not None), parameters)
    if row is None:
        return Answer()  # there is no gate yet
    granted, run, _, timeline, now, is_stale, is_impossible, *lease = row
    known_for(alias, timeline)
    if granted is not None:
        return Answer(_granted(grant, granted, run, now))
    if all(value is None for value in lease):
        return Answer()
    judged = {"now": now, "timeline": timeline, "is_stale": is_stale, "is_impossible": is_impossible}
    with suppress(*errors.OF_A_ROW):
        return Answer(lock=_read(alias, lease, judged))
    return Answer()  # it cannot be read, as the portable path will tell


def _granted(grant: Grant, fence: int, run: int | None, now: datetime) -> Grant:
    if grant.entry:
        grant.entry.facts |= {"fence": fence, "started_at": now}
        grant.entry.pk = run
    return grant._replace(fence=fence, acquired_at=now)


def _read(alias: str, values: Sequence[Any], judged: Mapping[str, Any]) -> "JobLock":
    """The lock's row, as ``locks().look_up`` reads it."""
    connection, model = connections[alias], locks().model
    fields = model._meta.concrete_fields
    read = [
        field.from_db_value(value, field.cached_col, connection) if hasattr(field, "from_db_value") else value
        for field, value in zip(fields, values, strict=True)
    ]
    lock: JobLock = model.from_db(alias, [field.attname for field in fields], read)
    for name, value in judged.items():
        setattr(lock, name, value)
    return in_utc(lock)


def was_undone(error: Error) -> bool:
    """Whether the statement was certainly undone: it was a transaction of its own, and the server itself refused it."""
    if errors.is_undone(error) or errors.is_duplicate(error):
        return True
    is_unknown = errors.is_connection_lost(error) or errors.is_transient(error)
    is_servers = any(getattr(error.__cause__, name, None) for name in ("sqlstate", "pgcode"))
    return is_servers and not is_unknown


def took_long(asked_at: float, history: Writer) -> bool:
    """Whether what was asked at ``asked_at`` has used up the patience with the history. It must not be waited for
    again."""
    return history.patience is not None and since(asked_at) >= history.patience / 2


# --- the release


def release(grant: Grant, ending: Ending | None, history: Writer) -> bool | None:
    """Release the lock, and record the run's end, with one statement. Returns ``False`` if the lock was no longer ours,
    and ``None`` if the server refused the statement, as it does if the gate is still ours but the lease's row is gone.
    """
    asked_at, sql = local_now(), _finish_sql() if ending else _release_sql()
    parameters: dict[str, Any] = {"name": grant.request.name, "token": grant.token}
    if ending:
        parameters |= ending.result
        parameters |= {"is_successful": ending.status == "successful", "is_failure": ending.is_failure}
    try:
        return _answer(transactions.alias(), history, sql, parameters) is not None
    except Error as error:
        if not was_undone(error):
            raise
        if took_long(asked_at, history):
            history.patience = None
        return None


# --- the request


def _answer(alias: str, history: Writer, sql: str, parameters: Mapping[str, Any]) -> Any:
    """The statement's only row, or ``None``."""
    assert history.patience is not None  # noqa: S101  (the case is ordinary)
    with transactions.transaction_in_one_request(alias, history.patience), connections[alias].cursor() as cursor:
        cursor.execute(sql, parameters)
        return cursor.fetchone()


# --- the statements. A column that is missing here would get no value: a test compares them with the models.

_NOW = "STATEMENT_TIMESTAMP()"

_LEASE = {
    "name": "%(name)s",
    "token": "%(token)s::uuid",
    "hostname": "%(hostname)s",
    "pid": "%(pid)s",
    "command": "%(command)s",
    "acquired_at": _NOW,
    "heartbeat_at": _NOW,
    "heartbeats": "0",
    "heartbeat_interval": "%(heartbeat_interval)s::interval",
    "expires_at": f"{_NOW} + %(lease)s::interval",
    "sent_at": "%(sent_at)s::timestamptz",
    "job_name": "%(job_name)s",
    "slot": "NULL",
    "attempt": "1",
    "queues": "%(queues)s::jsonb",
    "stopped_by": "''",
    "progress": "'{}'::jsonb",
}

_RUN = {
    "job_name": "%(job_name)s",
    "lock": "%(name)s",
    "fence": "passed.fence",
    "token": "taken.token",
    "status": "'running'",
    "trigger": "%(trigger)s",
    "requested_by": "%(requested_by)s",
    "slot": "NULL",
    "retried_slot": "NULL",
    "attempt": "1",
    "hostname": "%(hostname)s",
    "pid": "%(pid)s",
    "started_at": _NOW,
    "finished_at": "NULL",
    "duration": "NULL",
    "acquire_duration": "NULL",
    "error": "''",
    "traceback": "''",
    "origin": "''",
    "output": "''",
}

# What a gate must be like.
_PASSABLE = f"""(gate.token IS NULL OR gate.fence >> {GRANT_BITS} >= seen.timeline)
    AND gate.token IS DISTINCT FROM %(token)s::uuid"""
# As in `gates().ready`.
_STARTABLE = f"""
    AND (NOT gate.paused OR gate.paused_until <= {_NOW}) AND gate.last_status <> 'abandoned'
    AND (gate.last_started_at > {_NOW} - %(min_interval)s::interval
        AND gate.last_started_at <= {_NOW} + %(min_interval)s::interval) IS NOT TRUE"""


@cache
def _grant_sql(timeline: str, has_run: bool) -> str:
    begun = f""",
begun AS (
    INSERT INTO {_table(runs().model)} ({", ".join(map(_quoted, _RUN))})
    SELECT {", ".join(_RUN.values())} FROM taken, passed RETURNING id
)"""
    # The gate's fence must be the one that was seen. A caller that has waited for another one's UPDATE compares it with
    # the changed row, and finds that it is not.
    return f"""WITH seen AS MATERIALIZED (
    SELECT gate.fence, {timeline} AS timeline, {_NOW} AS now, lease.expires_at <= {_NOW} AS is_stale,
        lease.heartbeat_at > {_NOW} + INTERVAL '1 second'
            OR lease.expires_at > {_NOW} + INTERVAL '{LONGEST_LEASE.total_seconds():.0f} seconds' AS is_impossible,
        {", ".join(f"lease.{_quoted(str(field.column))}" for field in locks().model._meta.concrete_fields)}
    FROM {_table(gates().model)} AS gate LEFT JOIN {_table(locks().model)} AS lease ON lease.name = %(name)s
    WHERE gate.name = %(name)s
),
passed AS (
    UPDATE {_table(gates().model)} AS gate
    SET fence = GREATEST(gate.fence, seen.timeline << {GRANT_BITS}) + 1, token = %(token)s::uuid, hidden = FALSE
        {f", last_started_at = {_NOW}" if has_run else ""}
    FROM seen
    WHERE gate.name = %(name)s AND seen.name IS NULL AND gate.fence = seen.fence
    AND {_PASSABLE}{_STARTABLE if has_run else ""}
    RETURNING gate.fence
),
taken AS (
    INSERT INTO {_table(locks().model)} ({", ".join(map(_quoted, _LEASE))})
    SELECT {", ".join(_LEASE.values())} FROM passed RETURNING token
){begun if has_run else ""}
SELECT (SELECT fence FROM passed), {"(SELECT id FROM begun)" if has_run else "NULL"}, seen.* FROM seen"""


# See ``gates().finish`` and ``mean_with``.
_FINISHED = f"""last_status = %(status)s, last_finished_at = {_NOW}, run_count = run_count + 1,
    consecutive_failures = CASE WHEN %(is_successful)s THEN 0 WHEN %(is_failure)s THEN consecutive_failures + 1
        ELSE consecutive_failures END,
    mean_duration = CASE WHEN NOT %(is_successful)s THEN mean_duration ELSE COALESCE(
        mean_duration + (%(duration)s::interval - mean_duration) / (LEAST(run_count, {MEAN_RUNS - 1}) + 1),
        %(duration)s::interval) END"""

# See ``runs().finish``.
_ENDED = f"""status = %(status)s, finished_at = {_NOW}, duration = %(duration)s::interval,
    acquire_duration = %(acquire_duration)s::interval, error = %(error)s, traceback = %(traceback)s,
    origin = %(origin)s, output = %(output)s"""


@cache
def _release_sql() -> str:
    return f"{_let_go('hold_count = hold_count + 1')}{_JUDGED}"


@cache
def _finish_sql() -> str:
    return f"""{_let_go(_FINISHED)},
ended AS (
    UPDATE {_table(runs().model)} SET {_ENDED}
    WHERE token = %(token)s::uuid AND status = 'running' AND EXISTS (SELECT FROM freed)
){_JUDGED}"""


def _let_go(changes: str) -> str:
    return f"""WITH held AS (
    UPDATE {_table(gates().model)} SET {changes}
    WHERE name = %(name)s AND token = %(token)s::uuid RETURNING name
),
freed AS (
    DELETE FROM {_table(locks().model)}
    WHERE name = %(name)s AND token = %(token)s::uuid AND EXISTS (SELECT FROM held) RETURNING token
)"""


# No row if the gate was not ours. If it was, but the lease was gone, the division undoes everything.
_JUDGED = """
SELECT 1 / (freed.token IS NOT NULL)::integer FROM held LEFT JOIN freed ON TRUE"""


def _table(model: type[Model]) -> str:
    return _quoted(model._meta.db_table)


def _quoted(name: str) -> str:
    return f'"{name}"'
