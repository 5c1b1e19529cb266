"""Rows that this package never writes: of each column, the values that a database lets somebody write by hand."""

from __future__ import annotations

from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from django.db import Error, connection, models, transaction

from django_singlejob.clock import DBNow
from django_singlejob.models import JobLock, JobRun, JobStatus, OneOffJob, WorkerPass
from tests.contract.acts import BEAT, MINUTE, newest_slot

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django.db.models import Model

    from django_singlejob import Job

MODELS: tuple[type[Model], ...] = (JobLock, JobStatus, JobRun, OneOffJob, WorkerPass)
TEXTS = ["", " ", "nonsense", "x" * 10_000, "\x1b[31m\u202e\r\nforged"]
INSTANTS = ["0001-01-01 00:00:00", "9999-12-31 23:59:59.999999"]
DOCUMENTS = ['"text"', "5", "1.5e300", "null", "[]", '[{"a": 1}]', "{}", '{"a": [1]}', "1" * 5000]
# What only this database stores.
MORE_INSTANTS: dict[str, list[Any]] = {
    "sqlite": ["nonsense", "", "2026-02-31 00:00:00", 5, b"\x00"],
    "postgresql": ["infinity", "-infinity", "0044-03-15 12:00:00 BC", "294276-12-31 00:00:00"],
    "mysql": ["0000-00-00 00:00:00", "2026-02-00 00:00:00"],
}
MORE_DOCUMENTS = {
    "sqlite": ["[" * 990 + "]" * 990, '{"a":' * 900 + "1" + "}" * 900],
    "postgresql": ["[" * 3000 + "]" * 3000],
    "mysql": ["[" * 30 + "]" * 30],
}
MICROSECONDS = [1, 0, -1, -(10**6), 10**16, 10_000 * 31_557_600 * 10**6, -10_000 * 31_557_600 * 10**6]
INTERVALS: list[Any] = [
    *(f"{count} microseconds" for count in MICROSECONDS[:5]),
    "10000 years",
    "-10000 years",
    "178000000 years",
]


@contextmanager
def any_dates() -> Iterator[None]:
    """MariaDB and MySQL store zero dates only in this mode. Later tests have the same session."""
    if connection.vendor != "mysql":
        yield
        return
    set_sql_mode("''")
    yield
    set_sql_mode("DEFAULT")


def set_sql_mode(mode: str) -> None:
    connection.ensure_connection()
    with connection.connection.cursor() as cursor:  # the driver's: a transaction may have failed
        cursor.execute(f"SET SESSION sql_mode = {mode}")


def columns() -> Iterator[tuple[type[Model], list[str]]]:
    """Each column that something can be written to, together with others of its table and type: a few, because their
    rows have to fit onto one page of a list."""
    for model in MODELS:
        fields = [f for f in model._meta.concrete_fields if not (f.generated or isinstance(f, models.BigAutoField))]
        for kind in dict.fromkeys(map(type, fields)):
            names = [field.name for field in fields if type(field) is kind]
            most = 2 if issubclass(kind, models.JSONField) else 4
            for first in range(0, len(names), most):
                yield model, names[first : first + most]


def values(field: models.Field[Any, Any]) -> list[Any]:
    """What nobody should write into this column."""
    nothing: list[object] = [None] if field.null else []
    return [*nothing, *_values(field)]


def _values(field: models.Field[Any, Any]) -> list[Any]:  # noqa: C901
    is_loose = connection.vendor == "sqlite"
    match field:
        case models.CharField() | models.TextField():
            return list(TEXTS)
        case models.DateTimeField():
            return [*INSTANTS, *MORE_INSTANTS[connection.vendor]]
        case models.DurationField():
            if connection.vendor == "postgresql":
                return list(INTERVALS)
            return [*MICROSECONDS, "nonsense"] if is_loose else list(MICROSECONDS)
        case models.JSONField():
            return [*DOCUMENTS, *MORE_DOCUMENTS[connection.vendor]]
        case models.UUIDField():
            return ["nonsense"] if is_loose else [uuid4().hex]
        case models.BooleanField():
            return [True, False, *([5] if is_loose else [])]
        case models.IntegerField():
            least, most = connection.ops.integer_field_range(field.get_internal_type())
            return [0, -1, least, most, *(["nonsense"] if is_loose else [])]
    raise AssertionError(field)


def spoil(row: Model, column: str, value: Any) -> bool:
    """Write the value past Django. ``False``: the database refuses it, and the row is gone."""
    table, key = row._meta.db_table, row._meta.pk
    assert key.column
    field = row._meta.get_field(column)
    marker = "%s::text::jsonb" if isinstance(field, models.JSONField) and connection.vendor == "postgresql" else "%s"
    quote = connection.ops.quote_name
    sql = f"UPDATE {quote(table)} SET {quote(column)} = {marker} WHERE {quote(key.column)} = %s"
    try:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(sql, [value, key.get_db_prep_value(row.pk, connection)])
    except (Error, OverflowError):
        type(row)._default_manager.filter(pk=row.pk).delete()
        return False
    return True


def plant(model: type[Model], column: str, job: Job, value: Any) -> int:
    """One row of the job, or a few, with this value. Returns how many the database stores."""
    return sum(spoil(row, column, value) for row in _rows(model, job))


def _rows(model: type[Model], job: Job) -> list[Model]:
    now, name = DBNow(), job.name
    by: dict[str, Any] = {"hostname": "web-1", "pid": 4711}
    at_work = by | {"token": uuid4(), "job_name": name}
    facts: list[dict[str, Any]]
    if model is JobLock:
        times = {"acquired_at": now, "heartbeat_at": now, "expires_at": now + 5 * MINUTE, "heartbeat_interval": BEAT}
        facts = [at_work | times | {"name": name, "sent_at": now}]
    elif model is JobStatus:
        assert job.policy
        schedule = job.policy.schedule
        follows = {"schedule": schedule.text, "time_zone": schedule.time_zone, "next_slot": newest_slot(job)}
        past = {"last_slot": newest_slot(job, back=1), "last_started_at": now - MINUTE, "last_finished_at": now}
        facts = [follows | past | {"name": name, "fence": 5, "token": uuid4(), "run_count": 9, "mean_duration": MINUTE}]
    elif model is JobRun:
        facts = [
            at_work | {"token": uuid4(), "fence": 5, "trigger": "one_off", "started_at": now, "status": status} | more
            for status, more in {
                "running": {},
                "failed": {"finished_at": now, "duration": BEAT, "acquire_duration": BEAT, "error": "ValueError: 5"},
            }.items()
        ]
    elif model is OneOffJob:
        facts = [
            at_work | {"token": uuid4(), "run_after": now - timedelta(hours=1), "created_at": now, "status": status}
            for status in ("waiting", "in_progress", "failed")
        ]
    else:
        facts = [by | {"key": name, "queues": ["mail"], "seen_at": now}]
    return [model._default_manager.create(**columns) for columns in facts]
