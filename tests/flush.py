"""How the tables are emptied after a test that commits."""

from __future__ import annotations

from typing import Any

from django.db.backends.postgresql.operations import DatabaseOperations

#: What a larger table holds, in bytes, is not left to the next tests: they would read all of it.
LARGE = 1_000_000

truncate = DatabaseOperations.sql_flush


def delete(self: DatabaseOperations, style: Any, tables: list[str], **options: bool) -> list[str]:
    """The statements that empty these tables on PostgreSQL, and keep their files.

    A TRUNCATE makes new files, and the next checkpoint has to sync all of them: tens of thousands after some minutes.
    Each DROP DATABASE waits for that.
    """
    if not tables or _are_large(self, tables):
        return list(truncate(self, style, tables, **options))
    names = [self.quote_name(table) for table in tables]
    # Locked as a TRUNCATE does, so that a write of a process that was killed is over.
    lock = f"LOCK TABLE {', '.join(names)} IN ACCESS EXCLUSIVE MODE"
    return [lock, *(f"DELETE FROM {name}" for name in names)]


def _are_large(operations: DatabaseOperations, tables: list[str]) -> bool:
    with operations.connection.cursor() as cursor:
        sizes = "SELECT 1 FROM pg_class WHERE relname = ANY(%s) AND pg_total_relation_size(oid) > %s"
        cursor.execute(sizes, [tables, LARGE])
        return cursor.fetchone() is not None
