"""The tables of this package, before there is a lock: all servers may create them at once, and one of them does."""

from django.db import DatabaseError, connections
from django.db.migrations import Migration
from django.db.migrations.exceptions import MigrationSchemaMissing
from django.db.migrations.executor import MigrationExecutor

from django_singlejob.database import errors
from django_singlejob.database.transactions import alias
from django_singlejob.database.unusable import place_of
from django_singlejob.exceptions import DatabaseUnusable, Lack
from django_singlejob.management.unfinished import remedy
from django_singlejob.process.clock import backoff, local_now, sleep
from django_singlejob.process.received_signals import is_shutdown_requested

OURS = "django_singlejob"


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
