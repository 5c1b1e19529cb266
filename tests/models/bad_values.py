"""Values that no server writes into a column, but somebody may: with psql, a script or a restored dump.

Each is a piece of SQL. Most databases refuse most of them.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.db import Error, connection, models, transaction

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

DEEP, LONG = 1_500, 5_000


def quoted(*texts: str) -> list[str]:
    return [f"'{text}'" for text in texts]


#: SQLite stores anything anywhere. These are Latin-1, half a character, half a surrogate pair, NUL and no text at all.
BYTES = ["CAST(x'e9616263' AS TEXT)", "CAST(x'616263e9' AS TEXT)", "CAST(x'eda080' AS TEXT)", "CAST(x'610062' AS TEXT)"]
BLOBS = ["x''", "x'00ff'", "x'61'"]
#: The same for the servers.
SENT = {"sqlite": [*BYTES, *BLOBS], "postgresql": [r"E'\xe9'", r"U&'\0000'"], "mysql": ["x'e9'", "x'00'", "x'eda080'"]}
INSTANTS = quoted(
    *("infinity", "-infinity", "0044-03-15 12:00:00 BC", "10000-01-01 00:00:00+00", "294276-12-31 00:00:00+00"),
    *(
        "0000-00-00 00:00:00",
        "0001-01-01 00:00:00",
        "0999-12-31 00:00:00",
        "9999-12-31 23:59:59",
        "2026-02-31 00:00:00",
    ),
    *("2026-00-00 00:00:00", "5000 rubbish", "12:00", "now", "", "2026-01-01 00:00:00+25:00"),
    *("2026-01-01T00:00:00Z", "1970-01-01 00:00:00", "9998-12-31 23:59:59", "1000-01-01 00:00:00", "2026-01-01"),
)
WHOLE = ["0", "-1", *(str(2**bits - less) for bits in (31, 32, 62, 63, 64) for less in (1, 0)), "1.5", "1e300"]
NUMBERS = [*WHOLE, str(-(2**31)), str(-(2**63)), "1000000000", "'abc'", "''", "NULL"]
TEXTS = [
    *quoted("", " ", "\x1b[31m", "\r\n", "\u202e", "\ufeff", "x" * LONG, "infinity", "0", "null", "\U0001f600", "%s{}"),
    *("5", "2.5", "NULL"),
]
UUIDS = [*quoted("", "nonsense", "0" * 32, "0" * 31, "F" * 32, "{00000000-0000-0000-0000-000000000001}"), "5", "NULL"]
SWITCHES = ["2", "-1", "1.5", *quoted("", "true", "yes", "nonsense"), "NULL"]
SPANS = {
    "postgresql": quoted("-1 day", "0", "1000000 years", "-170000000 years", "infinity", "999999999 days", "1 month"),
}
DOCUMENTS = [
    *quoted(
        "", "{", "null", "true", "5", '"x"', "[]", "{}", "[null]", '{"done": "x", "total": [], "line": {}}', "[[[1]]]"
    ),
    *quoted('["a", 5, null, {}]', "NaN", '{"": ""}', '{"done": 1e999, "total": -1}', f"[{'9' * LONG}]", '["\\u0000"]'),
    f"'{'[' * DEEP}{']' * DEEP}'",
    f"'{'[' * 500}{']' * 500}'",
    "5",
]


def values_of(field: models.Field[Any, Any]) -> Sequence[str]:
    """The values for this column of this database."""
    kinds: dict[type[models.Field[Any, Any]], Sequence[str]] = {
        models.DateTimeField: [*INSTANTS, "0", "2460000.5", str(2**63 - 1)],
        models.IntegerField: NUMBERS,
        models.DurationField: SPANS.get(connection.vendor, NUMBERS),
        models.BooleanField: SWITCHES,
        models.UUIDField: UUIDS,
        models.JSONField: DOCUMENTS,
        models.CharField: TEXTS,
        models.TextField: TEXTS,
    }
    if connection.vendor == "mysql" and isinstance(field, models.AutoField | models.BigAutoField):
        # After its greatest number the table takes no row, and MySQL allows no constraint on such a column.
        return ["0", "-1", "1.5", "'abc'", "NULL"]
    found = next(values for kind, values in kinds.items() if isinstance(field, kind))
    return [*found, *SENT[connection.vendor]]


def columns() -> Iterator[models.Field[Any, Any]]:
    """Each column of each table that may be written, so that a new one is tried as well."""
    for model in tables():
        yield from (field for field in model._meta.concrete_fields if not field.generated)


def tables() -> list[type[models.Model]]:
    return [model for model in apps.get_app_config("django_singlejob").get_models() if not model._meta.proxy]


def write(field: models.Field[Any, Any], value: str, key: Any) -> bool:
    """Write the value into the column of this row, past Django. Returns ``False`` if the database refuses it."""
    is_text = value.startswith("'")
    sql = f'UPDATE {field.model._meta.db_table} SET "{field.column}" = {"%s" if is_text else value}'
    sql = f"{sql} WHERE {field.model._meta.pk.column} = %s"
    with suppress(Error), transaction.atomic(), connection.cursor() as cursor:
        if connection.vendor == "mysql":  # as old servers and careless scripts do
            cursor.execute("SET SESSION sql_mode = 'ANSI_QUOTES,ALLOW_INVALID_DATES'")
        cursor.execute(sql, [value[1:-1], key] if is_text else [key])
        return bool(cursor.rowcount == 1)
    return False
