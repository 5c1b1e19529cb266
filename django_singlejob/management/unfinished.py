"""Migrations that were begun and not finished, on a database that does not roll back DDL."""

from contextlib import suppress
from typing import TYPE_CHECKING

from django.db import DEFAULT_DB_ALIAS, DatabaseError, Error, connections
from django.db.migrations import Migration

from django_singlejob.database import errors
from django_singlejob.jobs.names import MIGRATE_LOCK
from django_singlejob.models.runs import runs
from django_singlejob.process.clock import instant_in_words

if TYPE_CHECKING:
    from django_singlejob.models import JobRun

_HOW = {"abandoned": "its process died", "interrupted": "it was interrupted", "failed": "it failed"}


def explanation(error: DatabaseError, migration: Migration, database: str) -> str:
    """What to do about the error of the first migration that was applied, if an earlier attempt has left a part of that
    migration in the database; empty if nothing suggests that."""
    if connections[database].features.can_rollback_ddl or not errors.is_done_before(error):
        return ""
    former = None
    with suppress(Error):  # the history only reports
        former = _former_attempt()
    if former is None:
        return ""
    return (
        f"{migration} cannot be applied: {errors.words_of(error)}. An earlier attempt did not finish it: run "
        f"{former.pk} on {former.hostname}, which began at {instant_in_words(former.started_at)} "
        f"({_HOW[former.status]}). {remedy(migration, database)}"
    )


def _former_attempt() -> "JobRun | None":
    """The last attempt since the last success that was cut off, or else the first one that failed: later ones may have
    failed because of it. ``None`` if there was none."""
    ended = runs().filter(job_name=MIGRATE_LOCK).exclude(status="running")
    success = ended.filter(status="successful").order_by("-pk").values_list("pk", flat=True).first()
    since = ended.filter(pk__gt=success or 0)
    return since.exclude(status="failed").order_by("-pk").first() or since.order_by("pk").first()


def remedy(migration: Migration, database: str, *, command: str = "singleton_migrate") -> str:
    """What to do about a migration of which only a part is in the database."""
    option = "" if database == DEFAULT_DB_ALIAS else f" --database={database}"
    words = f"{migration.app_label} {migration.name}{option}"
    return (
        f"{connections[database].display_name} does not roll back DDL, so a part of {migration} may be in the "
        f"database. Compare it with what manage.py sqlmigrate {words} prints. Then either undo that part by hand and "
        f"run manage.py singleton_migrate again, or carry out the rest by hand and run manage.py {command} {words} "
        "--fake."
    )
