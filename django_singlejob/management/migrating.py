"""Migrations: of our own tables, before there is a lock, where all servers may create them at once, and one does; and
those that were begun and not finished, on a database that does not roll back DDL."""

from contextlib import suppress
from typing import TYPE_CHECKING

from django.db import DEFAULT_DB_ALIAS, DatabaseError, Error, connections
from django.db.migrations import Migration
from django.db.migrations.exceptions import MigrationSchemaMissing
from django.db.migrations.executor import MigrationExecutor

from django_singlejob.database import errors
from django_singlejob.database.transactions import alias
from django_singlejob.database.unusable import place_of
from django_singlejob.exceptions import DatabaseUnusable, Lack
from django_singlejob.jobs.names import MIGRATE_LOCK
from django_singlejob.models.runs import runs
from django_singlejob.process.clock import backoff, instant_in_words, local_now, sleep
from django_singlejob.process.received_signals import is_shutdown_requested

if TYPE_CHECKING:
    from django_singlejob.models import JobRun

OURS = "django_singlejob"

_HOW = {"abandoned": "its process died", "interrupted": "it was interrupted", "failed": "it failed"}


def migrate_ours(give_up_at: float) -> None:
    """Apply the migrations of this package that are left, unless another process is faster: then wait until it has
    done so, but no longer than until ``give_up_at``, as ``local_now()``. After a signal this returns at once.

    This is safe because each migration of ours begins with a statement that only one process can carry out, such as a
    CREATE TABLE: all others fail there.

    Raises ``DatabaseUnusable``.
    """
    for pause in backoff():
        sleep(pause)
        try:
            _apply_what_is_left()
        except DatabaseError as error:
            _raise_unless_raced(error, is_late=local_now() >= give_up_at)
        else:
            return
        if is_shutdown_requested():
            return


def _apply_what_is_left() -> None:
    executor = MigrationExecutor(connections[alias()])
    targets = [node for node in executor.loader.graph.leaf_nodes() if node[0] == OURS]
    if executor.migration_plan(targets):
        # Not the command: its signals are sent once, when everything else is migrated.
        executor.migrate(targets)


def _raise_unless_raced(error: DatabaseError, *, is_late: bool) -> None:
    """Raise the error, unless it may mean that another process was faster."""
    # Django raises its own error in place of the database's if it has no table in which to record migrations.
    cause = error.__context__ if isinstance(error, MigrationSchemaMissing) and error.__context__ else error
    lack = errors.lack(cause)
    if lack is None and errors.is_connection_lost(cause):
        raise cause
    if is_late or lack not in (None, Lack.TABLES):
        message = f"The tables of {OURS} cannot be created in the database {alias()!r} ({place_of(alias())})"
        raise DatabaseUnusable(
            f"{message}: {errors.words_of(cause)}. {_todo(lack)}", lack=lack or Lack.TABLES, is_lasting=True
        ) from error
    connections[alias()].close()  # it may be in any state


def _todo(lack: Lack | None) -> str:
    if lack in (Lack.RIGHTS, Lack.LOGIN):
        return "Migrate as a user that may create tables."
    if lack in (Lack.DATABASE, Lack.WRITES):
        return f"Correct DATABASES[{alias()!r}]."
    migration = _first_left()
    if migration is None or connections[alias()].features.can_rollback_ddl:
        return "Run the command again."
    return f"If a process died while it did so: {remedy(migration, alias(), command='migrate')}"


def _first_left() -> Migration | None:
    executor = MigrationExecutor(connections[alias()])
    targets = [node for node in executor.loader.graph.leaf_nodes() if node[0] == OURS]
    return next((migration for migration, _ in executor.migration_plan(targets)), None)


# --- a migration that was cut off


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
